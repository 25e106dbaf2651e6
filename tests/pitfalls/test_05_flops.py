"""05. Attention FLOPs that ignore the window, or wrongly shrink with GQA (allenai/OLMo-core PR#478).

T = 128, 4 query heads, head_dim 16, one layer, score and value products forward: 4,194,304 over the full square,
2,113,536 causal, 921,600 in a window of 32; the same for 1, 2 or 4 key/value heads.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from assay.cost import budget
from assay.model import build
from assay.recipe import Recipe
from tests.pitfalls.support import recipe

WINDOW = {"kind": "window", "size": 32}


def one_layer(n_kv_heads: int, span: Any = "full") -> Recipe:
    sizes = {"d_model": 64, "n_layers": 1, "max_seq_len": 128}
    return recipe(sizes, n_heads=4, n_kv_heads=n_kv_heads, head_dim=16, span=span)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_the_three_numbers(n_kv_heads: int) -> None:
    full = budget(one_layer(n_kv_heads)).flops.by_op
    assert full["attention_core_square"] == 4_194_304
    assert full["attention_core_legal"] == 2_113_536
    windowed = budget(one_layer(n_kv_heads, WINDOW)).flops.by_op
    assert windowed["attention_core_square"] == 4_194_304
    assert windowed["attention_core_legal"] == 921_600


def test_only_the_projections_shrink_with_key_value_heads() -> None:
    counts = [budget(one_layer(n)).flops.by_op["mixer_projections"] for n in (4, 2, 1)]
    # q and o of 64 x 64, k and v of 64 x 16 a head, 128 tokens
    assert counts == [2 * 128 * 64 * (64 + 64 + 2 * 16 * n) for n in (4, 2, 1)]


@pytest.mark.parametrize("span", ["full", WINDOW], ids=["full", "window"])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_torchs_counter_sees_the_full_square(n_kv_heads: int, span: Any, backend: str) -> None:
    model = build(one_layer(n_kv_heads, span), device="meta", backend=backend)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 128, dtype=torch.long, device="meta"))
    counts = budget(one_layer(n_kv_heads, span)).flops
    assert counter.get_total_flops() == counts.forward_full
    assert counts.forward_full - counts.forward_causal == 4_194_304 - (2_113_536 if span == "full" else 921_600)


def test_every_figure_has_its_convention() -> None:
    found = budget(one_layer(2))
    plain = found.to_dict()
    for group in ("params", "flops", "cache", "memory"):
        for key, value in plain[group].items():
            if isinstance(value, int):
                assert found.conventions[f"{group}.{key}"]
