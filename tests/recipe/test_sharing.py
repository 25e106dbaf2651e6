"""Layers that read the keys of earlier ones: how they are written, what is refused, what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from assay.cost import budget, cache_of, tensors_of
from assay.recipe import Recipe, RecipeError, resolve
from assay.recipe.mixer import Attention
from assay.recipe.sharing import SharedKeys
from tests.cost.measure import shape

CYCLE: list[Any] = [{"cycle": ["own", "reader"], "n_layers": 6}]


def shared(reader: dict[str, Any], stack: list[Any] = CYCLE, **over: Any) -> Recipe:
    """Layers ``own`` with keys of their own, ``reader`` with what is given laid over."""
    layers = {"own": {}, "reader": {"mixer": reader}, **over.pop("layers", {})}
    n = sum(e["n_layers"] if isinstance(e, dict) else int(e.split()[0]) if e[0].isdigit() else 1 for e in stack)
    return shape(layers=layers, stack=stack, n_layers=n, **over)


def sources(recipe: Recipe) -> list[int | None]:
    return [layer.mixer.source for layer in recipe.layers if isinstance(layer.mixer, Attention)]


@pytest.mark.parametrize("layer", [-1, "own"])
def test_one_architecture_one_digest(layer: int | str) -> None:
    recipe = shared({"kv": {"kind": "shared", "layer": layer}})
    assert sources(recipe) == [None, 0, None, 2, None, 4]
    written = recipe.to_dict()
    assert {name: table["mixer"]["kv"] for name, table in written["layers"].items()} == {
        "own": {"kind": "own"},
        "reader": {"kind": "shared", "layer": "own"},
    }
    assert written["stack"] == CYCLE
    assert resolve(written) == recipe
    depths = {f"reader-{d}": {"mixer": {"kv": {"layer": d}}} for d in (0, 2, 4)}
    stack = [name for d in (0, 2, 4) for name in ("own", f"reader-{d}")]
    assert shape(layers={"own": {}, **depths}, stack=stack, n_layers=6).digest == recipe.digest


def test_a_late_half_that_reads_the_last_of_its_kind() -> None:
    """As Gemma 3n's late layers do: local ones the last local, global ones the last global."""
    window = {"span": {"kind": "window", "size": 8}}
    layers = {
        "local": {"mixer": window},
        "global": {},
        "late-local": {"mixer": {**window, "kv": {"layer": "local"}}},
        "late-global": {"mixer": {"kv": {"layer": "global"}}},
    }
    stack = ["2 local", "global", "2 local", "global", "2 late-local", "late-global", "late-local"]
    recipe = shape(layers=layers, stack=stack, n_layers=10)
    assert sources(recipe) == [None] * 6 + [4, 4, 5, 4]
    assert recipe.to_dict()["layers"]["late-local"]["mixer"]["kv"]["layer"] == "local"
    assert resolve(recipe.to_dict()) == recipe
    assert resolve({**recipe.to_dict(), "name": "x"}).digest == recipe.digest


def test_layers_of_one_name_that_cannot_be_written_alike() -> None:
    """Named alike by a program, reading differently: the words differ, the model does not."""
    recipe = shared({"kv": {"layer": 0}}, ["2 own", "2 reader"])
    late = recipe.layers[3].model_copy(
        update={"mixer": recipe.layers[3].mixer.model_copy(update={"kv": SharedKeys(layer=1)})}
    )
    mixed = Recipe.model_validate({**dict(recipe), "layers": (*recipe.layers[:3], late)})
    assert sources(mixed) == [None, None, 0, 1]
    assert resolve(mixed.to_dict()).digest == mixed.digest != recipe.digest


@pytest.mark.parametrize(("layer", "message", "allowed"), [
    ("onw", "no such layer", "own"), ("reader", "no layer of this name with keys of its own stands before layer 1", ""),
    (-2, "layer 1 is not so deep", "an earlier layer"), (3, "is no earlier layer", "less than 1"),
    (1, "is no earlier layer", "less than 1"), (True, "valid integer", ""), (0.5, "valid integer", ""),
    ([0], "valid integer", ""),
])  # fmt: skip
def test_a_source_that_is_none(layer: Any, message: str, allowed: str) -> None:
    with pytest.raises(RecipeError) as error:
        shared({"kv": {"layer": layer}})
    (problem,) = error.value.problems
    assert problem.path in ("layers.reader.mixer.kv.layer", "layers.1.mixer.kv.layer")
    assert message in problem.message
    assert allowed in problem.allowed
    assert problem.value == layer


