"""Work by operation class: matrix products are those counted elsewhere, the rest by written rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cost import Work, budget, flops_of
from assay.cost.activations import Execution, network
from assay.cost.intensity import GROUPS
from assay.cost.ops import ACTIVATIONS
from assay.cost.tape import Numerics
from assay.recipe import Recipe, load
from assay.recipe.base import kinds_of
from assay.recipe.ffn import Activation
from tests.cost.measure import shape
from tests.strategies import recipes


def contraction(recipe: Recipe, run: Execution, **how: Any) -> int:
    work = network(recipe, run, **how).work()
    return sum(each.flops for op, each in work.items() if GROUPS.get(op) == "contraction")


@given(recipes(), st.sampled_from([(2, 7, 0), (1, 1, 6), (3, 4, 3)]))
def test_matrix_products_are_those_of_the_counter(recipe: Recipe, size: tuple[int, int, int]) -> None:
    """Traced and counted agree: legal pairs where scores are not stored, the whole square where they are."""
    work = Work(*size)
    total = flops_of(recipe, work).total
    stored = Execution(work, Numerics(backend="reference"))
    assert contraction(recipe, stored, train=False) == total.matmul + total.core_square
    fused = contraction(recipe, Execution(work, Numerics(backend="sdpa")), train=False)
    assert fused == total.matmul + total.core_legal


@given(recipes())
def test_a_budgets_three_modes_are_its_counts(recipe: Recipe) -> None:
    told = budget(recipe, 2, 9, backend="reference")
    rows = {
        mode: sum(r["flops"] for r in told.intensity[mode]["by_op"] if r["group"] == "contraction")
        for mode in ("train", "prefill", "decode")
    }
    assert rows["train"] == 3 * told.flops.forward_full
    fused = budget(recipe, 2, 9, backend="auto")
    if all(
        layer.mixer.kind_name == "attention" and layer.mixer.soft_cap == "none" and layer.mixer.sinks == "none"
        for layer in recipe.layers
    ):
        prefill, decode = (
            sum(r["flops"] for r in fused.intensity[mode]["by_op"] if r["group"] == "contraction")
            for mode in ("prefill", "decode")
        )
        assert prefill == fused.flops.prefill
        assert decode == 2 * fused.flops.decode_per_token


# by hand


def by_op(recipe: Recipe, batch: int = 2, length: int = 32, **how: Any) -> dict[str, int]:
    return budget(recipe, batch, length, **how).flops.elementwise_by_op


def test_norms_by_hand() -> None:
    """RMSNorm 3 + 1 gain, LayerNorm 5 + 1 gain + 1 bias an element; two a layer and one at the end."""
    tokens, d = 64, 64
    assert by_op(shape())["norms"] == 5 * tokens * d * 4
    layer_norms = shape(block__residual={"rule": "pre", "norm": "layernorm"}, head__norm="layernorm")
    assert by_op(layer_norms)["norms"] == 5 * tokens * d * 7
    bare = {"kind": "rmsnorm", "gain": "none"}
    assert by_op(shape(block__residual={"rule": "pre", "norm": bare}, head__norm=bare))["norms"] == 5 * tokens * d * 3
    qk = shape(block__mixer__qk_norm={"over": "head", "norm": "rmsnorm"})
    assert by_op(qk)["norms"] == 5 * tokens * d * 4 + 2 * 2 * tokens * d * 4


def test_the_texts_round_figure() -> None:
    """About 5 d FLOPs a token and norm, some ten-thousandths of a layer's products at d = 4096."""
    recipe = load("llama-3.1-8b")
    told = budget(recipe, 1, 4096)
    a_norm = told.flops.elementwise_by_op["norms"] / (65 * 4096)
    assert 3 * 4096 <= a_norm <= 5 * 4096
    assert told.flops.elementwise_by_op["norms"] / told.flops.forward_full < 1e-3


def test_rotation_residual_and_gate_by_hand() -> None:
    tokens, d, ff = 64, 64, 192
    found = by_op(shape(block__mixer__n_kv_heads=2))
    assert found["rope"] == 2 * 3 * tokens * (64 + 32)
    assert found["residual"] == 2 * 2 * tokens * d
    assert found["activation"] == 2 * tokens * ff * (ACTIVATIONS["silu"][0] + 1)
    half = by_op(shape(block__mixer__position={"kind": "rope", "fraction": 0.5}))
    assert half["rope"] == 2 * 3 * tokens * 64


def test_softmax_by_hand() -> None:
    """4 a legal pair and the scale of the queries; 5 where probabilities are stored, over the square."""
    heads, d, length, batch = 4, 64, 32, 2
    legal, square = length * (length + 1) // 2, length * length
    scale = batch * length * d
    assert by_op(shape())["softmax"] == 2 * (4 * heads * batch * legal + scale)
    assert by_op(shape(), backend="reference")["softmax"] == 2 * (5 * heads * batch * square + scale)
    capped = by_op(shape(block__mixer__soft_cap=5.0))["softmax"]  # which only the reference honours
    assert capped == 2 * (8 * heads * batch * square + scale)


def test_biases_and_logits_by_hand() -> None:
    tokens, d = 64, 64
    recipe = shape(block__mixer__bias="all", head__bias=True, head__soft_cap=5.0, head__scale=0.5)
    found = by_op(recipe)
    assert found["biases"] == 2 * tokens * 4 * d + tokens * 512
    assert found["logits"] == tokens * 512 * (3 + 1)


def test_every_activation_has_its_count() -> None:
    assert set(kinds_of(Activation)) - {"xielu"} == set(ACTIVATIONS)
    for name, spec in kinds_of(Activation).items():
        table = {"kind": name, "beta": 1.5} if name == "swish" else {"kind": name}
        recipe = shape(n_layers=1, block__ffn={"kind": "mlp", "d_ff": 96, "activation": table})
        want = 10 if name == "xielu" else ACTIVATIONS[name][0]
        assert by_op(recipe).get("activation", 0) == 64 * 96 * want, spec


def test_shares_of_flops_and_bytes() -> None:
    """Contractions are over 99.7 per cent of FLOPs, and far from that of bytes (Ivanov et al. 2020, table 1)."""
    groups = budget(load("gpt2"), 8, 1024, backend="reference").intensity["train"]["by_group"]
    assert groups["contraction"]["flops_share"] > 0.95
    assert groups["contraction"]["bytes_share"] < 0.6
    for key in ("flops_share", "bytes_share"):
        assert sum(each[key] for each in groups.values()) == pytest.approx(1)


def test_dropout_counts_in_training_only() -> None:
    recipe = shape(block__ffn__dropout=0.1)
    rows = {mode: {r["op"] for r in budget(recipe, 1, 16).intensity[mode]["by_op"]} for mode in ("train", "prefill")}
    assert "dropout" in rows["train"]
    assert "dropout" not in rows["prefill"]
