"""Records as a study writes them, made up from a seed: realistic, and with everything that can go wrong."""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from typing import Any

Record = dict[str, Any]

ENTROPY = 3.245
POST, PRE = "post-ln", "pre-ln"
LABELS = {POST: "post-LN", PRE: "pre-LN"}
LAYERS = 12
TUNING = {
    POST: {1e-3: [2.78, 2.77, 2.79], 3e-3: [2.42, 2.45, 2.42], 5e-3: [2.23, 2.18, 2.23], 7e-3: [2.61, 2.55, ENTROPY]},
    PRE: {1e-3: [2.79, 2.81, 2.75], 3e-3: [2.48, 2.50, 2.47], 5e-3: [2.46, 2.44, 2.47], 7e-3: [2.50, 2.51, 2.50]},
}


def digest(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:24]


def loss_of(draw: random.Random, arm: str, lr: float) -> float:
    """A plausible final loss: post-LN is best at 3e-3, in danger at 5e-3 and dead above; pre-LN bends gently."""
    if arm == POST:
        if lr >= 7e-3 or (lr == 5e-3 and draw.random() < 0.4):
            return ENTROPY + draw.uniform(-0.03, 0.03)
        return {1e-3: 2.78, 3e-3: 2.42}.get(lr, 2.23) + draw.gauss(0, 0.02)
    return {1e-3: 2.79, 3e-3: 2.48, 5e-3: 2.46, 1e-2: 2.51, 3e-2: 2.66}.get(lr, 2.5) + draw.gauss(0, 0.025)


def outcome(loss: float | None) -> str:
    if loss is None:
        return "nonfinite"
    return "diverged" if loss > 5.6 else "dead" if loss > ENTROPY - 0.05 else "alive"


def run_of(part: str, arm: str, lr: float, seed: int, loss: float | None, steps: int = 120, **more: Any) -> Record:
    """One run of a study, with its curves."""
    draw = random.Random(f"{part}{arm}{lr}{seed}")
    final = ENTROPY if loss is None else loss
    last = steps // 3 if loss is None else steps

    def at(step: float) -> float:
        return final + (5.6 - final) * math.exp(-5 * step / steps)

    depth = [1 + 0.12 * layer if arm == POST else 1 + 0.9 * layer for layer in range(LAYERS)]
    return {
        "digest": digest(part, arm, lr, seed, more),
        "part": part,
        "arm": arm,
        "label": LABELS.get(arm, arm),
        "lr": lr,
        "seed": seed,
        "value": None,
        "steps": last,
        "loss": loss,
        "stderr": None if loss is None else 0.004,
        "class": outcome(loss),
        "initial_loss": 5.6,
        "cpu_seconds": 10.5 + draw.random(),
        "tokens_per_s": 13_000 + draw.randrange(900),
        "train_curve": [[step, at(step) + draw.gauss(0, 0.04)] for step in range(0, last, 2)],
        "val_curve": [[step, at(step)] for step in range(0, last, 20)] + [[last, loss]],
        "residual_rms": [[0, depth], [last, [each * (1.0 + 0.25 * i) for i, each in enumerate(depth)]]],
        "max_logit": [[0, [0.5] * LAYERS], [last, [3 + 0.4 * draw.random() + 0.3 * i for i in range(LAYERS)]]],
        "grad_norm_max": 2 + 2 * draw.random(),
        "folder": f"runs/{digest(part, arm, lr, seed, more)}",
        **more,
    }


def point_of(run: Record, *keys: str) -> Record:
    keys = keys or ("lr", "seed", "loss", "class")
    return {**{key: run[key] for key in keys}, "run": run["digest"]}


def curve_of(runs: list[Record]) -> list[Record]:
    found = []
    for lr in sorted({run["lr"] for run in runs}):
        here = [run for run in runs if run["lr"] == lr]
        losses = [math.inf if run["loss"] is None else run["loss"] for run in here]
        middle = statistics.median(losses)
        alive = sum(run["class"] == "alive" for run in here)
        found.append({"lr": lr, "median": middle if math.isfinite(middle) else None, "alive": alive, "n": len(here)})
    return found


