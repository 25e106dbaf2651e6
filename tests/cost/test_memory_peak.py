"""How far a process really grows in a training step, against the ledger's peak."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from assay.cost import budget
from assay.recipe import Recipe
from tests.cost.measure import peak_growth, shape

GIB = 1 << 30

# name -> recipe, batch, length, dtype, backend; every one grows by 1 GiB and more
SHAPES: dict[str, tuple[Recipe, int, int, str, str]] = {
    "activations outweigh gradients": (
        shape(d_model=512, n_layers=8, vocab_size=8192, block__mixer__n_heads=8, block__ffn__d_ff=1376),
        4, 1024, "fp32", "sdpa",
    ),
    "a wide tied vocabulary, grouped heads": (
        shape(
            d_model=512, n_layers=6, vocab_size=50_304, embedding__tied=True, block__ffn__d_ff=1376,
            block__mixer={"kind": "attention", "n_heads": 8, "n_kv_heads": 2, "position": "rope"},
        ),
        4, 1024, "fp32", "sdpa",
    ),
    "gradients and state outweigh activations": (
        shape(d_model=1024, n_layers=12, vocab_size=32_000, block__mixer__n_heads=16, block__ffn__d_ff=2752),
        1, 256, "fp32", "sdpa",
    ),
    "layers that read the first one's keys": (
        shape(
            d_model=512, vocab_size=8192, block__mixer__n_heads=8, block__ffn__d_ff=512,
            layers={"own": {}, "reader": {"mixer": {"kv": {"layer": "own"}}}}, stack=["own", "9 reader"], n_layers=10,
        ),
        4, 1024, "fp32", "sdpa",
    ),
    "stored scores in 16 bits": (
        shape(d_model=512, n_layers=4, vocab_size=8192, block__mixer__n_heads=8, block__ffn__d_ff=1376),
        4, 1024, "bf16", "reference",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", SHAPES)
def test_peak_growth_over_a_step(name: str) -> None:
    """Gradients, optimizer state, activations and what a backward pass needs besides: within a tenth."""
    recipe, batch, length, dtype, backend = SHAPES[name]
    options: dict[str, Any] = {"backend": backend, "optimizer": "adamw-pure"}
    train = budget(recipe, batch, length, dtype, **options).memory.train
    told = train["peak_bytes"] - train["weights_bytes"]
    grown = peak_growth(recipe, batch, length, {"fp32": "float32", "bf16": "bfloat16"}[dtype], backend)
    assert grown > GIB
    assert told == pytest.approx(grown, rel=0.1)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_a_prefills_working_memory(backend: str) -> None:
    """Beside weights and cache: what a forward pass that keeps nothing has at its widest moment."""
    recipe = shape(d_model=512, vocab_size=8192, block__mixer__n_heads=8, block__ffn__d_ff=2752)
    batch, length = (8, 2048) if backend == "sdpa" else (2, 2048)
    told = budget(recipe, batch, length, "fp32", backend=backend).memory.inference["prefill_working_bytes"]
    assert told == pytest.approx(peak_growth(recipe, batch, length, "float32", backend, prefill=True), rel=0.1)


def test_the_peak_is_where_it_must_be() -> None:
    """Between what stands and the sum of everything; with full recomputation lower."""
    recipe = shape(n_layers=8)
    train = budget(recipe, 8, 512, "fp32").memory.train
    standing = train["weights_bytes"] + train["optimizer_bytes"]
    assert standing + train["activations_bytes"] < train["peak_bytes"]
    again = budget(recipe, 8, 512, "fp32", recompute="full").memory.train
    assert again["peak_bytes"] < train["peak_bytes"]
    assert again["activations_bytes"] < train["activations_bytes"] / 4


def test_several_micro_batches_hold_whole_gradients() -> None:
    recipe = shape(n_layers=4)
    one = budget(recipe, 1, 512, "fp32").memory.train
    many = budget(recipe, 4, 512, "fp32", parallel="microbatches=4").memory.train
    assert many["activations_bytes"] == one["activations_bytes"]
    assert many["micro_batch"] == 1
    assert many["peak_bytes"] > one["peak_bytes"]
