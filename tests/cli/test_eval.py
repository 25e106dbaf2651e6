"""``assay eval`` where lm-eval is not installed, and its help; with it: ``tests/interop/test_lm_eval.py``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli.app import app


def run(*argv: str, code: int = 0) -> str:
    out = CliRunner().invoke(app, ["eval", *argv], prog_name="assay")
    assert out.exit_code == code, out.output
    return out.stdout if code == 0 else out.stderr


def test_without_lm_eval_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "assay.interop.lm_eval", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert "pip install 'assay-lm[eval]'" in run(str(tmp_path), "--tasks", "a", code=2)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (("--tasks", " , "), ("--tasks", "no task")),
        (("--tasks", "a", "--include-path", "nowhere"), ("--include-path", "nowhere")),
        (("--tasks", "a", "--dtype", "fp8"), ("--dtype", "fp8", "bf16")),
        (("--tasks", "a", "--limit", "0"), ("--limit",)),
        (("--tasks", "a", "--device", "tpu"), ("--device", "tpu")),
        (("--tasks", "a", "--device", "cuda:99"), ("--device", "cuda:99")),
    ],
)
def test_faults(argv: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path) -> None:
    told = run(str(tmp_path), *argv, code=2)
    for part in parts:
        assert part in told


def test_help_has_examples() -> None:
    examples = [line.strip() for line in run("--help").splitlines() if line.strip().startswith("assay ")]
    assert len(examples) >= 2
    assert all(shlex.split(example)[:2] == ["assay", "eval"] for example in examples)
