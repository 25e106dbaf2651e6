"""An example part: a causal running average of values, with a learned decay for each channel.

y_t = o( m_t ),  m_t = a · m_{t-1} + (1 - a) · v(x_t),  a = sigmoid(decay), one a channel.

    assay budget examples/average.toml --plugin examples/average_mixer.py
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from assay.plugin import (
    CacheSize,
    CostRule,
    Flops,
    Mixer,
    ParamRole,
    Sizes,
    Store,
    Tape,
    Tensor,
    Value,
    Work,
    ops,
    register,
    says,
)


class Average(Mixer):
    """A causal exponential average over tokens; keeps one vector in the cache, whatever the length."""

    kind: Literal["average"] = "average"
    width: int
    matrix_roles: ClassVar[tuple[ParamRole, ...]] = (ParamRole.ATTN_VALUE, ParamRole.ATTN_OUT)


@says(Average)
def phrase(spec: Average, sizes: Sizes) -> str:
    """What ``assay show`` and ``assay diff`` call it."""
    return f"running average, width {spec.width:,}"


class AverageCost(CostRule[Average]):
    """Two matrices and a decay a channel."""

    def tensors(self, spec: Average, d: int) -> list[Tensor]:
        return [
            Tensor("v.weight", (spec.width, d), ParamRole.ATTN_VALUE),
            Tensor("o.weight", (d, spec.width), ParamRole.ATTN_OUT),
            Tensor("decay", (spec.width,), ParamRole.SCALE, 0.0),
        ]

    def flops(self, spec: Average, d: int, work: Work) -> Flops:
        return Flops(matmul=2 * work.tokens * 2 * d * spec.width)

    def cache(self, spec: Average, d: int, length: int) -> CacheSize:
        return CacheSize(per_token=0, held=spec.width)

    def trace(self, spec: Average, d: int, tape: Tape, x: Value) -> Value:
        """The forward below on paper: what autograd keeps of it, and what it computes and moves."""
        v = ops.linear(tape, "other", x, d, spec.width)
        out, once = Value(v.n, v.width), spec.width * tape.numerics.param
        # each token's state and 1 - a, the values, the decay after its sigmoid
        keep = (v, Store(v.nbytes), Store(v.nbytes), Store(once))
        tape.count("other", 4 * v.n, once, v.nbytes, out.nbytes)
        tape.node("other", out, v, keep=keep, param_grads=once)
        return ops.linear(tape, "other", out, spec.width, d)


def module(spec: Average, d: int) -> Any:
    """The torch module; torch is imported when a model is built, not when a recipe is read."""
    import torch

    from assay.model import Context, Linear, Module

    class AverageModule(Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = Linear(d, spec.width, ParamRole.ATTN_VALUE)
            self.o = Linear(spec.width, d, ParamRole.ATTN_OUT)
            self.declare("decay", (spec.width,), ParamRole.SCALE, 0.0)

        def forward(self, x: torch.Tensor, ctx: Context) -> torch.Tensor:
            v, a = self.v(x), torch.sigmoid(self.decay)
            # a new document starts afresh; a pad leaves the average as it is
            state, out = torch.zeros_like(v[:, 0]), []
            for t in range(v.shape[1]):
                keep = a.expand_as(state)
                if ctx.segment_ids is not None and t > 0:
                    same = (ctx.segment_ids[:, t] == ctx.segment_ids[:, t - 1]).unsqueeze(-1)
                    state = torch.where(same, state, torch.zeros_like(state))
                new = keep * state + (1 - keep) * v[:, t]
                if ctx.padding_mask is not None:
                    new = torch.where(ctx.padding_mask[:, t].unsqueeze(-1), new, state)
                state = new
                out.append(state)
            return self.o(torch.stack(out, dim=1))

    return AverageModule()


register(Average, cost=AverageCost(), module=module)
