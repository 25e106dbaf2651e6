"""Learning-rate schedules as pure functions of the update number.

``step`` counts updates from 1: it is the LR *used* by update ``step``. The first is above zero, the last is the floor
exactly. Phases of length zero vanish. ``peak`` and ``floor`` are learning rates.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, SerializeAsAny

from assay.recipe.base import Part, pick

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _warming(step: int, peak: float, warmup: int) -> float | None:
    return peak * step / warmup if step < warmup else None


def cosine(step: int, *, peak: float, floor: float, warmup: int, total: int) -> float:
    """Linear warmup, then half a cosine from peak to floor (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5)."""
    rising = _warming(step, peak, warmup)
    if rising is not None:
        return rising
    if total <= warmup:
        return peak
    progress = min(1.0, (step - warmup) / (total - warmup))
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress)) if progress < 1 else floor


def linear(step: int, *, peak: float, floor: float, warmup: int, total: int) -> float:
    """Linear warmup, then a straight line from peak to floor."""
    rising = _warming(step, peak, warmup)
    if rising is not None:
        return rising
    if total <= warmup:
        return peak
    progress = min(1.0, (step - warmup) / (total - warmup))
    return peak + (floor - peak) * progress if progress < 1 else floor


def wsd(step: int, *, peak: float, floor: float, warmup: int, total: int, decay: int) -> float:
    """Warmup, stable, linear decay over the last ``decay`` updates (Hu et al. 2024, arXiv:2404.06395, eq. 1)."""
    rising = _warming(step, peak, warmup)
    if rising is not None:
        return rising
    left = total - step
    if left >= decay:
        return peak
    return floor if left <= 0 else floor + (peak - floor) * left / decay


def constant(step: int, *, peak: float, warmup: int) -> float:
    """Linear warmup, then the peak for ever."""
    rising = _warming(step, peak, warmup)
    return peak if rising is None else rising


def inverse_sqrt(step: int, *, peak: float, warmup: int) -> float:
    """Linear warmup to the peak, then ``peak · sqrt(warmup / step)`` (Vaswani et al. 2017, eq. 3)."""
    rising = _warming(step, peak, warmup)
    return peak * math.sqrt(max(warmup, 1) / max(step, 1)) if rising is None else rising


class Schedule(Part):
    """The learning rate of every update."""

    slot = "schedule"

    def at(self, step: int, total: int) -> float:
        """The LR of update ``step`` (from 1) of ``total``."""
        raise NotImplementedError


ScheduleSlot = Annotated[SerializeAsAny[Schedule], pick(Schedule)]


class Cosine(Schedule):
    """Warmup and cosine to ``floor`` times the peak."""

    kind: Literal["cosine"] = "cosine"
    lr: PositiveFloat
    warmup: NonNegativeInt = 0
    floor: Fraction = 0.1

    def at(self, step: int, total: int) -> float:
        return cosine(step, peak=self.lr, floor=self.floor * self.lr, warmup=self.warmup, total=total)


class Linear(Schedule):
    """Warmup and a straight line to ``floor`` times the peak."""

    kind: Literal["linear"] = "linear"
    lr: PositiveFloat
    warmup: NonNegativeInt = 0
    floor: Fraction = 0.0

    def at(self, step: int, total: int) -> float:
        return linear(step, peak=self.lr, floor=self.floor * self.lr, warmup=self.warmup, total=total)


class Wsd(Schedule):
    """Warmup, stable, then linear decay over the last ``decay`` updates to ``floor`` times the peak."""

    kind: Literal["wsd"] = "wsd"
    lr: PositiveFloat
    warmup: NonNegativeInt = 0
    decay: NonNegativeInt
    floor: Fraction = 0.0

    def at(self, step: int, total: int) -> float:
        peak = self.lr
        return wsd(step, peak=peak, floor=self.floor * peak, warmup=self.warmup, total=total, decay=self.decay)


class Constant(Schedule):
    """Warmup, then constant."""

    kind: Literal["constant"] = "constant"
    lr: PositiveFloat
    warmup: NonNegativeInt = 0

    def at(self, step: int, total: int) -> float:
        return constant(step, peak=self.lr, warmup=self.warmup)


class InverseSqrt(Schedule):
    """Warmup to the peak, then the inverse square root of the update number."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    lr: PositiveFloat
    warmup: NonNegativeInt = 0

    def at(self, step: int, total: int) -> float:
        return inverse_sqrt(step, peak=self.lr, warmup=self.warmup)
