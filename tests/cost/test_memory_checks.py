"""Published numbers of memory, compute and tokens that a budget must give, one a line.

The number before each name is that of the project's list of exact checks. 41 stands with the activations, 43 with the
optimizers.
"""

from __future__ import annotations

import pytest

from assay.cost import CHINCHILLA, budget, find_optimizer, utilization
from assay.cost.activations import megatron_layer_bytes
from assay.cost.memory import zero_bytes
from assay.cost.scaling import scaling_report
from assay.recipe import load
from tests.cost.measure import shape

# --- compute ---


def test_31_gpt3_training_compute() -> None:
    """6 x 174.6e9 x 300e9 = 3.1428e23, 3,637 PF-days (paper 3.14e23, 3.64e3)."""
    told = scaling_report(174_600_000_000, 300e9)
    assert told["flops_6nd"] == pytest.approx(3.1428e23, rel=1e-9)
    assert told["petaflop_s_days"] == pytest.approx(3637.5, abs=0.5)
    told = budget(load("gpt3-175b"), tokens=300e9).scaling
    assert f"{told['flops_6nd']:.2e}" == "3.14e+23"
    assert f"{told['petaflop_s_days']:.2e}" == "3.64e+03"


def test_35_llama3_405b_training_compute() -> None:
    """6 N D = 3.799e25 at 15.6T tokens (paper 3.8e25)."""
    told = budget(load("llama-3.1-405b"), tokens=15.6e12).scaling
    assert told["flops_6nd"] == pytest.approx(3.799e25, rel=1e-4)
    assert f"{told['flops_6nd']:.1e}" == "3.8e+25"


@pytest.mark.parametrize(("tflops", "mfu"), [(430, 43), (400, 40.4), (380, 38)])
def test_35_llama3_utilization(tflops: int, mfu: float) -> None:
    """The Llama 3 table: TFLOP/s a device over 989, the dense BF16 peak of an H100."""
    assert utilization(tflops * 1e12, "h100", "bf16") == pytest.approx(mfu / 100, abs=0.005)


TABLE_3 = [
    (400e6, 8.0e9, "1.92e+19"),
    (1e9, 20.2e9, "1.21e+20"),
    (10e9, 205.1e9, "1.23e+22"),
    (520e9, 11.0e12, "3.43e+25"),
    (1e12, 21.2e12, "1.27e+26"),
    (10e12, 216.2e12, "1.30e+28"),
]


@pytest.mark.parametrize(("params", "tokens", "flops"), TABLE_3)
def test_36_chinchilla_table_3(params: float, tokens: float, flops: str) -> None:
    told = scaling_report(round(params), tokens)
    assert f"{told['flops_6nd']:.2e}" == flops
    assert told["tokens_per_param"] == pytest.approx(20, rel=0.09)


def test_37_chinchilla_parametric_fit() -> None:
    """L = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28; 70B x 1.4T is 5.88e23 FLOPs."""
    told = scaling_report(70_000_000_000, 1.4e12)
    assert told["flops_6nd"] == pytest.approx(5.88e23, rel=1e-12)
    want = 1.69 + 406.4 / 70e9**0.34 + 410.7 / 1.4e12**0.28
    assert told["fit_loss"] == pytest.approx(want, rel=1e-15)
    assert told["fit_loss"] == pytest.approx(1.9367, abs=5e-4)


def test_37_the_fits_optimum_is_one() -> None:
    """No other split of the same compute has a lower loss."""
    flops = 5.88e23
    params, tokens = CHINCHILLA.optimum(flops)
    assert 6 * params * tokens == pytest.approx(flops)
    best = CHINCHILLA.loss(params, tokens)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert CHINCHILLA.loss(params * factor, tokens / factor) > best


# --- memory ---


def test_40_megatron_activations_of_gpt3() -> None:
    """s b h (34 + 5 a s / h) at s 2048, b 1: 2,868,903,936 bytes a layer, and in the budget all 96."""
    assert megatron_layer_bytes(2048, 1, 12_288, 96) == 2_868_903_936
    told = budget(load("gpt3-175b"), 1, 2048).memory.activations
    assert told["megatron_formula_bytes"] == 96 * 2_868_903_936


@pytest.mark.parametrize(("d_model", "heads", "term", "saved"), [(12_288, 96, 80, 70), (20_480, 128, 64, 65)])
def test_40_selective_recomputation(d_model: int, heads: int, term: int, saved: int) -> None:
    """5 a s / h is 80 for GPT-3 and 64 for MT-NLG 530B: of all that a layer keeps, 70 and 65 per cent."""
    whole = megatron_layer_bytes(2048, 1, d_model, heads)
    rest = megatron_layer_bytes(2048, 1, d_model, heads, recompute="selective")
    assert (whole - rest) / (2048 * d_model) == term
    assert round(100 * (whole - rest) / whole) == saved


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_42_zero(zero: int, gigabytes: float) -> None:
    """7.5B parameters on 64 devices, 16 bytes each (ZeRO, figure 1)."""
    plan = find_optimizer("adamw", "bf16", 2)
    assert zero_bytes(7.5e9, plan, 64, zero) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_42_zero_in_a_budget() -> None:
    """The same through a plan: state on one of 64 devices."""
    whole = budget(load("llama-2-7b"), 64, 512).memory.train["state_bytes"]
    n = 6_738_415_616
    assert whole == 16 * n
    each = {z: budget(load("llama-2-7b"), 64, 512, parallel=f"dp=64,zero={z}").memory.train for z in range(4)}
    for zero, per in enumerate((16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)):
        assert each[zero]["state_bytes"] == pytest.approx(per * n, rel=1e-8)
    assert each[3]["gathered_bytes"] > 0 == each[2]["gathered_bytes"]


# --- shares ---


@pytest.mark.parametrize("length", [1024, 8192])
def test_46_attentions_share(length: int) -> None:
    """Non-causal attention over the matrix products = T / (8 D), with F = 4 D gated and D = N H."""
    d = 1024
    recipe = shape(d_model=d, max_seq_len=32_768, block__mixer__n_heads=8, block__ffn__d_ff=4 * d)
    by_op = budget(recipe, 1, length).flops.by_op
    share = by_op["attention_core_square"] / (by_op["mixer_projections"] + by_op["ffn"])
    assert share == length / (8 * d)


def test_46_where_the_core_costs_what_its_projections_do() -> None:
    """At T = 2 D."""
    d = 1024
    recipe = shape(d_model=d, block__mixer__n_heads=8, block__ffn__d_ff=4 * d)
    by_op = budget(recipe, 1, 2 * d).flops.by_op
    assert by_op["attention_core_square"] == by_op["mixer_projections"]
