"""Schedules at both ends, with phases of length zero, against hand-computed values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.schedule import constant, cosine, inverse_sqrt, linear, wsd


def test_cosine_values_of_every_update() -> None:
    got = [cosine(s, peak=1.0, floor=0.1, warmup=4, total=10) for s in range(1, 11)]
    want = [0.25, 0.5, 0.75, 1, 0.939711, 0.775, 0.55, 0.325, 0.160289, 0.1]
    assert got == pytest.approx(want, abs=1e-6)
    assert got[-1] == 0.1  # exactly


def test_wsd_values_of_every_update() -> None:
    got = [wsd(s, peak=1.0, floor=0.0, warmup=2, total=10, decay=4) for s in range(1, 11)]
    assert got == [0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]


@given(st.integers(0, 12), st.integers(1, 30), st.integers(0, 12), st.floats(0.0, 1.0))
def test_every_schedule_starts_above_zero_and_ends_at_its_floor(
    warmup: int, total: int, decay: int, share: float
) -> None:
    peak, floor = 3e-3, share * 3e-3
    runs = {
        "cosine": [cosine(s, peak=peak, floor=floor, warmup=warmup, total=total) for s in range(1, total + 1)],
        "linear": [linear(s, peak=peak, floor=floor, warmup=warmup, total=total) for s in range(1, total + 1)],
        "wsd": [wsd(s, peak=peak, floor=floor, warmup=warmup, total=total, decay=decay) for s in range(1, total + 1)],
        "constant": [constant(s, peak=peak, warmup=warmup) for s in range(1, total + 1)],
        "inverse_sqrt": [inverse_sqrt(s, peak=peak, warmup=warmup) for s in range(1, total + 1)],
    }
    for name, values in runs.items():
        assert all(0 <= v <= peak * (1 + 1e-12) for v in values), name
        if total > 1 or floor > 0 or warmup:
            assert values[0] > 0 or (name == "wsd" and decay >= total) or total == 1, name
        if name in ("cosine", "linear") and total > warmup:
            assert values[-1] == floor, name
        if name == "wsd" and decay and total >= warmup:
            assert values[-1] == floor, name
    if warmup == 0 and decay == 0:
        assert runs["wsd"] == [peak] * total