def lr_curve_part(draw: random.Random, runs: list[Record]) -> Record:
    arms = []
    for arm in (POST, PRE):
        mine = [
            run_of("lr", arm, lr, seed, loss_of(draw, arm, lr))
            for lr in (1e-3, 3e-3, 5e-3, 7e-3, 1e-2, 3e-2)
            for seed in range(3)
        ]
        if arm == POST:  # one seed overflows, one climbs above its start
            mine[-1] = run_of("lr", arm, 3e-2, 2, None)
            mine[-2] = run_of("lr", arm, 3e-2, 1, 6.4)
        runs += mine
        bounds = {"last_good": 3e-3, "first_bad": 7e-3, "text": "3e-3 to 7e-3"}
        arms.append(
            {
                "name": arm,
                "label": LABELS[arm],
                "recipe_digest": digest(arm),
                "params": 617_984,
                "flops_per_token": 4_102_400,
                "best_lr": 3e-3 if arm == POST else 5e-3,
                "l_star": 2.42 if arm == POST else 2.46,
                "lr_sensitivity": 0.571 if arm == POST else 0.102,
                "never_learned": False,
                "lr_to_divergence": bounds if arm == POST else {"last_good": 3e-2, "first_bad": None, "text": "> 3e-2"},
                "points": [point_of(run) for run in mine],
                "curve": curve_of(mine),
            }
        )
    return {
        "name": "lr",
        "title": "How high can the learning rate go?",
        "question": "At which peak learning rate does each placement stop learning?",
        "kind": "lr_curve",
        "arms": arms,
        "sentences": ["post-LN stops learning between 3e-3 and 7e-3; pre-LN learns at every rate that was tried."],
    }


def ladder_part(draw: random.Random, runs: list[Record]) -> Record:
    losses = {POST: {2: 2.32, 4: 2.77, 6: None, 8: None}, PRE: {2: 2.48, 4: 2.55, 6: 2.65, 8: 2.64}}
    arms = []
    for arm, rungs in losses.items():
        mine = [
            run_of("depth", arm, 3e-3, seed, (at or ENTROPY) + draw.gauss(0, 0.01), 150, value=depth)
            for depth, at in rungs.items()
            for seed in range(2)
        ]
        runs += mine
        points = [point_of(run, "value", "seed", "loss", "class") for run in mine]
        arms.append({"name": arm, "label": LABELS[arm], "points": points})
    return {
        "name": "depth",
        "title": "The depth wall",
        "question": "With the fan-in initialisation of 2017, how deep can each placement go?",
        "kind": "ladder",
        "axis": "n_layers",
        "lr": 3e-3,
        "arms": arms,
        "sentences": ["post-LN is better at 2 layers, worse at 4, and stays at the unigram entropy from 6 on."],
    }


def comparison_arm(arm: str, tuning: list[Record], reported: list[Record], lr: float) -> Record:
    losses = [run["loss"] for run in reported]
    alive = [run["loss"] for run in reported if run["class"] == "alive"]
    bounds = {"last_good": 5e-3, "first_bad": 7e-3, "text": "5e-3 to 7e-3"}
    return {
        "name": arm,
        "label": LABELS[arm],
        "recipe_digest": digest(arm),
        "recipe_words": ["12 layers, width 64, 4 heads", "ReLU MLP, LayerNorm", f"{LABELS[arm]} residual"],
        "params": 617_984 if arm == POST else 618_112,
        "flops_per_token": 4_102_400,
        "kv_bytes_per_token": 6_144,
        "weights_bytes": 2_471_936,
        "optimizer_bytes": 4_943_872,
        "best_lr": lr,
        "best_lr_on_edge": False,
        "selectable": [1e-3, 3e-3, 5e-3],
        "tuning": [point_of(run) for run in tuning],
        "curve": curve_of(tuning),
        "losses": losses,
        "reporting": [point_of(run, "seed", "loss", "stderr", "class") for run in reported],
        "classes": {
            key: sum(run["class"] == key for run in reported) for key in ("alive", "dead", "diverged", "nonfinite")
        },
        "mean": statistics.fmean(alive),
        "sd": statistics.stdev(alive),
        "alive": [len(alive), len(reported)],
        "step_ms": {"median": 78.1 if arm == POST else 79.4, "q25": 76.0, "q75": 83.2},
        "cpu_seconds": sum(run["cpu_seconds"] for run in [*tuning, *reported]),
        "max_logit": 7.1,
        "lr_to_divergence": bounds if arm == POST else {"last_good": 3e-2, "first_bad": None, "text": "> 3e-2"},
        "lr_sensitivity": 0.571 if arm == POST else 0.102,
    }


