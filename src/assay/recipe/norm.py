"""Norms: what divides an activation by its own size, and the parameters that undo it.

Shapes: a norm acts on the last axis of ``(..., width)``; statistics are taken in float32 or better.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, SerializeAsAny

from assay.recipe.base import Part, pick

Gain = Literal["one", "one_plus", "none"]


class Norm(Part):
    """A map of the last axis onto itself; ``none`` is the identity."""

    slot = "norm"


NormSlot = Annotated[SerializeAsAny[Norm], pick(Norm)]


class NoNorm(Norm):
    """The identity."""

    kind: Literal["none"] = "none"


class LayerNorm(Norm):
    """``gain · (x - mean) / sqrt(var + eps) + bias`` (Ba et al. 2016, arXiv:1607.06450).

    ``gain``: ``one`` stores the gain, starting at 1; ``one_plus`` stores its difference from 1, starting at 0;
    ``none`` has no gain. ``var`` is the biased variance.
    """

    kind: Literal["layernorm"] = "layernorm"
    eps: PositiveFloat = 1e-5
    gain: Gain = "one"
    bias: bool = True


class RMSNorm(Norm):
    """``gain · x / sqrt(mean(x²) + eps)`` (Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: PositiveFloat = 1e-6
    gain: Gain = "one"


class ScaleNorm(Norm):
    """``g · x / max(‖x‖, eps)`` with one learned scalar g (Nguyen & Salazar 2019, arXiv:1910.05895, eq. 5).

    ``init`` is the scalar's start: ``sqrt_width`` (the paper's √d) or a number.
    """

    kind: Literal["scalenorm"] = "scalenorm"
    eps: PositiveFloat = 1e-5
    init: PositiveFloat | Literal["sqrt_width"] = "sqrt_width"


class FixNorm(Norm):
    """Embedding rows of fixed length ``radius`` (Nguyen & Chiang 2018, arXiv:1710.01329; with ScaleNorm in 1910.05895).

    Acts on the rows of the token table wherever they are used, so a tied head sees them too. Embeddings only.
    """

    kind: Literal["fixnorm"] = "fixnorm"
    radius: PositiveFloat = 1.0
    eps: PositiveFloat = 1e-5


class Shift(Norm):
    """``x + b`` with one learned scalar b from 0: Fixup's scalar bias (Zhang et al. 2019, arXiv:1901.09321, §3).

    No normalisation at all; it stands where a norm would stand.
    """

    kind: Literal["shift"] = "shift"


NO_NORM = NoNorm()
DropoutRate = Annotated[float, Field(ge=0.0, lt=1.0)]
