"""Orthogonalisation by matrix products alone: roughly the nearest semi-orthogonal matrix. m rows, n columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# a x + b x³ + c x⁵, steep at 0, which lands the singular values in about 0.7 .. 1.2 rather than at 1
# (K. Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io/posts/muon)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def scaled_into(out: Tensor, x: Tensor) -> None:
    """``out = x / |x|`` for an (m, n) matrix, |x| its Frobenius norm, which bounds the spectral one; zero stays zero.

    The norm is summed in float64, where the square of the tiniest float32 is still a number.
    """
    norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    torch.div(x, torch.where(norm > 0, norm, 1.0).to(x.dtype), out=out)


def iterate(y: Tensor, steps: int = STEPS) -> Tensor:
    """Newton-Schulz on a stack (k, m, n) with m <= n and spectral norms up to 1: all singular values towards 1.

    One step is ``y' = P y`` with ``P = a + b A + c A²``, ``A = y y^T``. On wide matrices two steps are made at once:
    ``A' = P A P``, all of size m, then ``y'' = P' P y``, which leaves out two products with y and rounds y less often.
    More than two would lose the small singular values in 16 bits.
    """
    a, b, c = COEFFICIENTS
    wide = y.shape[2] >= 2 * y.shape[1]
    left = steps
    while left:
        gram = torch.bmm(y, y.mT)
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        if not wide or left == 1:
            y = torch.baddbmm(y, poly, y, beta=a)
            left -= 1
            continue
        poly.diagonal(dim1=-2, dim2=-1).add_(a)
        gram = torch.bmm(torch.bmm(poly, gram), poly)
        then = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        y = torch.bmm(torch.baddbmm(poly, then, poly, beta=a), y)
        left -= 2
    return y


def orthogonalise(
    matrices: Sequence[Tensor], dtype: torch.dtype = torch.bfloat16, steps: int = STEPS
) -> tuple[Tensor, ...]:
    """About ``U V^T`` of each ``U S V^T``, matrices (m, n) of one shape; computed in ``dtype``.

    Whatever their scale: c x gives what x gives, c > 0.
    """
    m, n = matrices[0].shape
    tall = m > n
    y = matrices[0].new_empty((len(matrices), min(m, n), max(m, n)), dtype=dtype)
    for out, x in zip(y, matrices, strict=True):
        scaled_into(out, x.mT if tall else x)
    return tuple(u.mT if tall else u for u in iterate(y, steps))
