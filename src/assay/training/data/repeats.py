"""How often a document repeats itself at once: the longest row of one n-gram, n up to 13."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 13  # tokens of an n-gram (OLMo 2, arXiv:2501.00656, section 3.1)


def longest_repeats(ids: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each document, how many times in a row some n-gram of it stands; 1 where none is repeated.

    A row of r copies of an n-gram has ids[i] == ids[i + n] at (r - 1)·n places one after another.

    Args:
        ids: (N,) documents one after another.
        starts: (d + 1,) where each begins, and the end of the last.
    """
    best = np.ones(len(starts) - 1, dtype=np.int64)
    for n in range(1, min(LONGEST, len(ids) - 1) + 1):
        equal = np.zeros(len(ids) - n + 2, dtype=bool)  # False before the first place and after the last
        np.equal(ids[n:], ids[:-n], out=equal[1:-1])
        for back in range(1, n + 1):  # pairs that straddle two documents
            edges = starts[1:-1] - back
            equal[1 + edges[(edges >= 0) & (edges < len(ids) - n)]] = False
        turns = np.flatnonzero(equal[1:] != equal[:-1])
        begins, rows = turns[::2], np.diff(turns)[::2]
        long = rows >= n
        at = np.searchsorted(starts, begins[long], side="right") - 1
        np.maximum.at(best, at, rows[long] // n + 1)
    return best
