"""``assay coord-check``: does what a model computes move alike at every width?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import (
    AsJson,
    Overrides,
    Plugins,
    RecipeName,
    command_line,
    load_plugins,
    load_recipe,
    print_json,
    writing,
)
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.recipe import Recipe
    from assay.training.coordinates import CoordinateCheck

KINDS = ("mup", "standard", "completep")


def run(
    recipe: RecipeName,
    widths: Annotated[
        str, typer.Option("--widths", metavar="N,N,...", help="Values of d_model, smallest first or not.")
    ] = "32,64,128,256",
    parametrization: Annotated[
        list[str] | None, typer.Option("--parametrization", metavar="KIND", help="Repeatable. Default: mup, standard.")
    ] = None,
    base: Annotated[
        int | None, typer.Option("--base-width", metavar="N", help="Where it changes nothing. Default: the smallest.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="KIND", help="adamw, adam_l2, sgd, muon, soap.")
    ] = "adamw",
    lr: Annotated[float, typer.Option("--lr", metavar="LR", help="At the base.")] = 3e-3,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Updates.", min=1)] = 5,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="Runs a width.", min=1)] = 3,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")] = None,
    json: AsJson = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
) -> None:
    """Does what a model learns depend on its width?

    Trains the recipe at several widths for a few updates and compares how far its logits move. Under muP the change
    does not depend on the width; under the standard parametrisation it grows with it, and a learning rate found at one
    width is wrong at another. The ratio is that of the largest to the smallest width.

    \b
    Examples:
      assay coord-check tiny/base
      assay coord-check tiny/base --widths 32,64,128,256 --json
      assay coord-check tiny/base --html coord.html
      assay coord-check tiny/qk-norm --parametrization completep --optimizer muon
    """
    load_plugins(plugins)
    found = load_recipe(recipe, overrides)
    kinds, sizes = _kinds(parametrization or ["mup", "standard"]), _widths(widths)
    if html is not None and not html.resolve().parent.is_dir():
        raise UserError(f"--html: {html}: there is no folder {html.resolve().parent}")
    if base is not None and base < 1:
        raise UserError(f"--base-width: not a width: {base}")
    checks = _checks(found, sizes, kinds, base=base, optimizer=optimizer, lr=lr, steps=steps, seeds=seeds)
    _check_finite(checks)
    ratios = {check.parametrization: check.ratio for check in checks}
    out: dict[str, Any] = {"recipe": found.name, "ratio": ratios, "checks": [check.to_dict() for check in checks]}
    if html is not None:
        _write_page(out, html)
        out["page"] = str(html.resolve())
    if json:
        print_json(out)
    else:
        _print(found, checks)
    if html is not None and not json:
        typer.echo(f"\npage: {html.resolve()}")


def _write_page(out: dict[str, Any], path: Path) -> None:
    from assay.report import write_coordinates_page

    with writing(path):
        write_coordinates_page({**out, "command": command_line("coord-check")}, path)


def _check_finite(checks: list[CoordinateCheck]) -> None:
    for check in checks:
        lost = [row.width for row in check.rows if not math.isfinite(row.logits[-1])]
        if lost:
            where = f"{check.parametrization}, width {lost[0]}"
            raise UserError(f"--lr: at {check.lr:g} the logits left the finite numbers ({where}); a lower one")


def _kinds(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in KINDS:
            raise UserError(f"--parametrization: no such kind {name!r}; known: {', '.join(KINDS)}")
    return tuple(dict.fromkeys(names))


def _widths(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--widths: not whole numbers: {text!r}; like 32,64,128,256") from None
    if len(set(sizes)) < 2 or len(set(sizes)) < len(sizes) or min(sizes) < 1:
        raise UserError(f"--widths: at least two different widths: {text!r}")
    return sizes


def _checks(
    recipe: Recipe,
    widths: list[int],
    kinds: tuple[str, ...],
    *,
    base: int | None,
    optimizer: str,
    lr: float,
    steps: int,
    seeds: int,
) -> list[CoordinateCheck]:
    """Under a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from assay.training.coordinates import coordinate_check

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=len(kinds) * len(widths) * seeds)
        done: Callable[[], None] = lambda: bar.advance(task)  # noqa: E731
        return [
            coordinate_check(
                recipe, widths, parametrization=kind, base_width=base, optimizer=optimizer, lr=lr, steps=steps,
                seeds=seeds, on_done=done,
            )
            for kind in kinds
        ]  # fmt: skip


def _print(recipe: Recipe, checks: list[CoordinateCheck]) -> None:
    from assay.cli.tables import console, heading, indented, ruled

    page = console()
    first = checks[0]
    page.print(f"{recipe.name}: RMS change of the logits after {len(first.rows[0].logits)} updates at lr {first.lr:g}")
    for check in checks:
        page.print()
        kind = check.parametrization
        at = "" if kind == "standard" else f", base width {check.base_width}"
        page.print(heading(f"{kind}{at}: {check.ratio:.2f} from the smallest to the largest width"))
        largest = max(row.logits[-1] for row in check.rows)
        rows = [
            (
                str(row.width),
                f"{row.params:,}",
                f"{row.logits[-1]:.3g}",
                f"{row.logits_sd:.1g}",
                f"{row.residual[-1]:.3g}",
                "#" * max(1, round(30 * row.logits[-1] / largest)),
            )
            for row in check.rows
        ]
        headings = ("width", "parameters", "logits", "sd", "stream", "")
        page.print(indented(ruled(headings, rows, right=(0, 1, 2, 3, 4))))
