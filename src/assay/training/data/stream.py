"""Chosen documents of a folder of tokens as one sequence, read by slices of the mapped shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.data.bins import Bins

Array = NDArray[Any]
Indices = NDArray[np.int64]

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Stream:
    """Tokens that adjoin on disk in runs, and the runs one after another.

    Attributes:
        arrays: what the runs lie in.
        array, offset: for each run, which array and where in it.
        begins: where each run begins in the stream, and the end of the last; (runs + 1,).
        starts: where each document begins in the stream; (documents,).
    """

    arrays: tuple[Array, ...]
    array: Indices
    offset: Indices
    begins: Indices
    starts: Indices

    @classmethod
    def chosen(cls, bins: Bins, keep: NDArray[np.bool_]) -> Stream:
        """The documents that ``keep`` (n,) marks, in the order in which they lie."""
        sizes = np.diff(bins.starts)
        shard = np.searchsorted(bins.shard_starts, bins.starts[:-1], side="right") - 1
        kept = np.flatnonzero(keep)
        if not kept.size:
            return cls(bins.shards, *(np.zeros(n, dtype=np.int64) for n in (0, 0, 1, 0)))
        fresh = np.ones(kept.size, dtype=bool)  # does a run begin here
        fresh[1:] = (np.diff(kept) > 1) | (np.diff(shard[kept]) > 0)
        first = kept[fresh]
        starts = np.cumsum(sizes[kept]) - sizes[kept]
        return cls(
            bins.shards,
            shard[first],
            bins.starts[first] - bins.shard_starts[shard[first]],
            np.append(starts[fresh], sizes[kept].sum()),
            starts,
        )

    @classmethod
    def of(cls, tokens: Array, starts: Indices | None = None) -> Stream:
        """An array as a stream of one run."""
        zero = np.zeros(1, dtype=np.int64)
        return cls((tokens,), zero, zero, np.array([0, len(tokens)]), zero if starts is None else starts)

    @property
    def size(self) -> int:
        """Tokens."""
        return int(self.begins[-1])

    def windows(self, starts: Indices, n: int) -> Array:
        """The ``n`` tokens from each start on; (k, n) in the type they are stored in."""
        out = np.empty((len(starts), n), dtype=self.arrays[0].dtype)
        runs = np.searchsorted(self.begins, starts, side="right") - 1
        whole = starts + n <= self.begins[runs + 1]
        at = self.offset[runs] + starts - self.begins[runs]
        for i, (start, run, simple, place) in enumerate(
            zip(starts.tolist(), runs.tolist(), whole.tolist(), at.tolist(), strict=True)
        ):
            if simple:
                out[i] = self.arrays[self.array[run]][place : place + n]
            else:
                self._across(out[i], start, run)
        return out

    def _across(self, out: Array, start: int, run: int) -> None:
        done, n = 0, len(out)
        while done < n:
            place = int(self.offset[run] + start + done - self.begins[run])
            take = min(n - done, int(self.begins[run + 1]) - start - done)
            if take <= 0:
                raise IndexError(f"{n} tokens from {start} on: the stream has {self.size}")
            out[done : done + take] = self.arrays[self.array[run]][place : place + take]
            done += take
            run += 1

    def documents(self, starts: Indices, n: int) -> Indices:
        """Which document each token of the windows is of, counted from the stream's first; (k, n)."""
        places = starts[:, None] + np.arange(n)
        return np.searchsorted(self.starts, places.ravel(), side="right").reshape(places.shape) - 1

    def counts(self, vocab_size: int) -> Indices:
        """How often each id occurs."""
        out = np.zeros(vocab_size, dtype=np.int64)
        for i in range(0, self.size, _CHUNK):
            n = min(_CHUNK, self.size - i)
            out += np.bincount(self.windows(np.array([i]), n)[0], minlength=vocab_size)
        return out
