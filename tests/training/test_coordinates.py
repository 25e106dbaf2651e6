"""The coordinate check: flat under muP, growing under the standard parametrisation; and rates that transfer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from assay.model import build
from assay.recipe import load
from assay.recipe.errors import RecipeError
from assay.recipe.widen import widened
from assay.training import RunConfig, train
from assay.training.coordinates import coordinate_check

WIDTHS = (32, 64, 128, 256)


@pytest.mark.parametrize(
    ("kind", "optimizer", "low", "high"),
    [
        ("mup", "adamw", 0.7, 1.3),
        ("standard", "adamw", 3.0, 20.0),
        ("mup", {"kind": "muon", "adjust": "original"}, 0.7, 1.3),
        ("completep", "muon", 0.7, 1.3),
        ("mup", "soap", 0.7, 1.3),
        ("mup", "sgd", 0.5, 1.3),
    ],
    ids=str,
)
def test_logits_move_alike(kind: str, optimizer: Any, low: float, high: float) -> None:
    widths = WIDTHS if optimizer == "adamw" else WIDTHS[:3]
    lr = 3e-2 if optimizer == "sgd" else 3e-3
    found = coordinate_check(load("tiny/base"), widths, parametrization=kind, optimizer=optimizer, lr=lr, seeds=1)
    assert low < found.ratio < high
    assert [row.width for row in found.rows] == list(widths)
    assert all(len(row.residual) == 4 and len(row.logits) == 5 for row in found.rows)


def test_heads_that_grow_keep_their_scores() -> None:
    """One head whose size grows: the scale of its scores follows."""
    recipe = load("tiny/base", ["block.mixer.n_heads=1", "block.mixer.head_dim=33", "block.mixer.position=none"])
    with pytest.raises(RecipeError, match="head_dim"):
        widened(recipe, 70)
    recipe = load("tiny/base", ["block.mixer.n_heads=3", "block.mixer.head_dim=16"])
    found = coordinate_check(recipe, (32, 64), seeds=1, steps=2)
    assert found.ratio < 1.3
    assert widened(recipe, 32).layers[0].mixer.head_dim == 8  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_best_learning_rate_transfers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Width 32 against 256, 150 updates on text: under muP the best rate of one is within a factor of two of the
    other's; under the standard parametrisation it falls by four or more.
    """
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijkl", k=rng.randint(1, 6))) for _ in range(400)]
    corpus = tmp_path / "words.txt"
    corpus.write_text("\n\n".join(" ".join(rng.choices(words, k=60)) for _ in range(3000)))
    rates = [2.0**-e for e in range(10, 2, -1)]
    best: dict[tuple[str, int], float] = {}
    for kind in ("standard", "mup"):
        for width in (32, 256):
            losses = {}
            for lr in rates:
                table = {
                    "recipe": widened(load("tiny/base", ["n_layers=2"]), width),
                    "data": {"corpus": str(corpus), "val_bytes": 16_384},
                    "seq_len": 64,
                    "batch_size": 16,
                    "steps": 150,
                    "schedule": {"kind": "cosine", "lr": lr, "warmup": 10},
                    "parametrization": {"kind": "standard"} if kind == "standard" else {"kind": kind, "base_width": 32},
                    "keep": "nothing",
                }
                final = train(RunConfig.from_dict(table), tmp_path / f"{kind}-{width}-{lr}").final
                losses[lr] = final["val_loss"] if final["val_loss"] is not None else 99.0
            best[kind, width] = min(losses, key=losses.__getitem__)
    assert best["mup", 32] == best["standard", 32]
    assert 0.5 <= best["mup", 256] / best["mup", 32] <= 2.0
    assert best["standard", 256] / best["standard", 32] <= 0.25


def test_widened_models_build() -> None:
    for width in WIDTHS:
        assert build(widened(load("tiny/base"), width), device="meta").recipe.d_model == width
