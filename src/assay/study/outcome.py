"""What the study keeps of a run that has ended: its numbers, its class, and its timing apart from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.study.failure import RunClass, classify

if TYPE_CHECKING:
    from assay.training.record import RunRecord

Series = list[list[Any]]
_CURVE = 160  # points of a training curve that are kept


@dataclass(frozen=True)
class Outcome:
    """An ended run. ``timing`` depends on the machine's mood; nothing else here does."""

    digest: str
    cls: RunClass
    loss: float | None
    stderr: float | None
    initial_loss: float | None
    steps: int
    max_logit: float | None
    grad_norm_max: float | None
    timing: dict[str, Any]
    train_curve: Series = field(default_factory=list, repr=False)
    val_curve: Series = field(default_factory=list, repr=False)
    residual_rms: Series = field(default_factory=list, repr=False)
    layer_logits: Series = field(default_factory=list, repr=False)

    @property
    def alive(self) -> bool:
        return self.cls == "alive"

    @property
    def cpu_seconds(self) -> float:
        return float(self.timing.get("cpu_seconds") or 0.0)


def outcome_of(record: RunRecord, unigram_entropy: float) -> Outcome:
    """The outcome of a record that is not ``interrupted``."""
    final, rows = record.final, record.metrics
    train = [[row["step"], row["loss"]] for row in rows if row.get("loss") is not None]
    cls = classify(
        finite=record.status == "finished",
        val_loss=final.get("val_loss"),
        initial_loss=final.get("initial_loss"),
        unigram_entropy=unigram_entropy,
        train_losses=[loss for _, loss in train],
    )
    return Outcome(
        digest=record.digest,
        cls=cls,
        loss=final.get("val_loss"),
        stderr=final.get("val_stderr"),
        initial_loss=final.get("initial_loss"),
        steps=int(final.get("steps_done") or 0),
        max_logit=final.get("max_logit"),
        grad_norm_max=final.get("grad_norm_max"),
        timing=dict(final.get("timing") or {}),
        train_curve=_thinned(train),
        val_curve=_series(rows, "val_loss"),
        residual_rms=_series(rows, "residual_rms"),
        layer_logits=_series(rows, "max_logit"),
    )


def _series(rows: list[dict[str, Any]], key: str) -> Series:
    return [[row["step"], row[key]] for row in rows if row.get(key) is not None]


def _thinned(curve: Series) -> Series:
    """At most 160 points, evenly, the last among them."""
    if len(curve) <= _CURVE:
        return curve
    picked = {round(i * (len(curve) - 1) / (_CURVE - 1)) for i in range(_CURVE)}
    return [curve[i] for i in sorted(picked)]
