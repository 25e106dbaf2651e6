"""Initialisation by role. Each tensor has its own random stream, made of the seed and its name, so the values do not
depend on the order of construction, the device, or what else the model holds.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from assay.model.parts import named_params
from assay.recipe.init import Draw, Place
from assay.recipe.recipe import Recipe


def generator_for(seed: int, name: str) -> torch.Generator:
    """The random stream of one tensor, on the CPU."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little") >> 1)


def drawn(draw: Draw, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A float32 CPU tensor from a distribution."""
    if draw.kind == "zero" or draw.std == 0.0:
        return torch.zeros(shape, device="cpu")
    if draw.kind == "uniform":
        u = torch.rand(shape, generator=generator, device="cpu")
        return (2 * u - 1) * (draw.std * math.sqrt(3))
    if math.isinf(draw.cutoff):
        return torch.randn(shape, generator=generator, device="cpu") * draw.std
    # inverse of the normal distribution function on the mass inside the cut: truly truncated
    edge = math.erf(draw.cutoff / math.sqrt(2))
    u = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    z = torch.erfinv((2 * u - 1) * edge) * math.sqrt(2)
    return (z.clamp(-draw.cutoff, draw.cutoff) * draw.std).float()


@torch.no_grad()
def initialise(model: nn.Module, recipe: Recipe, seed: int) -> None:
    """Set every parameter, in place: constants where declared, else as ``recipe.init`` says for role and depth."""
    for p in named_params(model):
        if p.start is not None:
            p.param.fill_(p.start)
            continue
        layer = int(p.name.split(".")[1]) if p.name.startswith("layers.") else -1
        place = Place(p.role, layer, recipe.n_branches, recipe.n_layers)
        draw = recipe.init.draw(place, fan_in=p.param.shape[-1], fan_out=p.param.shape[0])
        p.param.copy_(_placed_like(p.param, drawn(draw, p.param.shape, generator_for(seed, p.name))))


def _placed_like(param: Tensor, value: Tensor) -> Tensor:
    """The value as the parameter is laid out: every rank draws the whole tensor and keeps its shard."""
    mesh = getattr(param, "device_mesh", None)
    if mesh is None:
        return value
    from torch.distributed.tensor import distribute_tensor

    placements = param.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(param.device), mesh, placements, src_data_rank=None)
