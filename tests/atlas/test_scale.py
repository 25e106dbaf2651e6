"""Faithful proxies: within 10 % of the asked parameters, every choice kept, what gives is said."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.atlas import ladder, proxy, scale
from assay.cost.budget import count_params
from assay.recipe import Recipe, load, preset_names, resolve
from tests.strategies import recipes

# what a change of width, depth or length may change in a layer; everything else is a choice
SHAPE = {"d_ff", "n_heads", "n_kv_heads", "head_dim", "size", "original_seq_len", "scale", "value", "layer"}
SIZES = st.sampled_from([300_000, 1_000_000, 3_000_000, 20_000_000, 125_000_000, 1_000_000_000])


def choices(node: Any) -> Any:
    """A dumped layer without its shape."""
    if isinstance(node, dict):
        return {k: choices(v) for k, v in node.items() if k not in SHAPE}
    return [choices(v) for v in node] if isinstance(node, list) else node


def choices_of(recipe: Recipe) -> dict[str, Any]:
    return {layer.name: choices(layer.model_dump(mode="json")) for layer in recipe.layers}


@given(st.sampled_from(preset_names()), SIZES)
def test_a_proxy_has_the_size_and_the_choices(name: str, params: int) -> None:
    recipe = load(name)
    found = proxy(recipe, params)
    assert abs(count_params(found.recipe).non_embedding / params - 1) <= 0.10
    assert found.got == count_params(found.recipe).non_embedding
    assert choices_of(found.recipe) == choices_of(resolve(recipe.to_dict()))
    ends = {"projection"}
    for end in ("embedding", "head"):
        old, new = getattr(recipe, end), getattr(found.recipe, end)
        assert old.model_dump(exclude=ends) == new.model_dump(exclude=ends)
    assert found.recipe.vocab_size == recipe.vocab_size
    assert found.recipe.max_seq_len == recipe.max_seq_len


@given(recipes(), st.sampled_from([30_000, 1_000_000]))
def test_any_recipe_can_be_scaled(recipe: Recipe, params: int) -> None:
    found = proxy(recipe, params)
    assert abs(found.error) <= 0.10
    assert choices_of(found.recipe) == choices_of(resolve(recipe.to_dict()))


@given(st.sampled_from([n for n in preset_names() if "/" not in n]), st.sampled_from([5_000_000, 50_000_000]))
def test_ratios_are_kept_as_far_as_the_width_allows(name: str, params: int) -> None:
    recipe = load(name)
    small = scale(recipe, params)
    old = {layer.name: layer for layer in resolve(recipe.to_dict()).layers}
    for layer in small.layers:
        a, b = layer.mixer, old[layer.name].mixer
        assert a.n_heads / a.n_kv_heads == b.n_heads / b.n_kv_heads or b.n_kv_heads == 1  # type: ignore[attr-defined]
        ffn = layer.ffn.d_ff / small.d_model / (old[layer.name].ffn.d_ff / recipe.d_model)  # type: ignore[attr-defined]
        assert ffn == pytest.approx(1, abs=0.08)
        width = a.q_width / small.d_model / (b.q_width / recipe.d_model)  # type: ignore[attr-defined]
        assert width == pytest.approx(1, abs=0.2)


def test_paired_heads_stay_pairs_and_the_period_follows_the_length() -> None:
    table = load("llama-3.2-1b").to_dict()
    for layer in table["layers"].values():
        layer["mixer"]["differential"] = {"kind": "pairs", "norm": "rmsnorm"}
        layer["mixer"]["query_scale"] = {"kind": "by_position", "beta": 0.1, "period": table["max_seq_len"] // 16}
    recipe = resolve(table)
    for params in (2e6, 7e6, 30e6, 150e6):
        found = proxy(recipe, params, max_seq_len=2048)
        for layer in found.recipe.layers:
            assert layer.mixer.n_heads % 2 == layer.mixer.n_kv_heads % 2 == 0
            assert layer.mixer.query_scale.period == 128
        assert any("every" in note and "positions -> 128" in note for note in found.notes)


def test_the_pattern_of_layers_is_kept() -> None:
    small = scale(load("gemma3-4b"), 20e6)
    names = [layer.name for layer in small.layers]
    assert names == (["local"] * 5 + ["global"]) * (len(names) // 6) + ["local"] * (len(names) % 6)
    assert "global" in names
    runs = resolve(load("gpt2").to_dict() | {"name": "runs"})
    assert len({layer.name for layer in scale(runs, 1e6).layers}) == 1


def test_runs_of_layers_keep_their_order_and_share() -> None:
    authored = load("gpt2").to_dict()
    layer = authored["layers"].popitem()[1]
    authored["layers"] = {"first": layer, "rest": {**layer, "ffn": {**layer["ffn"], "d_ff": 1536}}}
    authored["stack"] = ["3 first", "9 rest"]
    small = scale(resolve(authored), 10e6)
    names = [layer.name for layer in small.layers]
    assert names == sorted(names)
    assert set(names) == {"first", "rest"}
    assert names.count("rest") / len(names) == pytest.approx(0.75, abs=0.2)


def test_numbers_that_are_rules_of_the_shape_follow_it() -> None:
    deep = scale(load("tiny/deepnorm"), 2e6)
    skip = deep.layers[0].residual.mixer.skip.value  # type: ignore[attr-defined]
    assert skip == pytest.approx((2 * deep.n_layers) ** 0.25)
    neox = scale(load("gpt-neox-20b"), 20e6)
    gains = {str(e.role): getattr(e.distribution, "gain", None) for e in neox.init.roles}
    assert gains["attn_out"] == pytest.approx(2 / neox.n_layers)
    assert gains["attn_in"] == pytest.approx(math.sqrt(2 / 5))
    opt = scale(load("opt-350m"), 20e6)
    assert opt.embedding.projection.dim == opt.head.projection.dim == opt.d_model // 2  # type: ignore[attr-defined]


def test_what_gives_is_said() -> None:
    found = proxy(load("llama-3.1-70b"), 2e6)
    assert any("head_dim 128 ->" in n for n in found.notes)
    assert "Scaled from llama-3.1-70b to 2M" in found.recipe.notes
    kept = proxy(load("gemma3-4b"), 20e6)
    assert any("window of 1024 is kept" in n for n in kept.notes)
    shorter = proxy(load("gemma3-4b"), 20e6, max_seq_len=2048)
    assert {layer.mixer.span.size for layer in shorter.recipe.layers if layer.name == "local"} == {16}  # type: ignore[attr-defined]
    assert any("1024 -> 16" in n for n in shorter.notes)


def test_total_counts_the_tables() -> None:
    recipe = load("llama-3.1-8b")
    small = scale(recipe, 50e6, count="total", vocab_size=4096)
    assert count_params(small).total == pytest.approx(50e6, rel=0.10)
    assert small.vocab_size == 4096
    with pytest.raises(ValueError, match="pass a smaller vocab_size"):
        scale(recipe, 2e6, count="total")


def test_growing_works_too() -> None:
    assert count_params(scale(load("smollm2-135m"), 1e9)).non_embedding == pytest.approx(1e9, rel=0.10)


def test_the_same_size_gives_about_the_same_shape() -> None:
    for name in ("llama-3.1-8b", "qwen3-0.6b", "gpt2"):
        recipe = load(name)
        same = scale(recipe, count_params(recipe).non_embedding)
        assert same.d_model == pytest.approx(recipe.d_model, rel=0.15)
        assert same.n_layers == pytest.approx(recipe.n_layers, rel=0.3)


def test_a_ladder_climbs() -> None:
    rungs = ladder(load("qwen3-8b"), [20e6, 5e6, 80e6])
    sizes = [count_params(r).non_embedding for r in rungs]
    assert sizes == sorted(sizes)
    assert len({r.name for r in rungs}) == 3
    assert all(choices_of(r) == choices_of(rungs[0]) for r in rungs)
    with pytest.raises(ValueError, match="at least one"):
        ladder(load("gpt2"), [])
    with pytest.raises(ValueError, match="twice"):
        ladder(load("gpt2"), [1e6, 1e6])


@pytest.mark.parametrize("params", [0, -5, 1.5, float("nan"), float("inf"), True, "20e6"])
def test_bad_sizes(params: Any) -> None:
    with pytest.raises(ValueError, match="params: not a positive whole number"):
        scale(load("gpt2"), params)


def test_sizes_out_of_reach() -> None:
    with pytest.raises(ValueError, match="nearest"):
        scale(load("gemma3-4b"), 100)
    with pytest.raises(ValueError, match="count"):
        scale(load("gpt2"), 1e6, count="active")  # type: ignore[arg-type]
