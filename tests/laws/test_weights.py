"""Weights: saved = in memory, tied stays tied, and a start depends on the seed and a tensor's name only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from assay.cost import budget, starts_of
from assay.model import Decoder, WeightsError, build, load_weights, materialise, named_params, save_weights
from assay.model.norm import fix_rows
from assay.recipe import Recipe, resolve
from assay.recipe.norm import FixNorm
from tests.laws.common import (
    assert_close,
    assert_grads_close,
    examples,
    loss_grads,
    random_ids,
    random_targets,
    seeds,
)
from tests.strategies import random_decoder, recipes

LENGTH = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def values(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {p.name: p.param.detach().clone() for p in named_params(decoder)}


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    """Bit for bit, dtype and all."""
    assert list(got) == list(want)
    for name, value in want.items():
        assert got[name].dtype == value.dtype, name
        assert torch.equal(got[name], value), name


# --- saved = in memory


@given(recipes(), seeds)
def test_saved_is_in_memory(folder: Path, recipe: Recipe, seed: int) -> None:
    path = folder / "weights.safetensors"
    decoder = random_decoder(recipe, seed)
    save_weights(decoder, path)
    loaded = load_weights(build(recipe, dtype=torch.float64, seed=1).eval(), path)
    assert_same(values(loaded), values(decoder))
    ids = random_ids(recipe, 2, LENGTH, seed)
    assert torch.equal(loaded(ids), decoder(ids))
    assert not list(folder.glob(".*")), "something was left beside the file"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        assert set(file.keys()) == set(values(decoder))
    assert metadata["digest"] == recipe.digest
    assert resolve(json.loads(metadata["recipe"])).digest == recipe.digest


@examples(0.4)
@given(recipes(), seeds)
def test_a_file_that_does_not_fit_changes_nothing(folder: Path, recipe: Recipe, seed: int) -> None:
    """A tensor missing, one too many, one of another shape, a cut file, no file: an error that names it."""
    good, bad = folder / "good.safetensors", folder / "bad.safetensors"
    save_weights(random_decoder(recipe, seed), good)
    tensors = load_file(good)
    victim = list(tensors)[seed % len(tensors)]
    decoder = build(recipe, dtype=torch.float64)
    before = values(decoder)
    faults = {
        "missing": {name: t for name, t in tensors.items() if name != victim},
        "unexpected": {**tensors, "head.extra": torch.zeros(2)},
        "shape": {**tensors, victim: torch.zeros(*tensors[victim].shape, 1)},
    }
    for fault, content in faults.items():
        save_file(content, bad)
        with pytest.raises(WeightsError, match="head.extra" if fault == "unexpected" else victim) as error:
            load_weights(decoder, bad)
        assert fault in str(error.value)
        assert_same(values(decoder), before)
    whole = good.read_bytes()
    for length in (0, 5, 8 + seed % max(1, len(whole) - 9), len(whole) - 1):
        bad.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match="cannot be read"):
            load_weights(decoder, bad)
        assert_same(values(decoder), before)
    with pytest.raises(WeightsError, match="cannot be read"):
        load_weights(decoder, folder / "none.safetensors")


# --- tied stays tied


@examples(0.6)
@given(recipes(), seeds)
def test_tied_stays_tied(folder: Path, recipe: Recipe, seed: int) -> None:
    """By every route one storage a name; no second table where the recipe ties it; the count is the recipe's."""
    plain = build(recipe, seed)
    meta = materialise(build(recipe, device="meta"), seed)
    save_weights(plain, folder / "w.safetensors")
    loaded = load_weights(build(recipe, seed + 1), folder / "w.safetensors")
    moved = load_weights(build(recipe, device="meta").to_empty(device="cpu"), folder / "w.safetensors")
    for decoder in (plain, meta, loaded, moved, plain.to(torch.float64)):
        params = dict(decoder.named_parameters(remove_duplicate=False))
        assert ("head.table" in params) is not recipe.embedding.tied
        assert len({p.data_ptr() for p in params.values()}) == len(params)
        assert sum(p.numel() for p in params.values()) == budget(recipe).params.total
        assert set(decoder.state_dict()) == set(params)


