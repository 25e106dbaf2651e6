"""Learning-rate schedules as pure functions of the update number.

``step`` counts updates from 1: it is the LR *used* by update ``step``. The first is above zero, the last is the floor
exactly. Phases of length zero vanish. ``peak`` and ``floor`` are learning rates.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, SerializeAsAny, model_validator

from assay.recipe.base import Part, pick, refuse

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Shape = Literal["linear", "1-sqrt", "cosine", "inverse"]
S = TypeVar("S", bound="_Decaying | Cut")


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


def decayed(progress: float, *, peak: float, floor: float, shape: str = "linear") -> float:
    """The way from peak to floor, both exact; progress from 0 to 1.

    ``linear``; ``1-sqrt``: ``1 - sqrt(progress)`` (Hägele et al. 2024, arXiv:2405.18392, eq. 2); ``cosine``;
    ``inverse``: linear in 1 / LR (Wen et al. 2024, arXiv:2410.05192, section 4), which needs a floor above 0.
    """
    if progress <= 0 or progress >= 1:
        return peak if progress <= 0 else floor
    if shape == "inverse":
        return 1.0 / (progress / floor + (1.0 - progress) / peak)
    left = {
        "linear": 1.0 - progress,
        "1-sqrt": 1.0 - math.sqrt(progress),
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[shape]
    return floor + (peak - floor) * left


def wsd(step: int, *, peak: float, floor: float, warmup: int, total: int, decay: int, shape: str = "linear") -> float:
    """Warmup, stable, decay over the last ``decay`` updates (Hu et al. 2024, arXiv:2404.06395, eq. 1)."""
    rising = _warming(step, peak, warmup)
    if rising is not None:
        return rising
    left = total - step
    return peak if left >= decay else decayed(1.0 - left / decay, peak=peak, floor=floor, shape=shape)


def wsd_s(
    step: int, *, peak: float, floor: float, warmup: int, total: int, cycle: int, decay: int, shape: str = "inverse"
) -> float:
    """WSD that decays at the end of every ``cycle`` updates, and of the run, and goes on at the peak: a decayed model
    at each, in one run (WSD-S, Wen et al. 2024, arXiv:2410.05192).
    """
    end = min(total, -(-step // cycle) * cycle)
    return wsd(step, peak=peak, floor=floor, warmup=warmup, total=end, decay=decay, shape=shape)


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

    @property
    def peak(self) -> float:
        """The highest LR."""
        return float(self.lr)  # type: ignore[attr-defined]

    @property
    def needs(self) -> int:
        """Updates that its phases take at least."""
        return int(getattr(self, "warmup", 0)) + int(getattr(self, "decay", 0))


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


class _Decaying(Schedule):
    """What the schedules with a decay of their own share."""

    lr: PositiveFloat
    warmup: NonNegativeInt = 0
    decay: NonNegativeInt
    floor: Fraction = 0.0
    shape: Shape = "linear"

    @model_validator(mode="after")
    def _ends(self) -> _Decaying:
        return _check_inverse(self)


class Wsd(_Decaying):
    """Warmup, stable, then decay over the last ``decay`` updates to ``floor`` times the peak."""

    kind: Literal["wsd"] = "wsd"

    def at(self, step: int, total: int) -> float:
        peak, floor = self.lr, self.floor * self.lr
        return wsd(step, peak=peak, floor=floor, warmup=self.warmup, total=total, decay=self.decay, shape=self.shape)


class WsdS(_Decaying):
    """WSD-S: decays over the last ``decay`` updates of every ``cycle``, then on at the peak."""

    kind: Literal["wsd_s"] = "wsd_s"
    cycle: PositiveInt

    @model_validator(mode="after")
    def _fits(self) -> WsdS:
        if self.warmup + self.decay > self.cycle:
            message = f"shorter than warmup and decay, {self.warmup + self.decay} updates"
            raise refuse("cycle", message, self.cycle, "at least that")
        return self

    def at(self, step: int, total: int) -> float:
        peak, floor = self.lr, self.floor * self.lr
        return wsd_s(
            step, peak=peak, floor=floor, warmup=self.warmup, total=total, cycle=self.cycle, decay=self.decay,
            shape=self.shape,
        )  # fmt: skip


class Cut(Schedule):
    """Another schedule up to update ``after``, then a decay over ``decay`` updates to ``floor`` times its peak.

    ``of`` is read as in its own run, of ``total`` updates: the first ``after`` updates are that run's, bit for bit.
    """

    kind: Literal["cut"] = "cut"
    of: ScheduleSlot
    total: PositiveInt
    after: PositiveInt
    decay: PositiveInt
    floor: Fraction = 0.0
    shape: Shape = "linear"

    @model_validator(mode="after")
    def _ends(self) -> Cut:
        if self.after > self.total:
            raise refuse("after", f"beyond the {self.total} updates of that run", self.after, "at most that")
        return _check_inverse(self)

    @property
    def lr(self) -> float:
        return self.of.peak

    @property
    def needs(self) -> int:
        return self.after + self.decay

    def at(self, step: int, total: int) -> float:
        if step <= self.after:
            return self.of.at(step, self.total)
        top = self.of.at(self.after, self.total)
        floor = min(top, self.floor * self.peak)
        return decayed((step - self.after) / self.decay, peak=top, floor=floor, shape=self.shape)


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


def _check_inverse(schedule: S) -> S:
    if schedule.shape == "inverse" and schedule.floor == 0:
        raise refuse("shape", "decays linearly in 1 / LR, which needs an end above 0", "inverse", "a floor above 0")
    return schedule
