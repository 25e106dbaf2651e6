"""``assay report``: the page of a study's or a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.common import AsJson, Plugins, load_plugins, print_json, writing
from assay.cli.errors import UserError


def run(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a study or of a run.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: FOLDER/report.html.")] = None,
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """The HTML page of a study or of a run, a running one too.

    One file that needs no network.

    \b
    Examples:
      assay report studies/first-assay
      assay report runs/tiny --out tiny.html
    """
    load_plugins(plugins)
    path = out if out is not None else folder / "report.html"
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if (folder / "metrics.jsonl").exists():
        _run_page(folder, path)
    else:
        from assay.report import write_study_page
        from assay.study import load_result

        result = load_result(folder).to_dict()
        with writing(path):
            write_study_page(result, path)
    if json:
        print_json({"report": str(path.resolve())})
    else:
        typer.echo(f"report: {path.resolve()}")


def _run_page(folder: Path, path: Path) -> None:
    from assay.cli.train_page import page_record
    from assay.report import write_run_page
    from assay.training import FolderError, load_record

    try:
        record = load_record(folder, unfinished=True)
    except FolderError as error:
        raise UserError(str(error)) from None
    page = page_record(record)
    with writing(path):
        write_run_page(page, path)
