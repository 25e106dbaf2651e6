"""37. The block of key/value heads repeated whole, instead of each head (onnx/onnx PR#7274).

Zero scores, 4 query heads, values [1, 0] and [0, 1]: outputs [1, 0], [1, 0], [0, 1], [0, 1].
"""

from __future__ import annotations

import pytest
import torch

from assay.interop import pool_heads
from assay.model import named_params
from assay.model.backend import BACKENDS, Call, Legal
from tests.pitfalls.support import close, decoder, ids


@pytest.mark.parametrize("kind", ["causal", "all", "mask"])
@pytest.mark.parametrize("name", ["reference", "sdpa", "auto"])
def test_outputs(name: str, kind: str) -> None:
    q, k = torch.zeros(1, 4, 3, 2), torch.zeros(1, 2, 3, 2)
    v = torch.eye(2).reshape(1, 2, 1, 2).expand(1, 2, 3, 2)
    legal = Legal(kind, torch.ones(3, 3, dtype=torch.bool).tril()[None, None] if kind == "mask" else None)
    out = BACKENDS[name].attend(q, k, v, Call(legal, 1.0))
    assert out[0, :, 2].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert out.shape == (1, 4, 3, 2)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("option", [{}, {"soft_cap": 0.7}, {"qk_norm": {"over": "head", "norm": "rmsnorm"}}])
def test_each_head_repeated_gives_the_same_model(n_kv_heads: int, option: dict[str, object]) -> None:
    """A grouped model and a multi-head one whose heads of a group are equal."""
    grouped = decoder(n_kv_heads=n_kv_heads, bias=["k", "v"], **option)
    full = decoder(n_kv_heads=4, bias=["k", "v"], seed=5, **option)
    source = {p.name: p.param for p in named_params(grouped)}
    with torch.no_grad():
        for p in grouped.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
        for p in named_params(full):
            value = source[p.name]
            if value.shape != p.param.shape:
                heads = value.unflatten(0, (n_kv_heads, 8))
                value = heads.repeat_interleave(4 // n_kv_heads, dim=0).flatten(0, 1)
            p.param.copy_(value)
        x = ids(0, 2, 9)
        assert close(full(x), grouped(x))


@pytest.mark.parametrize("option", [{}, {"qk_norm": {"over": "head", "norm": "rmsnorm", "gain_per": "head"}}])
def test_pooling_takes_neighbours(option: dict[str, object]) -> None:
    """Heads that hold 1, 2, 3, 4 into two groups: 1.5 and 3.5, not 2 and 3; biases and gains too."""
    full = decoder(n_kv_heads=4, bias=["k", "v"], **option)
    heads = torch.arange(1.0, 5.0, dtype=torch.float64)
    names = ["k.weight", "k.bias", "v.weight", "v.bias", *(["k_norm.gain"] if option else [])]
    with torch.no_grad():
        for name in names:
            value = full.layers[0].mixer.get_parameter(name)
            value.copy_(
                heads.repeat_interleave(value.shape[0] // 4).reshape(-1, *[1] * (value.dim() - 1)).expand_as(value)
            )
    pooled = pool_heads(full, 2).layers[0].mixer
    for name in names:
        value = pooled.get_parameter(name).unflatten(0, (2, -1))
        assert value[0].unique().tolist() == [1.5]
        assert value[1].unique().tolist() == [3.5]
