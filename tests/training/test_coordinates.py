"""The coordinate check: flat under muP, growing under the standard parametrisation; and rates that transfer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from assay.cli.app import app
from assay.model import build
from assay.recipe import load
from assay.recipe.errors import RecipeError
from assay.recipe.widen import widened
from assay.training import RunConfig, accumulate_gradients, optimizer_groups
from assay.training.coordinates import coordinate_check
from assay.training.optim.groups import set_rates

WIDTHS = (32, 64, 128, 256)


@pytest.mark.parametrize(
    ("kind", "optimizer", "low", "high"),
    [
        ("mup", "adamw", 0.7, 1.3),
        ("standard", "adamw", 3.0, 20.0),
        ("mup", {"kind": "muon", "adjust": "original"}, 0.7, 1.3),
        ("completep", "muon", 0.7, 1.3),
        pytest.param("mup", "soap", 0.7, 1.3, marks=pytest.mark.slow),
        pytest.param("mup", "sgd", 0.5, 1.3, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_logits_move_alike(kind: str, optimizer: Any, low: float, high: float) -> None:
    widths = WIDTHS if optimizer == "adamw" and kind == "mup" else WIDTHS[:3]
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


def learnt(kind: str, width: int, lr: float) -> float:
    """Nats on one batch of random tokens after twenty updates on it, the rate falling to 0."""
    parametrization = {"kind": "standard"} if kind == "standard" else {"kind": kind, "base_width": 32}
    table = {
        "recipe": widened(load("tiny/base", ["n_layers=2"]), width),
        "seq_len": 32,
        "batch_size": 8,
        "steps": 20,
        "schedule": {"kind": "linear", "lr": lr},
        "parametrization": parametrization,
    }
    config = RunConfig.from_dict(table)
    decoder = build(config.built)
    groups = optimizer_groups(decoder, config.optimizer, config.recipe, config.parametrization)
    optimizer = config.optimizer.make(groups, lr)
    weights = 1.0 / torch.arange(1, 257, dtype=torch.float64)
    tokens = torch.multinomial(weights, 264, replacement=True, generator=torch.Generator().manual_seed(0)).reshape(
        8, 33
    )
    batch = [(tokens[:, :-1], tokens[:, 1:])]
    for step in range(1, config.steps + 1):
        accumulate_gradients(decoder, batch)
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        set_rates(optimizer, config.lr_at(step), lr, "lr")
        optimizer.step()
        optimizer.zero_grad()
    return float(accumulate_gradients(decoder, batch).nats)


@pytest.mark.slow
def test_the_best_learning_rate_transfers() -> None:
    """Of rates a factor of two apart the same is best at widths 32, 128 and 256 under muP, and below it every rate
    learns as much; under the standard parametrisation the best falls by four and by eight.
    """
    best: dict[tuple[str, int], int] = {}
    losses: dict[tuple[str, int], dict[int, float]] = {}
    for kind in ("standard", "mup"):
        for width in (32, 128, 256):
            found = {e: learnt(kind, width, 2.0**-e) for e in range(9, 2, -1)}
            losses[kind, width], best[kind, width] = found, min(found, key=found.__getitem__)
    assert [best["mup", width] for width in (32, 128, 256)] == [best["standard", 32]] * 3, best
    for e in range(9, 5, -1):
        for width in (128, 256):
            assert losses["mup", width][e] == pytest.approx(losses["mup", 32][e], rel=0.06), (width, e)
    assert best["standard", 128] - best["standard", 32] >= 2, best
    assert best["standard", 256] - best["standard", 32] >= 3, best


def test_the_verb(tmp_path: Path) -> None:
    def assay(*argv: str) -> Any:
        return CliRunner().invoke(app, ["coord-check", *argv])

    short = ("--widths", "16,32", "--seeds", "1", "--steps", "2")
    out = assay("tiny/base", *short, "--json", "--parametrization", "mup", "--parametrization", "standard")
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout)
    assert set(found["ratio"]) == {"mup", "standard"}
    assert [row["width"] for row in found["checks"][0]["rows"]] == [16, 32]
    assert found["checks"][0]["rows"] != found["checks"][1]["rows"]
    page = tmp_path / "c.html"
    shown = assay("tiny/base", *short, "--html", str(page)).stdout
    assert "from the smallest to the largest" in shown
    assert f"page: {page}" in shown.replace("\n", " ")
    assert "2 updates at learning rate 0.003, 1 seed a width" in page.read_text(encoding="utf-8")
    for argv, words in (
        (("tiny/base", "--widths", "32"), "at least two"),
        (("tiny/base", "--widths", "a,b"), "not whole numbers"),
        (("tiny/base", "--widths", "33,64"), "no whole number"),
        (("tiny/base", *short, "--parametrization", "mu"), "known: mup"),
        (("tiny/base", *short, "--optimizer", "adam"), "adamw"),
        (("tiny/base", *short, "--html", str(tmp_path / "no" / "c.html")), "there is no folder"),
        (("tiny/base", *short, "--lr", "1e30"), "left the finite numbers (mup, width 16)"),
        (("opt-350m", "--widths", "64,128"), "does not say how it scales"),
    ):
        bad = assay(*argv)
        assert (bad.exit_code, words in bad.stderr) == (2, True), bad.stderr


def test_widened_models_build() -> None:
    for width in WIDTHS:
        assert build(widened(load("tiny/base"), width), device="meta").recipe.d_model == width
