"""A run as the plain values that its page is made of."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.training import RunRecord

_METRICS = ("step", "loss", "lr", "grad_norm", "log_z", "tokens_per_s", "batch_size", "heads_clipped")
_MOST_SAMPLES = 60


def page_record(record: RunRecord) -> dict[str, Any]:
    """Everything the page of a run says, read from its folder."""
    manifest = json.loads((record.folder / "manifest.json").read_text(encoding="utf-8"))
    rows, final = record.metrics, record.final
    config = record.config.to_dict()
    config.pop("recipe")
    environment = manifest["environment"]
    return {
        "run": {
            "digest": record.digest,
            "label": record.config.recipe.name,
            "lr": getattr(record.config.schedule, "lr", None),
            "seed": record.config.seed,
            "steps": record.config.steps,
            "loss": final["val_loss"],
            "stderr": final["val_stderr"],
            "bits_per_byte": final["val_bits_per_byte"],
            "ema_loss": final.get("ema_val_loss"),
            "class": "nonfinite" if record.status == "nonfinite" else "alive",
            "status": record.status,
            "steps_done": final["steps_done"],
            "params": final["params"],
            "initial_loss": final["initial_loss"],
            "cpu_seconds": final["timing"]["cpu_seconds"],
            "tokens_per_s": final["timing"]["tokens_per_s"],
            "mfu": final["timing"].get("mfu"),
            "mfu_of": final["timing"].get("mfu_of"),
            "train_curve": curve(rows, "loss"),
            "val_curve": curve(rows, "val_loss"),
            "ema_curve": curve(rows, "ema_val_loss"),
            "bits_curve": curve(rows, "val_bits_per_byte"),
            "residual_rms": curve(rows, "residual_rms"),
            "max_logit": curve(rows, "max_logit"),
            "grad_norm_max": final["grad_norm_max"],
            "folder": record.folder.name,
            "settings": config,
            "groups": final.get("groups", []),
        },
        "metrics": [{**{k: row[k] for k in _METRICS if k in row}, **_largest(row)} for row in rows],
        "samples": _samples(record),
        "warnings": [*final.get("warnings", []), *final["timing"].get("warnings", [])],
        "corpus": manifest["corpus"],
        "environment": {k: v for k, v in environment.items() if k != "argv"},
        "command": command(environment.get("argv", [])),
    }


def curve(rows: list[dict[str, Any]], key: str) -> list[list[Any]]:
    """``[[step, value], ...]`` of the rows that have it."""
    return [[row["step"], row[key]] for row in rows if row.get(key) is not None]


def _largest(row: dict[str, Any]) -> dict[str, float]:
    peaks = [peak for peak in row.get("max_logit") or () if peak is not None]
    return {"max_logit": max(peaks)} if peaks else {}


def _samples(record: RunRecord) -> list[dict[str, Any]]:
    from assay.training import read_metrics

    path = record.folder / "samples.jsonl"
    return read_metrics(path)[-_MOST_SAMPLES:] if path.exists() else []


def command(argv: list[str]) -> list[str]:
    """The words of the command that started the run; none where a program of one's own did."""
    ours = argv[:1] in (["assay"], ["__main__.py"])
    return ["assay", *map(shlex.quote, argv[1:])] if ours else []
