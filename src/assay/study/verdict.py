"""The verdict's words, fixed in advance.

- **unstable**: a reporting seed of either arm failed, or an arm has no selectable learning rate.
- **equivalent**: the difference lies inside the plan's margin (two one-sided tests), and the margin is one that the
  plan could resolve. It goes before the next two: such a difference was declared not to matter.
- **better** / **worse**: the change's loss is lower / higher, p < alpha (Holm's for all but the plan's first change).
- **undecided**: none of these; the smallest effect that could have been seen stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from assay.study import statistics as st
from assay.study.failure import CLASSES, RunClass

Word = Literal["better", "worse", "equivalent", "undecided", "unstable"]
WORDS: tuple[Word, ...] = ("better", "worse", "equivalent", "undecided", "unstable")


@dataclass(frozen=True)
class Reported:
    """An arm's reporting runs at its selected rate; none where no rate is selectable."""

    label: str
    lr: float | None
    losses: tuple[float | None, ...]
    classes: tuple[RunClass, ...]
    seeds: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        return len(self.losses)

    @property
    def alive(self) -> int:
        return self.classes.count("alive")

    @property
    def sound(self) -> bool:
        return self.n > 0 and self.alive == self.n

    @property
    def values(self) -> list[float]:
        """The losses of the seeds that ended with a number."""
        return [loss for loss in self.losses if loss is not None]

    def count(self) -> dict[str, int]:
        return {cls: self.classes.count(cls) for cls in CLASSES}


@dataclass(frozen=True)
class Effect:
    """The measured difference, change minus baseline: negative is a lower loss. Of living arms only."""

    welch: st.Difference
    permutation_p: float | None
    bca: st.Interval | None
    equivalence_p: float | None
    adjusted_p: float
    correlation: float | None = None  # of the arms' losses over equal seeds: measured, never assumed

    def to_dict(self, bits: bool) -> dict[str, Any]:
        """Plain numbers; ``bits``: a token is a byte, so nats a token are nats a byte."""
        w = self.welch
        return {
            "nats": w.nats,
            "bits_per_byte": w.nats / math.log(2) if bits else None,
            "sd": w.in_sd,
            "hedges_g": w.hedges_g,
            "interval": list(w.interval),
            "p": w.p,
            "n": list(w.n),
            "confidence": w.confidence,
            "pooled_sd": w.sd,
            "degrees_of_freedom": w.df if math.isfinite(w.df) else None,
            "p_holm": self.adjusted_p,
            "permutation_p": self.permutation_p,
            "bca_interval": None if self.bca is None else list(self.bca),
            "equivalence_p": self.equivalence_p,
            "seed_correlation": self.correlation,
            "direction": "change minus baseline; negative is a lower loss",
        }


@dataclass(frozen=True)
class Rules:
    """What the plan fixed: level, power, the margin if any, whether the plan could resolve it."""

    confidence: float
    power: float
    margin: float | None
    resolvable: bool
    unit: str = "nats a token"

    @property
    def alpha(self) -> float:
        return round(1.0 - self.confidence, 12)


@dataclass(frozen=True)
class Verdict:
    """A word, the effect behind it (None where an arm failed), and sentences that say both."""

    word: Word
    effect: Effect | None
    sentences: tuple[str, ...]


def measured(change: Reported, baseline: Reported, rules: Rules) -> Effect | None:
    """The effect of two arms whose every reporting seed lives; a mean over dead and living seeds says nothing."""
    if not (change.sound and baseline.sound) or min(change.n, baseline.n) < 2:
        return None
    a, b = change.values, baseline.values
    welch = st.welch(a, b, rules.confidence)
    return Effect(
        welch=welch,
        permutation_p=st.permutation_p(a, b),
        bca=st.bca_interval(a, b, rules.confidence),
        equivalence_p=None if rules.margin is None else st.tost(a, b, rules.margin),
        adjusted_p=welch.p,
        correlation=st.correlation(a, b) if change.seeds and change.seeds == baseline.seeds else None,
    )


def decide(change: Reported, baseline: Reported, effect: Effect | None, rules: Rules) -> Verdict:
    """The verdict on a change against its baseline."""
    if effect is None:
        return Verdict("unstable", None, tuple(_unstable(change, baseline)))
    word = _word(effect, rules)
    return Verdict(word, effect, tuple(_sentences(word, change, baseline, effect, rules)))


def _word(effect: Effect, rules: Rules) -> Word:
    p = effect.equivalence_p
    if rules.resolvable and p is not None and p < rules.alpha:
        return "equivalent"
    if effect.adjusted_p < rules.alpha:
        return "better" if effect.welch.nats < 0 else "worse"
    return "undecided"


def _unstable(change: Reported, baseline: Reported) -> list[str]:
    out = []
    for arm in (change, baseline):
        if arm.lr is None:
            out.append(
                f"{arm.label} has no learning rate on the grid at which all its tuning seeds learn with room above."
            )
        elif not arm.sound:
            failed = ", ".join(f"{n} {cls}" for cls, n in arm.count().items() if n and cls != "alive")
            out.append(
                f"{arm.label} learned with {arm.alive} of {arm.n} fresh seeds at the learning rate that its tuning "
                f"seeds chose ({failed})."
            )
    return ["No verdict on quality: a failed seed is a result, and is not averaged away.", *out]


def _sentences(word: Word, change: Reported, baseline: Reported, effect: Effect, rules: Rules) -> list[str]:
    w = effect.welch
    low, high = w.interval
    percent = f"{rules.confidence:.0%}"
    size = f"{abs(w.nats):.3f} {rules.unit}"
    relative = "" if w.in_sd is None else f", {abs(w.in_sd):.1f} seed standard deviations"
    spread = f"{percent} interval {low:+.3f} to {high:+.3f}, {w.n[0]} and {w.n[1]} seeds{relative}"
    interval = f"(difference {w.nats:+.3f}, {spread})"
    direction = "lower" if w.nats < 0 else "higher"
    against = f"than that of {baseline.label} {interval}."
    out = {
        "better": f"{change.label} is better: its validation loss is {size} lower {against}",
        "worse": f"{change.label} is worse: its validation loss is {size} higher {against}",
        "equivalent": (
            f"{change.label} and {baseline.label} are equivalent within ±{rules.margin or 0:g} {rules.unit}: the "
            f"difference is {w.nats:+.3f} ({spread})."
        ),
        "undecided": (
            f"Undecided: {change.label} ended {size} {direction} than {baseline.label} {interval}, which this study "
            "cannot tell from chance."
        ),
    }
    sentences = [out[word]]
    if word == "undecided" and w.sd > 0:
        least = st.mde(min(w.n), rules.alpha, rules.power) * w.sd
        sentences.append(f"The smallest difference it could see {rules.power:.0%} of the time is {least:.3f} nats.")
    return sentences


def judge(primary: Reported, others: Sequence[Reported], baseline: Reported, rules: Rules) -> list[Verdict]:
    """The primary change's verdict, then the others'.

    The primary change is named by the plan and judged alone, so what else runs cannot move its verdict; Holm's
    correction is over the others.
    """
    effects = [measured(change, baseline, rules) for change in others]
    adjusted = st.holm({str(i): effect.welch.p for i, effect in enumerate(effects) if effect is not None})
    out = [decide(primary, baseline, measured(primary, baseline, rules), rules)]
    for i, (change, effect) in enumerate(zip(others, effects, strict=True)):
        final = None if effect is None else replace(effect, adjusted_p=adjusted[str(i)])
        out.append(decide(change, baseline, final, rules))
    return out
