"""``assay study``: a plan to its verdict."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Plugins, load_plugins, print_json, writing

if TYPE_CHECKING:
    from assay.study import DryRun, StudyEvent, StudyResult


def run(
    plan: Annotated[str | None, typer.Argument(metavar="NAME|FILE", help="A shipped study, or a plan file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Default: studies/<name>.")] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Runs, CPU-minutes and smallest visible effect; no run.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Also the arms that run only then.")] = False,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Training processes.")] = 2,
    listed: Annotated[bool, typer.Option("--list", help="The studies that come with assay.")] = False,
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Run a study to its verdict and report.

    The same command goes on after Ctrl-C or a kill.

    \b
    Examples:
      assay study first-assay
      assay study first-assay --dry-run
      assay study my-plan.toml --out studies/mine --json
    """
    load_plugins(plugins)
    if listed:
        _print_list(json)
        return
    if plan is None:
        raise typer.BadParameter("which study? see assay study --list", param_hint="NAME|FILE")
    if dry:
        _print_dry(plan, full, json)
        return
    result, page = conduct(plan, out, workers=workers, full=full, plugins=plugins or ())
    if json:
        print_json(result.to_dict())
    else:
        print_answer(result, page)


def conduct(
    plan: str, out: Path | None, *, workers: int = 2, full: bool = False, plugins: Sequence[Path] = ()
) -> tuple[StudyResult, Path]:
    """Run a study under its live table and write its page."""
    import shlex

    from assay.report import write_study_page
    from assay.study import StudyInterrupted, run_study

    words = ["assay", "study", plan, *(["--full"] if full else [])]
    command = shlex.join(words + [word for path in plugins for word in ("--plugin", str(path))])
    try:
        with _live() as show:
            result = run_study(plan, out, workers=workers, full=full, on_event=show, command=command)
    except StudyInterrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(130) from None
    page = result.folder / "report.html"
    with writing(page):
        write_study_page(result.to_dict(), page)
    return result, page


@contextmanager
def _live() -> Iterator[Callable[[StudyEvent], None]]:
    """What shows the events: a table that stays in place on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    from rich.console import Console
    from rich.live import Live

    table = _Table()
    with Live(table, console=Console(stderr=True), refresh_per_second=4, transient=True):
        yield table.show


class _Lines:
    """One line of progress at most every ten seconds."""

    def __init__(self) -> None:
        self._last = 0.0

    def show(self, event: StudyEvent) -> None:
        now = time.monotonic()
        if event.kind in ("planned", "crashed") or now - self._last > 10:
            self._last = now
            typer.echo(_headline(event), err=True)


class _Table:
    """The head line and a row for each run in progress."""

    def __init__(self) -> None:
        self._event: StudyEvent | None = None
        self._running: dict[str, StudyEvent] = {}

    def show(self, event: StudyEvent) -> None:
        self._event = event
        if event.use is None:
            return
        if event.kind in ("started", "step"):
            self._running[event.use.digest] = event
        else:
            self._running.pop(event.use.digest, None)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        if self._event is None:
            return "reading the plan"
        grid = Table.grid(padding=(0, 2))
        for event in self._running.values():
            use = event.use
            if use is None:
                continue
            loss = "" if event.loss is None else f"loss {event.loss:.3f}"
            grid.add_row(use.part, use.arm, f"lr {use.lr:g}", f"seed {use.seed}", f"update {event.step}", loss)
        bar = ProgressBar(total=max(self._event.total, 1), completed=self._event.done, width=60)
        return Group(_headline(self._event), bar, grid)


def _headline(event: StudyEvent) -> str:
    left = "" if event.eta_s is None else f", about {_minutes(event.eta_s)} left"
    return f"{event.done} of {event.total} runs done, {event.alive} alive, {event.running} running{left}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def print_answer(result: StudyResult, page: Path) -> None:
    """The verdict in plain words, and where the report lies."""
    from assay.cli.tables import console, heading

    screen, record = console(), result.to_dict()
    screen.print(heading(record["study"]["question"]))
    for sentence in result.answer:
        screen.print(sentence)
    for part in record["parts"]:
        screen.print()
        screen.print(heading(part["title"]))
        for sentence in part["sentences"]:
            screen.print(f"  {sentence}")
    for warning in record.get("warnings", []):
        screen.print(f"warning: {warning}")
    screen.print()
    typer.echo(f"report: {page.resolve()}")  # never wrapped


def _print_dry(plan: str, full: bool, json: bool) -> None:
    from assay.study import dry_run

    found: DryRun = dry_run(plan, full)
    if json:
        print_json(found.to_dict())
        return
    from assay.cli.tables import console, heading, pairs, ruled

    screen = console()
    screen.print(heading(found.title))
    more = "" if found.runs_at_most == found.runs else f" (at most {found.runs_at_most})"
    most = "" if found.cpu_seconds_at_most == found.cpu_seconds else f" (at most {found.cpu_seconds_at_most / 60:.0f})"
    rows = [("question", found.question), ("runs", f"{found.runs}{more}")]
    rows.append(("CPU-minutes", f"about {found.cpu_seconds / 60:.0f}{most}"))
    if found.mde is not None:
        m = found.mde
        effect = f"{m['nats']:.3f} nats = {m['sd']:.2f} seed sd, with {m['n']} seeds an arm, power {m['power']:g}"
        rows.append(("smallest visible effect", effect))
    screen.print(pairs(rows))
    cells = [
        (
            a["part"],
            a["label"],
            "" if a["value"] is None else str(a["value"]),
            f"{a['params']:,}",
            f"{a['flops_per_token']:,}",
        )
        for a in found.arms
    ]
    screen.print()
    screen.print(ruled(("part", "arm", "value", "parameters", "training FLOPs a token"), cells, right=(2, 3, 4)))
    for warning in found.warnings:
        screen.print(f"warning: {warning}")


def _print_list(json: bool) -> None:
    from assay.study import load_plan, plan_names

    plans = [load_plan(name) for name in plan_names()]
    rows = [{"name": p.name, "title": p.title, "question": p.question} for p in plans]
    if json:
        print_json(rows)
        return
    from assay.cli.tables import console, pairs

    console().print(pairs([(r["name"], [r["title"], r["question"]]) for r in rows]))
