"""Cost rules of norms, scales, embedding positions, projections and feed-forward parts."""

from __future__ import annotations

import math

from assay.cost import ops
from assay.cost.rules import CacheSize, CostRule, Flops, Named, Tensor, Work, costs, linear, rule_of
from assay.cost.tape import Tape, Value
from assay.recipe.base import Part
from assay.recipe.embedding import DenseTransform, LinearProjection, NoProjection, NoTransform
from assay.recipe.ffn import FfnBranch, FfnSum, Glu, Mlp, NoFfn, XIelu
from assay.recipe.mixer import MixerBranch, MixerSum, NoMixer
from assay.recipe.norm import FixNorm, LayerNorm, NoNorm, RMSNorm, ScaleNorm, Shift
from assay.recipe.position import NoEmbeddingPosition, SinusoidalPosition
from assay.recipe.roles import ParamRole
from assay.recipe.scale import ConstantScale, ScalarScale, VectorScale


@costs(
    NoNorm, FixNorm, ConstantScale, NoEmbeddingPosition, SinusoidalPosition, NoProjection, NoTransform, NoFfn, NoMixer
)  # fmt: skip
class Free(CostRule[Part]):
    """No parameters, no matrix products, nothing kept."""

    def trace(self, spec: Part, d: int, tape: Tape, x: Value) -> Value:
        return x


def gain_tensors(norm: LayerNorm | RMSNorm, shape: tuple[int, ...]) -> list[Tensor]:
    """Gain and bias of a norm whose parameters have this shape."""
    out = []
    if norm.gain != "none":
        out.append(Tensor("gain", shape, ParamRole.NORM_GAIN, 0.0 if norm.gain == "one_plus" else 1.0))
    if isinstance(norm, LayerNorm) and norm.bias:
        out.append(Tensor("bias", shape, ParamRole.BIAS, 0.0))
    return out


@costs(LayerNorm, RMSNorm)
class GainCost(CostRule[LayerNorm | RMSNorm]):
    """A gain and perhaps a bias a channel."""

    def tensors(self, spec: LayerNorm | RMSNorm, d: int) -> list[Tensor]:
        return gain_tensors(spec, (d,))


@costs(ScaleNorm)
class ScaleNormCost(CostRule[ScaleNorm]):
    """One scalar."""

    def tensors(self, spec: ScaleNorm, d: int) -> list[Tensor]:
        start = math.sqrt(d) if spec.init == "sqrt_width" else float(spec.init)
        return [Tensor("gain", (1,), ParamRole.NORM_GAIN, start)]


@costs(Shift)
class ShiftCost(CostRule[Shift]):
    """One scalar."""

    def tensors(self, spec: Shift, d: int) -> list[Tensor]:
        return [Tensor("bias", (1,), ParamRole.BIAS, 0.0)]


@costs(XIelu)
class XIeluCost(CostRule[XIelu]):
    """Two learned scalars."""

    def tensors(self, spec: XIelu, d: int) -> list[Tensor]:
        starts = (("alpha_p", spec.alpha), ("alpha_n", spec.alpha - spec.beta))
        return [Tensor(name, (1,), ParamRole.SCALE, math.log(math.expm1(value))) for name, value in starts]


@costs(ScalarScale, VectorScale)
class LearnedScaleCost(CostRule[ScalarScale | VectorScale]):
    """One number, or one a channel."""

    def tensors(self, spec: ScalarScale | VectorScale, d: int) -> list[Tensor]:
        shape = (1,) if isinstance(spec, ScalarScale) else (d,)
        return [Tensor("scale", shape, ParamRole.SCALE, float(spec.init))]


@costs(LinearProjection)
class ProjectionCost(CostRule[LinearProjection]):
    """A matrix between ``dim`` and the model's width; ``wide_out`` tells which side is the output."""

    def matrix(self, spec: LinearProjection, d: int, *, wide_out: bool) -> list[Tensor]:
        rows, columns = (d, spec.dim) if wide_out else (spec.dim, d)
        weight = Tensor("weight", (rows, columns), ParamRole.PROJECTION)
        return [weight, Tensor("bias", (rows,), ParamRole.BIAS, 0.0)] if spec.bias else [weight]

    def flops(self, spec: LinearProjection, d: int, work: Work) -> Flops:
        return Flops(matmul=2 * work.tokens * d * spec.dim)


@costs(DenseTransform)
class TransformCost(CostRule[DenseTransform]):
    """A square matrix, an activation and a norm before the output table."""

    def tensors(self, spec: DenseTransform, d: int) -> list[Tensor]:
        named = Named("")
        if isinstance(spec.activation, XIelu):
            named.add("act", spec.activation, d)
        named.add("norm", spec.norm, d)
        return linear("dense", d, d, ParamRole.PROJECTION, spec.bias) + named.found

    def flops(self, spec: DenseTransform, d: int, work: Work) -> Flops:
        return Flops(matmul=2 * work.tokens * d * d)

    def trace(self, spec: DenseTransform, d: int, tape: Tape, x: Value) -> Value:
        """Dense, activation, norm."""
        h = ops.linear(tape, "unembedding", x, d, d, bias=spec.bias)
        return ops.norm(tape, "norms", spec.norm, ops.activate(tape, "activation", spec.activation, h), d)