@given(recipes(), seeds)
def test_a_tied_gradient_is_the_sum_of_its_two_parts(recipe: Recipe, seed: int) -> None:
    """Against the same model untied, with two tables of equal rows: same logits, gradients add up."""
    table = recipe.to_dict()
    if not recipe.embedding.tied:
        table["embedding"]["tied"] = True
        table["init"].pop("head")
        if recipe.head.projection.kind_name != recipe.embedding.projection.kind_name:
            table["embedding"].pop("projection")
            table["head"].pop("projection")
            table["init"].pop("projection")
        elif not recipe.head.projection.is_none:
            table["head"]["projection"]["dim"] = table["embedding"]["projection"]["dim"]
        recipe = resolve(table)
        table = recipe.to_dict()
    table["embedding"]["tied"] = False
    table["init"]["head"] = "zero"
    tied, untied = random_decoder(recipe, seed), random_decoder(resolve(table), seed)
    rows = tied.embedding.table.detach().clone().requires_grad_()
    norm = recipe.embedding.norm
    seen = fix_rows(rows, norm) if isinstance(norm, FixNorm) else rows
    with torch.no_grad():
        untied.head.table.copy_(seen)  # type: ignore[union-attr, arg-type]
    ids, targets = random_ids(recipe, 3, LENGTH, seed), random_targets(recipe, 3, LENGTH, seed)
    assert_close(tied(ids), untied(ids))
    got, want = loss_grads(tied, ids, targets)[1], loss_grads(untied, ids, targets)[1]
    at_head = want.pop("head.table")
    (back,) = torch.autograd.grad(seen, rows, at_head) if seen is not rows else (at_head,)
    assert float(back.abs().max()) > 0
    want["embedding.table"] = want["embedding.table"] + back
    assert_grads_close(got, want)


# --- the start


@examples(0.6)
@given(recipes(), seeds)
def test_a_start_is_the_same_by_every_route(recipe: Recipe, seed: int) -> None:
    """Plain or by the meta device; drawn once in float32 and rounded; the global random state has no part in it."""
    torch.manual_seed(seed + 1)
    state = torch.get_rng_state()
    want = values(build(recipe, seed))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(seed + 2)
    assert_same(values(build(recipe, seed)), want)
    assert_same(values(materialise(build(recipe, device="meta"), seed)), want)
    constants = {s.tensor.name: s.tensor.start for s in starts_of(recipe) if s.draw is None}
    for dtype in (torch.bfloat16, torch.float64):
        got = values(build(recipe, seed, dtype=dtype))
        assert_same(values(materialise(build(recipe, device="meta", dtype=dtype), seed)), got)
        for name, value in got.items():
            if name in constants:
                assert torch.equal(value, torch.full_like(value, constants[name])), name  # type: ignore[arg-type]
            else:
                assert torch.equal(value, want[name].to(dtype)), name
    other = values(build(recipe, seed + 1))
    for start in starts_of(recipe):
        drawn = start.draw is not None and str(start) != "0"
        assert torch.equal(other[start.tensor.name], want[start.tensor.name]) is not drawn, start.tensor.name


@examples(0.6)
@given(recipes(max_layers=2), seeds)
def test_a_tensor_starts_the_same_whatever_else_there_is(recipe: Recipe, seed: int) -> None:
    """More layers and another head leave the values of all other tensors as they are."""
    table = recipe.to_dict()
    table["init"]["depth"] = "none"
    small = resolve(table)
    own = [n for n, layer in table["layers"].items() if layer["mixer"].get("kv", {"kind": "own"})["kind"] == "own"]
    stack = [f"2 {name}" for name in own]  # whose keys a layer reads depends on where it stands
    table.update(stack=[*_flat(table["stack"]), *stack])
    table["head"]["bias"] = not table["head"]["bias"]
    large = resolve(table)
    want, got = values(build(small, seed)), values(build(large, seed))
    shared = want.keys() & got.keys()
    assert len(shared) >= len(want) - 1
    assert len(got) > len(want)
    assert_same({name: got[name] for name in want if name in shared}, {n: v for n, v in want.items() if n in shared})


def _flat(stack: list[object]) -> list[str]:
    """A stack of runs and cycles as one entry a layer."""
    out: list[str] = []
    for entry in stack:
        if isinstance(entry, dict):
            turn = _flat(entry["cycle"])
            out += [turn[i % len(turn)] for i in range(entry["n_layers"])]
        else:
            count, _, name = str(entry).rpartition(" ")
            out += [name] * int(count or 1)
    return out


@given(recipes(), seeds)
def test_every_parameter_is_used(recipe: Recipe, seed: int) -> None:
    """A parameter that no gradient reaches is a part of the model that nothing runs."""
    decoder = random_decoder(recipe, seed)
    ids = random_ids(recipe, 3, LENGTH, seed)
    named = {p.name: p.param for p in named_params(decoder)}
    grads = torch.autograd.grad(decoder.loss(ids, ids).sum, list(named.values()), allow_unused=True)
    assert [name for name, grad in zip(named, grads, strict=True) if grad is None] == []
