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


def rank_range(first: int, count: int, rank: int, world: int) -> range:
    """The samples of ``rank`` among the ``count`` samples of an update that starts at ``first``.

    The ranges of all ranks cover the update once, in order, and differ in length by at most one.
    """
    return range(first + rank * count // world, first + (rank + 1) * count // world)


def apportion(quotas: tuple[int, ...]) -> NDArray[np.int64]:
    """A mixture's pattern: which source each of sum(quotas) samples is of, to be repeated without end.

    At every prefix of n samples source s has had n·q_s/Q of them to within one (Tijdeman 1980, Discrete Math. 32: the
    chairman assignment): of the sources that may come without running ahead, the one whose deadline is nearest.
    """
    q, total = np.array(quotas, dtype=np.int64), sum(quotas)
    slack = max(2 * len(quotas) - 2, 1)  # a source is due once it is behind by 1 / slack
    given = np.zeros(len(quotas), dtype=np.int64)
    out = np.empty(total, dtype=np.int64)
    for n in range(1, total + 1):
        may = slack * (n * q - given * total) >= total
        # the n at which source s will be behind by 1 - 1/slack
        deadline = np.where(may, ((given + 1) * slack - 1) / q, np.inf)
        out[n - 1] = chosen = int(np.argmin(deadline))
        given[chosen] += 1
    return out


def portions_of(samples: Indices, pattern: NDArray[np.int64], quotas: tuple[int, ...]) -> tuple[Indices, Indices]:
    """The source of each global sample, and its index among that source's samples; both (k,)."""
    period = len(pattern)
    if len(quotas) == 1:
        return np.zeros_like(samples), samples
    rank = np.empty(period, dtype=np.int64)
    for source in range(len(quotas)):
        chosen = pattern == source
        rank[chosen] = np.arange(int(chosen.sum()))
    rounds, places = samples // period, samples % period
    sources = pattern[places]
    return sources, rounds * np.array(quotas, dtype=np.int64)[sources] + rank[places]
