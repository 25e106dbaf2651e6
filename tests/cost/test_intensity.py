"""Arithmetic intensity and the time bounds that follow from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from assay.cost import budget, find_hardware
from assay.recipe import Recipe, load
from tests.cost.measure import shape
from tests.strategies import recipes


def row(recipe: Recipe, mode: str, op: str, batch: int = 1, length: int = 4096, **how: Any) -> dict[str, Any]:
    rows = budget(recipe, batch, length, **how).intensity[mode]["by_op"]
    return next(r for r in rows if r["op"] == op)


# decoding: every weight is read for every token of the batch, every key for its own sequence


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_decoding_projections_have_the_intensity_of_the_batch(batch: int) -> None:
    """2 b FLOPs a weight of 2 bytes: b FLOPs a byte, less what activations cost."""
    recipe = load("llama-2-7b")
    for op in ("attention_projections", "ffn"):
        assert row(recipe, "decode", op, batch)["intensity"] == pytest.approx(batch, rel=0.05)


@pytest.mark.parametrize(("kv", "group"), [(32, 1), (8, 4), (1, 32)])
def test_decoding_attention_has_the_intensity_of_a_group(kv: int, group: int) -> None:
    """A key of 2 bytes serves the query heads of its group: 1 FLOP a byte for MHA, whatever batch and length."""
    recipe = load("llama-2-7b", [f"block.mixer.n_kv_heads={kv}"])
    for batch, length in ((1, 1024), (16, 4096)):
        assert row(recipe, "decode", "attention_core", batch, length)["intensity"] == pytest.approx(group, rel=0.1)


def test_the_texts_orders() -> None:
    """n = d = 4096 and MHA: n/d is 1, so decoding cannot pass 1 FLOP a byte; k = 128 keeps training above 100."""
    recipe = load("llama-2-7b")
    (order,) = budget(recipe, 8, 4096).intensity["attention_order"]
    assert order["decode"] == order["decode_if_every_head_had_its_own"] == pytest.approx(1 / (1 + 1 / 8))
    assert 100 < order["train"] < 128
    (grouped,) = budget(load("llama-2-7b", ["block.mixer.n_kv_heads=8"]), 8, 4096).intensity["attention_order"]
    assert grouped["decode"] == pytest.approx(1 / (1 / 4 + 1 / 8))


def test_a_window_is_all_that_is_read() -> None:
    near = load("llama-2-7b", ["block.mixer.span.kind=window", "block.mixer.span.size=512"])
    far, full = row(near, "decode", "attention_core"), row(load("llama-2-7b"), "decode", "attention_core")
    assert far["bytes"] == pytest.approx(full["bytes"] / 8, rel=0.01)
    assert far["flops"] == full["flops"] / 8


def test_the_cache_is_what_decoding_reads() -> None:
    """Keys and values of every layer, exactly, besides queries and outputs."""
    recipe = load("llama-3.1-8b")
    told = budget(recipe, 4, 2048)
    core = row(recipe, "decode", "attention_core", 4, 2048)
    assert core["bytes"] - told.cache.bytes == 32 * 4 * 2 * 4096 * 2
    assert row(recipe, "decode", "attention_core", 4, 2048, dtype="fp8")["bytes"] < 0.51 * core["bytes"]


# training


def test_training_moves_three_times_what_a_product_moves() -> None:
    """Forward reads X and W and writes Y; the two products of the backward pass read and write as much each."""
    recipe = shape(n_layers=1)
    tokens, d, ff = 2 * 64, 64, 192
    one = tokens * d + d * ff + tokens * ff
    assert row(recipe, "train", "ffn", 2, 64, dtype="fp32")["bytes"] == 3 * 3 * one * 4
    assert row(recipe, "train", "ffn", 2, 64, dtype="bf16")["bytes"] == 3 * 3 * one * 2


def test_training_is_limited_by_compute_and_decoding_by_bandwidth() -> None:
    time = budget(load("llama-3.1-8b"), 4, 8192, hardware="h100").time
    assert time["train"]["bound"] == time["prefill"]["bound"] == "compute"
    assert time["decode"]["bound"] == "bandwidth"
    assert row(load("llama-3.1-8b"), "train", "norms", hardware="h100")["bound"] == "bandwidth"
    assert row(load("llama-3.1-8b"), "train", "ffn", hardware="h100")["bound"] == "compute"


def test_a_token_cannot_come_faster_than_the_weights() -> None:
    """Llama-3-8B on an H100: 15 GB of weights that are multiplied, 3.35 TB/s."""
    told = budget(load("llama-3.1-8b"), 1, 1024, hardware="h100-sxm")
    multiplied = told.memory.weights_bytes - 2 * 128_256 * 4096
    least = (multiplied + told.cache.bytes) / 3.35e12
    assert least < told.time["decode"]["seconds"] < 1.02 * least


@given(recipes())
def test_bounds_are_bounds(recipe: Recipe) -> None:
    """Each class takes the longer of compute and bandwidth, so their sum is at least either alone."""
    told = budget(recipe, 2, 8, "fp32", hardware="cpu")
    for mode in ("prefill", "decode"):
        time = told.time[mode]
        assert time["seconds"] >= max(time["compute_s"], time["bandwidth_s"]) * (1 - 1e-12)
    train = told.time["train"]
    assert train["seconds"] >= max(train["compute_s"], train["bandwidth_s"]) * (1 - 1e-12)


def test_without_hardware_there_is_no_time() -> None:
    told = budget(load("gpt2"))
    assert told.time == {}
    assert told.hardware is None
    assert all(r["seconds"] is None for r in told.intensity["decode"]["by_op"])


# utilization


def test_mfu_counts_no_recomputation_and_hfu_does() -> None:
    recipe = load("gpt2-xl")
    told = budget(recipe, 8, 1024, hardware="a100", recompute="full", tokens_per_second=4000.0)
    time, flops = told.time["measured"], told.flops
    assert time["mfu"] == pytest.approx(4000 * flops.train_per_token / 312e12)
    assert time["mfu_causal"] == pytest.approx(4000 * flops.train_per_token_causal / 312e12)
    assert time["hfu"] == pytest.approx(4000 * (flops.train_per_token + flops.recomputed_per_token) / 312e12)
    assert time["mfu_causal"] < time["mfu"]
    again = flops.forward_full - flops.by_op["unembedding"]  # layers run a second time, logits never
    assert time["hfu"] == pytest.approx((1 + again / (3 * flops.forward_full)) * time["mfu"])
    assert time["peak"] == "a100-80gb bf16 dense, 1 devices"


def test_the_length_of_a_run() -> None:
    """Llama-3.1-405B: 3.8e25 FLOPs on 16,384 H100 at 400 TFLOP/s are about two months; attention adds to 6 N D."""
    told = budget(
        load("llama-3.1-405b"), 2048, 8192, hardware="h100", tokens=15.6e12, mfu=0.404,
        parallel="tp=8,pp=16,dp=128,microbatches=16",
    )  # fmt: skip
    run = told.time["training"]
    assert run["devices"] == 16_384
    assert run["days"] == pytest.approx(3.8e25 / (16_384 * 400e12) / 86_400, rel=0.13)
    assert run["seconds_at_peak"] == pytest.approx(run["seconds"] * 0.404)
    assert run["device_hours"] == pytest.approx(16_384 * run["days"] * 24)


def test_the_roofline_is_told() -> None:
    told = budget(load("gpt2"), hardware="h100").hardware
    assert told is not None
    assert told["ridge_flops_per_byte"] == pytest.approx(989.4 / 3.35)
    assert told["ridge_flops_per_byte"] == find_hardware("h100-sxm").ridge("bf16")
    assert told["source"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mfu": 1.2, "hardware": "h100", "tokens": 1e9}, "mfu: not a share"),
        ({"mfu": 0.4}, "mfu: 0.4 has no effect without hardware and tokens"),
        ({"tokens": 0}, "tokens: not a positive number: 0"),
        ({"tokens": float("nan")}, "tokens: not a positive number: nan"),
        ({"tokens_per_second": 5.0}, "no effect without a hardware"),
        ({"recompute": "some"}, "recompute: no such recompute 'some'; known: none, selective, full"),
        ({"backend": "flash"}, "backend: no such backend 'flash'; known: auto, sdpa, reference"),
        ({"batch": 0}, "batch: not a positive integer: 0"),
        ({"seq_len": -1}, "seq_len: not a positive integer: -1"),
        ({"seq_len": 10**12}, "seq_len: beyond any machine: 1,000,000,000,000"),
        ({"devices": True}, "devices: not a positive integer: True"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        budget(load("llama-3.1-8b"), **options)


def test_sdpa_is_refused_where_it_cannot_serve() -> None:
    with pytest.raises(ValueError, match=r"backend: 'sdpa' cannot honour layers\.\w+\.mixer"):
        budget(load("gemma-2-9b"), backend="sdpa")
