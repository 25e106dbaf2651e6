"""Designs: near the asked size, holding the rules, with a recipe that resolves to what is said."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.atlas import Device, check, design
from assay.cost.budget import count_params
from assay.recipe import resolve

H100 = Device("H100", peak_flops=989e12, memory_bytes=80e9, bandwidth=3.35e12, count=64)


@given(
    st.sampled_from([2e6, 2e7, 6e7, 1.25e8, 3.5e8, 1.3e9, 2.7e9, 7e9, 3e10]),
    st.sampled_from(["total", "non_embedding"]),
)
def test_designs_have_the_size_and_hold_the_rules(params: float, count: Any) -> None:
    vocab_size = 4096 if params < 1e8 else None
    found = design(params, vocab_size=vocab_size, n=3, count=count)
    assert 1 <= len(found) <= 3
    for d in found:
        counted = count_params(d.recipe)
        assert d.params == (counted.total if count == "total" else counted.non_embedding)
        assert abs(d.params / params - 1) <= 0.10
        assert d.findings.worst in ("ok", "note")
        assert check(d.recipe, {"tokens": d.run["tokens"], "lr": d.run["lr"]}).worst in ("ok", "note")
        assert resolve(tomllib.loads(d.toml)).digest == d.recipe.digest
        assert d.why
        json.dumps(d.to_dict(), allow_nan=False)
    assert [d.score for d in found] == sorted(d.score for d in found)
    assert len({d.name for d in found}) == len(found)


def test_shapes_differ() -> None:
    widths = {d.recipe.d_model for d in design(1.3e9)}
    assert len(widths) >= 3


def test_a_size_of_a_real_model_comes_out_like_it() -> None:
    assert any("qwen3-8b" in d.near for d in design(8.19e9, vocab_size=151_936))
    best = design(7e9, vocab_size=32_000)[0]
    assert best.recipe.n_layers == pytest.approx(32, abs=8)
    assert best.recipe.d_model == pytest.approx(4096, rel=0.2)


def test_tables_are_tied_where_they_weigh() -> None:
    assert all(d.recipe.embedding.tied for d in design(125e6))
    assert not any(d.recipe.embedding.tied for d in design(30e9))


def test_tensor_parallel_ranks_divide_everything() -> None:
    for d in design(70e9, tp=8):
        mixer, ffn = d.table["block"]["mixer"], d.table["block"]["ffn"]
        assert mixer["n_heads"] % 8 == mixer["n_kv_heads"] % 8 == ffn["d_ff"] % 8 == 0


def test_a_long_context_brings_windows_and_a_large_base() -> None:
    found = design(8e9, context=131_072, vocab_size=128_256)
    assert any("local" in d.table.get("layers", {}) for d in found)
    full = next(d for d in found if "layers" not in d.table)
    assert full.table["block"]["mixer"]["position"]["theta"] >= 5e6
    assert all(not [f for f in d.findings.problems if f.rule == "rope-theta"] for d in found)


def test_hardware_gives_time_and_fit() -> None:
    found = design(8e9, tokens=1e12, hardware=H100, context=8192)
    e = found[0].estimate
    assert e is not None
    flops = found[0].run["train_flops"]
    assert e.train_days == pytest.approx(flops / (64 * 989e12 * 0.4) / 86_400)
    assert e.train_bytes_per_device == pytest.approx(16 * found[0].budget.params.total / 64)
    assert e.fits_training
    assert e.decode_ms == pytest.approx(1e3 * (e.weights_bytes + e.cache_bytes) / 3.35e12)
    table = {"name": "H100", "peak_flops": 989e12, "memory_bytes": 80e9, "bandwidth": 3.35e12, "count": 64}
    assert design(8e9, tokens=1e12, hardware=table, context=8192)[0].name == found[0].name
    one = design(8e9, hardware={**table, "count": 1})[0].estimate
    assert one is not None
    assert not one.fits_training


def test_tokens() -> None:
    d = design(1.3e9)[0]
    assert d.run["tokens"] == pytest.approx(20 * d.budget.params.total)
    few = design(1.3e9, tokens=1e9)[0]
    assert any("tokens a parameter" in w for w in few.why)
    assert 1e-4 < d.run["lr"] < 2e-3


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"params": 0}, "params: not a positive whole number"),
        ({"params": "1e9"}, "params: not a positive whole number"),
        ({"params": 1e9, "n": 0}, "n: not a positive whole number"),
        ({"params": 1e9, "tokens": -1}, "tokens"),
        ({"params": 1e9, "context": 1.5}, "context"),
        ({"params": 1e9, "count": "active"}, "count: 'active'"),
        ({"params": 1e5}, "no shape has 100K total parameters"),
        ({"params": 1e9, "tp": 7}, "tp 7"),
        ({"params": 1e9, "hardware": {"name": "x"}}, "hardware: missing"),
        ({"params": 1e9, "hardware": {"nme": "x"}}, "hardware.nme: unknown; nearest: name"),
        ({"params": 1e9, "hardware": "H100"}, "hardware: not a device"),
        ({"params": 1e9, "language": "klingon"}, "language"),
    ],
)
def test_bad_asks(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        design(**kwargs)


def test_a_device_needs_positive_numbers() -> None:
    with pytest.raises(ValueError, match=r"hardware\.mfu"):
        Device("x", 1e12, 1e9, 1e9, mfu=1.5)
    with pytest.raises(ValueError, match=r"hardware\.bandwidth"):
        Device("x", 1e12, 1e9, 0)
