"""A run's numbers at its end."""

from __future__ import annotations

import math
import resource
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from assay.training.folder import finite

if TYPE_CHECKING:
    from assay.training.optim.groups import Group


def summary(rows: list[dict[str, Any]], params: int, best: tuple[float, int]) -> dict[str, Any]:
    """The numbers of a run that depend on nothing but its configuration."""
    evals = [row for row in rows if "val_loss" in row]
    peaks = [m for row in rows for m in row.get("max_logit", []) if m is not None]
    norms = [row["grad_norm"] for row in rows if row["grad_norm"] is not None]
    last = evals[-1] if evals and evals[-1]["step"] == rows[-1]["step"] else {}
    return {
        "val_loss": last.get("val_loss"),
        "val_stderr": last.get("val_stderr"),
        "val_bits_per_byte": last.get("val_bits_per_byte"),
        **({"ema_val_loss": last["ema_val_loss"]} if "ema_val_loss" in last else {}),
        "best_val_loss": finite(best[0]),
        "best_step": best[1],
        "initial_loss": rows[0]["loss"] if rows else None,
        "steps_done": len(rows),
        "params": params,
        "max_logit": max(peaks, default=None),
        "grad_norm_max": max(norms, default=None),
    }


def timing(rows: list[dict[str, Any]], cpu_seconds: float) -> dict[str, Any]:
    """What the run cost here: CPU-seconds, and the median update with its quartiles (CPU time on a CPU, else wall)."""
    steps = [row["step_ms"] for row in rows[2:] or rows]  # the first updates warm caches
    quartiles = statistics.quantiles(steps, n=4) if len(steps) > 1 else [steps[0]] * 3 if steps else [math.nan] * 3
    rates = [row["tokens_per_s"] for row in rows]
    return {
        "cpu_seconds": cpu_seconds,
        "step_ms": {"median": quartiles[1], "q25": quartiles[0], "q75": quartiles[2]},
        "tokens_per_s": statistics.median(rates) if rates else None,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def groups_summary(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """The optimizer's groups, each with its roles and sizes."""
    return [
        {
            "name": group.name,
            "rule": group.rule,
            "roles": sorted({str(p.role) for p in group.params}),
            "tensors": len(group.params),
            "params": sum(p.param.numel() for p in group.params),
            "weight_decay": group.weight_decay,
            "lr_scale": group.lr_scale,
            "eps_scale": group.eps_scale,
        }
        for group in groups
    ]
