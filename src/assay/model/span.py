"""Legal (query, key) pairs of each span, by position. Padding and documents are applied on top of them."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.model.parts import ByKind
from assay.recipe.span import ChunkedSpan, FixedSpan, FullSpan, GlobalSpan, Span, StridedSpan, WindowSpan

# allowed(span, query, key): may the query at position ``query`` (..., Tq, 1) see the key at ``key`` (..., 1, Tk)?
allowed = ByKind("mask")


@allowed.register(FullSpan)
def _(span: FullSpan, query: Tensor, key: Tensor) -> Tensor:
    if span.causal:
        return key <= query
    return torch.ones_like(key <= query)


@allowed.register(WindowSpan)
def _(span: WindowSpan, query: Tensor, key: Tensor) -> Tensor:
    distance = query - key
    if span.causal:
        return (distance >= 0) & (distance < span.size)
    return distance.abs() < span.size


@allowed.register(ChunkedSpan)
def _(span: ChunkedSpan, query: Tensor, key: Tensor) -> Tensor:
    same = query // span.size == key // span.size
    return same & (key <= query) if span.causal else same


@allowed.register(StridedSpan)
def _(span: StridedSpan, query: Tensor, key: Tensor) -> Tensor:
    distance = query - key
    return (distance >= 0) & ((distance < span.stride) | (distance % span.stride == 0))


@allowed.register(FixedSpan)
def _(span: FixedSpan, query: Tensor, key: Tensor) -> Tensor:
    summary = key % span.block >= span.block - span.summary
    return (key <= query) & ((query // span.block == key // span.block) | summary)


@allowed.register(GlobalSpan)
def _(span: GlobalSpan, query: Tensor, key: Tensor) -> Tensor:
    distance = query - key
    reached = (distance.abs() < span.size) | (key < span.n_global) | (query < span.n_global)
    return reached & (distance >= 0) if span.causal else reached


def is_plain_causal(span: Span, length: int) -> bool:
    """True where the span is the causal triangle at this length."""
    if isinstance(span, WindowSpan | ChunkedSpan):
        return span.causal and span.size >= length
    return isinstance(span, FullSpan) and span.causal


def is_everything(span: Span, length: int) -> bool:
    """True where every pair is legal at this length."""
    if isinstance(span, WindowSpan | ChunkedSpan):
        return not span.causal and span.size >= length
    return isinstance(span, FullSpan) and not span.causal
