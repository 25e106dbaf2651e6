"""Classes of failure, on losses like those that were measured."""

from __future__ import annotations

import math
from typing import Any

import pytest

from assay.study.failure import classify, spiked

H = 3.245


def told(val_loss: float | None, train: list[float] | None = None, **more: Any) -> str:
    given = {"finite": True, "initial_loss": 5.55, "unigram_entropy": H, **more}
    return classify(val_loss=val_loss, train_losses=train or [], **given)


@pytest.mark.parametrize(
    ("loss", "cls"),
    [
        (2.42, "alive"),
        (3.19, "alive"),  # poor, but it has learned more than frequencies
        (3.1951, "dead"),
        (3.248, "dead"),
        (3.3, "dead"),  # a plateau above H counts too
        (5.6, "diverged"),
        (None, "nonfinite"),
        (math.nan, "nonfinite"),
        (math.inf, "nonfinite"),
    ],
)
def test_class_by_validation_loss(loss: float | None, cls: str) -> None:
    assert told(loss) == cls


def test_a_run_that_stopped_is_nonfinite_whatever_it_reached() -> None:
    assert told(2.3, finite=False) == "nonfinite"


def falling(to: float, steps: int = 80) -> list[float]:
    return [to + (5.5 - to) * math.exp(-i / 8) for i in range(steps)]


def test_a_spike_that_never_came_back_is_divergence() -> None:
    stuck = falling(2.3) + [3.25] * 40
    assert told(3.25, stuck) == "diverged"
    assert told(2.9, falling(2.3) + [2.9] * 40) == "diverged"  # below H, but most of what was learned is gone


def test_a_spike_that_came_back_is_not() -> None:
    back = falling(2.3) + [3.3] * 10 + [2.3] * 30
    assert not spiked(back, H)
    assert told(2.3, back) == "alive"


def test_noise_and_plateaus_are_no_spikes() -> None:
    wobble = [x + 0.1 * (-1) ** i for i, x in enumerate(falling(2.4, 120))]
    assert told(2.4, wobble) == "alive"
    assert told(3.25, falling(3.24, 120)) == "dead"
    assert not spiked([3.0] * 12, H)  # too short to have a spike
    assert spiked([*falling(2.3), *[3.2] * 39, math.nan], H)  # a step without a number does not hide it
