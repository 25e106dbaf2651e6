"""``assay show``: a recipe in words, or resolved in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Overrides, Plugins, RecipeName, costing, load_plugins, load_recipe, print_json
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.recipe import Layer, Recipe


def run(
    recipe: RecipeName,
    json: AsJson = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print the resolved recipe as TOML.")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="One row a layer.")] = False,
    params: Annotated[bool, typer.Option("--params", help="One row a tensor: role, weight decay, start.")] = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
) -> None:
    """A recipe in words, each distinct layer with its depths.

    --json and --toml print it resolved, with nothing left to default; the TOML can be loaded again.

    \b
    Examples:
      assay show gemma3-4b
      assay show gemma3-4b --layers
      assay show llama-3.1-8b --toml > mine.toml
    """
    if layers + params + toml > 1:
        raise UserError("--layers, --params and --toml exclude each other")
    if json and toml:
        raise UserError("--json and --toml exclude each other")
    load_plugins(plugins)
    found = load_recipe(recipe, overrides)
    if toml:
        typer.echo(found.to_toml(), nl=False)
    elif params or layers:
        with costing(found):
            rows = _tensor_rows(found) if params else _layer_rows(found)
        if json:
            print_json(rows)
        else:
            (_print_tensors if params else _print_layers)(rows)
    elif json:
        print_json(found.to_dict())
    else:
        _print_page(found)


def _print_page(recipe: Recipe) -> None:
    from assay.cli.numbers import count
    from assay.cli.tables import console, dim, heading, indented, pairs
    from assay.cost.budget import count_params
    from assay.recipe.words import clauses, layer_clauses, sizes_of, which_layers

    width, sizes = 11, sizes_of(recipe)
    page = console()
    page.print(heading(recipe.name))
    if recipe.notes:
        page.print(dim(recipe.notes.strip()))
    page.print()
    try:
        total = count(count_params(recipe).total)
    except LookupError as error:  # an idea without a cost rule is shown all the same
        total = f"unknown: {error}"
    rows: list[tuple[str, str]] = [
        ("d_model", f"{recipe.d_model:,}"),
        ("layers", f"{recipe.n_layers:,}"),
        ("vocabulary", f"{recipe.vocab_size:,}"),
        ("context", f"{recipe.max_seq_len:,} tokens"),
    ]
    page.print(pairs([*rows, ("parameters", total)], width))
    page.print()
    page.print(pairs([("embedding", clauses(recipe.embedding, sizes))], width))
    for layer, depths in _distinct(recipe):
        page.print()
        named = "" if layer.name == "block" else f", {layer.name}"
        page.print(heading(f"{which_layers(depths, recipe.n_layers)}{named}"))
        page.print(indented(pairs(layer_clauses(layer, sizes).items(), width - 2)))
    page.print()
    ends = [("head", clauses(recipe.head, sizes)), ("init", clauses(recipe.init, sizes))]
    page.print(pairs([*ends, ("sources", recipe.sources), ("digest", recipe.digest)], width))


def _distinct(recipe: Recipe) -> list[tuple[Layer, list[int]]]:
    """Each distinct layer with its depths, in the order of the stack."""
    depths: dict[Layer, list[int]] = {}
    for i, layer in enumerate(recipe.layers):
        depths.setdefault(layer, []).append(i)
    return list(depths.items())


def _layer_rows(recipe: Recipe) -> list[dict[str, Any]]:
    from assay.cost import layer_of, tensors_of
    from assay.cost.rules import rule_of
    from assay.recipe.words import layer_clauses, sizes_of

    params = dict.fromkeys(range(recipe.n_layers), 0)
    for tensor in tensors_of(recipe):
        if layer_of(tensor.name) >= 0:
            params[layer_of(tensor.name)] += tensor.numel
    rows = []
    for depth, layer in enumerate(recipe.layers):
        held = rule_of(layer.mixer).cache(layer.mixer, recipe.d_model, recipe.max_seq_len)
        said = {part: list(found) for part, found in layer_clauses(layer, sizes_of(recipe)).items()}
        row = {"depth": depth, "name": layer.name, "params": params[depth]}
        rows.append({**row, "cache_values_per_token": held.per_token, **said})
    return rows


def _print_layers(layers: list[dict[str, Any]]) -> None:
    from assay.cli.numbers import short_count
    from assay.cli.tables import console, ruled

    first: dict[str, int] = {}
    rows = []
    for row in layers:
        text = "\n".join("; ".join(row[part]) for part in ("mixer", "ffn", "residual"))
        same = first.setdefault(text, row["depth"])
        said = text if same == row["depth"] else f"as layer {same}"
        cached = f"{row['cache_values_per_token']:,}"
        rows.append((str(row["depth"]), row["name"], short_count(row["params"]), cached, said))
    headings = ("depth", "name", "params", "cached a token", "what it is")
    console().print(ruled(headings, rows, right=(0, 2, 3)))


def _tensor_rows(recipe: Recipe) -> list[dict[str, Any]]:
    from assay.cost import starts_of

    return [
        {
            "name": start.tensor.name,
            "shape": list(start.tensor.shape),
            "params": start.tensor.numel,
            "role": str(start.tensor.role),
            "decays": start.tensor.role.decays,
            "start": str(start),
        }
        for start in starts_of(recipe)
    ]


def _print_tensors(tensors: list[dict[str, Any]]) -> None:
    from assay.cli.tables import console, ruled

    def cells() -> Iterator[tuple[str, ...]]:
        for row in tensors:
            shape = " x ".join(map(str, row["shape"])) or "scalar"
            decay = "yes" if row["decays"] else "no"
            yield row["name"], shape, f"{row['params']:,}", row["role"], decay, row["start"]

    headings = ("tensor", "shape", "params", "role", "decay", "start")
    console().print(ruled(headings, cells(), right=(2,)))
