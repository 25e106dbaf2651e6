"""What ``assay train`` shows while it runs: a live table on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from assay.training.speed import Ceiling

EVERY = 30.0  # seconds between the lines where there is no terminal
_SMOOTH = 0.95  # weight of the past in the smoothed loss
_RECENT = 20  # updates that the speed is a mean of
_SHOWN = 4  # warnings on the screen


@dataclass
class State:
    """A run as far as it is known, from its rows."""

    steps: int
    flops_per_token: float | None = None
    ceiling: Ceiling | None = None
    clock: Callable[[], float] = time.monotonic
    row: dict[str, Any] = field(default_factory=dict)
    done_here: int = 0
    smooth: float = 0.0
    weight: float = 0.0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    validation: dict[str, Any] = field(default_factory=dict)
    peak: float | None = None
    warnings: list[str] = field(default_factory=list)
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    def feed(self, row: dict[str, Any]) -> None:
        """Take in an update."""
        self.row = row
        self.done_here += 1
        self.rates.append(row["tokens_per_s"])
        self.warnings += row.get("warnings", [])
        if "val_loss" in row:
            self.validation = row
        self.peak = max((m for m in row.get("max_logit") or () if m is not None), default=self.peak)
        if row["loss"] is not None:
            self.smooth = _SMOOTH * self.smooth + (1 - _SMOOTH) * row["loss"]
            self.weight = _SMOOTH * self.weight + (1 - _SMOOTH)

    @property
    def loss(self) -> float:
        """The smoothed loss, without the bias of its start."""
        return self.smooth / self.weight if self.weight else math.nan

    @property
    def rate(self) -> float:
        """Tokens a second over the last updates: of their sum, so that a slow one counts for its time."""
        rates = tuple(self.rates)  # the screen is drawn by a thread of its own
        return len(rates) / sum(1 / max(rate, 1e-9) for rate in rates) if rates else math.nan

    @property
    def eta(self) -> float:
        """Seconds to the end, at this session's pace with all that it stopped for."""
        left = self.steps - self.row.get("step", 0)
        return left * (self.clock() - self.began) / self.done_here if self.done_here else math.nan

    @property
    def mfu(self) -> str:
        """The share of the ceiling, and what that is."""
        if self.ceiling is None:
            return "MFU: no peak known"
        if self.flops_per_token is None:
            return "MFU: no count of the FLOPs"
        return f"MFU {self.rate * self.flops_per_token / self.ceiling.flops:.1%} of {self.ceiling.name}"

    def said(self) -> list[tuple[str, str]]:
        """Names and texts of what stands on the screen."""
        row = self.row
        loss = math.nan if row["loss"] is None else row["loss"]
        norm = "not finite" if row["grad_norm"] is None else f"{row['grad_norm']:.3g}"
        found = [
            ("loss", f"{self.loss:.4f} smoothed, {loss:.4f} now"),
            ("validation", _validation(self.validation) or "none yet"),
            ("speed", f"{self.rate:,.0f} tokens/s, {self.mfu}"),
            ("rate", f"learning rate {row['lr']:.2e}, gradient norm {norm}"),
        ]
        return found if self.peak is None else [*found, ("logits", f"largest attention logit {self.peak:.3g}")]

    def line(self) -> str:
        """All of it on one line."""
        row = self.row
        parts = [f"update {row['step']:,}/{self.steps:,}", f"loss {self.loss:.4f}", f"lr {row['lr']:.2e}"]
        parts += [f"{self.rate:,.0f} tok/s", self.mfu, f"ETA {clock_time(self.eta)}"]
        told = _validation(self.validation)
        return "  ".join([*parts, *([f"validation {told}"] if told else [])])


def _validation(row: dict[str, Any]) -> str:
    if not row or row["val_loss"] is None:
        return ""
    bits = row.get("val_bits_per_byte")
    told = f"{row['val_loss']:.4f}" + (f" ({bits:.4f} bits a byte)" if bits is not None else "")
    mean = row.get("ema_val_loss")
    return told + (f", running mean {mean:.4f}" if mean is not None else "") + f" at {row['step']:,}"


def clock_time(seconds: float) -> str:
    """``1:02:03``, ``4:05``."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class View:
    """Shows a :class:`State` on a console for as long as it is entered."""

    def __init__(self, state: State, console: Console, every: float = EVERY) -> None:
        self.state, self.console, self.every = state, console, every
        self.live: Live | None = None
        self.told = -math.inf

    def __enter__(self) -> View:
        if self.console.is_terminal:
            from rich.live import Live

            self.live = Live(console=self.console, refresh_per_second=4, get_renderable=self._page)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def feed(self, row: dict[str, Any]) -> None:
        """Take in an update, and say what is to be said."""
        state = self.state
        state.feed(row)
        if self.live is not None:
            return
        now = state.clock()
        if now - self.told >= self.every or row["step"] == state.steps:
            self.told = now
            self._print(state.line())
        for warning in row.get("warnings", ()):
            self._print(f"warning: {warning}")

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _page(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        from assay.cli.tables import pairs

        state = self.state
        step = state.row.get("step", 0)
        head = Table.grid(padding=(0, 2))
        ends = f"ETA {clock_time(state.eta)}" if state.row else "starting"
        head.add_row(f"update {step:,} of {state.steps:,}", ProgressBar(state.steps, step, width=40), ends)
        warnings = [Text(f"warning: {each}", style="yellow") for each in state.warnings[-_SHOWN:]]
        return Group(head, *([pairs(state.said(), width=10)] if state.row else []), *warnings)
