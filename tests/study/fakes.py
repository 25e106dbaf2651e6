"""A small plan and corpus, and training that takes no time: losses from a formula, folders as training leaves them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.study import Plan, StudyResult, parse_plan, run_study
from assay.study.executors import InlineExecutor
from assay.training import RunConfig, RunRecord, load_record, open_corpus

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,\n"

PLAN: dict[str, Any] = {
    "name": "tiny",
    "title": "Tiny",
    "question": "Is SwiGLU better than ReLU?",
    "base": "tiny/pre-ln",
    "data": {"val_bytes": 4096},
    "run": {
        "seq_len": 32,
        "batch_size": 4,
        "steps": 6,
        "keep": "nothing",
        "telemetry_every": 2,
        "optimizer": {"kind": "adamw"},
        "schedule": {"kind": "cosine"},
    },
    "numerics": {"attention": "reference", "threads": 1},
    "parts": [
        {
            "kind": "comparison",
            "name": "glu",
            "title": "GLU",
            "overrides": ["n_layers=2"],
            "baseline": "relu",
            "lrs": [1e-3, 3e-3, 1e-2],
            "tuning_seeds": [0, 1, 2],
            "reporting_seeds": [10, 11, 12, 13, 14],
            "match": {"by": "parameters"},
            "arms": [
                {"name": "relu", "label": "ReLU"},
                {
                    "name": "glu",
                    "label": "SwiGLU",
                    "changes": ["layers.ffn"],
                    "overrides": ['block.ffn={kind = "glu", d_ff = {ratio = "8/3"}, activation = "silu"}'],
                },
            ],
        }
    ],
}

CURVE: dict[str, Any] = {
    "kind": "lr_curve",
    "name": "curve",
    "title": "Curve",
    "overrides": ["n_layers=2"],
    "lrs": [1e-3, 1e-2],
    "survivor_lrs": [1e-1],
    "seeds": [0, 1, 2],
    "arms": [
        {"name": "post", "overrides": ["block.residual.rule=post", "head.norm=none"]},
        {"name": "pre", "changes": ["layers.residual", "head.norm"]},
    ],
}

LADDER: dict[str, Any] = {
    "kind": "ladder",
    "name": "depth",
    "title": "Depth",
    "axis": "n_layers",
    "values": [1, 2, 3],
    "lr": 3e-3,
    "seeds": [0],
    "arms": [
        {"name": "post", "overrides": ["block.residual.rule=post", "head.norm=none"]},
        {"name": "pre", "changes": ["layers.residual", "head.norm"]},
    ],
}

NULL_ARM = {"name": "null", "label": "ReLU again", "null_of": "relu", "seed_offset": 100}


def plan_table(*parts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy of the small plan with further parts; ``changes`` are laid over its comparison."""
    table = copy.deepcopy(PLAN)
    table["parts"][0].update(copy.deepcopy(changes))
    table["parts"] += copy.deepcopy(list(parts))
    return table


def write_corpus(folder: Path, n_bytes: int = 60_000) -> Path:
    """A text file of random words, always the same."""
    rng = random.Random(0)
    words = ["".join(rng.choices(ALPHABET[:26], k=rng.randint(2, 9))) for _ in range(400)]
    text: list[str] = []
    size = 0
    while size < n_bytes:
        line = " ".join(rng.choices(words, k=8)) + ("\n\n" if rng.random() < 0.1 else "\n")
        text.append(line)
        size += len(line)
    path = folder / "corpus.txt"
    path.write_text("".join(text), encoding="utf-8")
    return path


def plan_on(corpus: Path, table: dict[str, Any]) -> Plan:
    """The plan of a table, on a corpus file."""
    table = copy.deepcopy(table)
    table["data"]["corpus"] = str(corpus)
    return parse_plan(table)


Landscape = Callable[[RunConfig], float | None]


def leave(config: RunConfig, folder: Path, sha256: str, loss: float | None) -> RunRecord:
    """A run folder as training leaves it, with this final loss (None: it stopped at a loss that is no number)."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = config.digest(sha256)
    top = 5.5 if loss is None else loss
    rows: list[dict[str, Any]] = [
        {
            "step": step,
            "loss": 5.5 + (top - 5.5) * step / config.steps,
            "lr": 1e-3,
            "grad_norm": 1.0,
            "residual_rms": [1.0] * config.recipe.n_layers,
            "max_logit": [3.0] * config.recipe.n_layers,
        }
        for step in range(1, config.steps + 1)
    ]
    final = {
        "val_loss": loss,
        "val_stderr": 0.01,
        "initial_loss": 5.5,
        "steps_done": config.steps,
        "max_logit": 3.0,
        "grad_norm_max": 1.0,
        "timing": {
            "cpu_seconds": random.random(),
            "tokens_per_s": random.random(),
            "step_ms": {"median": random.random(), "q25": 0.1, "q75": 1.0},
            "peak_rss_mb": random.random(),
        },
    }
    (folder / "manifest.json").write_text(json.dumps({"digest": digest, "config": config.to_dict()}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = "nonfinite" if loss is None else "finished"
    (folder / "record.json").write_text(json.dumps({"digest": digest, "status": status, "final": final}))
    return load_record(folder)


def noise(config: RunConfig, sd: float = 0.02) -> float:
    """The seed's own part of the loss: a function of seed, rate and model."""
    return random.Random(f"{config.seed}/{config.recipe.digest}/{config.schedule.lr}").gauss(0.0, sd)  # type: ignore[attr-defined]


def is_glu(config: RunConfig) -> bool:
    return config.recipe.layers[0].ffn.kind_name == "glu"


def is_post(config: RunConfig) -> bool:
    return config.recipe.head.norm.is_none


def rate(config: RunConfig) -> float:
    return float(config.schedule.lr)  # type: ignore[attr-defined]


def studied(plan: Plan, out: Path, landscape: Landscape, **options: Any) -> tuple[StudyResult, list[str]]:
    """The study in this process, on the formula; and the digests of the runs that were done, in order."""
    corpus = open_corpus(plan.data["corpus"], plan.data["val_bytes"])
    done: list[str] = []

    def train(config: RunConfig, folder: Path) -> RunRecord:
        done.append(folder.name)
        return leave(config, folder, corpus.sha256, landscape(config))

    return run_study(plan, out, executor=lambda _: InlineExecutor(train), **options), done
