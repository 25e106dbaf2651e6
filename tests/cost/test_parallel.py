"""Parallel plans: how they are written, what does not divide, what each device holds, bubbles, communication."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cost import ParallelPlan, budget, parse_plan, tensors_of
from assay.cost.activations import Execution, network
from assay.cost.findings import alignment_findings
from assay.cost.memory import stages_of
from assay.cost.parallel import bubble, communication, in_flight, stage_layers
from assay.cost.rules import Work
from assay.recipe import Recipe, load
from tests.cost.measure import shape
from tests.strategies import recipes

# how they are written


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        (None, ParallelPlan()),
        ("", ParallelPlan()),
        ("tp=8,pp=2,dp=4", ParallelPlan(tp=8, pp=2, dp=4, microbatches=16)),
        ("tp=8, pp=2, dp=4, microbatches=8", ParallelPlan(tp=8, pp=2, dp=4, microbatches=8)),
        ("fsdp=64", ParallelPlan(dp=64, zero=3)),
        ("tp=2,sp=on,zero=1", ParallelPlan(tp=2, sp=True, zero=1)),
        ("pp=4,mb=8,vpp=2,schedule=gpipe", ParallelPlan(pp=4, microbatches=8, interleave=2, schedule="gpipe")),
        ("dp=auto,tp=8", ParallelPlan(tp=8, dp=64)),
    ],
)
def test_plans_are_read(text: str | None, plan: ParallelPlan) -> None:
    assert parse_plan(text, batch=64, devices=512 if text and "auto" in text else None) == plan


def test_a_plan_reads_what_it_prints() -> None:
    plan = ParallelPlan(tp=8, pp=4, dp=2, zero=1, sp=True, microbatches=16, interleave=2)
    assert parse_plan(str(plan)) == plan
    assert plan.devices == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=0", "parallel.tp: not an integer from 1 to"),
        ("tp=-1", "parallel.tp: not an integer"),
        ("tp=two", "parallel.tp: not an integer"),
        ("tp=99999999", "parallel.tp: not an integer from 1 to 1048576: '99999999'"),
        ("zero=4", "parallel.zero: not an integer from 0 to 3"),
        ("ttp=8", r"not a part of a plan: 'ttp=8' \(nearest: tp\); allowed: key=value with key one of tp, pp"),
        ("8", "not a part of a plan: '8'"),
        ("tp=2,tp=4", "parallel: tp is given twice"),
        ("fsdp=2,zero=1", "zero is given twice"),
        ("schedule=zigzag", "parallel.schedule: no such schedule 'zigzag'; allowed: 1f1b, gpipe"),
        ("dp=auto", "parallel.dp: auto needs the number of devices"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        budget(load("llama-3.1-8b"), 8, 1024, parallel=text)


def test_devices_must_agree() -> None:
    with pytest.raises(ValueError, match="tp x pp x dp = 8, but there are 16 devices"):
        budget(load("llama-3.1-8b"), parallel="tp=8", devices=16)
    with pytest.raises(ValueError, match="12 devices do not divide by tp x pp = 8"):
        budget(load("llama-3.1-8b"), parallel="tp=8,dp=auto", devices=12)
    told = budget(load("llama-3.1-8b"), 16, 1024, parallel="tp=4,dp=auto", devices=64)
    assert told.parallel["plan"]["dp"] == 16


# what does not divide


@pytest.mark.parametrize(
    ("batch", "plan", "messages"),
    [
        (1, "tp=3", ["layers.block.mixer.n_heads: tp = 3 does not divide 32; take tp one of 1, 2, 4, 8, 16, 32"]),
        (1, "tp=3", ["layers.block.ffn.d_ff: tp = 3 does not divide 14336; take 14,334 or 14,337"]),
        (1, "pp=33", ["parallel.pp: 33 pipeline stages, but only 32 layers; take at most 32"]),
        (6, "dp=4", ["batch: 6 sequences cannot be split over dp = 4; take 4 or 8"]),
        (12, "dp=2,microbatches=4", ["parallel.microbatches: a replica's 6 sequences", "take one of 1, 2, 3, 6"]),
        (8, "pp=4,interleave=2,microbatches=2", ["parallel.interleave: interleaving needs"]),
        (1, "sp=1", ["parallel.sp: sequence parallelism splits tokens over tp"]),
    ],
)
def test_what_does_not_divide_is_refused_with_the_fix(batch: int, plan: str, messages: list[str]) -> None:
    with pytest.raises(ValueError, match="does not fit") as e:
        budget(load("llama-3.1-8b"), batch, 1024, parallel=plan)
    assert all(message in str(e.value) for message in messages)


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="does not fit") as e:
        budget(load("llama-3.1-8b"), 6, 1024, parallel="tp=3,dp=4")
    assert len(str(e.value).splitlines()) == 5  # batch, n_heads, n_kv_heads, d_ff


def found(recipe: Recipe, place: str, **how: Any) -> dict[str, Any]:
    (finding,) = [f for f in budget(recipe, **how).findings if f["place"] == place]
    return finding


def test_what_divides_at_a_cost_is_told() -> None:
    kv = found(load("llama-3.1-8b"), "layers.block.mixer.n_kv_heads", seq_len=1024, parallel="tp=32")
    assert kv["severity"] == "warning"
    assert "each is held on 4 devices" in kv["message"]
    vocab = found(load("gpt2"), "vocab_size", seq_len=128, parallel="tp=2")
    assert "pad to 50,432" in vocab["fix"]
    uneven = found(load("llama-3.1-405b"), "n_layers", batch=32, seq_len=1024, parallel="pp=16")
    assert "the longest stage has 8, the shortest 7" in uneven["message"]
    idle = found(load("llama-3.1-8b"), "parallel.microbatches", batch=2, seq_len=1024, parallel="pp=4")
    assert "60% of the pipeline idle" in idle["message"]


# alignment


def test_alignment_of_every_dimension() -> None:
    table = budget(load("gpt2"), 1, 128).parallel["alignment"]
    assert table["vocab_size"] == {"value": 50_257, "aligned_to": 1}
    assert table["d_model"]["aligned_to"] == 256
    assert table["layers.block.mixer.head_dim"] == {"value": 64, "aligned_to": 64}
    finding = found(load("gpt2"), "vocab_size", seq_len=128)
    assert finding["severity"] == "warning"
    assert finding["fix"] == "the next multiples: 50,304 (64), 50,304 (128), 50,432 (256)"
    assert [f["place"] for f in budget(load("llama-3.1-8b")).findings] == []


def test_alignment_is_that_of_a_devices_share() -> None:
    recipe = shape(block__ffn__d_ff=1408, d_model=256, vocab_size=512)
    places = {f.place: f for f in alignment_findings(recipe, tp=4)}
    finding = places["layers.block.ffn.d_ff"]
    assert (finding.value, finding.severity) == (352, "warning")
    assert finding.fix == "the next multiples: 1,536 (64), 1,536 (128), 2,048 (256)"
    assert "layers.block.ffn.d_ff" not in {f.place for f in alignment_findings(recipe)}


def test_an_odd_width_is_found() -> None:
    """8/3 of 4096 unrounded: the texts' example of a kernel's slow path."""
    finding = found(shape(d_model=4096, block__mixer__n_heads=32, block__ffn__d_ff=10_923), "layers.block.ffn.d_ff")
    assert finding["message"] == "10,923 is a multiple of 1 only"
    assert finding["fix"] == "the next multiples: 10,944 (64), 11,008 (128), 11,008 (256)"


# what devices hold


@given(recipes(), st.integers(1, 4))
def test_stages_hold_every_parameter_once(recipe: Recipe, stages: int) -> None:
    plan = ParallelPlan(pp=min(stages, recipe.n_layers))
    net = network(recipe, Execution(Work(1, 4)))
    held = sum(stage.held.params for stage in stages_of(recipe, net, plan))
    total = sum(t.numel for t in tensors_of(recipe))
    copied = recipe.vocab_size * recipe.embedding_width if recipe.embedding.tied and plan.pp > 1 else 0
    assert held == total + copied
    parts = [part for stage in stages_of(recipe, net, plan) for part in stage.parts]
    assert sum(part.kept for part in parts) + net.shared() == net.kept()


@pytest.mark.parametrize(
    ("n", "stages", "sizes"), [(126, 16, [7] + [8] * 14 + [7]), (8, 4, [2] * 4), (5, 4, [1, 2, 1, 1])]
)
def test_uneven_stages_are_short_at_the_ends(n: int, stages: int, sizes: list[int]) -> None:
    """As Llama 3 405B does: 126 layers on 16 stages, one fewer on the first and on the last."""
    assert stage_layers(n, stages) == sizes


def test_tensor_parallel_weights() -> None:
    """Llama-3-8B on 8 devices: all but the norms divided by 8."""
    whole = budget(load("llama-3.1-8b"), 1, 1024).memory.train["params"]
    eighth = budget(load("llama-3.1-8b"), 1, 1024, parallel="tp=8").memory.train["params"]
    norms = 65 * 4096
    assert eighth == (whole - norms) // 8 + norms


def test_kv_heads_fewer_than_devices_are_held_many_times() -> None:
    recipe = load("llama-3.1-8b")
    by = {tp: budget(recipe, 1, 1024, parallel=f"tp={tp}") for tp in (8, 32)}
    assert (
        by[8].memory.inference["cache_bytes"]
        == by[32].memory.inference["cache_bytes"]
        == budget(recipe, 1, 1024).cache.bytes // 8
    )
    kv = 2 * 128 * 4096  # one key and one value head of a layer, on every device
    rest = 8_030_261_248 - 32 * 8 * kv - 65 * 4096
    assert by[32].memory.train["params"] == rest // 32 + 32 * kv + 65 * 4096


def test_the_fullest_stage_is_told() -> None:
    told = budget(load("llama-3.1-8b"), 16, 2048, parallel="pp=4").memory.train
    assert len(told["peak_by_stage"]) == 4
    assert told["peak_bytes"] == max(told["peak_by_stage"]) == told["peak_by_stage"][told["stage"]]
    assert told["stage"] == 0
    assert told["microbatches_in_flight"] == 4


# pipelines


def test_bubbles() -> None:
    assert bubble(ParallelPlan()) == 0
    assert bubble(ParallelPlan(pp=4, microbatches=8)) == 3 / 11
    assert bubble(ParallelPlan(pp=4, microbatches=8, schedule="gpipe")) == 3 / 11
    assert bubble(ParallelPlan(pp=4, microbatches=8, interleave=2)) == 3 / 19
    # Narayanan et al. 2021 give it over the ideal time
    share = bubble(ParallelPlan(pp=4, microbatches=8, interleave=2))
    assert share / (1 - share) == pytest.approx(3 / 16)


def test_micro_batches_in_flight() -> None:
    plan = ParallelPlan(pp=4, microbatches=8)
    assert [in_flight(plan, s) for s in range(4)] == [4, 3, 2, 1]
    assert [in_flight(plan._replace(microbatches=2), s) for s in range(4)] == [2, 2, 2, 1]
    assert [in_flight(plan._replace(schedule="gpipe"), s) for s in range(4)] == [8] * 4
    # Korthikanti et al. 2022, section 4.2.3: L (1 + (p - 1)/(p m)) layers' worth on the first stage
    assert in_flight(plan._replace(interleave=2), 0) / 4 == 1 + 3 / (4 * 2)


def test_a_bubble_costs_time() -> None:
    recipe = load("llama-3.1-8b")
    some = budget(recipe, 32, 1024, hardware="h100", parallel="pp=4,microbatches=4").time["train"]
    more = budget(recipe, 32, 1024, hardware="h100", parallel="pp=4,microbatches=32").time["train"]
    work = some["seconds"] - some["bubble_s"] - some["update_s"]
    assert some["bubble_s"] == pytest.approx(3 / 4 * work)
    assert some["bubble_s"] > more["bubble_s"]


# communication


def volumes(plan: ParallelPlan, recipe: Recipe | None = None) -> dict[str, Any]:
    return communication(recipe or load("llama-2-7b"), plan, 1000, 2, (4_000, 2_000), 900e9)


def test_tensor_parallel_volume() -> None:
    """Two all-reduces a layer forward, two backward (Shoeybi et al. 2019, section 3), one each at both ends."""
    told = volumes(ParallelPlan(tp=8))
    assert told["all_reduces_per_microbatch"] == 4 * 32 + 2
    assert told["tensor_bytes"] == 2 * 7 / 8 * 1000 * 4096 * 2 * (4 * 32 + 2)
    assert told["seconds_at_link_peak"]["tensor"] == told["tensor_bytes"] / 450e9
    parallel_blocks = volumes(ParallelPlan(tp=8), load("gptj-6b"))
    assert parallel_blocks["all_reduces_per_microbatch"] == 2 * 28 + 2


@pytest.mark.parametrize(
    ("zero", "data"), [(0, 2 * 4_000), (1, 4_000 + 2_000), (2, 4_000 + 2_000), (3, 4_000 + 2 * 2_000)]
)
def test_data_parallel_volume(zero: int, data: int) -> None:
    """Gradients all-reduced; gradients scattered, weights gathered; weights gathered twice (ZeRO, section 7)."""
    assert volumes(ParallelPlan(dp=4, zero=zero))["data_bytes"] == 3 / 4 * data
    assert volumes(ParallelPlan(zero=zero))["data_bytes"] == 0


def test_pipeline_volume() -> None:
    assert volumes(ParallelPlan(pp=4, microbatches=8))["pipeline_bytes"] == 2 * 8 * 1000 * 4096 * 2
    assert volumes(ParallelPlan())["pipeline_bytes"] == 0


# tokens


def test_tokens_against_parameters() -> None:
    told = budget(load("llama-3.1-8b"), tokens=15.6e12).scaling
    assert told["tokens_per_param"] == pytest.approx(1943, abs=1)
    assert told["times_chinchilla"] == pytest.approx(97, abs=0.2)
    assert told["fit_optimum"]["loss"] < told["fit_loss"]
    assert budget(load("llama-3.1-8b")).scaling["chinchilla_tokens"] == 20 * 8_030_261_248