@costs(Mlp, Glu)
class FfnCost(CostRule[Mlp | Glu]):
    """Two or three matrices between d and d_ff."""

    def tensors(self, spec: Mlp | Glu, d: int) -> list[Tensor]:
        inner = ("gate", "up") if isinstance(spec, Glu) else ("up",)
        out = []
        for name in inner:
            out += linear(name, spec.d_ff, d, ParamRole.FFN_IN, name in spec.bias)
        out += linear("down", d, spec.d_ff, ParamRole.FFN_OUT, "down" in spec.bias)
        named = Named("")
        if isinstance(spec, Mlp):
            named.add("act_norm", spec.act_norm, spec.d_ff)
        if isinstance(spec.activation, XIelu):
            named.add("act", spec.activation, spec.d_ff)
        named.add("inner_norm", spec.inner_norm, spec.d_ff)
        return out + named.found

    def flops(self, spec: Mlp | Glu, d: int, work: Work) -> Flops:
        return Flops(matmul=2 * work.tokens * d * spec.d_ff * (3 if isinstance(spec, Glu) else 2))

    def trace(self, spec: Mlp | Glu, d: int, tape: Tape, x: Value) -> Value:
        """Up (and gate), activation, norm, dropout, down."""
        width = tape.share(spec.d_ff)
        if isinstance(spec, Glu):
            gate = ops.linear(tape, "ffn", x, d, spec.d_ff, bias="gate" in spec.bias, split="out")
            up = ops.linear(tape, "ffn", x, d, spec.d_ff, bias="up" in spec.bias, split="out")
            if spec.clamp != "none":
                gate, up = (_clamp(tape, y, sides) for y, sides in ((gate, 1), (up, 2)))
            if spec.up_offset:
                up = ops.multiply_by(tape, "activation", up)
            h = ops.multiply(tape, "activation", ops.activate(tape, "activation", spec.activation, gate), up)
            named: tuple[Value, ...] = (gate, up)
        else:
            named = ()
            h = ops.linear(tape, "ffn", x, d, spec.d_ff, bias="up" in spec.bias, split="out")
            h = ops.norm(tape, "norms", spec.act_norm, h, width)
            h = ops.activate(tape, "activation", spec.activation, h)
        h = ops.norm(tape, "norms", spec.inner_norm, h, width)
        h = ops.dropout(tape, "dropout", h, spec.dropout)
        y = ops.linear(tape, "ffn", h, spec.d_ff, d, bias="down" in spec.bias, split="in")
        tape.held(*named, h)
        return y


@costs(MixerSum, FfnSum)
class SumCost(CostRule[MixerSum | FfnSum]):
    """The branches, each with its norms."""

    def tensors(self, spec: MixerSum | FfnSum, d: int) -> list[Tensor]:
        out: list[Tensor] = []
        for i, (branch, part) in enumerate(_branches(spec)):
            named = Named(f"branches.{i}")
            named.add("input_norm", branch.input_norm, d)
            named.add("part", part, d)
            named.add("output_norm", branch.output_norm, d)
            out += named.found
        return out

    def flops(self, spec: MixerSum | FfnSum, d: int, work: Work) -> Flops:
        return sum((rule_of(p).flops(p, d, work) for _, p in _branches(spec)), Flops())

    def cache(self, spec: MixerSum | FfnSum, d: int, length: int) -> CacheSize:
        return sum((rule_of(p).cache(p, d, length) for _, p in _branches(spec)), CacheSize())

    def trace(self, spec: MixerSum | FfnSum, d: int, tape: Tape, x: Value) -> Value:
        """Each branch of the same input, added up."""
        total: Value | None = None
        for branch, part in _branches(spec):
            y = x if branch.input_scale == 1.0 else ops.multiply_by(tape, "residual", x)
            y = ops.norm(tape, "norms", branch.input_norm, y, d)
            y = ops.norm(tape, "norms", branch.output_norm, rule_of(part).trace(part, d, tape, y), d)
            y = y if branch.output_scale == 1.0 else ops.multiply_by(tape, "residual", y)
            total = y if total is None else ops.add(tape, "residual", total, y)
        return x if total is None else total


def _clamp(tape: Tape, x: Value, sides: int) -> Value:
    tape.count("activation", sides * x.n, x.nbytes, x.nbytes)
    return tape.node("activation", Value(x.n, x.width), x, keep=(x,))


def _branches(spec: MixerSum | FfnSum) -> list[tuple[MixerBranch | FfnBranch, Part]]:
    """The branches, each with the part it runs."""
    if isinstance(spec, MixerSum):
        return [(b, b.mixer) for b in spec.branches]
    return [(b, b.ffn) for b in spec.branches]
