"""Differential attention: two maps of every pair of heads, one subtracted from the other.

B batch, T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.model.norm import at_least_float32
from assay.model.parts import Module, build_part
from assay.recipe.differential import HeadPairs
from assay.recipe.roles import ParamRole

NAMES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


class Difference(Module):
    """See :class:`assay.recipe.differential.HeadPairs`; scores are made once for each half of the values.

    So queries and values stay of one width, which flash kernels ask for; it costs the scores' product twice.
    """

    def __init__(self, spec: HeadPairs, head_dim: int) -> None:
        super().__init__()
        self.spec = spec
        for name in NAMES:
            self.declare(name, (head_dim,), ParamRole.LAMBDA)
        self.norm = build_part(spec.norm, 2 * head_dim)

    def factor(self, depth: int) -> Tensor:
        """Lambda, a scalar in float32 or better."""
        q1, k1, q2, k2 = (at_least_float32(getattr(self, name)) for name in NAMES)
        return torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + self.spec.start_at(depth)

    def forward(self, v: Tensor, attend: Callable[[Tensor], Tensor], depth: int) -> Tensor:
        """Values (B, K, T, D) to (B, T, H·D); ``attend`` maps values to what every head reads of them, (B, H, T, D)."""
        factor = self.factor(depth).to(v.dtype)
        halves = []
        for half in v.chunk(2, dim=1):  # head i and head i + H/2 read the same values
            first, second = attend(half.repeat(1, 2, 1, 1)).transpose(1, 2).chunk(2, dim=2)
            halves.append(first - factor * second)
        out: Tensor = self.norm(torch.cat(halves, dim=-1)) * (1.0 - self.spec.start_at(depth))
        return out.flatten(-2)
