"""04. Tie broken by meta construction, to_empty or sharding (NVIDIA-NeMo/Automodel PR#2511).

A tied model by several routes. After one step: one storage, gradient = input part + output part, parameter count
unchanged, and save, load and a step give the same loss bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from assay.cost import tensors_of
from assay.model import Decoder, build, load_weights, materialise, named_params, save_weights
from tests.pitfalls.support import close, ids, recipe

TIED = {"embedding": {"tied": True}}


@pytest.fixture
def one_process() -> Iterator[Any]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def plain() -> Decoder:
    return build(recipe(TIED), seed=1, dtype=torch.float64)


def from_meta() -> Decoder:
    return materialise(build(recipe(TIED), device="meta", dtype=torch.float64), seed=1)


def copied() -> Decoder:
    import copy

    return copy.deepcopy(plain())


ROUTES = {"plain": plain, "meta": from_meta, "copied": copied}


def step(model: Decoder, lr: float = 0.1) -> float:
    """One gradient step; the loss before it."""
    model.zero_grad()
    loss = model.loss(ids(0, 2, 8), ids(1, 2, 8)).sum
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
    return float(loss.detach())


@pytest.mark.parametrize("route", ROUTES)
def test_one_storage_one_count(route: str) -> None:
    model = ROUTES[route]()
    for _ in range(2):
        assert model.head.table is None
        assert model.embedding.rows().data_ptr() == model.embedding.table.data_ptr()
        names = [p.name for p in named_params(model)]
        assert names.count("embedding.table") == 1
        assert "head.table" not in names
        assert sum(p.numel() for p in model.parameters()) == sum(t.numel for t in tensors_of(model.recipe))
        step(model)


@pytest.mark.parametrize("route", ROUTES)
def test_gradient_is_the_sum_of_both_uses(route: str) -> None:
    model = ROUTES[route]()
    step(model, lr=0.0)
    untied = build(recipe(), dtype=torch.float64)
    params = {p.name: p.param for p in named_params(model)}
    with torch.no_grad():
        for p in named_params(untied):
            p.param.copy_(params["embedding.table" if p.name == "head.table" else p.name])
    step(untied, lr=0.0)
    parts = untied.embedding.table.grad + untied.head.table.grad
    assert close(model.embedding.table.grad, parts, 1e-12)
    assert not close(model.embedding.table.grad, untied.head.table.grad, 1e-3)


@pytest.mark.parametrize("route", ROUTES)
def test_saved_and_loaded_steps_the_same(route: str, tmp_path: Path) -> None:
    model = ROUTES[route]()
    step(model)
    save_weights(model, tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as f:
        assert "embedding.table" in f.keys()  # noqa: SIM118 - not a mapping
        assert "head.table" not in f.keys()  # noqa: SIM118
    again = load_weights(build(recipe(TIED), seed=9, dtype=torch.float64), tmp_path / "w.safetensors")
    assert [step(model) for _ in range(3)] == [step(again) for _ in range(3)]


def test_every_route_starts_the_same() -> None:
    start = step(plain(), lr=0.0)
    assert [step(route(), lr=0.0) for route in ROUTES.values()] == [start] * len(ROUTES)


def test_sharded(one_process: Any) -> None:
    """fully_shard around each layer and around the whole, on one process: still one table, the same gradients."""
    alone, sharded = plain(), plain()
    for layer in sharded.layers:
        fully_shard(layer, mesh=one_process)
    fully_shard(sharded, mesh=one_process)
    for model in (alone, sharded):
        for _ in range(2):
            model.zero_grad()
            model(ids(0, 2, 8)).logsumexp(-1).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
    assert sharded.head.table is None
    assert [p.name for p in named_params(sharded)] == [p.name for p in named_params(alone)]
    for a, b in zip(alone.parameters(), sharded.parameters(), strict=True):
        assert torch.equal(a, b.full_tensor())
        assert torch.equal(a.grad, b.grad.full_tensor())


@pytest.mark.parametrize("start", ["plain", "scalars"])
def test_meta_then_sharded_then_materialised(one_process: Any, start: str) -> None:
    """Weights drawn into shards are those of one process, bit for bit; learned scalars can be sharded too."""
    table = recipe(TIED) if start == "plain" else recipe({**TIED, "block": {"residual": {"rule": "rezero"}}})
    decoder = build(table, device="meta", dtype=torch.float64)
    for block in decoder.layers:
        fully_shard(block, mesh=one_process)
    fully_shard(decoder, mesh=one_process)
    materialise(decoder, seed=1)
    want = {p.name: p.param for p in named_params(build(table, seed=1, dtype=torch.float64))}
    got = {p.name: p.param for p in named_params(decoder)}
    assert list(got) == list(want)
    for name, param in got.items():
        assert torch.equal(param.full_tensor(), want[name]), name
    assert torch.equal(decoder(ids(0, 2, 8)), build(table, seed=1, dtype=torch.float64)(ids(0, 2, 8)))
