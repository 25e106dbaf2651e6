"""What a sweep of learning rates says: survival, the rate that may be used, where training breaks, how much it matters.

A *point* is one run at one rate and one seed. Nothing here drops a failed run: it counts, as what it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from assay.study.failure import DEAD_MARGIN, RunClass

MIN_TUNING_SEEDS = 3


@dataclass(frozen=True)
class Point:
    """One run of a sweep. ``loss`` is None where it is not a number."""

    lr: float
    seed: int
    loss: float | None
    cls: RunClass
    initial_loss: float | None = None
    run: str = ""

    @property
    def alive(self) -> bool:
        return self.cls == "alive"


@dataclass(frozen=True)
class Rung:
    """All points of one rate."""

    lr: float
    points: tuple[Point, ...]

    @property
    def n(self) -> int:
        return len(self.points)

    @property
    def alive(self) -> int:
        return sum(p.alive for p in self.points)

    @property
    def failing(self) -> bool:
        """Most of the seeds fail."""
        return 2 * (self.n - self.alive) > self.n

    @property
    def median(self) -> float:
        """Median loss; a run without a number counts as infinite."""
        return float(median(math.inf if p.loss is None else p.loss for p in self.points))

    @property
    def mean(self) -> float:
        return math.fsum(math.inf if p.loss is None else p.loss for p in self.points) / self.n

    @property
    def capped(self) -> float:
        """Mean over seeds of min(loss, loss at initialisation)."""
        return math.fsum(_capped(p) for p in self.points) / self.n


def _capped(point: Point) -> float:
    start = math.inf if point.initial_loss is None else point.initial_loss
    return min(math.inf if point.loss is None else point.loss, start)


def ladder_of(points: Sequence[Point]) -> list[Rung]:
    """The rates in rising order, each with its points in order of seed."""
    rates = sorted({p.lr for p in points})
    return [Rung(lr, tuple(sorted((p for p in points if p.lr == lr), key=lambda p: p.seed))) for lr in rates]


@dataclass(frozen=True)
class Selection:
    """The rate an arm reports at. ``lr`` is None where no rate of the grid is selectable."""

    lr: float | None
    selectable: tuple[float, ...]
    on_edge: bool


def select(points: Sequence[Point], min_seeds: int = MIN_TUNING_SEEDS) -> Selection:
    """The selectable rate of lowest mean tuning loss; of equal ones, the lower.

    A rate is selectable where all of its tuning seeds (at least three) are alive and the next rate of the grid is not
    dead for most of its seeds. The top rate has no next one: it is selectable, and a best rate there, or at the bottom,
    is marked as on the edge of the grid.
    """
    rungs = ladder_of(points)
    fit = [
        rung
        for rung, above in zip(rungs, [*rungs[1:], None], strict=True)
        if rung.n >= min_seeds and rung.alive == rung.n and not (above is not None and above.failing)
    ]
    if not fit:
        return Selection(None, (), False)
    best = min(fit, key=lambda rung: (rung.mean, rung.lr))
    edge = best.lr in (rungs[0].lr, rungs[-1].lr)
    return Selection(best.lr, tuple(rung.lr for rung in fit), edge)


@dataclass(frozen=True)
class Breaking:
    """LR-to-divergence as an interval: the last rate that trains and the first above it that does not."""

    last_good: float | None
    first_bad: float | None

    @property
    def text(self) -> str:
        if self.last_good is None:
            return "no rate of the grid learns" if self.first_bad is None else f"≤ {rate_text(self.first_bad)}"
        if self.first_bad is None:
            return f"> {rate_text(self.last_good)}"
        return f"{rate_text(self.last_good)} to {rate_text(self.first_bad)}"

    @property
    def words(self) -> str:
        """For a sentence after "training breaks"."""
        if self.last_good is None:
            return "at every learning rate of the grid"
        if self.first_bad is None:
            return f"nowhere on the grid, up to {rate_text(self.last_good)}"
        return f"between {rate_text(self.last_good)} and {rate_text(self.first_bad)}"


def breaking(points: Sequence[Point]) -> Breaking:
    """Search upward from the best rate for the first one at which most seeds fail.

    The best rate is that of lowest median loss among those where most seeds live; a low rate that has not learned yet
    is no divergence. Without any such rate there is nothing to search from: both ends are None.
    """
    rungs = ladder_of(points)
    good = [i for i, rung in enumerate(rungs) if 2 * rung.alive > rung.n]
    if not good:
        return Breaking(None, None)
    start = min(good, key=lambda i: (rungs[i].median, rungs[i].lr))
    for i in range(start + 1, len(rungs)):
        if rungs[i].failing:
            return Breaking(rungs[i - 1].lr, rungs[i].lr)
    return Breaking(rungs[-1].lr, None)


@dataclass(frozen=True)
class Sensitivity:
    """LR sensitivity with what it must be read beside: l*, the range, and whether anything was learned."""

    value: float | None
    l_star: float | None
    best: float | None
    high_side: float | None
    never_learned: bool
    rates: tuple[float, ...]


def sensitivity(points: Sequence[Point], unigram_entropy: float) -> Sensitivity:
    """``E_η[ min(l(η), l0) - l* ]`` over the grid, unweighted; l* the lowest (Wortsman et al. 2023, section 2.2).

    l(η) is the mean over seeds of ``min(loss, l0)``. ``high_side`` takes the mean over [η*, 100 η*] only: over the
    whole grid a rate that is merely too low for a short budget can outweigh every failure. A model that never learns
    scores near zero, which is why ``never_learned`` (l* > H - 0.05) stands beside it.
    """
    rungs = ladder_of(points)
    known = [rung for rung in rungs if math.isfinite(rung.capped)]
    if not known or len(known) < len(rungs):
        return Sensitivity(None, None, None, None, not known, tuple(r.lr for r in rungs))
    best = min(known, key=lambda rung: (rung.capped, rung.lr))
    star = best.capped
    high = [r.capped - star for r in known if best.lr <= r.lr <= 100 * best.lr * (1 + 1e-9)]
    return Sensitivity(
        value=math.fsum(r.capped - star for r in known) / len(known),
        l_star=star,
        best=best.lr,
        high_side=math.fsum(high) / len(high),
        never_learned=star > unigram_entropy - DEAD_MARGIN,
        rates=tuple(r.lr for r in known),
    )


def rate_text(lr: float) -> str:
    """``5e-3``, ``1.5e-4``, ``1``."""
    if 0.5 <= lr < 1000:
        return f"{lr:g}"
    mantissa, exponent = f"{lr:.5e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
