"""A batch that grows. Which samples an update reads is a pure function of its number, so a resumed run reads the same.

Sequences are counted; a sequence is ``seq_len`` tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import PositiveInt, SerializeAsAny

from assay.recipe.base import Part, pick


class Batch(NamedTuple):
    """One update's samples: global indices ``first`` .. ``first + size - 1``; ``lr_scale`` multiplies its rate."""

    first: int
    size: int
    lr_scale: float = 1.0


class Ramp(Part):
    """How the batch grows to the run's ``batch_size``."""

    slot = "ramp"

    def plan(self, batch_size: int, seq_len: int) -> BatchPlan:
        """The samples of every update."""
        return BatchPlan([], batch_size, ())


RampSlot = Annotated[SerializeAsAny[Ramp], pick(Ramp)]


class NoRamp(Ramp):
    """The same batch throughout."""

    kind: Literal["none"] = "none"


class LinearRamp(Ramp):
    """From ``start`` sequences to the whole batch, linearly in the tokens seen, over the first ``tokens`` of them
    (Brown et al. 2020, arXiv:2005.14165, section 2.3: 32 thousand tokens to the full value over 4 to 12 billion).

    Sizes are multiples of ``multiple_of``. ``lr``: while the batch is a fraction f of the whole, the learning rate is
    multiplied by 1 (``same``), by sqrt(f) (``sqrt``, Krizhevsky 2014, arXiv:1404.5997, section 5) or by f (``linear``).
    """

    kind: Literal["linear"] = "linear"
    start: PositiveInt
    tokens: PositiveInt
    multiple_of: PositiveInt = 1
    lr: Literal["same", "sqrt", "linear"] = "same"

    def plan(self, batch_size: int, seq_len: int) -> BatchPlan:
        firsts, sizes, first = [], [], 0
        while first * seq_len < self.tokens:
            grown = self.start + (batch_size - self.start) * first * seq_len / self.tokens
            size = max(1, int(grown) // self.multiple_of) * self.multiple_of
            firsts.append(first)
            sizes.append(min(batch_size, size))
            first += sizes[-1]
        power = {"same": 0.0, "sqrt": 0.5, "linear": 1.0}[self.lr]
        scales = tuple((size / batch_size) ** power for size in sizes)
        return BatchPlan([*firsts, first], batch_size, scales)


class BatchPlan:
    """The samples of every update: ``starts`` of those while the batch grows and of the first whole one."""

    def __init__(self, starts: list[int], batch_size: int, lr_scales: tuple[float, ...]) -> None:
        self.starts, self.batch_size, self.lr_scales = starts or [0], batch_size, lr_scales

    def of(self, step: int) -> Batch:
        """Of update ``step``, from 1."""
        growing = len(self.starts) - 1
        if step <= growing:
            first = self.starts[step - 1]
            return Batch(first, self.starts[step] - first, self.lr_scales[step - 1])
        return Batch(self.starts[-1] + (step - 1 - growing) * self.batch_size, self.batch_size)

    def samples(self, step: int) -> int:
        """Samples read by the first ``step`` updates."""
        return 0 if step == 0 else sum(self.of(step)[:2])
