"""30. Interleaved and half-split pairs mixed at conversion (ooples/AiDotNet PR#2074).

x = [1, 2, 3, 4], base 1e4, position 1: half [-1.984111, 1.959901, 2.462378, 4.019800], interleaved [-1.142640,
1.922076, 2.959851, 4.029800]. Permuting rows of q and k, their biases and their gains turns one layout into the other.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from assay.model import named_params
from assay.model.position import rope_tables, rotate
from assay.recipe.position import Rope
from tests.pitfalls.support import close, decoder, ids

WANT = {
    "half": [-1.984111, 1.959901, 2.462378, 4.019800],
    "interleaved": [-1.142640, 1.922076, 2.959851, 4.029800],
}


@pytest.mark.parametrize("layout", WANT)
def test_numbers(layout: str) -> None:
    x = torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64)
    cos, sin = rope_tables(Rope(theta=1e4, layout=layout), 4, torch.tensor([1]), torch.float64)
    assert rotate(x, cos, sin, layout)[0].tolist() == pytest.approx(WANT[layout], abs=5e-7)


def order(head_dim: int, r: int) -> Tensor:
    """Row i of an interleaved head, by the row of a half-split one."""
    pairs = torch.arange(r).reshape(2, r // 2).T.flatten()
    return torch.cat((pairs, torch.arange(r, head_dim)))


def permuted(name: str, value: Tensor, rows: Tensor) -> Tensor:
    """A parameter of a half-split model as the interleaved one needs it."""
    part = name.split(".")[-2:]
    if part[0] in ("q", "k"):
        heads = value.shape[0] // len(rows)
        return value.unflatten(0, (heads, len(rows)))[:, rows].flatten(0, 1)
    if part[0] in ("q_norm", "k_norm"):
        return value[..., rows] if value.shape[-1] == len(rows) else permuted(f"q.{part[1]}", value, rows)
    return value


QK: dict[str, dict[str, Any]] = {
    "none": {},
    "a head": {"qk_norm": {"over": "head", "norm": "rmsnorm"}},
    "a gain a head": {"qk_norm": {"over": "head", "norm": "rmsnorm", "gain_per": "head"}},
    "the width": {"qk_norm": {"over": "width", "norm": "rmsnorm"}},
}


@pytest.mark.parametrize("qk", QK)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_permuted_rows_give_the_other_layout(heads: tuple[int, int], fraction: float, qk: str) -> None:
    more: dict[str, Any] = {"n_heads": heads[0], "n_kv_heads": heads[1], "bias": ["q", "k"], **QK[qk]}
    half = decoder(position={"kind": "rope", "fraction": fraction}, **more)
    other = decoder(position={"kind": "rope", "fraction": fraction, "layout": "interleaved"}, seed=9, **more)
    rows, x = order(8, round(8 * fraction)), ids(0, 2, 9)
    with torch.no_grad():
        for p in half.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
        source = {p.name: p.param for p in named_params(half)}
        for p in named_params(other):
            p.param.copy_(source[p.name])
        assert not close(other(x), half(x), 1e-3)  # unpermuted: the fault
        for p in named_params(other):
            p.param.copy_(permuted(p.name, source[p.name], rows))
        assert close(other(x), half(x))
        # and back, bit for bit
        back = torch.argsort(rows)
        for p in named_params(other):
            assert torch.equal(permuted(p.name, p.param, back), source[p.name]), p.name
