"""Differential attention: the maps of two heads, one subtracted from the other."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from assay.recipe.base import Part, pick, refuse
from assay.recipe.norm import NormSlot
from assay.recipe.roles import ParamRole


class Differential(Part):
    """Whether attention maps are subtracted from each other before they meet the output projection."""

    slot = "differential"
    default_kind: ClassVar[str | None] = "pairs"


DifferentialSlot = Annotated[SerializeAsAny[Differential], pick(Differential)]


class NoDifferential(Differential):
    """Every head's map as it is."""

    kind: Literal["none"] = "none"


class HeadPairs(Differential):
    """Two heads make one: ``(1 - start) · norm((A_i - lambda · A_j) [V_i, V_j])`` (Ye et al. 2024, arXiv:2410.05258).

    Head i of the first half is paired with head j = i + n_heads/2, key/value heads likewise; both maps read both
    values, side by side, ``norm`` is over those 2 · head_dim channels. ``lambda = exp(q1 · k1) - exp(q2 · k2) + start``
    with four learned vectors of head_dim a layer (equation 2). ``start``: a number, or ``by_depth`` for
    0.8 - 0.6 · exp(-0.3 · l) in layer l, counted from 0 (equation 3). The paper draws the vectors from N(0, 0.1²):
    ``init.lambda``.
    """

    kind: Literal["pairs"] = "pairs"
    matrix_roles: ClassVar[tuple[ParamRole, ...]] = (ParamRole.LAMBDA,)
    norm: NormSlot
    start: Annotated[float, Field(ge=0.0, lt=1.0)] | Literal["by_depth"] = "by_depth"

    def start_at(self, depth: int) -> float:
        """Where lambda starts in the layer at this depth, from 0."""
        return 0.8 - 0.6 * math.exp(-0.3 * depth) if isinstance(self.start, str) else float(self.start)

    @model_validator(mode="after")
    def _norm(self) -> HeadPairs:
        if self.norm.kind_name == "shift":
            raise refuse("norm", "a shift normalises nothing", "shift", "rmsnorm, layernorm, scalenorm, none")
        return self


def check_pairs(differential: HeadPairs, heads: dict[str, int], dropout: Any) -> None:
    """Heads must pair up; what the maps of two calls would do under dropout nobody has defined."""
    for name, n in heads.items():
        if n % 2:
            raise refuse(name, "differential attention takes heads in pairs", n, "an even number")
    if dropout:
        raise refuse("dropout", "is not defined on the difference of two maps", dropout, "0, or no differential")
