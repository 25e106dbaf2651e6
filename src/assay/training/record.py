"""What a run leaves behind."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from assay.cost import tensors_of
from assay.training.config import RunConfig
from assay.training.folder import FolderError, finite, read_metrics
from assay.training.summary import summary, timing

RECORD = "record.json"
MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class RunRecord:
    """A run, finished or not.

    Attributes:
        status: ``finished``, ``interrupted`` or ``nonfinite`` (the loss or its gradient left the finite numbers);
            ``unfinished`` where that was asked for.
        final: plain numbers at the end: val_loss and val_stderr (nats), initial_loss, steps_done, max_logit,
            grad_norm_max, params; and, under ``timing``, what depends on the machine's mood: cpu_seconds, step_ms
            (median and quartiles), tokens_per_s, peak_rss_mb.
        metrics: a row an update.
    """

    folder: Path
    digest: str
    config: RunConfig
    status: str
    final: dict[str, Any]
    metrics: list[dict[str, Any]] = field(repr=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics, a row an update."""
        return self.metrics

    def frame(self, library: Literal["any", "pandas", "polars"] = "any") -> Any:
        """The metrics as a DataFrame of pandas or of polars, whichever is installed; a row an update.

        A column a number; values by corpus get one each (``val_loss_by_part.code``), values by layer stay lists. What a
        row does not have is missing there. Raises ImportError where there is none of them.
        """
        names = ("pandas", "polars") if library == "any" else (library,)
        rows = [_flat(row) for row in self.metrics]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        for name in names:
            try:
                module = import_module(name)
            except ImportError:
                continue
            table = {key: [row.get(key) for row in rows] for key in columns}
            return module.DataFrame(table) if name == "pandas" else module.DataFrame(table, strict=False)
        raise ImportError(f"a frame needs {' or '.join(names)}: pip install {names[0]}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "digest": self.digest,
            "status": self.status,
            "final": self.final,
            "config": self.config.to_dict(),
        }


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in row.items():
        out |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return out


def load_record(folder: str | Path, *, unfinished: bool = False) -> RunRecord:
    """The record of a run folder; raises FolderError naming what is missing or damaged.

    ``unfinished``: of a run that is still going, or was killed, as well: status ``unfinished``, numbers as far as its
    rows go.
    """
    folder = Path(folder)
    if unfinished and not (folder / RECORD).exists():
        return _so_far(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder}: no readable run here: {error}") from None
    config = RunConfig.from_dict(manifest["config"], str(folder / MANIFEST))
    metrics = read_metrics(folder / METRICS)
    return RunRecord(folder, record["digest"], config, record["status"], record["final"], metrics)


def _so_far(folder: Path) -> RunRecord:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder}: no readable run here: {error}") from None
    config = RunConfig.from_dict(manifest["config"], str(folder / MANIFEST))
    rows = read_metrics(folder / METRICS)
    best = min(
        ((row["val_loss"], row["step"]) for row in rows if row.get("val_loss") is not None), default=(math.inf, 0)
    )
    final = summary(rows, sum(t.numel for t in tensors_of(config.built)), best)
    final["timing"] = {**timing(rows, math.nan), "peak_rss_mb": None}
    return RunRecord(folder, manifest["digest"], config, "unfinished", finite(final), rows)
