"""Factors on queries that change with their position."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import PositiveFloat, PositiveInt, SerializeAsAny

from assay.recipe.base import Part, pick


class QueryScale(Part):
    """A factor on each query, by where it stands."""

    slot = "query_scale"


QueryScaleSlot = Annotated[SerializeAsAny[QueryScale], pick(QueryScale)]


class NoQueryScale(QueryScale):
    """Queries as they are."""

    kind: Literal["none"] = "none"


class ByPosition(QueryScale):
    """``1 + beta · ln(1 + floor((p + first) / period))`` for the query at position p, after the rotation.

    Sharpens attention where the context is long, a step each ``period`` positions (Llama 4's attention temperature;
    Nakanishi 2025, arXiv:2501.19399, scales by the length's logarithm). ``first`` is the number of the first position:
    0 in Ministral 3, 1 in Llama 4.
    """

    kind: Literal["by_position"] = "by_position"
    beta: PositiveFloat
    period: PositiveInt
    first: Literal[0, 1] = 0
