"""What is known before a model is built is told without torch, and at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

_MARK = "loaded-modules:"
_TELL = f"import sys; print({_MARK!r} + ' '.join(sorted(sys.modules)), file=sys.stderr)"
_CPU_SECONDS = 0.5


def _python(body: str) -> tuple[str, set[str]]:
    """Run ``body`` in a fresh interpreter: what it printed, and the top-level packages it loaded."""
    done = subprocess.run([sys.executable, "-c", f"{body}\n{_TELL}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    marked = [line for line in done.stderr.splitlines() if line.startswith(_MARK)]
    return done.stdout, {name.partition(".")[0] for name in marked[-1].removeprefix(_MARK).split()}


def _verb(*argv: str) -> tuple[str, set[str]]:
    """The same for a command line, through the function that the ``assay`` script calls."""
    body = f"""
import sys
from assay.cli.app import main
sys.argv = ["assay", *{list(argv)!r}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    return _python(body)


@pytest.mark.parametrize("module", ["assay", "assay.recipe", "assay.cost", "assay.cli.app"])
def test_import_loads_no_torch(module: str) -> None:
    _, loaded = _python(f"import {module}")
    assert "assay" in loaded
    assert not loaded & {"torch", "transformers"}


def test_a_recipe_is_loaded_and_costed_without_torch() -> None:
    _, loaded = _python("import assay; assay.budget(assay.load('llama-3.1-8b'))")
    assert not loaded & {"torch", "transformers", "numpy", "scipy"}


def test_help_loads_no_torch() -> None:
    printed, loaded = _verb("--help")
    assert "budget" in printed
    assert not loaded & {"torch", "transformers", "numpy", "scipy"}


def test_budget_loads_no_torch() -> None:
    printed, loaded = _verb("budget", "llama-3.1-8b", "--json")
    assert json.loads(printed)["params"]["total"] == 8_030_261_248
    assert not loaded & {"torch", "transformers", "numpy", "scipy"}


def test_budget_takes_less_than_half_a_cpu_second() -> None:
    resource = pytest.importorskip("resource")
    script = Path(sysconfig.get_path("scripts")) / "assay"

    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [script, "budget", "llama-3.1-8b", "--json"],
            stdout=subprocess.DEVNULL,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return float(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    best = min(cpu_seconds() for _ in range(3))
    assert best < _CPU_SECONDS, f"{best:.2f} s"
