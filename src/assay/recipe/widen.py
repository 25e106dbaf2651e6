"""The same recipe at another width: heads, feed-forward and projections grow with it, depth and vocabulary stay."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from assay.recipe.errors import Problem, RecipeError
from assay.recipe.recipe import Recipe
from assay.recipe.resolve import resolve


def widened(recipe: Recipe, d_model: int) -> Recipe:
    """The recipe at width ``d_model``.

    Heads are multiplied where they stay whole numbers, else their size is; a single key/value head stays single.

    Raises:
        RecipeError: a size that would not be a whole number, or a width that is part of the recipe's meaning.
    """
    if d_model == recipe.d_model:
        return recipe
    ratio = Fraction(d_model, recipe.d_model)
    table = recipe.to_dict()
    table["d_model"] = d_model
    for end in ("embedding", "head"):
        if "dim" in table[end]["projection"]:
            table[end]["projection"]["dim"] = _times(table[end]["projection"]["dim"], ratio, f"{end}.projection.dim")
    table["layers"] = {name: _layer(layer, ratio, f"layers.{name}") for name, layer in table["layers"].items()}
    return resolve(table, f"{recipe.name} at width {d_model}")


def _layer(node: Any, ratio: Fraction, path: str) -> Any:
    """A table with the widths inside it multiplied."""
    if isinstance(node, list):
        return [_layer(each, ratio, f"{path}.{i}") for i, each in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    out = {key: _layer(value, ratio, f"{path}.{key}") for key, value in node.items()}
    if "d_ff" in out:
        out["d_ff"] = _times(out["d_ff"], ratio, f"{path}.d_ff")
    if "n_heads" in out and "head_dim" in out:
        heads = out["n_heads"] * ratio
        keys = Fraction(1) if out["n_kv_heads"] == 1 else out["n_kv_heads"] * ratio
        if heads.denominator == keys.denominator == 1:
            out["n_heads"], out["n_kv_heads"] = int(heads), int(keys)
        else:
            out["head_dim"] = _times(out["head_dim"], ratio, f"{path}.head_dim")
    return out


def _times(size: int, ratio: Fraction, path: str) -> int:
    grown = size * ratio
    if grown.denominator != 1:
        # a feed-forward width need not be exact; what heads are made of must be
        if path.endswith("d_ff"):
            return max(1, round(grown))
        allowed = f"widths that keep {size} x {ratio} whole"
        raise RecipeError([Problem(path, f"is no whole number at {ratio} of the width", size, allowed, "", True)])
    return int(grown)
