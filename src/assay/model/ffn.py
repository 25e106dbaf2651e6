"""Feed-forward parts and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from assay.model.context import Context
from assay.model.parts import Linear, Module, build_part, builds, dropout
from assay.recipe import ffn as spec_of
from assay.recipe.extension import module_factory
from assay.recipe.ffn import Glu as GluSpec
from assay.recipe.ffn import Mlp as MlpSpec
from assay.recipe.roles import ParamRole

# (spec) -> elementwise function
ACTIVATIONS: dict[type[spec_of.Activation], Callable[[Any], Callable[[Tensor], Tensor]]] = {
    spec_of.Relu: lambda s: F.relu,
    spec_of.Gelu: lambda s: F.gelu,
    spec_of.GeluTanh: lambda s: lambda x: F.gelu(x, approximate="tanh"),
    spec_of.Silu: lambda s: F.silu,
    spec_of.Swish: lambda s: lambda x: x * torch.sigmoid(s.beta * x),
    spec_of.Relu2: lambda s: lambda x: F.relu(x).square(),
    spec_of.Elu: lambda s: lambda x: F.elu(x, alpha=s.alpha),
    spec_of.Selu: lambda s: F.selu,
    spec_of.Sigmoid: lambda s: torch.sigmoid,
    spec_of.Identity: lambda s: lambda x: x,
}


class XIelu(Module):
    """xIELU with its two learned scalars."""

    alpha_p: Tensor
    alpha_n: Tensor

    def __init__(self, spec: spec_of.XIelu, d: int) -> None:
        super().__init__()
        self.beta = spec.beta
        self.declare("alpha_p", (1,), ParamRole.SCALE, math.log(math.expm1(spec.alpha)))
        self.declare("alpha_n", (1,), ParamRole.SCALE, math.log(math.expm1(spec.alpha - spec.beta)))

    def forward(self, x: Tensor) -> Tensor:
        alpha_p = F.softplus(self.alpha_p).to(x.dtype)
        alpha_n = (self.beta + F.softplus(self.alpha_n)).to(x.dtype)
        negative = torch.expm1(x.clamp(max=-1e-6)) - x
        return torch.where(x > 0, alpha_p * x * x, alpha_n * negative) + self.beta * x


builds(spec_of.XIelu)(XIelu)


def activation(spec: spec_of.Activation, d: int) -> Callable[[Tensor], Tensor]:
    """The function of an activation spec, or its module where it has parameters; ``d`` is the width it acts on."""
    if module_factory(type(spec)) is not None:
        module: Callable[[Tensor], Tensor] = build_part(spec, d)
        return module
    if type(spec) not in ACTIVATIONS:
        raise LookupError(f"activation kind {spec.kind_name!r} has no function: add it to assay.model.ffn.ACTIVATIONS")
    return ACTIVATIONS[type(spec)](spec)


@builds(MlpSpec)
class Mlp(Module):
    """``down(inner_norm(act(act_norm(up(x)))))``."""

    def __init__(self, spec: MlpSpec, d: int) -> None:
        super().__init__()
        self.spec = spec
        self.act = activation(spec.activation, spec.d_ff)
        self.up = Linear(d, spec.d_ff, ParamRole.FFN_IN, bias="up" in spec.bias)
        self.act_norm = build_part(spec.act_norm, spec.d_ff)
        self.down = Linear(spec.d_ff, d, ParamRole.FFN_OUT, bias="down" in spec.bias)
        self.inner_norm = build_part(spec.inner_norm, spec.d_ff)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(..., d) to (..., d)."""
        h = self.inner_norm(self.act(self.act_norm(self.up(x))))
        h = dropout(h, self.spec.dropout, self.training)
        return self.down(h)  # type: ignore[no-any-return]


@builds(GluSpec)
class Glu(Module):
    """``down(inner_norm(act(gate(x)) · (up(x) + up_offset)))``, with the clamp of the recipe."""

    def __init__(self, spec: GluSpec, d: int) -> None:
        super().__init__()
        self.spec = spec
        self.act = activation(spec.activation, spec.d_ff)
        self.gate = Linear(d, spec.d_ff, ParamRole.FFN_IN, bias="gate" in spec.bias)
        self.up = Linear(d, spec.d_ff, ParamRole.FFN_IN, bias="up" in spec.bias)
        self.down = Linear(spec.d_ff, d, ParamRole.FFN_OUT, bias="down" in spec.bias)
        self.inner_norm = build_part(spec.inner_norm, spec.d_ff)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(..., d) to (..., d)."""
        gate, up = self.gate(x), self.up(x)
        if self.spec.clamp != "none":
            c = self.spec.clamp
            gate, up = gate.clamp(max=c), up.clamp(-c, c)
        if self.spec.up_offset:
            up = up + self.spec.up_offset
        h = self.inner_norm(self.act(gate) * up)
        h = dropout(h, self.spec.dropout, self.training)
        return self.down(h)  # type: ignore[no-any-return]
