"""Every optimizer in a run: resume bit for bit, groups by role, multipliers, decay, clipped heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.model import Decoder, build, named_params
from assay.recipe import Recipe, load
from assay.training import RunConfig, RunError, train
from assay.training.optim import MuonSpec
from assay.training.optim.groups import groups_table, optimizer_groups, set_rates
from assay.training.qk_clip import HeadPeaks, clip_heads
from tests.training.test_run import config_for, numbers, own_cache, text, weights  # noqa: F401 - fixtures

KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"kind": "adamw", "lr_multipliers": {"embedding": 10.0}},
    "adamw cautious": {"kind": "adamw", "decay_where": "aligned"},
    "adam_l2": {"kind": "adam_l2"},
    "sgd": {"kind": "sgd", "nesterov": True},
    "muon": {"kind": "muon", "decay_by": "schedule", "weight_decay": 1e-3},
    "normuon clipped": {"kind": "muon", "neuron_beta": 0.95, "decay_where": "aligned", "qk_clip": 0.05},
    "soap": {"kind": "soap", "precondition_frequency": 2},
}


@pytest.mark.parametrize("name", KINDS)
def test_stopped_and_resumed_gives_the_same_bits(name: str, text: Path, tmp_path: Path) -> None:  # noqa: F811
    config = config_for(text, optimizer=KINDS[name], steps=6, eval_every=0, ema=0.9)
    train(config, tmp_path / "straight")
    for _ in range(config.steps - 1):
        assert train(config, tmp_path / "stopping", should_stop=lambda: True).status == "interrupted"
    train(config, tmp_path / "stopping")
    assert numbers(tmp_path / "stopping") == numbers(tmp_path / "straight")
    assert weights(tmp_path / "stopping") == weights(tmp_path / "straight")
    assert "ema.safetensors" in weights(tmp_path / "straight")


def run_of(recipe: Recipe | str, **changes: Any) -> RunConfig:
    table = {"recipe": recipe, "seq_len": 8, "batch_size": 2, "steps": 10, "schedule": {"kind": "constant", "lr": 1e-2}}
    return RunConfig.from_dict({**table, **changes})


def test_rates_and_decay_of_every_group() -> None:
    """A multiplier acts on its role alone; decay follows the rate, or the schedule whatever the multiplier."""
    recipe = load("tiny/base", ["n_layers=1"])
    multipliers = {"embedding": 10.0, "ffn_in": 0.5}
    for decay_by in ("lr", "schedule"):
        config = run_of(recipe, optimizer={"kind": "adamw", "lr_multipliers": multipliers, "decay_by": decay_by})
        model = build(recipe, device="meta")
        groups = optimizer_groups(model, config.optimizer, recipe)
        for row in groups_table(groups):
            assert row["lr_scale"] == multipliers.get(row["role"], 1.0)
        optimizer = torch.optim.SGD([g.for_torch() for g in groups], lr=1.0)
        set_rates(optimizer, 3e-3, 1e-2, decay_by)
        for group, table in zip(groups, optimizer.param_groups, strict=True):
            assert table["lr"] == pytest.approx(3e-3 * group.lr_scale)
            shrink = 3e-3 * group.lr_scale if decay_by == "lr" else 0.3
            assert table["lr"] * table["weight_decay"] == pytest.approx(shrink * group.weight_decay)


@pytest.mark.parametrize("kind", ["adamw", "muon", "soap"])
def test_decay_by_schedule_is_the_same_at_every_rate(kind: str) -> None:
    """With no gradient to follow, ten updates shrink a matrix by (1 - decay)^10 whatever the learning rate."""
    recipe = load("tiny/base", ["n_layers=1", "d_model=16", "block.mixer.n_heads=2"])
    for lr in (1e-3, 1e-1):
        config = run_of(recipe, optimizer={"kind": kind, "decay_by": "schedule", "weight_decay": 0.01})
        decoder = build(recipe)
        optimizer = config.optimizer.make(optimizer_groups(decoder, config.optimizer, recipe), lr)
        for p in decoder.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()  # SOAP's first gradient moves nothing
        before = {p.name: p.param.detach().clone() for p in named_params(decoder)}
        for _ in range(10):
            set_rates(optimizer, lr, lr, config.optimizer.decay_by)
            optimizer.step()
        for p in named_params(decoder):
            left = 0.99**10 if p.role.decays else 1.0
            torch.testing.assert_close(p.param.detach(), before[p.name] * left, rtol=1e-5, atol=1e-9)


def heads(decoder: Decoder, ids: torch.Tensor) -> list[torch.Tensor]:
    """The largest logit of each head, by layer."""
    probe = HeadPeaks()
    with torch.no_grad():
        decoder.features(ids, probe=probe)
    return [probe.peaks[i] for i in sorted(probe.peaks)]


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_qk_clip_puts_the_largest_logit_at_the_limit(n_kv_heads: int) -> None:
    """Of each head that was above it; the others, and what the keys of shared heads do, stay."""
    recipe = load("tiny/base", ["n_layers=2", f"block.mixer.n_kv_heads={n_kv_heads}", "block.mixer.bias=all"])
    decoder = build(recipe, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for p in named_params(decoder):
        if p.role in ("attn_in", "bias"):
            p.param.data.copy_(torch.randn(p.param.shape, generator=generator, dtype=torch.float64) * 0.3)
    ids = torch.randint(0, 256, (2, 16), generator=generator)
    before = heads(decoder, ids)[0]
    limit = float(before.sort().values[1:3].mean())  # two heads of the first layer are above
    n = clip_heads(decoder, {0: before}, limit)
    assert n == 2
    after = heads(decoder, ids)[0]
    want = before.clamp_max(limit)
    torch.testing.assert_close(after.double(), want.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("layer", [0, 1])
def test_qk_clip_leaves_keys_that_other_layers_read(layer: int) -> None:
    """Only the layer's own queries are scaled, whether it makes the keys or reads them."""
    readers = ["layers.own={}", "layers.reader.mixer.kv={layer = 0}", 'stack=["own", "2 reader"]', "n_layers=3"]
    decoder = build(load("tiny/base", readers), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for p in named_params(decoder):
        if p.role == "attn_in":
            p.param.data.copy_(torch.randn(p.param.shape, generator=generator, dtype=torch.float64) * 0.3)
    ids = torch.randint(0, 256, (2, 16), generator=generator)
    before, weights = heads(decoder, ids)[layer], {p.name: p.param.clone() for p in named_params(decoder)}
    limit = float(before.sort().values[1:3].mean())
    assert clip_heads(decoder, {layer: before}, limit) == 2
    torch.testing.assert_close(heads(decoder, ids)[layer], before.clamp_max(limit), rtol=1e-6, atol=0)
    changed = [p.name for p in named_params(decoder) if not torch.equal(p.param, weights[p.name])]
    assert changed == [f"layers.{layer}.mixer.q.weight"]


def test_a_clipped_run_keeps_its_logits_down(text: Path, tmp_path: Path) -> None:  # noqa: F811
    free = train(config_for(text, steps=8, telemetry_every=1), tmp_path / "free")
    limit = 0.02
    optimizer = {"kind": "adamw", "qk_clip": limit}
    held = train(config_for(text, steps=8, telemetry_every=1, optimizer=optimizer), tmp_path / "held")
    assert max(free.metrics[-1]["max_logit"]) > 3 * limit
    assert max(held.metrics[-1]["max_logit"]) < 3 * limit
    assert all(row["heads_clipped"] > 0 for row in held.metrics[2:])
    assert "heads_clipped" not in free.metrics[-1]


BAD = [
    ({"optimizer": {"kind": "mion"}}, "nearest: muon"),
    ({"optimizer": {"kind": "muon", "momentun": 0.9}}, "nearest: momentum"),
    ({"optimizer": {"kind": "muon", "ns_dtype": "float8"}}, "optimizer.ns_dtype"),
    ({"optimizer": {"kind": "soap", "precondition_frequency": 0}}, "optimizer.precondition_frequency"),
    ({"optimizer": {"kind": "adamw", "lr_multipliers": {"embeding": 2.0}}}, "lr_multipliers"),
    ({"optimizer": {"kind": "adamw", "lr_multipliers": {"sink": 2.0}}}, "has no sink parameter"),
    ({"optimizer": {"kind": "adam_l2", "decay_where": "aligned"}}, "adds its decay to the gradient"),
    ({"optimizer": {"kind": "adamw", "decay_by": "schedule", "weight_decay": 0.0}}, "without weight_decay"),
    ({"optimizer": {"kind": "sgd", "momentum": 0.0, "nesterov": True}}, "without momentum"),
    ({"recipe": "tiny/qk-norm", "optimizer": {"kind": "muon", "qk_clip": 50.0}}, "QK-norm undoes"),
    ({"ramp": {"kind": "linear", "start": 2, "tokens": 100}}, "ramp.start"),
    ({"parametrization": {"kind": "mup"}}, "parametrization.base_width"),
    ({"ema": 1.0}, "ema"),
]


@pytest.mark.parametrize(("changes", "words"), BAD, ids=[words for _, words in BAD])
def test_options_without_effect_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=words):
        run_of(changes.pop("recipe", "tiny/base"), **changes)


def test_config_goes_through_json() -> None:
    """Every new field survives the manifest, and decides the digest."""
    changes = {
        "optimizer": {"kind": "muon", "lr_multipliers": {"embedding": 10.0}, "neuron_beta": 0.9},
        "parametrization": {"kind": "completep", "base_width": 32, "base_depth": 2},
        "ramp": {"kind": "linear", "start": 1, "tokens": 64, "lr": "sqrt"},
        "ema": 0.99,
        "numerics": {"deterministic": True},
    }
    config = run_of("tiny/base", **changes)
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again.to_dict() == config.to_dict()
    assert again.digest("x") == config.digest("x")
    digests = {run_of("tiny/base", **{k: v}).digest("x") for k, v in changes.items()}
    assert len(digests | {run_of("tiny/base").digest("x"), config.digest("x")}) == 7
    assert isinstance(config.optimizer, MuonSpec)
