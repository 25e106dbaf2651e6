"""Norms. Statistics and gains are applied in float32 or better, then the result takes the input's dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.model.parts import Module, builds
from assay.recipe.norm import FixNorm, NoNorm, RMSNorm, ScaleNorm, Shift
from assay.recipe.norm import LayerNorm as LayerNormSpec
from assay.recipe.roles import ParamRole


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or as it is when already float32 or float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class GainNorm(Module):
    """A norm with a gain, and perhaps a bias, of the shape of the last axes it normalises.

    ``shape`` is (width,), or (heads, width) for a gain a head; statistics are over the last axis.
    """

    gain: Tensor | None
    bias: Tensor | None

    def __init__(self, spec: LayerNormSpec | RMSNorm, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.eps = spec.eps
        self.shape = shape
        self.one_plus = spec.gain == "one_plus"
        if spec.gain == "none":
            self.gain = None
        else:
            self.declare("gain", shape, ParamRole.NORM_GAIN, 0.0 if self.one_plus else 1.0)
        if isinstance(spec, LayerNormSpec) and spec.bias:
            self.declare("bias", shape, ParamRole.BIAS, 0.0)
        else:
            self.bias = None

    def affine(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Gain (with its one added) and bias in ``dtype``."""
        gain = None if self.gain is None else self.gain.to(dtype)
        if gain is not None and self.one_plus:
            gain = gain + 1.0
        return gain, None if self.bias is None else self.bias.to(dtype)


class RmsNorm(GainNorm):
    """``gain · x / sqrt(mean(x²) + eps)``, any leading axes."""

    def forward(self, x: Tensor) -> Tensor:
        y = at_least_float32(x)
        gain, _ = self.affine(y.dtype)
        flat = gain if len(self.shape) == 1 else None
        y = F.rms_norm(y, self.shape[-1:], flat, self.eps)
        if gain is not None and flat is None:
            y = y * gain
        return y.to(x.dtype)


class LayerNorm(GainNorm):
    """``gain · (x - mean) / sqrt(var + eps) + bias``, any leading axes."""

    def forward(self, x: Tensor) -> Tensor:
        y = at_least_float32(x)
        gain, bias = self.affine(y.dtype)
        if len(self.shape) == 1:
            return F.layer_norm(y, self.shape, gain, bias, self.eps).to(x.dtype)
        y = F.layer_norm(y, self.shape[-1:], None, None, self.eps)
        y = y if gain is None else y * gain
        return (y if bias is None else y + bias).to(x.dtype)


class ScaleNormModule(Module):
    """``g · x / max(‖x‖, eps)`` with one scalar g."""

    gain: Tensor

    def __init__(self, spec: ScaleNorm, d: int) -> None:
        super().__init__()
        self.eps = spec.eps
        start = math.sqrt(d) if spec.init == "sqrt_width" else float(spec.init)
        self.declare("gain", (1,), ParamRole.NORM_GAIN, start)

    def forward(self, x: Tensor) -> Tensor:
        y = at_least_float32(x)
        size = torch.linalg.vector_norm(y, dim=-1, keepdim=True).clamp_min(self.eps)
        out: Tensor = self.gain.to(y.dtype) * y / size
        return out.to(x.dtype)


class ShiftModule(Module):
    """``x + b``, one scalar b."""

    bias: Tensor

    def __init__(self, spec: Shift, d: int) -> None:
        super().__init__()
        self.declare("bias", (1,), ParamRole.BIAS, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.to(x.dtype)


def fix_rows(rows: Tensor, spec: FixNorm) -> Tensor:
    """Rows of a table brought to length ``radius``; FixNorm acts here, not on activations."""
    y = at_least_float32(rows)
    size = torch.linalg.vector_norm(y, dim=-1, keepdim=True).clamp_min(spec.eps)
    out: Tensor = spec.radius * y / size
    return out.to(rows.dtype)


@builds(NoNorm, FixNorm)
def _identity(spec: NoNorm | FixNorm, d: int) -> nn.Module:
    return nn.Identity()


@builds(RMSNorm)
def _rms(spec: RMSNorm, d: int) -> nn.Module:
    return RmsNorm(spec, (d,))


@builds(LayerNormSpec)
def _layer(spec: LayerNormSpec, d: int) -> nn.Module:
    return LayerNorm(spec, (d,))


builds(ScaleNorm)(ScaleNormModule)
builds(Shift)(ShiftModule)


def gain_norm(spec: LayerNormSpec | RMSNorm, shape: tuple[int, ...]) -> GainNorm:
    """A norm whose gain has this shape, for norms inside attention."""
    return RmsNorm(spec, shape) if isinstance(spec, RMSNorm) else LayerNorm(spec, shape)
