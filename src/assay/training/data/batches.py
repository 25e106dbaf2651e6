"""Batches of windows as tensors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.training.data.order import n_windows, window_starts


def windows(tokens: NDArray[np.uint8], starts: NDArray[np.int64], seq_len: int) -> tuple[Tensor, Tensor]:
    """Inputs and next-token targets, each (k, seq_len) int64, from windows that start at ``starts``."""
    rows = tokens[starts[:, None] + np.arange(seq_len + 1)]
    block = torch.from_numpy(rows.astype(np.int64))
    return block[:, :-1].contiguous(), block[:, 1:].contiguous()


def batch_of(tokens: NDArray[np.uint8], step: int, batch_size: int, seq_len: int, seed: int) -> tuple[Tensor, Tensor]:
    """The batch of update ``step`` (from 1): global samples (step - 1)·batch_size onward."""
    return samples(tokens, (step - 1) * batch_size, batch_size, seq_len, seed)


def samples(tokens: NDArray[np.uint8], first: int, size: int, seq_len: int, seed: int) -> tuple[Tensor, Tensor]:
    """Global samples first .. first + size - 1."""
    indices = np.arange(first, first + size, dtype=np.int64)
    return windows(tokens, window_starts(indices, tokens.size, seq_len, seed), seq_len)


def validation_starts(tokens: NDArray[np.uint8], seq_len: int) -> NDArray[np.int64]:
    """Every window of the validation split, in order, none overlapping."""
    return np.arange(n_windows(tokens.size, seq_len), dtype=np.int64) * seq_len
