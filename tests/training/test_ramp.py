"""A batch that grows: every sample once and in order, the same after a stop, rates with it; and the mean of weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from assay.model import build
from assay.training import train
from assay.training.data import open_corpus
from assay.training.ema import Ema
from assay.training.evaluate import evaluate
from assay.training.ramp import LinearRamp, NoRamp
from tests.training.test_run import config_for, numbers, own_cache, text, weights  # noqa: F401 - fixtures


@given(st.integers(1, 9), st.integers(10, 40), st.integers(1, 7), st.integers(1, 4000), st.integers(1, 40))
def test_updates_own_consecutive_samples(start: int, batch: int, seq_len: int, tokens: int, steps: int) -> None:
    plan = LinearRamp(start=start, tokens=tokens).plan(batch, seq_len)
    first, sizes = 0, []
    for step in range(1, steps + 1):
        found = plan.of(step)
        assert found.first == first
        assert plan.samples(step) == first + found.size
        sizes.append(found.size)
        seen = first * seq_len
        want = batch if seen >= tokens else int(start + (batch - start) * seen / tokens)
        assert found.size == want
        first += found.size
    assert sizes == sorted(sizes)
    assert sizes[0] == start


def test_sizes_by_hand() -> None:
    plan = LinearRamp(start=4, tokens=240, multiple_of=4, lr="sqrt").plan(16, 10)
    # seen 0, 40, 80, 160 of 240 tokens: 4, 6, 8, 12 -> multiples of 4; then 280, all of them
    assert [tuple(plan.of(step)) for step in range(1, 7)] == [
        (0, 4, 0.5),
        (4, 4, 0.5),
        (8, 8, 0.5**0.5),
        (16, 12, 0.75**0.5),
        (28, 16, 1.0),
        (44, 16, 1.0),
    ]
    assert tuple(NoRamp().plan(16, 10).of(3)) == (32, 16, 1.0)
    assert [LinearRamp(start=4, tokens=100, lr=rule).plan(16, 10).of(1).lr_scale for rule in ("same", "linear")] == [
        1.0,
        0.25,
    ]


def test_a_ramp_in_a_run(text: Path, tmp_path: Path) -> None:  # noqa: F811
    """The batches logged are the plan's after a stop at every step, in micro-batches with a smaller last one."""
    ramp = {"kind": "linear", "start": 1, "tokens": 450, "lr": "linear"}
    schedule = {"kind": "constant", "lr": 1e-3}
    config = config_for(text, ramp=ramp, accumulate=2, schedule=schedule, steps=9, eval_every=0)
    straight = train(config, tmp_path / "straight")
    for _ in range(8):
        train(config, tmp_path / "stopping", should_stop=lambda: True)
    train(config, tmp_path / "stopping")
    assert numbers(tmp_path / "stopping") == numbers(tmp_path / "straight")
    assert weights(tmp_path / "stopping") == weights(tmp_path / "straight")
    sizes = [row["batch_size"] for row in straight.metrics]
    assert sizes == [config.batches.of(step).size for step in range(1, 10)]
    assert sizes[0] == 1 and sizes[-1] == 8 and len(set(sizes)) > 3
    assert [row["lr"] for row in straight.metrics] == [1e-3 * size / 8 for size in sizes]


def test_the_mean_is_its_definition() -> None:
    model = nn.Linear(3, 2)
    ema = Ema(model, 0.9)
    want = model.weight.detach().double().clone()
    for step in range(20):
        with torch.no_grad():
            model.weight.add_(torch.full_like(model.weight, 0.1 * step))
        ema.update()
        want = 0.9 * want + 0.1 * model.weight.detach().double()
    torch.testing.assert_close(ema.mean["weight"].double(), want, rtol=1e-6, atol=1e-6)
    before = model.weight.detach().clone()
    with ema.in_place():
        torch.testing.assert_close(model.weight.detach().double(), want, rtol=1e-6, atol=1e-6)
    assert torch.equal(model.weight.detach(), before)


def test_the_mean_is_saved_and_evaluated(text: Path, tmp_path: Path) -> None:  # noqa: F811
    config = config_for(text, ema=0.8, steps=6, eval_every=3)
    record = train(config, tmp_path / "r")
    newest = max((tmp_path / "r" / "checkpoints").glob("step-*"))
    mean = load_file(newest / "ema.safetensors")
    raw = load_file(newest / "model.safetensors")
    assert mean.keys() == raw.keys()
    decoder = build(config.recipe)
    decoder.load_state_dict(mean)
    corpus = open_corpus(config.data.corpus, config.data.val_bytes)
    assert evaluate(decoder, corpus, config.seq_len).loss == record.final["ema_val_loss"]
    assert record.final["ema_val_loss"] != record.final["val_loss"]
    assert [("ema_val_loss" in row) for row in record.metrics] == [False, False, True, False, False, True]


def test_without_a_mean_nothing_of_it_is_there(text: Path, tmp_path: Path) -> None:  # noqa: F811
    record = train(config_for(text, steps=2), tmp_path / "r")
    assert "ema_val_loss" not in record.final
    assert not list((tmp_path / "r" / "checkpoints").glob("*/ema.safetensors"))


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_mode_is_in_effect(deterministic: bool, text: Path, tmp_path: Path) -> None:  # noqa: F811
    """While the run goes; an operation without a deterministic kernel would be an error. The numbers stay."""
    seen = []
    config = config_for(text, steps=3, numerics={"deterministic": deterministic})
    try:
        train(config, tmp_path / "r", on_step=lambda row: seen.append(torch.are_deterministic_algorithms_enabled()))
        assert seen == [deterministic] * 3
        assert weights(tmp_path / "r")
    finally:
        torch.use_deterministic_algorithms(False)
