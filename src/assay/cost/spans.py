"""How many (query, key) pairs each span has, in closed form, and how many tokens a cache must hold for it."""

from __future__ import annotations

from functools import singledispatch

from assay.recipe.span import ChunkedSpan, FixedSpan, FullSpan, GlobalSpan, Span, StridedSpan, WindowSpan


@singledispatch
def legal_pairs(span: Span, new: int, past: int) -> int:
    """How many (query, key) pairs one head computes for ``new`` queries after ``past`` keys."""
    raise LookupError(f"span kind {span.kind_name!r} has no count of its legal pairs")


@legal_pairs.register
def _(span: FullSpan, new: int, past: int) -> int:
    if not span.causal:
        return new * (past + new)
    return new * past + new * (new + 1) // 2


def _ramp(n: int, cap: int) -> int:
    """The sum of min(j, cap) for j = 0 .. n - 1; 0 where n is not positive."""
    low = max(0, min(n, cap + 1))
    return low * (low - 1) // 2 + max(0, n - low) * cap


def _blocks(n: int, size: int) -> int:
    """The sum of j // size for j = 0 .. n - 1."""
    full, rest = divmod(n, size)
    return size * full * (full - 1) // 2 + rest * full


def _in_blocks(n: int, size: int) -> int:
    """The sum of j % size + 1 for j = 0 .. n - 1: causal pairs inside blocks."""
    full, rest = divmod(n, size)
    return full * size * (size + 1) // 2 + rest * (rest + 1) // 2


def _reached(n: int, size: int, total: int) -> int:
    """Keys less than ``size`` away, before or after, of the first n queries among ``total`` keys."""
    ends = n * total if total < size else n * size + _ramp(n, total - size)
    return ends - _ramp(n - size + 1, n)


@legal_pairs.register
def _(span: WindowSpan, new: int, past: int) -> int:
    total, w = past + new, span.size
    if not span.causal:
        return _reached(total, w, total) - _reached(past, w, total)
    return _ramp(total + 1, w) - _ramp(past + 1, w)


@legal_pairs.register
def _(span: ChunkedSpan, new: int, past: int) -> int:
    total, c = past + new, span.size
    if span.causal:
        return _in_blocks(total, c) - _in_blocks(past, c)
    whole = total // c * c  # queries before it see a whole chunk, the others what there is of the last one
    return max(0, whole - past) * c + (total - max(whole, past)) * (total - whole)


@legal_pairs.register
def _(span: StridedSpan, new: int, past: int) -> int:
    total, s = past + new, span.stride
    return _ramp(total + 1, s) - _ramp(past + 1, s) + _blocks(total, s) - _blocks(past, s)


@legal_pairs.register
def _(span: FixedSpan, new: int, past: int) -> int:
    total, b = past + new, span.block
    inside = _in_blocks(total, b) - _in_blocks(past, b)
    return inside + span.summary * (_blocks(total, b) - _blocks(past, b))


@legal_pairs.register
def _(span: GlobalSpan, new: int, past: int) -> int:
    total, w, g = past + new, span.size, span.n_global

    def rest(n: int) -> int:
        """Pairs of the first n queries, were none of them global."""
        near = _ramp(n + 1, w) if span.causal else _reached(n, w, total)
        return near + _ramp(n - w + 1, g)

    def seen_by_global(n: int) -> int:
        """Pairs of the first n queries, were all of them global."""
        return n * (n + 1) // 2 if span.causal else n * total

    first, last = min(past, g), min(total, g)
    ordinary = rest(total) - rest(max(past, last))
    return seen_by_global(last) - seen_by_global(first) + ordinary


@singledispatch
def kept_tokens(span: Span, length: int) -> int:
    """How many tokens' keys and values a cache must hold at this length."""
    return length


@kept_tokens.register
def _(span: WindowSpan, length: int) -> int:
    return min(length, span.size) if span.causal else length


@kept_tokens.register
def _(span: ChunkedSpan, length: int) -> int:
    return min(length, span.size) if span.causal else length


@kept_tokens.register
def _(span: GlobalSpan, length: int) -> int:
    return min(length, span.size + span.n_global) if span.causal else length
