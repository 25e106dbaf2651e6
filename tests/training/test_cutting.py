"""A decayed model cut from any update: equal to the run that would decay there, the main run untouched."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from assay.cli.app import app
from assay.training import FolderError, RunError, cut, cutting, train
from assay.training.cutting import cut_config
from tests.training.test_run import config_for, numbers, own_cache, text, weights  # noqa: F401 - fixtures

SCHEDULE = {"kind": "constant", "lr": 3e-3, "warmup": 2}


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in sorted(folder.rglob("*"))
        if f.is_file()
    }


def main_run(text: Path, folder: Path, **changes: Any) -> Any:  # noqa: F811
    changes = {"schedule": SCHEDULE, "steps": 12, "checkpoint_every": 4, "eval_every": 4, **changes}
    config = config_for(text, **changes)
    train(config, folder)
    return config


@pytest.mark.parametrize("step", [2, 10, 12])
def test_a_cut_is_the_run_that_decays_there(step: int, text: Path, tmp_path: Path) -> None:  # noqa: F811
    """Before the first checkpoint, between two, at the end; with a mean of the weights and a growing batch."""
    ramp = {"kind": "linear", "start": 2, "tokens": 1024, "lr": "sqrt"}
    config = main_run(text, tmp_path / "main", ema=0.9, ramp=ramp)
    before = fingerprint(tmp_path / "main")
    record = cut(tmp_path / "main", step, 4, shape="1-sqrt")
    assert record.folder == tmp_path / f"main-cut-{step}-4"
    assert fingerprint(tmp_path / "main") == before
    train(cut_config(config, step, 4, shape="1-sqrt"), tmp_path / "scratch")
    rows, final = numbers(record.folder)
    want_rows, want_final = numbers(tmp_path / "scratch")
    if step == 12:  # the main run was evaluated once more, at its end
        assert weights(record.folder) == weights(tmp_path / "scratch")
        assert [r["loss"] for r in rows] == [r["loss"] for r in want_rows]
    else:
        assert (rows, final) == (want_rows, want_final)
    assert weights(record.folder) == weights(tmp_path / "scratch")
    assert record.digest != config.digest("x")
    assert rows[-1]["lr"] == 0.0
    assert len(rows) == step + 4


def test_a_run_in_progress_can_be_cut(text: Path, tmp_path: Path) -> None:  # noqa: F811
    config = config_for(text, schedule=SCHEDULE, steps=30)
    count = iter(range(100))
    assert train(config, tmp_path / "main", should_stop=lambda: next(count) >= 6).status == "interrupted"
    before = fingerprint(tmp_path / "main")
    assert cut(tmp_path / "main", 5, 3).status == "finished"
    assert fingerprint(tmp_path / "main") == before


def test_a_cut_that_was_killed_before_it_began_goes_on(
    text: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has copied by then is used, and the rows reach it."""
    main_run(text, tmp_path / "main")

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cutting, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            cut(tmp_path / "main", 12, 2)
    again = cut(tmp_path / "main", 12, 2)
    cut(tmp_path / "main", 12, 2, folder=tmp_path / "straight")
    assert numbers(again.folder) == numbers(tmp_path / "straight")
    assert weights(again.folder) == weights(tmp_path / "straight")


def test_what_cannot_be_cut(text: Path, tmp_path: Path) -> None:  # noqa: F811
    main_run(text, tmp_path / "main", steps=4, eval_every=0)
    with pytest.raises(RunError, match="1 to 4"):
        cut(tmp_path / "main", 5, 2)
    with pytest.raises(FolderError, match="no readable run"):
        cut(tmp_path / "nothing", 1, 2)
    manifest = tmp_path / "main" / "manifest.json"
    table = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**table, "digest": "0" * 64}))
    with pytest.raises(FolderError, match="not what they were"):
        cut(tmp_path / "main", 2, 2)


def test_the_verb(text: Path, tmp_path: Path) -> None:  # noqa: F811
    main_run(text, tmp_path / "main", steps=4)

    def assay(*argv: str) -> Any:
        return CliRunner().invoke(app, ["train", *argv])

    out = assay("--decay-from", f"{tmp_path}/main@3", "--decay", "2", "--json")
    assert out.exit_code == 0, out.output
    assert json.loads(out.stdout)["final"]["steps_done"] == 5
    for argv, words in (
        (("--decay-from", f"{tmp_path}/main@9", "--decay", "2"), "1 to 4"),
        (("--decay-from", f"{tmp_path}/main", "--decay", "2"), "FOLDER@STEP"),
        (("--decay-from", f"{tmp_path}/main@3"), "--decay N"),
        (("--decay-from", f"{tmp_path}/main@3", "--decay", "2", "--set", "seed=1"), "no --set"),
        ((), "one of the two"),
    ):
        bad = assay(*argv)
        assert (bad.exit_code, words in bad.stderr) == (2, True), bad.stderr
