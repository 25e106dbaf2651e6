"""``assay train``: one run, from its file to a folder that resumes."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Plugins, load_plugins, print_json, writing
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.cli.train_view import State
    from assay.training import RunConfig, RunRecord

_OTHERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what the one at the keyboard did not ask for


InitFrom = Annotated[
    Path | None, typer.Option("--init-from", metavar="RUN|HF_FOLDER", help="Begin from its weights, nothing else.")
]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="Tell tensorboard, wandb or trackio as well; repeatable."),
]


def run(
    file: Annotated[
        Path | None, typer.Argument(metavar="[RUN.toml]", help="The run: recipe, data, optimizer, schedule.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Default: runs/<name of the file>.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Lay a value over the run; repeatable.")
    ] = None,
    groups: Annotated[bool, typer.Option("--groups", help="Print every parameter's group, and stop.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start over instead of going on.")] = False,
    decay_from: Annotated[
        str | None, typer.Option("--decay-from", metavar="FOLDER@STEP", help="Cut a decayed model from a run.")
    ] = None,
    decay: Annotated[int | None, typer.Option("--decay", metavar="N", help="Updates of that decay.", min=1)] = None,
    shape: Annotated[
        str, typer.Option("--shape", metavar="SHAPE", help="Of that decay: linear, 1-sqrt, cosine.")
    ] = "linear",
    init_from: InitFrom = None,
    log: Log = None,
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Train one run; Ctrl-C saves, the same command goes on.

    \b
    Examples:
      assay train examples/tiny.toml
      assay train examples/tiny.toml --set steps=50 --out runs/short --json
      assay train examples/tiny.toml --set samples.every=50 --log tensorboard
      assay train examples/tiny.toml --init-from runs/tiny --out runs/on
      assay train examples/tiny.toml --groups
      assay train --decay-from runs/tiny@150 --decay 30
    """
    load_plugins(plugins)
    if (file is None) is (decay_from is None):
        raise UserError("give RUN.toml, or --decay-from FOLDER@STEP: one of the two")
    if file is not None and decay is not None:
        raise UserError("--decay goes with --decay-from; a run's own decay is in its schedule")
    if file is None and (sets or groups or restart or init_from or log):
        raise UserError(
            "--decay-from takes its settings from that run: no --set, --groups, --restart, --init-from, --log"
        )
    with _users_faults():
        if file is None:
            record = _cut(str(decay_from), decay, shape, out)
            _show(record, json)
            return
        config = _config(file, sets or [], log or [])
        if groups:
            _print_groups(config, json)
            return
        folder = out if out is not None else Path("runs") / file.stem
        record = _trained(config, folder, restart, init_from)
    _show(record, json)


def _trained(config: RunConfig, folder: Path, restart: bool, init_from: Path | None) -> RunRecord:
    from assay.cli.tokenize import opened
    from assay.cli.train_parts import sampler_of, start_from, state_of
    from assay.training import check_fits, train

    corpus = opened(config.data)
    check_fits(config, corpus)
    start = None if init_from is None else start_from(init_from)
    sampler = sampler_of(config, corpus)
    go = partial(train, config, folder, resume=not restart, corpus=corpus, start=start, sampler=sampler)
    return _watched(state_of(config), go)


def _cut(place: str, decay: int | None, shape: str, out: Path | None) -> RunRecord:
    """A decayed model from FOLDER@STEP."""
    from assay.training import cut

    folder, _, step = place.rpartition("@")
    if not folder or not step.isdecimal():
        raise UserError(f"--decay-from: FOLDER@STEP, like runs/tiny@150, not {place!r}")
    if decay is None:
        raise UserError("--decay-from needs --decay N, the updates of the decay")
    if shape not in ("linear", "1-sqrt", "cosine"):
        raise UserError(f"--shape: no such shape {shape!r}; known: linear, 1-sqrt, cosine")
    from assay.cli.train_view import State

    call = partial(cut, folder, int(step), decay, folder=out, shape=shape)  # type: ignore[arg-type]
    return _watched(State(int(step) + decay), call)


