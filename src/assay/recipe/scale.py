"""Multipliers on a residual branch or on the skip: a constant, a learned scalar, a learned vector."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import SerializeAsAny

from assay.recipe.base import Part, Sizes, pick


class Scale(Part):
    """A multiplier of the stream or of a branch. A bare number is a constant."""

    slot = "scale"

    @classmethod
    def shorthand(cls, value: Any, sizes: Sizes | None) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"kind": "constant", "value": value}
        return super().shorthand(value, sizes)


ScaleSlot = Annotated[SerializeAsAny[Scale], pick(Scale)]


class ConstantScale(Scale):
    """A fixed number: DeepNorm's alpha on the skip, Granite's residual multiplier on the branch."""

    kind: Literal["constant"] = "constant"
    value: float = 1.0


class ScalarScale(Scale):
    """One learned number. ReZero starts it at 0 (Bachlechner et al. 2020, arXiv:2003.04887), Fixup at 1."""

    kind: Literal["scalar"] = "scalar"
    init: float


class VectorScale(Scale):
    """One learned number a channel: LayerScale (Touvron et al. 2021, arXiv:2103.17239, eq. 4)."""

    kind: Literal["vector"] = "vector"
    init: float


UNIT_SCALE = ConstantScale(value=1.0)