def card() -> list[Record]:
    def row(measure: str, unit: str, baseline: Any, change: Any, note: str = "", ratio: float | None = None) -> Record:
        return {"measure": measure, "unit": unit, "baseline": baseline, "change": change, "ratio": ratio, "note": note}

    return [
        {
            "dimension": "quality",
            "rows": [row("validation loss", "nats per byte", 2.226, 2.461, "mean of the seeds alive", 2.461 / 2.226)],
        },
        {
            "dimension": "memory",
            "rows": [
                row("parameters", "", 617_984, 618_112, "", 1.0002),
                row("optimizer state", "bytes", 4_943_872, 4_944_896, "", 1.0002),
                row("KV cache", "bytes/token", 6_144, 6_144, "", 1.0),
                row("peak memory", "bytes", None, None, "not measured"),
            ],
        },
        {"dimension": "compute", "rows": [row("training", "FLOPs/token", 4_102_400, 4_102_400, "", 1.0)]},
        {
            "dimension": "bandwidth",
            "rows": [
                row("step time", "ms", 78.1, 79.4, "median", 1.017),
                row("intensity", "FLOPs/byte", 61.2, 61.2, "", 1.0),
            ],
        },
        {
            "dimension": "stability",
            "rows": [
                row("LR to divergence", "", "5e-3 to 7e-3", "> 3e-2"),
                row("seeds alive", "", [3, 5], [5, 5], "reporting seeds"),
                row("LR sensitivity", "nats per byte", 0.571, 0.102, "over the whole grid", 0.18),
                row("largest attention logit", "", 7.1, 6.6, "", 0.93),
            ],
        },
    ]


def comparison_part(draw: random.Random, runs: list[Record]) -> Record:
    arms = []
    for arm in (POST, PRE):
        tuning = [
            run_of("main", arm, lr, seed, TUNING[arm][lr][seed] + draw.gauss(0, 0.004))
            for lr in TUNING[arm]
            for seed in range(3)
        ]
        lr = min(curve_of(tuning), key=lambda place: place["median"])["lr"]
        losses = [2.23, 2.18, 3.198, 2.24, 3.204] if arm == POST else [2.452, 2.471, 2.44, 2.489, 2.462]
        reported = [run_of("main", arm, lr, 100 + seed, loss) for seed, loss in enumerate(losses)]
        runs += [*tuning, *reported]
        arms.append(comparison_arm(arm, tuning, reported, lr))
    nats = arms[1]["mean"] - arms[0]["mean"]
    effect = {"nats": nats, "bits_per_byte": nats / math.log(2), "sd": 8.4, "hedges_g": 7.6, "n": [3, 5]}
    effect |= {"interval": [nats - 0.06, nats + 0.06], "p": 0.002, "confidence": 0.95}
    return {
        "name": "main",
        "title": "Which is better at its own best learning rate?",
        "question": "With each arm tuned on the same grid, does pre-LN reach a lower loss than post-LN?",
        "kind": "comparison",
        "baseline": POST,
        "arms": arms,
        "effect": effect,
        "verdict": "unstable",
        "mde": {"nats": 0.081, "sd": 0.04, "n": 5, "power": 0.8, "alpha": 0.05},
        "matched": {
            "by": "parameters",
            "values": {POST: 617_984, PRE: 618_112},
            "spread": 0.0002,
            "tolerance": 0.005,
            "flops": {POST: 4_102_400, PRE: 4_102_400},
        },
        "card": card(),
        "sentences": ["Two of five fresh post-LN seeds died at the learning rate that its tuning seeds chose."],
    }


