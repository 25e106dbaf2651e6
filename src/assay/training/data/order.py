"""Which window of the corpus is global sample i: a pure function of (seed, i), so that resume needs no data state.

Windows of ``seq_len + 1`` tokens start every ``seq_len`` tokens. Each epoch visits every window once, in an order that
a keyed permutation of the index gives without storing it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
_MASK = np.uint64(0xFFFFFFFFFFFFFFFF)
_ROUNDS = 4


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele et al. 2014): a good hash of 64 bits."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def permute(index: Indices, n: int, key: int) -> Indices:
    """The place of each index in a keyed permutation of 0 .. n - 1.

    A balanced Feistel network over the next power of four, walked until the result falls below n.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    out = index.astype(np.uint64)
    todo = np.ones(out.shape, dtype=bool)
    while todo.any():
        left, right = out[todo] >> shift, out[todo] & low
        for i in range(_ROUNDS):
            salt = np.uint64((key * 0x9E3779B97F4A7C15 + i * 0xD1B54A32D192ED03) & int(_MASK))
            left, right = right, left ^ (_mix(right ^ salt) & low)
        out[todo] = (left << shift) | right
        todo = out >= np.uint64(n)
    return out.astype(np.int64)


def n_windows(n_tokens: int, seq_len: int) -> int:
    """Windows of ``seq_len`` inputs and as many targets in a split."""
    return (n_tokens - 1) // seq_len


def window_starts(samples: Indices, n_tokens: int, seq_len: int, seed: int) -> Indices:
    """Where each global sample starts in the split.

    Args:
        samples: global sample indices from 0, any order; (k,).
    """
    n = n_windows(n_tokens, seq_len)
    if n < 1:
        raise ValueError(f"{n_tokens} tokens hold no window of {seq_len} + 1")
    epochs, places = samples // n, samples % n
    out = np.empty_like(samples)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        out[chosen] = permute(places[chosen], n, key=(seed << 20) ^ int(epoch)) * seq_len
    return out
