"""``assay diff``: what changes between two recipes, and what the change costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import (
    AsJson,
    Batch,
    Dtype,
    Overrides,
    Plugins,
    RecipeName,
    SeqLen,
    cost_of,
    load_plugins,
    load_recipe,
    print_json,
)
from assay.cli.errors import UserError
from assay.cli.techniques import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.cost import Budget
    from assay.recipe import Recipe
    from assay.recipe.diff import Change, RecipeDiff

After = Annotated[
    str | None, typer.Argument(metavar="[OTHER]", help="The recipe to compare with; RECIPE with --set when left out.")
]

_NAME = 20  # letters of a recipe's name that fit over a column
# what a change costs, and how it is said: dimension, place in a budget, title
_ROWS = (
    ("memory", "params.total", "parameters"),
    ("memory", "params.active", "active parameters"),
    ("memory", "params.non_embedding", "non-embedding parameters"),
    ("memory", "memory.weights_bytes", "weights"),
    ("memory", "memory.activations.bytes", "activations"),
    ("memory", "cache.bytes_per_token", "cache a token"),
    ("memory", "cache.bytes", "cache at that length"),
    ("compute", "flops.train_per_token", "training FLOPs a token"),
    ("compute", "flops.decode_per_token", "decoding FLOPs a token"),
    ("bandwidth", "intensity.train.bytes", "training traffic"),
    ("bandwidth", "intensity.decode.bytes", "decoding traffic"),
)


def run(
    recipe: RecipeName,
    other: After = None,
    seq_len: SeqLen = None,
    batch: Batch = 1,
    dtype: Dtype = "bf16",
    techniques: Annotated[
        bool, typer.Option("--techniques", help="What each technique of the field would cost or save in RECIPE.")
    ] = False,
    json: AsJson = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
) -> None:
    """What changes from one recipe to another, and its price.

    The change is from RECIPE to OTHER; its price is in memory, compute and bandwidth. Both are costed at one length:
    --seq-len, or the smaller max_seq_len. --set lays its values over OTHER; without OTHER, over RECIPE, which is then
    compared with itself.

    \b
    Examples:
      assay diff llama-2-7b llama-3.1-8b
      assay diff llama-2-7b --set block.mixer.n_kv_heads=8
      assay diff llama-2-7b --techniques --seq-len 4096
    """
    if techniques:
        if other is not None or overrides:
            raise UserError("--techniques takes one RECIPE as it is: no second recipe, no --set")
        load_plugins(plugins)
        tell(recipe, batch, seq_len, dtype, json)
        return
    from assay.recipe.diff import diff

    if other is None and not overrides:
        raise UserError("nothing to compare with: give a second recipe, or --set KEY.PATH=VALUE")
    load_plugins(plugins)
    a, b = load_recipe(recipe), load_recipe(other or recipe, overrides)
    if b.name == a.name and overrides:
        b = b.model_copy(update={"name": f"{b.name} as set"})
    found = diff(a, b)
    length = min(a.max_seq_len, b.max_seq_len) if seq_len is None else seq_len
    budgets = [cost_of(r, batch=batch, seq_len=length, dtype=dtype) for r in (a, b)]
    if json:
        settings = {"seq_len": length, "batch": batch, "dtype": dtype}
        print_json({**found.to_dict(), "cost": {**settings, "rows": _cost_rows(budgets)}})
    else:
        _print_page(found, (a, b), budgets)


def _cost_rows(budgets: Sequence[Budget]) -> list[dict[str, Any]]:
    before, after = (b.to_dict() for b in budgets)
    conventions = budgets[0].conventions
    rows = []
    for dimension, name, title in _ROWS:
        x, y = _at(before, name), _at(after, name)
        rows.append(
            {
                "dimension": dimension,
                "key": name,
                "title": title,
                "before": x,
                "after": y,
                "ratio": y / x if x else None,
                "convention": conventions.get(name) or conventions.get(name.partition(".")[0], ""),
            }
        )
    return rows


def _at(budget: dict[str, Any], path: str) -> int:
    found: Any = budget
    for key in path.split("."):
        found = found[key]
    return int(found)


def _print_page(found: RecipeDiff, recipes: tuple[Recipe, Recipe], budgets: Sequence[Budget]) -> None:
    from assay.cli import numbers
    from assay.cli.tables import console, dim, heading, indented, pairs, ruled

    page = console()
    page.print(heading(f"{found.headline.partition(':')[0]}."))
    for where, changes in _by_place(found.changes).items():
        page.print()
        if where:
            page.print(f"In {where}:")
        for change in changes:
            page.print(indented(pairs([("-", _sentence(change))])))
    before = budgets[0]
    page.print()
    sequences = f"{before.batch:,} sequence{'s' if before.batch > 1 else ''} of {before.seq_len:,} tokens"
    page.print(heading(f"What it costs, for {sequences} in {before.dtype}"))
    say: dict[str, Callable[[int], str]] = {
        "params": numbers.short_count,
        "flops": numbers.short_flops,
        "cache": numbers.short_size,
        "memory": numbers.short_size,
        "intensity": numbers.short_size,
    }
    rows, notes, last = [], [], ""
    dense = all(b.params.active == b.params.total for b in budgets)
    for row in _cost_rows(budgets):
        if dense and row["key"] == "params.active":
            continue
        short = say[row["key"].partition(".")[0]]
        rows.append(
            (
                "" if row["dimension"] == last else row["dimension"],
                row["title"],
                short(row["before"]),
                short(row["after"]),
                numbers.ratio(row["before"], row["after"]),
            )
        )
        last = row["dimension"]
        notes.append((row["title"], row["convention"]))
    page.print()
    names = [r.name for r in recipes]
    if max(map(len, names)) > _NAME:
        names = ["before", "after"]
    page.print(indented(ruled(("", "", *names, "ratio"), rows, right=(2, 3, 4))))
    page.print()
    for title, note in notes:
        page.print(indented(dim(f"{title}: {note}")))


def _sentence(change: Change) -> str:
    from assay.recipe.diff import sentence

    return sentence(change.clause)


def _by_place(changes: Sequence[Change]) -> dict[str, list[Change]]:
    """Changes by the layers that they hold for, those of the whole model first."""
    out: dict[str, list[Change]] = {"": []}
    for change in changes:
        out.setdefault(change.where, []).append(change)
    return {where: group for where, group in out.items() if group}
