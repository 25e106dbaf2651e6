"""Which checkpoints stay. Decides no number of a run, so it is no part of its identity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import PositiveInt, SerializeAsAny

from assay.recipe.base import Part, Sizes, pick


class Keep(Part):
    """A rule; ``best_and_last`` stands for ``{kind = "last", best = true}``, the usual one."""

    slot = "keep"

    @classmethod
    def shorthand(cls, value: Any, sizes: Sizes | None) -> Any:
        return {"kind": "last", "best": True} if value == "best_and_last" else super().shorthand(value, sizes)

    def due(self, step: int, better: bool) -> bool:
        """Whether update ``step`` is to be saved whatever ``checkpoint_every`` says; ``better``: than any before."""
        return False

    def kept(self, steps: Iterable[int], best: int) -> set[int]:
        """Those of the saved ``steps`` that stay; ``best`` is the step of the lowest validation loss."""
        return set()


KeepSlot = Annotated[SerializeAsAny[Keep], pick(Keep)]


class KeepNothing(Keep):
    """The newest two while the run goes on, so that it can resume; none when it has ended."""

    kind: Literal["nothing"] = "nothing"

    def kept(self, steps: Iterable[int], best: int) -> set[int]:
        return set(sorted(steps)[-2:])


class KeepLast(Keep):
    """The newest ``n``; with ``best`` that of the lowest validation loss, with ``every`` each of its multiples as well.

    With ``n = 1`` damage to the only one loses the run.
    """

    kind: Literal["last"] = "last"
    n: PositiveInt = 2
    every: PositiveInt | Literal["none"] = "none"
    best: bool = False

    def due(self, step: int, better: bool) -> bool:
        return (self.best and better) or (self.every != "none" and step % self.every == 0)

    def kept(self, steps: Iterable[int], best: int) -> set[int]:
        found = sorted(steps)
        stays = set(found[-self.n :])
        if self.best:
            stays.add(best)
        if self.every != "none":
            stays |= {step for step in found if step % self.every == 0}
        return stays