def study_record() -> Record:
    """The placement study: three parts, dead, diverged and non-finite runs, an unstable verdict."""
    draw = random.Random(7)
    runs: list[Record] = []
    parts = [lr_curve_part(draw, runs), ladder_part(draw, runs), comparison_part(draw, runs)]
    main = parts[-1]
    return {
        "schema": 1,
        "study": {
            "name": "norm-placement",
            "title": "Where should the norm go?",
            "question": "Is pre-LN better than post-LN at 12 layers, and up to which learning rate does each learn?",
            "plan_digest": digest("plan"),
            "command": "assay study run norm-placement --seeds 5 --out runs/norm-placement",
            "assay_version": "0.1.0",
            "finished": "2025-03-02T11:20:00Z",
            "complete": True,
        },
        "answer": [
            "Post-LN reaches a loss 0.25 nats per byte lower where it learns, but 2 of its 5 fresh seeds died.",
            "Pre-LN learns at every learning rate up to 3e-2; post-LN stops between 5e-3 and 7e-3.",
        ],
        "verdict": "unstable",
        "arms": main["arms"],
        "effect": main["effect"],
        "mde": main["mde"],
        "parts": parts,
        "runs": runs,
        "corpus": {
            "name": "Python standard library",
            "files": 1_664,
            "bytes": 11_534_336,
            "train_bytes": 10_380_902,
            "val_bytes": 1_153_434,
            "sha256": hashlib.sha256(b"corpus").hexdigest(),
            "tokenizer": "bytes",
            "unigram_entropy": ENTROPY,
            "notes": "Differs from one Python build to the next.",
        },
        "settings": {
            "steps": 120,
            "batch": {"sequences": 16, "tokens": 64},
            "optimizer": {"kind": "adamw", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
            "schedule": {"kind": "cosine", "floor": 0.1, "warmup": 0},
            "clip": 1.0,
            "grid": [1e-3, 3e-3, 5e-3, 7e-3, 1e-2, 3e-2],
        },
        "environment": {"python": "3.11.7", "torch": "2.13.0", "cpu": "2 cores", "threads": 1, "gpu": None},
        "methods": "Each arm has its own sweep over the same grid with three tuning seeds a rate. The rate with the "
        "lowest median among the selectable ones is used with five fresh seeds.\n\nThe interval is Welch's.",
        "warnings": ["Two reporting seeds of post-LN are dead; the interval holds for the living ones only."],
    }


def one_arm_failure() -> Record:
    """A study in which one arm never learns: no best learning rate, no mean, no effect, and NaN for numbers."""
    result = study_record()
    for part in result["parts"]:
        for arm in part["arms"]:
            if arm["name"] != POST:
                continue
            for point in [*arm.get("points", []), *arm.get("tuning", []), *arm.get("reporting", [])]:
                point.update(loss=ENTROPY + 0.001 * point["seed"] % 0.01, **{"class": "dead"})
            for place in arm.get("curve", []):
                place.update(median=ENTROPY, alive=0)
            arm.update(best_lr=None, l_star=None, never_learned=True, mean=float("nan"), sd=float("nan"), losses=[])
            arm.update(selectable=[], alive=[0, 5], step_ms=None, lr_sensitivity=float("nan"))
    main = result["parts"][-1]
    main.update(effect=None, verdict="unstable")
    result.update(effect=None, arms=main["arms"], answer=["Post-LN never learned.", "Pre-LN learned in every run."])
    result["study"].update(complete=False, finished=None)
    return result


def glu_study() -> Record:
    """One clean comparison with a better change, eight seeds an arm, and only what a producer must give."""
    draw = random.Random(3)
    seeds = {
        "relu": [2.300 + draw.gauss(0, 0.036) for _ in range(8)],
        "swiglu": [2.191 + draw.gauss(0, 0.042) for _ in range(8)],
    }
    arms = [
        {
            "name": name,
            "label": {"relu": "ReLU", "swiglu": "SwiGLU"}[name],
            "reporting": [{"seed": seed, "loss": loss, "class": "alive"} for seed, loss in enumerate(losses)],
            "mean": statistics.fmean(losses),
            "sd": statistics.stdev(losses),
            "alive": [8, 8],
        }
        for name, losses in seeds.items()
    ]
    nats = arms[1]["mean"] - arms[0]["mean"]
    part = {"name": "glu", "kind": "comparison", "baseline": "relu", "arms": arms, "verdict": "better"}
    part["effect"] = {
        "nats": nats,
        "interval": [nats - 0.042, nats + 0.042],
        "p": 0.0002,
        "n": [8, 8],
        "confidence": 0.95,
    }
    return {
        "schema": 1,
        "study": {"name": "glu", "title": "Is a gated feed-forward better at equal parameters?"},
        "answer": ["SwiGLU is better than ReLU by 0.11 nats per byte."],
        "verdict": "better",
        "parts": [part],
        "corpus": {"tokenizer": "bytes", "unigram_entropy": ENTROPY},
    }
