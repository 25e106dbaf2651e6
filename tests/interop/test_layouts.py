"""Arrangements of numbers: exact there and back, against loops; RoPE in one layout or the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.interop import relayout
from assay.interop.layouts import SAME, Grouped, PerHead, Rows, Shards, SwappedHalves, Transposed
from assay.model import build, named_params
from assay.recipe import resolve
from assay.recipe.mixer import Attention
from tests.interop.support import distance, ids_of


def attention(h: int, kv: int, d: int) -> Attention:
    return Attention.model_validate({
        "kind": "attention", "n_heads": h, "n_kv_heads": kv, "head_dim": d, "position": "none",
    })  # fmt: skip


def numbered(rows: int, columns: int = 5) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)


@pytest.mark.parametrize(("h", "kv", "d"), [(4, 4, 6), (4, 2, 6), (6, 1, 4), (6, 3, 2)])
def test_grouped(h: int, kv: int, d: int) -> None:
    """Row by row: in each group the query heads, then the key head, then the value head."""
    mixer, whole = attention(h, kv, d), numbered((h + 2 * kv) * d)
    want: dict[str, list[torch.Tensor]] = {"q": [], "k": [], "v": []}
    row = 0
    for _ in range(kv):
        for part in ["q"] * (h // kv) + ["k", "v"]:
            want[part] += list(whole[row : row + d])
            row += d
    shapes = [(h * d, 5), (kv * d, 5), (kv * d, 5)]
    got = Grouped().split([whole], shapes, mixer)
    for part, tensor in zip("qkv", got, strict=True):
        assert torch.equal(tensor, torch.stack(want[part])), part
    assert torch.equal(Grouped().join(got, mixer)[0], whole)
    with pytest.raises(ValueError, match="the config needs"):
        Grouped().split([whole[1:]], shapes, mixer)


def test_rows_and_transposed() -> None:
    whole = numbered(12)
    parts = Rows().split([whole], [(6, 5), (4, 5), (2, 5)], None)
    assert [len(p) for p in parts] == [6, 4, 2]
    assert torch.equal(Rows().join(parts, None)[0], whole)
    turned = Transposed(Rows()).split([whole.T], [(6, 5), (4, 5), (2, 5)], None)
    assert all(torch.equal(a, b) for a, b in zip(turned, parts, strict=True))
    assert torch.equal(Transposed(Rows()).join(turned, None)[0], whole.T)
    assert torch.equal(Transposed().split([whole[:, 0]], [(12,)], None)[0], whole[:, 0])  # a bias is no matrix
    assert SAME.split([whole], [(12, 5)], None)[0] is whole


def test_shards_of_codegen() -> None:
    """Four blocks of rows; in each the share of the queries, the values, the keys."""
    whole = numbered(4 * 3 * 2)
    q, k, v = Shards(4, (0, 2, 1)).split([whole], [(8, 5)] * 3, None)
    rows = whole[:, 0] / 5
    assert (q[:, 0] / 5).tolist() == [r for b in range(4) for r in (6 * b, 6 * b + 1)]
    assert (v[:, 0] / 5).tolist() == [r for b in range(4) for r in (6 * b + 2, 6 * b + 3)]
    assert (k[:, 0] / 5).tolist() == [r for b in range(4) for r in (6 * b + 4, 6 * b + 5)]
    assert torch.equal(Shards(4, (0, 2, 1)).join([q, k, v], None)[0], whole)
    assert rows.tolist() == list(range(24))


def test_swapped_halves_undo_themselves() -> None:
    mixer, whole = attention(2, 2, 6), numbered(12)
    (swapped,) = SwappedHalves().split([whole], [(12, 5)], mixer)
    assert (swapped[:, 0] / 5).tolist() == [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
    assert torch.equal(SwappedHalves().join([swapped], mixer)[0], whole)


def test_per_head() -> None:
    rows = [torch.full((3,), float(i)) for i in range(4)]
    (stacked,) = PerHead().split(rows, [(4, 3)], None)
    assert stacked.shape == (4, 3)
    assert all(torch.equal(a, b) for a, b in zip(PerHead().join([stacked], None), rows, strict=True))


# RoPE in one layout or the other

MIXERS: dict[str, dict[str, Any]] = {
    "GQA, biases": {"bias": "all"},
    "gain a channel of a head": {"qk_norm": {"over": "head", "norm": "rmsnorm"}, "bias": ["q", "k"]},
    "gain a head, half rotated": {
        "qk_norm": {"over": "head", "gain_per": "head", "norm": "layernorm"},
        "position": {"kind": "rope", "theta": 100.0, "fraction": 0.5},
    },
    "over the width, after the rotation": {"qk_norm": {"over": "width", "norm": "rmsnorm", "order": "after_rope"}},
    "no rotation": {"position": "none"},
    "a sum": {"kind": "sum"},
}


def decoder_of(mixer: dict[str, Any]) -> Any:
    base = {
        "kind": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "position": {"kind": "rope", "theta": 100.0},
    }  # fmt: skip
    if mixer.get("kind") == "sum":
        mixer = {"kind": "sum", "branches": [{"mixer": base}, {"mixer": {**base, "bias": "all"}}]}
    else:
        mixer = {**base, **mixer}
    recipe = resolve({
        "d_model": 24, "vocab_size": 41, "max_seq_len": 64, "n_layers": 2, "embedding": {"tied": False},
        "block": {
            "mixer": mixer, "ffn": {"kind": "glu", "d_ff": 40, "activation": "silu"},
            "residual": {"rule": "pre", "norm": "rmsnorm"},
        },
        "head": {"norm": "rmsnorm"},
    })  # fmt: skip
    decoder = build(recipe, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in named_params(decoder):
            p.param.add_(0.4 * torch.randn(p.param.shape, generator=generator, dtype=torch.float64))
    return decoder.eval()


@pytest.mark.parametrize("name", MIXERS)
def test_relayout_keeps_the_logits_and_comes_back_bit_for_bit(name: str) -> None:
    decoder, ids = decoder_of(MIXERS[name]), ids_of()
    other = relayout(decoder, "interleaved")
    back = relayout(other, "half")
    with torch.no_grad():
        assert distance(other(ids), decoder(ids)) < 1e-12
    assert back.recipe.digest == decoder.recipe.digest
    assert (other.recipe.digest == decoder.recipe.digest) == (name == "no rotation")
    theirs = dict(back.named_parameters())
    for path, p in decoder.named_parameters():
        assert torch.equal(theirs[path], p), path


def test_moving_weights_matters() -> None:
    """The same weights under the other layout are another model."""
    decoder, ids = decoder_of(MIXERS["GQA, biases"]), ids_of()
    other = relayout(decoder, "interleaved")
    other.load_state_dict(decoder.state_dict())
    with torch.no_grad():
        assert distance(other(ids), decoder(ids)) > 1e-2
