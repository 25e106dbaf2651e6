"""The residual stream: one block forward for every placement and form, and sums of branches."""

from __future__ import annotations

from torch import Tensor, nn

from assay.model.context import Context
from assay.model.parts import Module, build_part, builds, dropout
from assay.recipe.ffn import FfnBranch, FfnSum
from assay.recipe.layer import Layer
from assay.recipe.mixer import MixerBranch, MixerSum
from assay.recipe.residual import Branch as BranchSpec
from assay.recipe.residual import ParallelSharedNorm, Serial, Sublayer
from assay.recipe.roles import ParamRole
from assay.recipe.scale import ConstantScale, ScalarScale, VectorScale


class Constant(nn.Module):
    """Multiplication by a fixed number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value


@builds(ConstantScale)
def _constant(spec: ConstantScale, d: int) -> nn.Module:
    return nn.Identity() if spec.value == 1.0 else Constant(spec.value)


@builds(ScalarScale, VectorScale)
class Learned(Module):
    """Multiplication by a learned scalar, or by a learned vector over channels."""

    scale: Tensor

    def __init__(self, spec: ScalarScale | VectorScale, d: int) -> None:
        super().__init__()
        self.declare("scale", (1,) if isinstance(spec, ScalarScale) else (d,), ParamRole.SCALE, float(spec.init))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.to(x.dtype)


class Branch(nn.Module):
    """One sublayer's norms and scales; the unused places are identities."""

    def __init__(self, spec: BranchSpec, d: int) -> None:
        super().__init__()
        self.input_norm = build_part(spec.input_norm, d)
        self.output_norm = build_part(spec.output_norm, d)
        self.branch = build_part(spec.branch, d)
        self.dropout = spec.dropout
        if isinstance(spec, Sublayer):
            self.stream_norm = build_part(spec.stream_norm, d)
            self.skip = build_part(spec.skip, d)
            self.from_normed = spec.skip_from == "normed"

    def added(self, y: Tensor) -> Tensor:
        """What the sublayer's output ``y`` adds to the stream."""
        return self.branch(dropout(self.output_norm(y), self.dropout, self.training))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """The rules of both sublayers; for the parallel forms also what they share."""

    def __init__(self, layer: Layer, d: int) -> None:
        super().__init__()
        spec = layer.residual
        self.serial = isinstance(spec, Serial)
        self.mixer = Branch(spec.mixer, d)  # type: ignore[attr-defined]
        self.ffn = Branch(spec.ffn, d)  # type: ignore[attr-defined]
        if not self.serial:
            shared = isinstance(spec, ParallelSharedNorm)
            self.input_norm = build_part(spec.input_norm, d) if isinstance(spec, ParallelSharedNorm) else nn.Identity()
            self.stream_norm = build_part(spec.stream_norm, d)  # type: ignore[attr-defined]
            self.skip = build_part(spec.skip, d)  # type: ignore[attr-defined]
            self.from_normed = shared and spec.skip_from == "normed"  # type: ignore[attr-defined]


class Block(nn.Module):
    """One layer: a mixer and a feed-forward part, either of which may be absent, and the residual rules around them."""

    def __init__(self, layer: Layer, d: int) -> None:
        super().__init__()
        self.sublayers = [name for name in ("mixer", "ffn") if not getattr(layer, name).is_none]
        for name in self.sublayers:
            self.add_module(name, build_part(getattr(layer, name), d))
        self.residual = Residual(layer, d)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, d) to (B, T, d): ``stream_norm(skip · s + branch · output_norm(f(input_norm(x))))``."""
        r = self.residual
        if r.serial:
            for name in self.sublayers:
                rule: Branch = getattr(r, name)
                n = rule.input_norm(x)
                y = getattr(self, name)(n, ctx)
                ctx.show(f"{name}.out", y)
                x = rule.stream_norm(rule.skip(n if rule.from_normed else x) + rule.added(y))
            return x
        n = r.input_norm(x)
        total = r.skip(n if r.from_normed else x)
        for name in self.sublayers:
            rule = getattr(r, name)
            y = getattr(self, name)(rule.input_norm(n), ctx)
            ctx.show(f"{name}.out", y)
            total = total + rule.added(y)
        return r.stream_norm(total)  # type: ignore[no-any-return]


class SumBranch(nn.Module):
    """One term of a sum: ``output_scale · output_norm(part(input_norm(input_scale · x)))``."""

    def __init__(self, spec: MixerBranch | FfnBranch, d: int) -> None:
        super().__init__()
        self.input_scale, self.output_scale = spec.input_scale, spec.output_scale
        self.input_norm = build_part(spec.input_norm, d)
        self.part = build_part(spec.mixer if isinstance(spec, MixerBranch) else spec.ffn, d)
        self.output_norm = build_part(spec.output_norm, d)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        x = x if self.input_scale == 1.0 else x * self.input_scale
        y: Tensor = self.output_norm(self.part(self.input_norm(x), ctx))
        return y if self.output_scale == 1.0 else y * self.output_scale


@builds(MixerSum, FfnSum)
class Sum(nn.Module):
    """The sum of branches of the same input."""

    def __init__(self, spec: MixerSum | FfnSum, d: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(SumBranch(branch, d) for branch in spec.branches)

    def members(self) -> list[tuple[str, nn.Module]]:
        """The parts that are summed, with their paths; each makes its own state in a cache."""
        branches: list[SumBranch] = list(self.branches)  # type: ignore[arg-type]
        return [(f"branches.{i}.part", branch.part) for i, branch in enumerate(branches)]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, d) to (B, T, d)."""
        out: Tensor = self.branches[0](x, ctx)
        for branch in self.branches[1:]:
            out = out + branch(x, ctx)
        return out
