"""Measures of how the weights start."""

from __future__ import annotations

import math
from collections.abc import Iterator

from assay.atlas.subject import Reading, Subject, measure
from assay.recipe.ffn import Glu, Mlp, Sigmoid
from assay.recipe.init import Place
from assay.recipe.roles import ParamRole

Readings = Iterator[Reading]


def _stds(s: Subject, roles: tuple[ParamRole, ...], fan_in: int) -> list[float]:
    place = [Place(r, s.recipe.n_layers // 2, s.recipe.n_branches, s.recipe.n_layers) for r in roles]
    have = {entry.role for entry in s.recipe.init.roles}
    return [s.recipe.init.draw(p, fan_in, fan_in).std for p in place if p.role in have]


@measure("init.embedding_rms", "size of an embedding entry as it enters the stream")
def _(s: Subject) -> Readings:
    if not s.recipe.embedding.norm.is_none:
        yield Reading(1.0)
        return
    scale = s.recipe.embedding.scale
    factor = math.sqrt(s.recipe.d_model) if scale == "sqrt_d_model" else float(scale)
    for std in _stds(s, (ParamRole.EMBEDDING,), s.recipe.embedding_width):
        yield Reading(std * factor)


@measure("init.out_scale", "start of what writes to the stream over that of what reads, times sqrt(branches)")
def _(s: Subject) -> Readings:
    d = s.recipe.d_model
    inner = _stds(s, (ParamRole.ATTN_IN,), d)
    outer = _stds(s, (ParamRole.ATTN_OUT,), d)
    if inner and outer and inner[0] > 0 and outer[0] > 0:
        yield Reading(outer[0] / inner[0] * math.sqrt(s.recipe.n_branches))


@measure("init.gain", "start of the reading matrices, times sqrt(d_model)")
def _(s: Subject) -> Readings:
    d = s.recipe.d_model
    for role, std in zip(("attn_in", "ffn_in"), _stds(s, (ParamRole.ATTN_IN, ParamRole.FFN_IN), d), strict=False):
        yield Reading(std * math.sqrt(d), role)


@measure("init.dead", "branches whose product starts at zero with zero gradient")
def _(s: Subject) -> Readings:
    def zero(role: ParamRole) -> bool:
        return all(std == 0 for std in _stds(s, (role,), s.recipe.d_model)) and _has_role(s, role)

    dead = []
    if zero(ParamRole.ATTN_VALUE) and zero(ParamRole.ATTN_OUT):
        dead.append("attention: value and output both start at 0")
    for name, f in s.ffns:
        if not zero(ParamRole.FFN_IN):
            continue
        flat = f.activation.kind_name in ("relu", "relu2")
        if isinstance(f, Glu) and not isinstance(f.activation, Sigmoid):
            dead.append(f"{name}: gate and up both start at 0")
        elif isinstance(f, Mlp) and (flat or zero(ParamRole.FFN_OUT)):
            dead.append(f"{name}: up starts at 0 under {f.activation.kind_name}")
    yield Reading("; ".join(dead) or "none")


def _has_role(s: Subject, role: ParamRole) -> bool:
    return any(entry.role is role for entry in s.recipe.init.roles)
