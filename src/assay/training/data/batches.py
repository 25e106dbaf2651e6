"""Batches of windows as tensors.

k windows of T inputs and as many targets, each the token after its input.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.model import IGNORED
from assay.training.data.corpus import Corpus
from assay.training.data.order import n_windows
from assay.training.data.spec import STREAM, DocumentsPacking, Packing
from assay.training.data.stream import Stream

Array = NDArray[Any]
Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """Inputs and targets, (k, T) int64; ``segments``: which document each input is of, None where none is isolated."""

    ids: Tensor
    targets: Tensor
    segments: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        segments = None if self.segments is None else self.segments.to(device, non_blocking=True)
        return Batch(self.ids.to(device, non_blocking=True), self.targets.to(device, non_blocking=True), segments)

    def split(self, size: int) -> list[Batch]:
        """Micro-batches of ``size`` windows, the last one of what is left."""
        pieces = [self.ids.split(size), self.targets.split(size)]
        if self.segments is None:
            return [Batch(*pair) for pair in zip(*pieces, strict=True)]
        return [Batch(*three) for three in zip(*pieces, self.segments.split(size), strict=True)]


def batch(corpus: Corpus, first: int, count: int, seq_len: int, seed: int, packing: Packing = STREAM) -> Batch:
    """Global samples ``first`` .. ``first + count - 1`` of the training split."""
    return samples_of(corpus, range(first, first + count), seq_len, seed, packing)


def samples_of(corpus: Corpus, samples: range, seq_len: int, seed: int, packing: Packing = STREAM) -> Batch:
    """Any range of global samples: a pure function of (seed, sample), whoever asks for it and when."""
    parts, starts = corpus.place(np.arange(samples.start, samples.stop, samples.step), seq_len, seed)
    isolated = isinstance(packing, DocumentsPacking)
    if len(corpus.parts) == 1:
        return rows_of(corpus.parts[0].train, starts, seq_len, isolated)
    rows = np.empty((len(starts), seq_len + 1), dtype=np.int64)
    documents = np.empty_like(rows) if isolated else None
    for p in np.unique(parts).tolist():
        chosen = parts == p
        stream = corpus.parts[p].train
        rows[chosen] = stream.windows(starts[chosen], seq_len + 1)
        if documents is not None:
            documents[chosen] = stream.documents(starts[chosen], seq_len + 1)
    return _tensors(rows, documents)


def rows_of(stream: Stream, starts: Indices, seq_len: int, isolated: bool) -> Batch:
    """The windows of a stream that begin at ``starts``."""
    documents = stream.documents(starts, seq_len + 1) if isolated else None
    return _tensors(stream.windows(starts, seq_len + 1).astype(np.int64), documents)


def _tensors(rows: Indices, documents: Indices | None) -> Batch:
    block = torch.from_numpy(rows)
    ids, targets = block[:, :-1].contiguous(), block[:, 1:].contiguous()
    if documents is None:
        return Batch(ids, targets)
    segments = torch.from_numpy(documents - documents[:, :1])
    # the next document does not follow from this one; in a copy, since one row's ids and targets share their memory
    targets = targets.masked_fill(segments[:, 1:] != segments[:, :-1], IGNORED)
    return Batch(ids, targets, segments[:, :-1].contiguous())


def windows(tokens: Array, starts: Indices, seq_len: int) -> tuple[Tensor, Tensor]:
    """Inputs and next-token targets, each (k, seq_len) int64, from windows of an array that begin at ``starts``."""
    found = rows_of(Stream.of(tokens), starts, seq_len, isolated=False)
    return found.ids, found.targets


def validation_starts(size: int, seq_len: int) -> Indices:
    """Every window of a split of so many tokens, in order, none overlapping."""
    return np.arange(n_windows(size, seq_len), dtype=np.int64) * seq_len
