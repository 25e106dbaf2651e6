"""Multi-head attention made grouped: the key and value heads of a group become their mean.

Ainslie et al. 2023, arXiv:2305.13245, §2.1: mean-pooling keeps more than choosing one head or drawing anew. Head j of
the result is the mean of the old heads j·r .. j·r + r - 1, r = old / new: those that its query heads read before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.interop.errors import InteropError, shown
from assay.interop.relayout import attentions_at
from assay.recipe import Recipe, RecipeError, resolve
from assay.recipe.mixer import Attention, NormedQk, attentions_of
from assay.recipe.norm import ScaleNorm

if TYPE_CHECKING:
    from torch import Tensor

    from assay.model import Decoder


class CannotPool(InteropError):
    """A model whose heads cannot be pooled into that many groups; names the layers."""


def pool_heads(decoder: Decoder, groups: int) -> Decoder:
    """A decoder with ``groups`` key/value heads in every attention; query heads stay.

    Weights and biases of keys and values are pooled, and gains of a QK-norm that are a head's own or the width's. Equal
    heads in every group: equal logits.

    Raises:
        CannotPool: ``groups`` does not divide a layer's key/value heads, or no layer has more.
    """
    import torch

    from assay.model import build, named_params

    recipe = pooled_recipe(decoder.recipe, groups)
    table = decoder.embedding.table
    out = build(recipe, device="meta").to(table.dtype).to_empty(device=table.device)
    old = {p.name: p.param for p in named_params(decoder)}
    with torch.no_grad():
        for p in named_params(out):
            p.param.copy_(_pooled(p.name, old[p.name], decoder.recipe, groups))
    return out.train(decoder.training)


def pooled_recipe(recipe: Recipe, groups: int) -> Recipe:
    """The recipe with ``groups`` key/value heads in every attention."""
    if groups < 1:
        raise CannotPool(f"{recipe.name}: groups = {groups}: expected 1 or more")
    heads = {(i, spec.n_kv_heads) for i, layer in enumerate(recipe.layers) for spec in attentions_of(layer.mixer)}
    odd = sorted((i, n) for i, n in heads if n % groups)
    if odd:
        told = shown(f"layer {i}: {n}" for i, n in odd)
        fits = [g for g in range(1, max(n for _, n in odd)) if all(n % g == 0 for _, n in heads)]
        raise CannotPool(
            f"{recipe.name}: groups = {groups} does not divide the key/value heads ({told}); "
            f"expected a common divisor: {shown(fits, 16)}"
        )
    if all(n == groups for _, n in heads):
        what = f"its attention has {groups} key/value heads already" if heads else "it has no attention"
        raise CannotPool(f"{recipe.name}: nothing to pool: {what}")
    table = {**_replaced(recipe.to_dict(), groups), "name": f"{recipe.name}-gqa{groups}"}
    try:
        return resolve(table, recipe.name)
    except RecipeError as error:  # pairs of heads, for one, need an even number of groups
        told = "; ".join(f"{p.path}: {p.message} (found: {p.value!r}; allowed: {p.allowed})" for p in error.problems)
        raise CannotPool(f"{recipe.name}: groups = {groups}: {told}") from None


def _replaced(node: Any, groups: int) -> Any:
    if isinstance(node, Mapping):
        out = {key: _replaced(value, groups) for key, value in node.items()}
        return {**out, "n_kv_heads": groups} if node.get("kind") == "attention" else out
    return [_replaced(value, groups) for value in node] if isinstance(node, list) else node


def _pooled(name: str, value: Tensor, recipe: Recipe, groups: int) -> Tensor:
    words = name.split(".")
    if words[0] != "layers":
        return value
    for at, spec in attentions_at(recipe.layers[int(words[1])].mixer, f"layers.{words[1]}.mixer"):
        if name.startswith(f"{at}."):
            part = name.removeprefix(f"{at}.").split(".")[0]
            return _mean(value, spec, groups) if part in ("k", "v") or (part == "k_norm" and _by_head(spec)) else value
    return value


def _by_head(spec: Attention) -> bool:
    """Whether the gain of the keys' norm has entries of each head."""
    return isinstance(spec.qk_norm, NormedQk) and (spec.qk_norm.over == "width" or spec.qk_norm.gain_per == "head")


def _mean(value: Tensor, spec: Attention, groups: int) -> Tensor:
    """Means over the heads of each group; the first axis holds all heads, with their channels or without.

    A scale norm's single gain is for a vector of all heads, ``√old / √new`` times as long before.
    """
    if isinstance(spec.qk_norm, NormedQk) and isinstance(spec.qk_norm.norm, ScaleNorm) and value.numel() == 1:
        return value.mul((groups / spec.n_kv_heads) ** 0.5)
    heads = value.unflatten(0, (groups, spec.n_kv_heads // groups, value.shape[0] // spec.n_kv_heads))
    mean: Tensor = heads.double().mean(1).to(value.dtype).flatten(0, 1)
    return mean
