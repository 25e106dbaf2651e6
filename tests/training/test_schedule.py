"""Schedules at both ends, with phases of length zero, against hand-computed values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from assay.recipe.base import make
from assay.training.schedule import Schedule, constant, cosine, decayed, inverse_sqrt, linear, wsd, wsd_s

SHAPES = ("linear", "1-sqrt", "cosine", "inverse")


def schedule(kind: str, **options: Any) -> Schedule:
    found: Schedule = make(Schedule, {"kind": kind, **options}, {})
    return found


def test_cosine_values_of_every_update() -> None:
    got = [cosine(s, peak=1.0, floor=0.1, warmup=4, total=10) for s in range(1, 11)]
    want = [0.25, 0.5, 0.75, 1, 0.939711, 0.775, 0.55, 0.325, 0.160289, 0.1]
    assert got == pytest.approx(want, abs=1e-6)
    assert got[-1] == 0.1  # exactly


def test_wsd_values_of_every_update() -> None:
    got = [wsd(s, peak=1.0, floor=0.0, warmup=2, total=10, decay=4) for s in range(1, 11)]
    assert got == [0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]


def test_shapes_of_the_decay() -> None:
    """Half way, and a quarter of it, from 1 to 0.25."""
    for shape, half, quarter in (
        ("linear", 0.625, 0.8125),
        ("1-sqrt", 0.25 + 0.75 * (1 - math.sqrt(0.5)), 0.25 + 0.75 * 0.5),
        ("cosine", 0.625, 0.25 + 0.375 * (1 + math.sqrt(0.5))),
        ("inverse", 1 / 2.5, 1 / 1.75),
    ):
        assert decayed(0.5, peak=1.0, floor=0.25, shape=shape) == pytest.approx(half), shape
        assert decayed(0.25, peak=1.0, floor=0.25, shape=shape) == pytest.approx(quarter), shape
        assert (decayed(0.0, peak=1.0, floor=0.25, shape=shape), decayed(1.0, peak=1.0, floor=0.25, shape=shape)) == (
            1.0,
            0.25,
        )


def test_wsd_s_decays_again_and_again() -> None:
    """Two whole cycles and one that the end cuts short; warmup once."""
    got = [wsd_s(s, peak=1.0, floor=0.0, warmup=2, total=13, cycle=5, decay=2, shape="linear") for s in range(1, 14)]
    assert got == [0.5, 1, 1, 0.5, 0, 1, 1, 1, 0.5, 0, 1, 0.5, 0]


@given(st.integers(0, 12), st.integers(1, 30), st.integers(0, 12), st.floats(0.0, 1.0), st.sampled_from(SHAPES))
def test_every_schedule_starts_above_zero_and_ends_at_its_floor(
    warmup: int, total: int, decay: int, share: float, shape: str
) -> None:
    peak, floor = 3e-3, share * 3e-3
    assume(shape != "inverse" or floor > 1e-9)
    steps = range(1, total + 1)
    runs = {
        "cosine": [cosine(s, peak=peak, floor=floor, warmup=warmup, total=total) for s in steps],
        "linear": [linear(s, peak=peak, floor=floor, warmup=warmup, total=total) for s in steps],
        "wsd": [wsd(s, peak=peak, floor=floor, warmup=warmup, total=total, decay=decay, shape=shape) for s in steps],
        "constant": [constant(s, peak=peak, warmup=warmup) for s in steps],
        "inverse_sqrt": [inverse_sqrt(s, peak=peak, warmup=warmup) for s in steps],
    }
    for name, values in runs.items():
        assert all(0 <= v <= peak * (1 + 1e-12) for v in values), name
        if total > 1 or floor > 0 or warmup:
            assert values[0] > 0 or (name == "wsd" and decay >= total) or total == 1, name
        if name in ("cosine", "linear") and total > warmup:
            assert values[-1] == floor, name
        if name == "wsd" and decay and total >= warmup:
            assert values[-1] == floor, name
            tail = values[max(warmup, total - decay) :]
            assert tail == sorted(tail, reverse=True)
    if warmup == 0 and decay == 0:
        assert runs["wsd"] == [peak] * total


@given(st.integers(1, 8), st.integers(0, 3), st.integers(0, 4), st.integers(1, 40), st.sampled_from(SHAPES[:3]))
def test_wsd_s_is_wsd_in_each_cycle(stable: int, warmup: int, decay: int, total: int, shape: str) -> None:
    cycle = stable + warmup + decay
    settings: dict[str, Any] = {"peak": 1.0, "floor": 0.1, "decay": decay, "shape": shape}
    got = [wsd_s(s, warmup=warmup, total=total, cycle=cycle, **settings) for s in range(1, total + 1)]
    for start in range(0, total, cycle):
        end = min(start + cycle, total)
        rise = warmup if start == 0 else 0
        want = [wsd(s, warmup=rise, total=end - start, **settings) for s in range(1, end - start + 1)]
        assert got[start:end] == pytest.approx(want)
    if decay and total >= cycle:
        assert got[cycle - 1] == 0.1


@given(st.integers(1, 20), st.integers(1, 12), st.sampled_from(SHAPES), st.integers(0, 5))
def test_a_cut_follows_its_schedule_and_then_decays(after: int, decay: int, shape: str, warmup: int) -> None:
    of = schedule("wsd", lr=1.0, warmup=warmup, decay=3, floor=0.05)
    cut = schedule("cut", of=of.model_dump(mode="json"), total=30, after=after, decay=decay, floor=0.1, shape=shape)
    assert cut.needs == after + decay
    assert cut.peak == 1.0
    steps = after + decay
    assert [cut.at(s, steps) for s in range(1, after + 1)] == [of.at(s, 30) for s in range(1, after + 1)]
    tail = [cut.at(s, steps) for s in range(after, steps + 1)]
    assert tail == sorted(tail, reverse=True)
    assert tail[-1] == 0.1


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("wsd", {"lr": 1.0, "decay": 4, "shape": "inverse"}),
        ("wsd_s", {"lr": 1.0, "warmup": 3, "decay": 4, "cycle": 6}),
        ("wsd", {"lr": 1.0, "decay": 4, "shape": "sqrt"}),
        ("cut", {"of": {"kind": "constant", "lr": 1.0}, "total": 5, "after": 6, "decay": 2}),
    ],
)
def test_what_cannot_be_is_refused(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(PydanticCustomError):
        schedule(kind, **options)
