"""What the rows of a run show that its owner would want to be told, in words. Read without torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any

RECENT = 50  # updates that a median is taken over
_FEW = 20  # updates before which nothing is compared
_SPIKE = 6.0  # robust standard deviations above the recent median, and
_RISE = 0.3  # nats at least
_GROWTH = 5.0  # times the calmest median gradient norm
_LOGITS = (1e4, 1e3)  # an attention logit this large leaves softmax one-hot and bf16 without digits
_DEAD = 0.05  # nats below H that still count as nothing learned
_PATIENCE = 200  # updates after which a run should have learned something
_SLOW = 0.6  # of the earlier median of tokens a second
_LONG = 1000  # updates that the earlier median is taken over
_MOST = 12  # sentences of one kind


class Watch:
    """Feed it every row in order, from the first; a resumed run is told the same as one that never stopped.

    ``unigram_entropy``: H in nats a token, what token frequencies alone reach.
    """

    def __init__(self, unigram_entropy: float | None = None) -> None:
        self.entropy = unigram_entropy
        self.losses: deque[float] = deque(maxlen=RECENT)
        self.norms: deque[float] = deque(maxlen=RECENT)
        self.calmest = math.inf
        self.worst_logit = 0.0
        self.quiet: dict[str, int] = {}  # kind -> step before which it is not said again
        self.said: dict[str, int] = {}

    def feed(self, row: dict[str, Any]) -> list[str]:
        """What is new with this row."""
        step, loss, norm = row["step"], row.get("loss"), row.get("grad_norm")
        if loss is None or not math.isfinite(loss) or norm is None or not math.isfinite(norm):
            what = "loss" if loss is None or not math.isfinite(loss) else "gradient"
            return [f"step {step}: the {what} is not a finite number; the run ends"]
        found = [
            *self._spike(step, loss),
            *self._growth(step, norm),
            *self._logits(step, row.get("max_logit") or ()),
        ]
        self.losses.append(loss)
        self.norms.append(norm)
        return [*found, *self._nothing(step)]

    def _spike(self, step: int, loss: float) -> list[str]:
        if len(self.losses) < _FEW:
            return []
        usual = median(self.losses)
        spread = 1.4826 * median(abs(each - usual) for each in self.losses)
        if loss - usual < max(_SPIKE * spread, _RISE):
            return []
        return self._once(
            "spike", step, RECENT, f"loss spike: {loss:.3f}, the median of the updates before is {usual:.3f}"
        )

    def _growth(self, step: int, norm: float) -> list[str]:
        if len(self.norms) < RECENT:
            return []
        now = median(self.norms)
        calmest, self.calmest = self.calmest, min(self.calmest, now)
        if now < _GROWTH * calmest or not math.isfinite(calmest):
            return []
        text = f"gradient norm growing: {now:.3g} over the last {RECENT} updates, {calmest:.3g} at its calmest"
        return self._once("growth", step, 10 * RECENT, text)

    def _logits(self, step: int, peaks: Iterable[float | None]) -> list[str]:
        known = [(peak, layer) for layer, peak in enumerate(peaks) if peak is not None]
        if not known:
            return []
        peak, layer = max(known)
        limit = next((limit for limit in _LOGITS if peak > limit), 0.0)
        if limit <= self.worst_logit:
            return []
        self.worst_logit = limit
        return [f"step {step}: attention logits above {limit:,.0f}: {peak:,.0f} in layer {layer}"]

    def _nothing(self, step: int) -> list[str]:
        if self.entropy is None or step < _PATIENCE or len(self.losses) < RECENT:
            return []
        now = median(self.losses)
        if now < self.entropy - _DEAD:
            return []
        text = (
            f"learning nothing: loss {now:.3f} over the last {RECENT} updates, H, the entropy of token frequencies, is"
        )
        return self._once("nothing", step, 10 * _PATIENCE, f"{text} {self.entropy:.3f}")

    def _once(self, kind: str, step: int, silence: int, text: str) -> list[str]:
        if step < self.quiet.get(kind, 0) or self.said.get(kind, 0) >= _MOST:
            self.quiet[kind] = max(self.quiet.get(kind, 0), step + silence)  # not while it goes on
            return []
        self.quiet[kind] = step + silence
        self.said[kind] = self.said.get(kind, 0) + 1
        return [f"step {step}: {text}"]


class Pace:
    """Tells when tokens a second drop. Of this machine's mood, so apart from :class:`Watch`."""

    def __init__(self) -> None:
        self.rates: deque[float] = deque(maxlen=_LONG)
        self.seen = 0
        self.slow = False

    def feed(self, row: dict[str, Any]) -> list[str]:
        """What is new with this row."""
        self.rates.append(row["tokens_per_s"])
        self.seen += 1
        if len(self.rates) < 3 * _FEW or self.seen % _FEW:
            return []
        rates = list(self.rates)
        now, before = median(rates[-_FEW:]), median(rates[2:-_FEW])
        was, self.slow = self.slow, now < _SLOW * before
        if not self.slow or was:
            return []
        return [f"step {row['step']}: tokens a second dropped to {now:,.0f}, before it was {before:,.0f}"]
