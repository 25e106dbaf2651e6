"""The technique-to-cost table of ``assay diff --techniques``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.cli.common import print_json
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.cost.techniques import TechniqueCost


def tell(recipe: str, batch: int, seq_len: int | None, dtype: str, json: bool) -> None:
    """Print what each technique would cost or save in a recipe."""
    from assay.cost.techniques import MEASURES, technique_costs

    try:
        found = technique_costs(recipe, batch=batch, seq_len=seq_len, dtype=dtype)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise UserError(f"{recipe}: {error}") from None
    if json:
        measures = [dict(zip(("dimension", "key", "title", "convention"), m, strict=True)) for m in MEASURES]
        print_json({"recipe": recipe, "measures": measures, "techniques": [t.to_dict() for t in found]})
        return
    _print(recipe, found)


def _print(recipe: str, found: list[TechniqueCost]) -> None:
    from assay.cli.tables import console, dim, heading, indented, pairs, ruled
    from assay.cost.techniques import MEASURES

    page = console()
    page.print(heading(f"What each technique changes in {recipe}, all else equal"))
    page.print()
    titles = ["", *(title.replace(" ", "\n") for _, _, title, _ in MEASURES)]
    rows = [(t.name, *(_change(t, key) for _, key, _, _ in MEASURES)) for t in found]
    page.print(indented(ruled(titles, rows, right=range(1, len(titles)))))
    page.print()
    page.print("What is said of it")
    page.print(indented(pairs([(t.name, f"{t.title}: {t.said}") for t in found])))
    page.print()
    for dimension, _, title, convention in MEASURES:
        page.print(indented(dim(f"{title} ({dimension}): {convention}")))
    page.print(indented(dim("Quality and stability are a study's to say: assay study --list")))


def _change(t: TechniqueCost, key: str) -> str:
    ratio = t.ratio(key)
    if ratio is None:
        return "new" if t.with_[key] else "same"
    if ratio == 1.0:
        return "same"
    return f"{ratio:.3g}x" if ratio >= 2 or ratio < 0.01 else f"{100 * (ratio - 1):+.2g}%"
