"""``assay list``: the recipes that come with assay, and the kinds that fill each slot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Plugins, load_plugins, load_recipe, print_json

_SUMMARY = {"mixer": 3, "ffn": 1, "residual": 1}  # clauses of a layer that its summary names

if TYPE_CHECKING:
    from assay.recipe import Recipe


def run(
    kinds: Annotated[bool, typer.Option("--kinds", help="List the kinds of every slot instead.")] = False,
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """The preset recipes, or the kinds that fill each slot.

    \b
    Examples:
      assay list
      assay list --kinds
    """
    load_plugins(plugins)
    if kinds:
        slots = _kinds()
        if json:
            print_json(slots)
        else:
            _print_kinds(slots)
        return
    rows = _presets()
    if json:
        print_json(rows)
    else:
        _print_presets(rows)


def _presets() -> list[dict[str, Any]]:
    from assay.cost.budget import count_params
    from assay.recipe import preset_names

    rows = []
    for name in preset_names():
        recipe = load_recipe(name)
        rows.append(
            {
                "name": name,
                "d_model": recipe.d_model,
                "n_layers": recipe.n_layers,
                "vocab_size": recipe.vocab_size,
                "max_seq_len": recipe.max_seq_len,
                "params": count_params(recipe).total,
                "summary": _summary(recipe),
                "notes": recipe.notes,
                "digest": recipe.digest,
            }
        )
    return rows


def _summary(recipe: Recipe) -> str:
    """The layers in a few names: mixer, position, span, feed-forward part, norms; a stroke where layers differ."""
    from assay.recipe.words import layer_clauses, sizes_of

    columns: dict[tuple[str, int], list[str]] = {}
    for layer in dict.fromkeys(recipe.layers):
        for part, said in layer_clauses(layer, sizes_of(recipe)).items():
            for i, clause in enumerate(said[: _SUMMARY[part]]):
                name = re.sub(r"(?<! in) attention$", "", re.split(r", | \(|:", clause)[0])
                if name not in columns.setdefault((part, i), []):
                    columns[part, i].append(name)
    names = (" / ".join(found) for found in columns.values())
    return ", ".join(name for name in names if name != "full causal")


def _print_presets(rows: list[dict[str, Any]]) -> None:
    from assay.cli.numbers import short_count
    from assay.cli.tables import console, ruled

    table = ruled(
        ("recipe", "params", "layers", "d_model", "what its layers are"),
        [(r["name"], short_count(r["params"]), str(r["n_layers"]), f"{r['d_model']:,}", r["summary"]) for r in rows],
        right=(1, 2, 3),
    )
    console().print(table)


def _kinds() -> dict[str, dict[str, str]]:
    """Slot, kind, and the first line of what the kind's class says of itself."""
    from assay.recipe.base import Part, kinds_of

    out: dict[str, dict[str, str]] = {}
    for base in sorted(Part.__subclasses__(), key=lambda cls: cls.slot):
        found = sorted(kinds_of(base).items())
        if found:
            out[base.slot] = {kind: _first_sentence(cls.__doc__) for kind, cls in found}
    return out


def _first_sentence(doc: str | None) -> str:
    return (doc or "").strip().partition("\n\n")[0].replace("\n", " ").replace("    ", "").replace("``", "")


def _print_kinds(slots: dict[str, dict[str, str]]) -> None:
    from assay.cli.tables import console, heading, indented, pairs

    page = console()
    width = max(len(kind) for kinds in slots.values() for kind in kinds)
    for slot, kinds in slots.items():
        page.print(heading(slot))
        page.print(indented(pairs(kinds.items(), width)))
        page.print()
