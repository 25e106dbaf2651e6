"""Heads pooled into groups: by the mean, biases and gains too; against a slow loop over heads and channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.interop import CannotPool, pool_heads, pooled_recipe
from assay.model import named_params
from assay.recipe.differential import HeadPairs
from assay.recipe.mixer import NormedQk, attentions_of
from tests.laws.common import assert_close, examples, random_ids
from tests.pitfalls.support import decoder as small
from tests.strategies import random_decoder, recipes

CASES: list[dict[str, Any]] = [
    {},
    {"bias": "all"},
    {"bias": ["v"], "sinks": "per_head", "output_gate": "head"},
    {"qk_norm": {"over": "head", "norm": "rmsnorm"}},
    {"qk_norm": {"over": "head", "norm": "layernorm", "gain_per": "head"}},
    {"qk_norm": {"over": "width", "norm": "rmsnorm"}, "bias": ["k"]},
    {"qk_norm": {"over": "width", "norm": "scalenorm"}},
]


def randomised(model: Any, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("options", CASES)
def test_every_tensor_is_the_mean_of_its_heads(options: dict[str, Any], groups: int) -> None:
    old = randomised(small(n_kv_heads=4, **options))
    new = pool_heads(old, groups)
    before = {p.name: p.param for p in named_params(old)}
    pooled = 0
    for p in named_params(new):
        was = before[p.name]
        if p.name.endswith("k_norm.gain") and was.numel() == 1:
            torch.testing.assert_close(p.param, was * (groups / 4) ** 0.5)
            continue
        if p.param.shape == was.shape:
            assert torch.equal(p.param, was), p.name
            continue
        pooled += 1
        channels = was.shape[0] // 4
        for head in range(groups):
            mine = range(head * 4 // groups, (head + 1) * 4 // groups)
            for c in range(channels):
                want = sum(was[h * channels + c] for h in mine) / len(mine)
                torch.testing.assert_close(p.param[head * channels + c], want, rtol=1e-12, atol=1e-12)
    per_head = options.get("qk_norm", {}).get("gain_per") == "head"
    width = options.get("qk_norm", {}).get("over") == "width" and options["qk_norm"]["norm"] != "scalenorm"
    bias = options.get("bias", ())
    names = 2 if bias == "all" else len({"k", "v"} & set(bias))
    assert pooled == 2 * (2 + names + (2 if per_head else 0) + (1 if width else 0))
    assert torch.isfinite(new(torch.tensor([[1, 2, 3]]))).all()


@given(recipes(causal=True), st.integers(0, 99))
@examples(0.5)
def test_equal_heads_give_an_equal_model(recipe: Any, seed: int) -> None:
    """Over random recipes: all key/value heads made equal, then pooled into one."""
    kv = [spec.n_kv_heads for layer in recipe.layers for spec in attentions_of(layer.mixer)]
    old = random_decoder(recipe, seed)
    if not kv or max(kv) == 1:
        with pytest.raises(CannotPool, match="nothing to pool"):
            pool_heads(old, 1)
        return
    if any(isinstance(spec.differential, HeadPairs) for layer in recipe.layers for spec in attentions_of(layer.mixer)):
        with pytest.raises(CannotPool, match=r"groups = 1: .*n_kv_heads: differential attention takes heads in pairs"):
            pool_heads(old, 1)
        return
    with torch.no_grad():
        for p in named_params(old):
            _equalise(p.name, p.param, recipe)
    ids = random_ids(recipe, 2, 7, seed)
    with torch.no_grad():
        assert_close(pool_heads(old, 1)(ids), old(ids))


def _equalise(name: str, value: torch.Tensor, recipe: Any) -> None:
    from assay.interop.relayout import attentions_at

    if not name.startswith("layers."):
        return
    i = int(name.split(".")[1])
    for at, spec in attentions_at(recipe.layers[i].mixer, f"layers.{i}.mixer"):
        part = name.removeprefix(f"{at}.").split(".")[0] if name.startswith(f"{at}.") else ""
        own = isinstance(spec.qk_norm, NormedQk) and (spec.qk_norm.over == "width" or spec.qk_norm.gain_per == "head")
        if (part in ("k", "v") or (part == "k_norm" and own)) and value.dim() and value.shape[0] % spec.n_kv_heads == 0:
            heads = value.unflatten(0, (spec.n_kv_heads, -1))
            value.copy_(heads[:1].expand_as(heads).flatten(0, 1))


def test_layers_of_their_own_head_counts() -> None:
    """Each layer by its own count; one that has so few already stays bit for bit."""
    over = {
        "layers": {"few": {"mixer": {"n_kv_heads": 2}}, "many": {"mixer": {"n_kv_heads": 4}}},
        "stack": ["few", "many"],
    }
    over["n_layers"] = 2
    old = randomised(small({**over, "stack": ["few", "many"]}))
    new = pool_heads(old, 2)
    assert [layer.mixer.n_kv_heads for layer in new.recipe.layers] == [2, 2]
    assert torch.equal(new.layers[0].mixer.k.weight, old.layers[0].mixer.k.weight)
    assert new.layers[1].mixer.k.weight.shape[0] == 16
    assert new.recipe.name.endswith("-gqa2")


@pytest.mark.parametrize(
    ("groups", "part"),
    [
        (3, "does not divide the key/value heads (layer 0: 4, layer 1: 4); expected a common divisor: 1, 2"),
        (4, "already"),
        (0, "1 or more"),
    ],
)
def test_refusals(groups: int, part: str) -> None:
    with pytest.raises(CannotPool) as error:
        pooled_recipe(small(n_kv_heads=4).recipe, groups)
    assert part in str(error.value)
