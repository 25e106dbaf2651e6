"""How a run ended: alive, dead, diverged or non-finite.

At small scale a failing run seldom overflows: it sits at H, the loss of a model that knows how often each token occurs
and nothing else, with gradients as small as anyone's. So neither NaN checks nor gradient alarms find it; H does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

RunClass = Literal["alive", "dead", "diverged", "nonfinite"]
CLASSES: tuple[RunClass, ...] = ("alive", "dead", "diverged", "nonfinite")
DEAD_MARGIN = 0.05  # nats: a model has to beat H by more than this to count as learning
_SPIKE = 0.2  # nats that a smoothed loss must have risen, at least, before a rise is a spike
_LOST = 0.5  # share of what was gained below H that a spike must have cost
_WINDOW = 10  # steps in the smoothing window, at least


def classify(
    *,
    finite: bool,
    val_loss: float | None,
    initial_loss: float | None,
    unigram_entropy: float,
    train_losses: Sequence[float] = (),
) -> RunClass:
    """The class of a finished run; the first that applies.

    - ``nonfinite``: the run stopped at a loss that is no number, or ended with one.
    - ``diverged``: validation loss above the loss at initialisation, or a spike that never came back.
    - ``dead``: validation loss > H - 0.05, H the train split's unigram cross-entropy on the validation set.
    - ``alive``: none of these.
    """
    if not finite or val_loss is None or not math.isfinite(val_loss):
        return "nonfinite"
    if initial_loss is not None and val_loss > initial_loss:
        return "diverged"
    if spiked(train_losses, unigram_entropy):
        return "diverged"
    return "dead" if val_loss > unigram_entropy - DEAD_MARGIN else "alive"


def spiked(train_losses: Sequence[float], unigram_entropy: float) -> bool:
    """True where the loss rose and never came back.

    With s the mean over a window of ``max(10, n // 20)`` steps, b its minimum and e its last value:
    ``b < H - 0.05`` (it had learned) and ``e - b > max(0.2, 0.5 (H - b))`` (it lost half of that).
    """
    window = max(_WINDOW, len(train_losses) // 20)
    if len(train_losses) < 2 * window:
        return False
    smooth = [
        math.fsum(train_losses[i - window : i]) / window
        for i in range(window, len(train_losses) + 1)
        if all(map(math.isfinite, train_losses[i - window : i]))
    ]
    if not smooth:
        return False
    best, last = min(smooth), smooth[-1]
    gained = unigram_entropy - best
    return gained > DEAD_MARGIN and last - best > max(_SPIKE, _LOST * gained)
