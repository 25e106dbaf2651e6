"""Optimizer ledgers: the state is that of the real optimizers, the bytes a parameter are the published ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from assay.cost import budget, find_optimizer, tensors_of
from assay.cost.optimizers import held_of, local_shape, sharded, state_bytes
from assay.model import build, mean, named_params
from assay.recipe import Recipe, load
from assay.recipe.base import kinds_of, make
from assay.training.optim import OptimizerSpec
from assay.training.optim.groups import optimizer_groups
from tests.cost.measure import shape


def stepped(recipe: Recipe, make: Callable[[Any], list[torch.optim.Optimizer]], dtype: torch.dtype) -> int:
    """Bytes of state after one step, step counters apart."""
    decoder = build(recipe, dtype=dtype)
    optimizers = make(decoder)
    ids = torch.zeros(2, 8, dtype=torch.long)
    mean(decoder.loss(ids, ids)).backward()
    found = 0
    for optimizer in optimizers:
        optimizer.step()
        for state in optimizer.state.values():
            found += sum(t.nbytes for key, t in state.items() if isinstance(t, torch.Tensor) and key != "step")
    return found


def _adamw(params: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(params))


def _muon(decoder: nn.Module) -> list[torch.optim.Optimizer]:
    named = list(named_params(decoder))
    hidden = [p.param for p in named if p.role.is_hidden_matrix]
    rest = [p.param for p in named if not p.role.is_hidden_matrix]
    return [torch.optim.Muon(hidden), _adamw(rest)]


OPTIMIZERS: dict[str, Callable[[Any], list[torch.optim.Optimizer]]] = {
    "adamw": lambda m: [_adamw(m.parameters())],
    "muon": _muon,
    "momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)],
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1)],
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("recipe", ["gpt2-like", "tiny/qk-norm", "tiny/layerscale"])
def test_state_is_that_of_the_optimizer(recipe: str, name: str, dtype: str) -> None:
    model = shape(embedding__position="learned") if recipe == "gpt2-like" else load(recipe)
    train = budget(model, 2, 8, dtype, optimizer=f"{name}-pure").memory.train
    real = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    assert train["optimizer_bytes"] == stepped(model, OPTIMIZERS[name], real)
    assert (
        train["weights_bytes"]
        == train["gradients_bytes"]
        == sum(p.nbytes for p in build(model, dtype=real).parameters())
    )


KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adam_l2": {},
    "sgd": {},
    "sgd without momentum": {"kind": "sgd", "momentum": 0.0},
    "muon": {},
    "normuon": {"kind": "muon", "neuron_beta": 0.95},
    "soap": {},
    "cautious adamw": {"kind": "adamw", "decay_where": "aligned"},
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("recipe", ["gpt2-like", "tiny/qk-norm", "tiny/layerscale"])
def test_state_is_that_of_each_kind_of_a_run(recipe: str, name: str) -> None:
    """Every optimizer that a run can name, after one update that moved something."""
    model = shape(embedding__position="learned") if recipe == "gpt2-like" else load(recipe)
    spec = make(OptimizerSpec, {"kind": name, **KINDS[name]}, {})
    decoder = build(model)
    optimizer = spec.make(optimizer_groups(decoder, spec, model), 1e-3)
    ids = torch.zeros(2, 8, dtype=torch.long)
    for _ in range(2):
        mean(decoder.loss(ids, ids)).backward()
        optimizer.step()
    found = sum(t.nbytes for state in optimizer.state.values() for key, t in state.items() if key != "step")
    assert budget(model, 2, 8, "fp32", optimizer=spec.ledger).memory.train["optimizer_bytes"] == found


def test_every_kind_of_a_run_is_measured() -> None:
    ours = {name for name, kind in kinds_of(OptimizerSpec).items() if kind.__module__.startswith("assay.")}
    assert {table.get("kind", name) for name, table in KINDS.items()} == ours


def test_step_counters_are_told_apart() -> None:
    """torch keeps a float32 scalar a tensor."""
    recipe = shape()
    decoder = build(recipe)
    optimizer = _adamw(decoder.parameters())
    ids = torch.zeros(1, 4, dtype=torch.long)
    mean(decoder.loss(ids, ids)).backward()
    optimizer.step()
    counters = sum(state["step"].nbytes for state in optimizer.state.values())
    assert budget(recipe).memory.train["step_counters_bytes"] == counters


LEDGERS = {
    ("adamw", "fp32"): (4, 4, 0, 8, 16),
    ("adamw", "bf16"): (2, 2, 4, 8, 16),
    ("adamw-megatron", "bf16"): (2, 4, 4, 8, 18),
    ("adamw-autocast", "bf16"): (4, 4, 0, 8, 16),
    ("adamw-pure", "bf16"): (2, 2, 0, 4, 8),
    ("muon", "bf16"): (2, 2, 4, 8, 16),
    ("sgd", "fp32"): (4, 4, 0, 0, 8),
    ("momentum", "bf16"): (2, 2, 4, 4, 12),
    ("lion", "bf16"): (2, 2, 4, 4, 12),
}


@pytest.mark.parametrize(("name", "dtype"), LEDGERS)
def test_43_bytes_a_parameter(name: str, dtype: str) -> None:
    """Both usual AdamW ledgers are 16: the name and the text say which."""
    train = budget(load("gpt2"), 1, 128, dtype, optimizer=name).memory.train
    each = train["bytes_per_param"]
    assert tuple(each[k] for k in ("weights", "gradients", "master", "optimizer", "total")) == LEDGERS[name, dtype]
    assert train["ledger"].startswith(f"{each['weights']} weights + {each['gradients']} gradients")
    n = 124_439_808
    assert train["weights_bytes"] == each["weights"] * n
    if not name.startswith("muon"):
        assert train["state_bytes"] == each["total"] * n


def test_43_muon_costs_4_bytes_less_on_hidden_matrices() -> None:
    recipe = load("gpt2")
    hidden = sum(t.numel for t in tensors_of(recipe) if t.role.is_hidden_matrix)
    for dtype in ("fp32", "bf16"):
        adamw = budget(recipe, dtype=dtype, optimizer="adamw").memory.train
        muon = budget(recipe, dtype=dtype, optimizer="muon").memory.train
        assert adamw["state_bytes"] - muon["state_bytes"] == 4 * hidden
        assert muon["bytes_per_hidden_param"]["total"] == 12


def test_43_megatrons_distributed_optimizer() -> None:
    """6 + 12 / dp bytes a parameter."""
    plan = find_optimizer("adamw-megatron", "bf16", 2)
    held = held_of(tensors_of(load("gpt2")))
    for dp in (1, 4, 64):
        assert sharded(plan, held, dp, 1).total == pytest.approx((6 + 12 / dp) * held.params, rel=1e-6)


def test_soaps_factors_are_counted() -> None:
    """Two factors and their bases a hidden matrix, sides beyond 10,000 left alone."""
    recipe = shape(n_layers=1)
    plan = find_optimizer("soap", "fp32", 4)
    held = held_of(tensors_of(recipe))
    d, ff = 64, 192
    assert held.factors == 4 * (2 * 2 * d * d) + 3 * 2 * (d * d + ff * ff)
    assert state_bytes(plan, held) == 4 * (2 * held.params + held.factors)
    assert held_of(tensors_of(shape(n_layers=1, vocab_size=20_000))).factors == held.factors


@pytest.mark.parametrize("tp", [2, 4])
def test_what_devices_hold_adds_up(tp: int) -> None:
    """Every matrix is divided once, a vocabulary padded; norms of the stream and positions are held whole on each."""
    recipe = load("gpt2")
    whole = ("position", "norm_gain", "scale")
    for t in tensors_of(recipe):
        here = math.prod(local_shape(t, tp))
        if str(t.role) == "embedding":
            assert here == -(-50_257 // tp) * 768
        elif t.role.is_matrix and str(t.role) not in whole:
            assert here * tp == t.numel, t.name
        elif str(t.role) in whole or t.name.endswith(("o.bias", "down.bias", "norm.bias")):
            assert here == t.numel, t.name
        else:
            assert here * tp == t.numel, t.name
    held, all_of_it = held_of(tensors_of(recipe), tp).params, held_of(tensors_of(recipe)).params
    assert all_of_it < held * tp < 1.03 * all_of_it


BAD = [
    ("adamv", "bf16", "no such plan 'adamv' \\(nearest: adamw\\)"),
    ("adamw-megatrom", "bf16", "nearest: adamw-megatron"),
    ("muon-", "bf16", None),
    ("adamw-master", "fp32", "has no meaning in fp32"),
    ("", "bf16", "no such plan"),
]


@pytest.mark.parametrize(("name", "dtype", "message"), BAD)
def test_unknown_plans_are_refused(name: str, dtype: str, message: str | None) -> None:
    if message is None:
        assert budget(load("gpt2"), dtype=dtype, optimizer=name).memory.train["optimizer"] == "muon-master"
        return
    with pytest.raises(ValueError, match=message):
        budget(load("gpt2"), dtype=dtype, optimizer=name)
