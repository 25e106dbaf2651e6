"""Attention, one (head, query, key) at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.reference.norms import Array

Legal = Callable[[int, int], bool]


def legal_by_rule(span: Any) -> Legal:
    """May the query at position i see the key at position j: the rule of an authored span."""
    table = {"kind": span} if isinstance(span, str) else span
    causal = table.get("causal", True)
    size = table["size"] if table["kind"] == "window" else None

    def legal(i: int, j: int) -> bool:
        if causal and j > i:
            return False
        if size is None:
            return True
        # the query itself and the size - 1 before it (and after it, where order does not bind)
        nearest = {i - n for n in range(size)} | (set() if causal else {i + n for n in range(size)})
        return j in nearest

    return legal


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    legal: Legal,
    soft_cap: float | None = None,
    sinks: Array | None = None,
) -> Array:
    """``softmax(cap(scale q k)) v`` over the legal keys; (H, T, D), (K, S, D), (K, S, E) to (H, T, E).

    Query heads are dealt to key/value heads in order, a block each (Ainslie et al. 2023). ``sinks``: a logit a head in
    the denominator alone (gpt-oss). No legal key, no output.
    """
    heads, length, _ = q.shape
    out = np.zeros((heads, length, v.shape[-1]))
    for h in range(heads):
        g = h // (heads // k.shape[0])
        for i in range(length):
            weights: dict[int, float] = {}
            for j in range(k.shape[1]):
                if legal(i, j):
                    s = scale * math.fsum(float(a) * float(b) for a, b in zip(q[h, i], k[g, j], strict=True))
                    weights[j] = s if soft_cap is None else soft_cap * math.tanh(s / soft_cap)
            if not weights:
                continue
            top = max([*weights.values(), *([] if sinks is None else [float(sinks[h])])])
            total = sum(math.exp(s - top) for s in weights.values())
            if sinks is not None:
                total += math.exp(float(sinks[h]) - top)
            for j, s in weights.items():
                out[h, i] += math.exp(s - top) / total * v[g, j]
    return out
