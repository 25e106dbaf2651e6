"""Technique to system cost: each number against a hand count, or against the budgets of the two recipes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from assay.cost import budget
from assay.cost.techniques import MEASURES, TechniqueCost, technique_costs, technique_names
from assay.recipe import load

D, LAYERS, HEADS, LENGTH = 4096, 32, 32, 2048


@pytest.fixture(scope="module")
def costs() -> dict[str, TechniqueCost]:
    return {t.name: t for t in technique_costs("llama-2-7b", seq_len=LENGTH)}


def test_all_are_told_and_each_changes_something(costs: dict[str, TechniqueCost]) -> None:
    assert tuple(costs) == technique_names()
    for t in costs.values():
        assert set(t.without) == set(t.with_) == {key for _, key, _, _ in MEASURES}
        assert t.without != t.with_, t.name
        assert t.said


def test_by_hand(costs: dict[str, TechniqueCost]) -> None:
    def less(name: str, key: str) -> int:
        return costs[name].without[key] - costs[name].with_[key]

    assert costs["gqa"].ratio("cache_bytes") == 1 / 4
    assert costs["mqa"].ratio("cache_bytes") == 1 / HEADS
    assert less("gqa", "params") == LAYERS * 2 * D * D * 3 // 4
    assert costs["sliding-window"].ratio("cache_bytes") == 1 / 4
    assert less("rmsnorm", "params") == (2 * LAYERS + 1) * D
    assert less("no-bias", "params") == LAYERS * (4 * D + 2 * 11_008 + D)
    assert less("rope", "params") == load("llama-2-7b").max_seq_len * D
    assert -less("qk-norm", "params") == LAYERS * 2 * 128
    assert -less("sandwich", "params") == LAYERS * 2 * D
    assert costs["swiglu"].ratio("params") == pytest.approx(1, abs=1e-4)
    assert costs["soft-cap"].ratio("params") == 1.0


def test_directions_that_the_texts_claim(costs: dict[str, TechniqueCost]) -> None:
    for name in ("rmsnorm", "no-bias", "gqa", "mqa"):
        for key in ("params", "train_flops", "decode_bytes"):
            assert costs[name].with_[key] < costs[name].without[key], (name, key)
    assert costs["sliding-window"].with_["train_flops"] < costs["sliding-window"].without["train_flops"]
    for name in ("qk-norm", "sandwich", "soft-cap"):  # "a little compute": under a tenth
        assert 1 < (costs[name].ratio("train_flops") or 0) < 1.1, name


def test_a_cache_trades_memory_for_compute(costs: dict[str, TechniqueCost]) -> None:
    t, own = costs["kv-cache"], budget(load("llama-2-7b"), seq_len=LENGTH)
    assert t.without["cache_bytes"] == 0
    assert t.ratio("cache_bytes") is None
    assert t.with_["cache_bytes"] == own.cache.bytes
    assert t.without["decode_flops"] / t.with_["decode_flops"] == pytest.approx(LENGTH, rel=0.1)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "assay", "diff", *words], capture_output=True, text=True, check=False)


def test_the_verb() -> None:
    told = run("llama-2-7b", "--techniques", "--seq-len", str(LENGTH), "--json")
    rows = {row["name"]: row for row in json.loads(told.stdout)["techniques"]}
    assert rows["gqa"]["ratio"]["cache_bytes"] == 0.25
    page = run("tiny/base", "--techniques").stdout
    assert all(name in page for name in technique_names())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gemma-2-9b", "--techniques"), "layers: techniques are laid over a recipe whose layers are all the same"),
        (("gpt2", "gpt2-xl", "--techniques"), "--techniques takes one RECIPE as it is"),
        (("gpt2", "--techniques", "--seq-len", "4096"), "seq_len: 4096"),
    ],
)
def test_what_it_cannot_be_laid_over(words: tuple[str, ...], message: str) -> None:
    told = run(*words)
    assert told.returncode == 2
    assert message in told.stderr
