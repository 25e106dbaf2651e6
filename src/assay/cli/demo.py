"""``assay demo``: the shipped study, from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.common import AsJson, print_json


def run(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The study's folder.")] = Path(
        "studies/first-assay"
    ),
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Training processes.")] = 2,
    json: AsJson = False,
) -> None:
    """The shipped study, from nothing to a report.

    Runs first-assay on the standard library's own sources.

    \b
    Example:
      assay demo
    """
    from assay.cli.study import conduct, print_answer

    result, page = conduct("first-assay", out, workers=workers)
    if json:
        print_json(result.to_dict())
    else:
        print_answer(result, page)
