"""Orthogonalisation by matrix products alone: roughly the nearest semi-orthogonal matrix. m rows, n columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# a x + b x³ + c x⁵, steep at 0, which lands the singular values in about 0.7 .. 1.2 rather than at 1
# (K. Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io/posts/muon)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def norm_of(x: Tensor) -> Tensor:
    """Frobenius norm, also of entries whose squares leave the range of float32."""
    if x.is_cuda:
        far: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
        return far.to(x.dtype)  # no wait for the number
    norm: Tensor = torch.linalg.vector_norm(x)
    if 1e-12 < float(norm) < 1e12:
        return norm
    far = torch.linalg.vector_norm(x.double())
    return far.to(x.dtype)


def iterate(y: Tensor, steps: int = STEPS) -> Tensor:
    """Newton-Schulz on a stack (k, m, n) with spectral norms up to 1: all singular values towards 1.

    One step is ``y' = P y`` with ``P = a + b A + c A²``, ``A = y y^T``; for m > n, ``y' = y P`` with ``A = y^T y``. On
    long matrices two steps are made at once: ``A' = P A P``, all of the short side's size, then ``y'' = P' P y``, which
    leaves out two products with y. More than two would lose the small singular values in 16 bits.
    """
    a, b, c = COEFFICIENTS
    tall = y.shape[1] > y.shape[2]
    long = max(y.shape[1:]) >= 2 * min(y.shape[1:])
    left = steps
    while left:
        gram = torch.bmm(y.mT, y) if tall else torch.bmm(y, y.mT)
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        if not long or left == 1:
            y = torch.baddbmm(y, y, poly, beta=a) if tall else torch.baddbmm(y, poly, y, beta=a)
            left -= 1
            continue
        poly.diagonal(dim1=-2, dim2=-1).add_(a)
        gram = torch.bmm(torch.bmm(poly, gram), poly)
        then = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        both = torch.baddbmm(poly, then, poly, beta=a)
        y = torch.bmm(y, both) if tall else torch.bmm(both, y)
        left -= 2
    return y


def orthogonalise(
    matrices: Sequence[Tensor], dtype: torch.dtype = torch.bfloat16, steps: int = STEPS
) -> tuple[Tensor, ...]:
    """About ``U V^T`` of each ``U S V^T``, matrices (m, n) of one shape; computed in ``dtype``.

    Whatever their scale: c x gives what x gives, c > 0; a zero matrix stays zero. Divided by its Frobenius norm first,
    which bounds the spectral one.
    """
    y = matrices[0].new_empty((len(matrices), *matrices[0].shape), dtype=dtype)
    for out, x in zip(y, matrices, strict=True):
        norm = norm_of(x)
        torch.div(x, torch.where(norm > 0, norm, 1.0), out=out)
    return tuple(iterate(y, steps))
