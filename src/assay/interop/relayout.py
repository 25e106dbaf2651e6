"""RoPE in one layout or the other: the same model with its query and key channels in another order.

``half`` pairs channel k with k + r/2, ``interleaved`` pairs 2k with 2k + 1. Rows of the query and key projections,
their biases and the gains of a QK-norm move together, head by head, the unrotated channels not at all; only moves, so
there and back is bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from assay.recipe import Recipe, resolve
from assay.recipe.mixer import Attention, Mixer, MixerSum, NormedQk
from assay.recipe.position import Rope

if TYPE_CHECKING:
    from torch import Tensor

    from assay.model import Decoder

Layout = Literal["half", "interleaved"]


def relayout(decoder: Decoder, layout: Layout) -> Decoder:
    """An equal decoder whose rotations all have this layout.

    Returns:
        A new decoder; its logits are the old one's up to rounding.
    """
    from assay.model import build, named_params

    recipe = with_layout(decoder.recipe, layout)
    table = decoder.embedding.table
    out = build(recipe, device="meta").to(table.dtype).to_empty(device=table.device)
    moved = {name: _moved(name, p, decoder.recipe, layout) for name, p in decoder.named_parameters()}
    import torch

    with torch.no_grad():
        for p in named_params(out):
            p.param.copy_(moved[p.name])
    return out.train(decoder.training)


def with_layout(recipe: Recipe, layout: Layout) -> Recipe:
    """The recipe with this layout in every RoPE."""
    return resolve(_replaced(recipe.to_dict(), layout), recipe.name)


def _replaced(node: Any, layout: str) -> Any:
    if isinstance(node, Mapping):
        out = {key: _replaced(value, layout) for key, value in node.items()}
        return {**out, "layout": layout} if node.get("kind") == "rope" else out
    return [_replaced(value, layout) for value in node] if isinstance(node, list) else node


def attentions_at(mixer: Mixer, at: str) -> Iterator[tuple[str, Attention]]:
    """Every attention of a mixer with the name of its module; ``at`` is the mixer's own."""
    if isinstance(mixer, Attention):
        yield at, mixer
    elif isinstance(mixer, MixerSum):
        for i, branch in enumerate(mixer.branches):
            yield from attentions_at(branch.mixer, f"{at}.branches.{i}.part")


def _moved(name: str, value: Tensor, recipe: Recipe, layout: str) -> Tensor:
    words = name.split(".")
    if words[0] != "layers":
        return value
    for at, spec in attentions_at(recipe.layers[int(words[1])].mixer, f"layers.{words[1]}.mixer"):
        if not isinstance(spec.position, Rope) or spec.position.layout == layout or not name.startswith(f"{at}."):
            continue
        part = name.removeprefix(f"{at}.").split(".")[0]
        if part in ("q", "k"):
            return _by_head(value, spec, layout, axis=0)
        if part in ("q_norm", "k_norm") and isinstance(spec.qk_norm, NormedQk) and value.dim():
            return _by_head(value, spec, layout, axis=-1)
    return value


def _by_head(value: Tensor, spec: Attention, layout: str, axis: int) -> Tensor:
    """The channels of every head along an axis in the order of the other layout."""
    import torch

    assert isinstance(spec.position, Rope)
    d, r = spec.head_dim, spec.position.rotary_dim(spec.head_dim)
    pairs = torch.arange(r, device=value.device)
    # half reads channels 0, 2, 4, ... then 1, 3, 5, ...; interleaved reads 0, r/2, 1, r/2 + 1, ...
    pairs = pairs.view(-1, 2).T.flatten() if layout == "half" else pairs.view(2, -1).T.flatten()
    order = torch.cat((pairs, torch.arange(r, d, device=value.device)))
    heads = value.shape[axis] // d
    whole = (torch.arange(heads, device=value.device).unsqueeze(1) * d + order).flatten()
    return value.index_select(axis if axis >= 0 else value.dim() - 1, whole)
