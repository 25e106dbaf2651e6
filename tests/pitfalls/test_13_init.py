"""13. Initialisation lost (huggingface/transformers#47458, pytorch/pytorch#90465).

12 layers, std 0.02: 0.0040825 on every matrix that writes to the stream, however it is called. The meta route gives
the same values for the same seed. A loaded tensor is bitwise what the file holds. Norm gains start at 1, or at 0 where
the gain is 1 + g.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from assay.cost import starts_of
from assay.model import build, load_weights, materialise, named_params, save_weights
from assay.recipe import load
from assay.recipe.roles import ParamRole
from tests.pitfalls.support import recipe

GPT2 = {"n_layers": 12, "init": {"weights": {"kind": "normal", "std": 0.02}, "depth": "total_depth"}}
GPT2["init"]["embedding"] = {"kind": "normal", "std": 0.02}  # type: ignore[index]
SUM = {
    "kind": "sum",
    "branches": [
        {"ffn": {"kind": "glu", "d_ff": 512, "activation": "silu"}},
        {"ffn": {"kind": "mlp", "d_ff": 512, "activation": "gelu"}},
    ],
}


def test_the_published_numbers() -> None:
    starts = [s for s in starts_of(load("gpt2")) if s.tensor.role.writes_to_stream]
    assert len(starts) == 24
    assert {round(s.draw.std, 7) for s in starts if s.draw is not None} == {0.0040825}


@pytest.mark.parametrize("route", ["plain", "meta"])
@pytest.mark.parametrize("ffn", [{}, SUM], ids=["glu", "sum of two"])
def test_drawn_at_that_size(route: str, ffn: dict[str, Any]) -> None:
    table = {**GPT2, "d_model": 64, "block": {"ffn": ffn or {"d_ff": 512}}}
    spec = recipe(table, n_heads=4, head_dim=128)
    model = build(spec) if route == "plain" else materialise(build(spec, device="meta"))
    seen = 0
    for p in named_params(model):
        if p.role.writes_to_stream:
            seen += 1
            assert float(p.param.detach().std()) == pytest.approx(0.0040825, rel=0.03), p.name
        elif p.role.is_matrix:
            assert float(p.param.detach().std()) == pytest.approx(0.02, rel=0.06), p.name
    assert seen == 12 * (3 if ffn else 2)


@pytest.mark.parametrize("gain", ["one", "one_plus"])
def test_gains_are_neutral_on_every_route(gain: str) -> None:
    norm = {"kind": "rmsnorm", "gain": gain}
    over = {"block": {"residual": {"rule": "sandwich", "norm": norm}}, "head": {"norm": norm}}
    spec = recipe(over, qk_norm={"over": "head", "norm": norm}, sinks="per_head", bias="all")
    for model in (build(spec), materialise(build(spec, device="meta"))):
        for p in named_params(model):
            if p.role is ParamRole.NORM_GAIN:
                assert torch.all(p.param == (1.0 if gain == "one" else 0.0)), p.name
            elif p.role in (ParamRole.BIAS, ParamRole.SINK):
                assert torch.count_nonzero(p.param) == 0, p.name


def test_meta_and_plain_draw_the_same_values() -> None:
    spec = recipe(GPT2)
    for a, b in zip(
        named_params(build(spec, seed=7)), named_params(materialise(build(spec, device="meta"), seed=7)), strict=True
    ):
        assert a.name == b.name
        assert torch.equal(a.param, b.param)
    other = {p.name: p.param for p in named_params(build(spec, seed=8))}
    assert not any(torch.equal(p.param, other[p.name]) for p in named_params(build(spec, seed=7)) if p.start is None)


def test_values_do_not_depend_on_what_else_the_model_has() -> None:
    """A second model with a part more draws the rest as the first: runs that differ in one part start alike."""
    small = {p.name: p.param for p in named_params(build(recipe(), seed=3))}
    large = {p.name: p.param for p in named_params(build(recipe(output_gate="head", bias="all"), seed=3))}
    assert set(small) < set(large)
    assert all(torch.equal(large[name], value) for name, value in small.items())


@pytest.mark.parametrize("route", ["plain", "meta"])
def test_loaded_is_what_the_file_holds(route: str, tmp_path: Path) -> None:
    spec = recipe(bias="all", sinks="per_head")
    source = build(spec, seed=1)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    save_weights(source, tmp_path / "w.safetensors")
    empty = build(spec, seed=2) if route == "plain" else build(spec, device="meta").to_empty(device="cpu")
    load_weights(empty, tmp_path / "w.safetensors")
    for a, b in zip(named_params(source), named_params(empty), strict=True):
        assert torch.equal(a.param, b.param), a.name
    assert not list(empty.buffers())