def _show(record: RunRecord, json: bool) -> None:
    """Page, numbers, exit code."""
    page = _page(record)
    if json:
        print_json({**record.to_dict(), "report": str(page)})
    else:
        _print_record(record, page)
    if record.status == "interrupted":
        raise typer.Exit(130)
    if record.status == "nonfinite":
        raise typer.Exit(1)


@contextmanager
def _users_faults() -> Iterator[None]:
    from assay.training import CheckpointError, CorpusError, DiskError, FolderError, SaveError

    try:
        yield
    except (DiskError, SaveError) as error:
        if getattr(error.__cause__, "errno", None) not in _OTHERS:
            raise UserError(str(error)) from None
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except (CheckpointError, CorpusError, FolderError) as error:
        raise UserError(str(error)) from None


def _config(file: Path, sets: list[str], log: list[str]) -> RunConfig:
    from assay.recipe.merge import apply_overrides
    from assay.training import RunConfig

    config = RunConfig.load(file)
    if sets:
        config = RunConfig.from_dict(apply_overrides(config.to_dict(), sets), f"{file} with --set")
    return config.changed(log=(*config.log, *log)) if log else config


def _watched(state: State, go: Callable[..., RunRecord]) -> RunRecord:
    """Train in view; the first Ctrl-C or SIGTERM asks for a checkpoint, the second ends at once."""
    from rich.console import Console

    from assay.cli.train_view import View

    stopping = False

    def ask(signum: int, frame: Any) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with View(state, Console(stderr=True)) as view:
            return go(on_step=view.feed, should_stop=lambda: stopping)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _page(record: RunRecord) -> Path:
    from assay.cli.train_page import page_record
    from assay.report import write_run_page

    path = record.folder / "report.html"
    page = page_record(record)
    with writing(path):
        write_run_page(page, path)
    return path


def _print_groups(config: RunConfig, json: bool) -> None:
    from assay.cli.tables import console, ruled
    from assay.model import build
    from assay.training.optim.groups import groups_table, optimizer_groups

    model = build(config.built, device="meta")
    rows = groups_table(optimizer_groups(model, config.optimizer, config.recipe, config.parametrization))
    if json:
        print_json(rows)
        return
    cells = [
        (
            r["name"], "x".join(map(str, r["shape"])) or "scalar", r["role"], r["rule"],
            f"{r['weight_decay']:g}", f"{r['lr_scale']:g}",
        )
        for r in rows
    ]  # fmt: skip
    console().print(ruled(("parameter", "shape", "role", "rule", "decay", "lr x"), cells, right=(4, 5)))


def _print_record(record: RunRecord, page: Path) -> None:
    from assay.cli.tables import console, pairs

    final, timing = record.final, record.final["timing"]
    rows: list[tuple[str, str]] = [("status", f"{record.status} after {final['steps_done']} updates")]
    if final["val_loss"] is not None:
        bits = "" if final["val_bits_per_byte"] is None else f" ({final['val_bits_per_byte']:.4f} bits a byte)"
        error = "" if final["val_stderr"] is None else f", +- {final['val_stderr']:.4f}"
        rows.append(("validation loss", f"{final['val_loss']:.4f} nats a token{bits}{error}"))
    step = timing["step_ms"]
    rows += [
        ("parameters", f"{final['params']:,}"),
        ("update", f"{step['median']:.1f} ms (quartiles {step['q25']:.1f}, {step['q75']:.1f})"),
        ("CPU", f"{timing['cpu_seconds']:.1f} s"),
        ("folder", str(record.folder)),
        ("report", str(page)),
    ]
    if timing.get("mfu") is not None:
        rows.append(("MFU", f"{timing['mfu']:.1%} of {timing['mfu_of']}"))
    rows += [("warning", w) for w in (*final.get("warnings", []), *timing.get("warnings", []))]
    if record.status == "interrupted":
        rows.append(("to go on", "the same command"))
    console().print(pairs(rows))
