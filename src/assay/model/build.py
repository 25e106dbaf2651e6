"""From a recipe to a decoder: on a device with its weights drawn, or on the meta device with none."""

from __future__ import annotations

import torch

from assay.model import attention, ffn, norm, residual  # noqa: F401 - each registers its modules
from assay.model.decoder import Decoder
from assay.model.init import initialise
from assay.recipe.recipe import Recipe


def build(
    recipe: Recipe,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    backend: str = "auto",
) -> Decoder:
    """A decoder with its weights drawn.

    Args:
        seed: of the weights; a tensor's values depend on the seed and its name only, not on device or order.
        device: where it lives; on ``meta`` nothing is drawn, see :func:`materialise`.
        dtype: of the parameters. Values are drawn in float32 and rounded.
        backend: attention kernel, ``auto``, ``sdpa`` or ``reference``.
    """
    with torch.device(device):
        decoder = Decoder(recipe, backend).to(dtype)
    if torch.device(device).type != "meta":
        initialise(decoder, recipe, seed)
    return decoder


def materialise(decoder: Decoder, seed: int = 0, device: str | torch.device = "cpu") -> Decoder:
    """A meta decoder given storage and drawn weights, in place: the same values as :func:`build` with this seed."""
    decoder.to_empty(device=device)
    initialise(decoder, decoder.recipe, seed)
    return decoder