def test_a_source_must_have_keys() -> None:
    with pytest.raises(RecipeError, match="layer 1 has no keys of its own"):
        shared({"kv": {"layer": 1}}, ["own", "none", "reader"], layers={"none": {"mixer": "none"}})
    with pytest.raises(RecipeError, match="layer 1 has no keys of its own"):
        shared({"kv": {"layer": 0}}, ["own", "reader", "second"], layers={"second": {"mixer": {"kv": {"layer": 1}}}})
    branch = {"kind": "attention", "n_heads": 4, "position": "rope", "kv": {"layer": 0}}
    both = {"kind": "sum", "branches": [{"mixer": branch}, {"mixer": {**branch, "kv": "own"}}]}
    with pytest.raises(RecipeError, match="inside a sum an attention has keys of its own"):
        shared(both)


@pytest.mark.parametrize(("field", "value"), [
    ("n_kv_heads", 2), ("head_dim", 8), ("span", {"kind": "window", "size": 5}), ("position", "none"),
    ("position", {"kind": "rope", "theta": 500.0}),
])  # fmt: skip
def test_what_is_of_the_keys_is_the_sources(field: str, value: Any) -> None:
    with pytest.raises(RecipeError, match="the keys are those of layer 0") as error:
        shared({"kv": {"layer": -1}, field: value})
    assert error.value.problems[0].path == f"layers.1.mixer.{field}"


def test_biases_of_keys_that_are_not_there() -> None:
    with pytest.raises(RecipeError, match="no k, no v") as error:
        shared({"kv": {"layer": -1}, "bias": ["q", "k"]})
    assert [p.path for p in error.value.problems] == ["layers.reader.mixer.bias"]
    every = shared({"kv": {"layer": -1}}, block__mixer__bias="all").layers[1].mixer
    assert isinstance(every, Attention)
    assert every.bias == ("q", "o")


def test_what_it_saves() -> None:
    """By hand, of 6 layers of which 3 read: no k, no v, no norm of keys, half the cache; the reads stay."""
    whole = shared({}, block__mixer__qk_norm={"over": "head", "norm": "rmsnorm"})
    half = shared({"kv": {"layer": -1}}, block__mixer__qk_norm={"over": "head", "norm": "rmsnorm"})
    assert sum(t.numel for t in tensors_of(whole)) - sum(t.numel for t in tensors_of(half)) == 3 * (2 * 64 * 64 + 16)
    assert cache_of(half, 100).held * 2 == cache_of(whole, 100).held == 6 * 2 * 64 * 100
    a, b = (budget(r, 1, 512, "bf16") for r in (whole, half))
    core = [next(op for op in x.intensity["decode"]["by_op"] if op["op"] == "attention_core") for x in (a, b)]
    assert core[0]["bytes"] == core[1]["bytes"]
    assert a.flops.forward_full - b.flops.forward_full == 3 * 512 * 2 * 2 * 64 * 64


def test_full_recomputation_keeps_what_is_read_later() -> None:
    """One layer's keys and values, in float32, beside the layers' inputs."""
    reads = shared({"kv": {"layer": 0}}, ["own", "3 reader"])
    alone = shape(n_layers=4)
    kept = [budget(r, 2, 256, "fp32", recompute="full").memory.activations["bytes"] for r in (reads, alone)]
    assert kept[0] - kept[1] == 2 * 2 * 256 * 64 * 4


def test_a_pipeline_does_not_part_readers_from_their_source() -> None:
    with pytest.raises(ValueError, match=r"pp = 2 parts layer 3 from layer 2, whose keys it reads"):
        budget(shared({"kv": {"layer": -1}}), 2, 64, parallel="pp=2,microbatches=2")
    assert budget(shared({"kv": {"layer": -1}}), 3, 64, parallel="pp=3,microbatches=3").memory.train["stage"] >= 0
