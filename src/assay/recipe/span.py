"""Spans: which keys a query may see."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import PositiveInt, SerializeAsAny, model_validator

from assay.recipe.base import Part, pick, refuse


class Span(Part):
    """The legal (query, key) pairs, by position."""

    slot = "span"

    @property
    def is_causal(self) -> bool:
        """True where no query sees a key after it."""
        return True


SpanSlot = Annotated[SerializeAsAny[Span], pick(Span)]


class FullSpan(Span):
    """Every key up to the query (causal), or every key."""

    kind: Literal["full"] = "full"
    causal: bool = True

    @property
    def is_causal(self) -> bool:
        return self.causal


class WindowSpan(Span):
    """The query and the ``size - 1`` keys before it; not causal: also the ``size - 1`` after it."""

    kind: Literal["window"] = "window"
    size: PositiveInt
    causal: bool = True

    @property
    def is_causal(self) -> bool:
        return self.causal


class ChunkedSpan(Span):
    """Keys of the query's own chunk of ``size`` positions only (Llama 4's local layers)."""

    kind: Literal["chunked"] = "chunked"
    size: PositiveInt
    causal: bool = True

    @property
    def is_causal(self) -> bool:
        return self.causal


class StridedSpan(Span):
    """The query, the ``stride - 1`` keys before it, and every ``stride``-th key before those.

    The strided pattern of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509, section 4.2), both of its heads
    in one. Causal.
    """

    kind: Literal["strided"] = "strided"
    stride: PositiveInt


class FixedSpan(Span):
    """Keys of the query's own block, and the last ``summary`` keys of every earlier block of ``block`` positions.

    The fixed pattern of the Sparse Transformer (arXiv:1904.10509, section 4.2), both of its heads in one. Causal.
    """

    kind: Literal["fixed"] = "fixed"
    block: PositiveInt
    summary: PositiveInt = 1

    @model_validator(mode="after")
    def _inside(self) -> FixedSpan:
        if self.summary > self.block:
            raise refuse("summary", f"more than the block of {self.block}", self.summary, "at most block")
        return self


class GlobalSpan(Span):
    """A window, and the first ``n_global`` positions, which every query sees and which see every key (Longformer).

    Beltagy et al. 2020, arXiv:2004.05150, section 3.1. Causal: nothing sees what comes after it.
    """

    kind: Literal["window_global"] = "window_global"
    size: PositiveInt
    n_global: PositiveInt
    causal: bool = True

    @property
    def is_causal(self) -> bool:
        return self.causal
