"""The order of the data is a pure function of (seed, global sample index)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.data import n_windows, permute, window_starts
from assay.training.data.batches import windows


def batch_of(tokens: Any, step: int, batch_size: int, seq_len: int, seed: int) -> Any:
    """Inputs and targets of update ``step`` (from 1): global samples (step - 1)·batch_size onward."""
    samples = np.arange((step - 1) * batch_size, step * batch_size, dtype=np.int64)
    return windows(tokens, window_starts(samples, tokens.size, seq_len, seed), seq_len)


@given(st.integers(1, 3000), st.integers(0, 2**40))
def test_permute_is_a_permutation(n: int, key: int) -> None:
    assert sorted(permute(np.arange(n), n, key)) == list(range(n))


def test_keys_give_different_orders_and_each_looks_random() -> None:
    n = 4096
    orders = [permute(np.arange(n), n, key) for key in range(4)]
    for i, a in enumerate(orders):
        assert abs(np.corrcoef(np.arange(n), a)[0, 1]) < 0.06
        for b in orders[i + 1 :]:
            assert (a == b).mean() < 0.01


@given(st.integers(1, 7), st.integers(0, 5), st.integers(30, 400))
def test_an_epoch_visits_every_window_once_whatever_the_batch(seq_len: int, seed: int, n_tokens: int) -> None:
    n = n_windows(n_tokens, seq_len)
    whole = window_starts(np.arange(2 * n), n_tokens, seq_len, seed)
    for epoch in (whole[:n], whole[n:]):
        assert sorted(epoch) == [i * seq_len for i in range(n)]
    one_by_one = [int(window_starts(np.array([i]), n_tokens, seq_len, seed)[0]) for i in range(2 * n)]
    assert one_by_one == whole.tolist()
    if n > 20:
        assert whole[:n].tolist() != whole[n:].tolist()


def test_steps_own_ranges_of_samples() -> None:
    tokens = np.arange(200, dtype=np.uint8)
    big, _ = batch_of(tokens, 1, 8, 4, seed=3)
    small = [batch_of(tokens, step, 2, 4, seed=3)[0] for step in (1, 2, 3, 4)]
    assert (big.numpy() == np.concatenate(small)).all()


def test_targets_are_the_next_tokens() -> None:
    tokens = np.arange(200, dtype=np.uint8)
    ids, targets = batch_of(tokens, 2, 4, 5, seed=0)
    assert (targets[:, :-1] == ids[:, 1:]).all()
    assert (targets == ids + 1).all()


def test_too_few_tokens() -> None:
    with pytest.raises(ValueError, match="hold no window"):
        window_starts(np.array([0]), 4, 4, 0)
