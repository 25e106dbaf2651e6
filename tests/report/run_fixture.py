"""A run as `assay train` records it for its page."""

from __future__ import annotations

import math
import random

from tests.report.fixtures import PRE, Record, run_of


def run_record() -> Record:
    """One run with its metrics."""
    run = run_of("main", PRE, 5e-3, 100, 2.452, 240)
    draw = random.Random(1)
    metrics = [
        {
            "step": step,
            "loss": 2.45 + 3.15 * math.exp(-step / 45) + draw.gauss(0, 0.05),
            "lr": 5e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 240))),
            "grad_norm": 0.6 + 4 * math.exp(-step / 30) + 0.1 * draw.random(),
            "log_z": 5.5 - step / 200,
            "tokens_per_s": 13_000 + draw.randrange(600),
        }
        for step in range(0, 240, 2)
    ]
    metrics[50]["grad_norm"] = float("nan")
    settings = {"steps": 240, "optimizer": {"kind": "adamw", "betas": [0.9, 0.95]}, "warmup": 0}
    groups = [
        {"name": "muon decay", "rule": "muon", "roles": ["attn_in", "ffn_in"], "tensors": 28, "params": 196_864,
         "weight_decay": 0.1, "lr_scale": 1.0},
        {"name": "no_decay", "rule": "adamw", "roles": ["norm_gain"], "tensors": 9, "params": 576,
         "weight_decay": 0.0, "lr_scale": 0.5},
    ]  # fmt: skip
    ended = {
        "status": "finished",
        "steps_done": 240,
        "params": 230_208,
        "ema_loss": 2.44,
        "mfu": 0.412,
        "mfu_of": "h200",
    }
    curves = {"ema_curve": [[60, 3.1], [240, 2.44]], "bits_curve": [[60, 4.6], [240, 3.54]]}
    return {
        "run": {**run, **ended, **curves, "bits_per_byte": 3.54, "settings": settings, "groups": groups},
        "metrics": metrics,
        "samples": [{"step": n, "prompt": "def f(", "text": f"x):\n    return {n}"} for n in (120, 240)],
        "warnings": ["step 101: loss spike: 4.500, the median of the updates before is 3.000"],
        "corpus": {"name": "stdlib", "tokenizer": "bytes", "train_bytes": 11_000_000},
        "environment": {"torch": "2.13.0", "processor": "one that is fast"},
        "command": ["assay", "train", "tiny.toml", "--set", "'a=b c'"],
    }
