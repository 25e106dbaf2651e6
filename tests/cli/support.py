"""A verb as it is typed: what it prints, its JSON, and what it says of a fault."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from assay.cli.app import app


def assay(*argv: str, columns: int = 100) -> Result:
    return CliRunner().invoke(app, list(argv), env={"COLUMNS": str(columns), "NO_COLOR": "1"}, prog_name="assay")


def printed(*argv: str, columns: int = 100) -> str:
    done = assay(*argv, columns=columns)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def read(*argv: str) -> Any:
    return json.loads(printed(*argv, "--json"))


def fault(*argv: str) -> str:
    done = assay(*argv)
    assert done.exit_code == 2, done.output
    assert not done.stdout
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert len(done.stderr.splitlines()) < 25
    return str(done.stderr)
