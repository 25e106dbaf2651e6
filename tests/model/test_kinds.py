"""Positions and spans beyond RoPE and windows: published numbers, brute force, and the laws on small recipes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from assay.cost import Work, budget, flops_of, tensors_of
from assay.cost.spans import kept_tokens, legal_pairs
from assay.model import build, named_params
from assay.model.position import alibi_slopes, rope_tables, t5_buckets
from assay.model.span import allowed
from assay.recipe import Recipe, RecipeError, resolve
from assay.recipe.merge import deep_merge
from assay.recipe.position import Alibi, DynamicScaling, Rope, T5Bias
from assay.recipe.span import ChunkedSpan, FixedSpan, GlobalSpan, Span, StridedSpan

BASE: dict[str, Any] = {
    "d_model": 16,
    "vocab_size": 23,
    "max_seq_len": 64,
    "n_layers": 3,
    "embedding": {"tied": False},
    "block": {
        "mixer": {"kind": "attention", "n_heads": 6, "n_kv_heads": 3, "head_dim": 8, "position": "none"},
        "ffn": {"kind": "mlp", "d_ff": 24, "activation": "gelu"},
        "residual": {"rule": "pre", "norm": "rmsnorm"},
    },
    "head": {"norm": "rmsnorm"},
}
LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 3.0, 4.0], "original_seq_len": 8}
MIXERS: dict[str, dict[str, Any]] = {
    "alibi": {"position": "alibi"},
    "alibi scaled": {"position": {"kind": "alibi", "max_bias": 4.0, "multiplier": 0.35}, "soft_cap": 2.0},
    "alibi both ways": {"position": "alibi", "span": {"kind": "full", "causal": False}},
    "t5": {"position": {"kind": "t5", "n_buckets": 8, "max_distance": 16}},
    "t5 both ways": {
        "position": {"kind": "t5", "n_buckets": 8, "max_distance": 16},
        "span": {"kind": "full", "causal": False},
    },
    "dynamic": {"position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 3.0, "original_seq_len": 6}}},
    "longrope": {"position": {"kind": "rope", "scaling": {"kind": "longrope", "attention_factor": 1.2, **LONG}}},
    "chunked": {"position": "rope", "span": {"kind": "chunked", "size": 4}},
    "chunked both ways": {"position": "rope", "span": {"kind": "chunked", "size": 4, "causal": False}},
    "strided": {"position": "rope", "span": {"kind": "strided", "stride": 3}},
    "fixed": {"position": "rope", "span": {"kind": "fixed", "block": 4, "summary": 2}},
    "window and global": {"position": "alibi", "span": {"kind": "window_global", "size": 3, "n_global": 2}},
    "window and global both ways": {
        "position": "rope",
        "span": {"kind": "window_global", "size": 3, "n_global": 2, "causal": False},
    },
}


def recipe_of(mixer: dict[str, Any], **over: Any) -> Recipe:
    return resolve(deep_merge(BASE, {"block": {"mixer": mixer}, **over}))


def random_decoder(recipe: Recipe, backend: str = "auto") -> Any:
    decoder = build(recipe, dtype=torch.float64, backend=backend)
    with torch.no_grad():
        for p in named_params(decoder):
            noise = torch.randn(p.param.shape, generator=torch.Generator().manual_seed(len(p.name)))
            p.param.add_(0.3 * noise)
    return decoder


def ids_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


# published numbers


def test_alibi_slopes_of_8_and_of_12_heads() -> None:
    assert alibi_slopes(Alibi(), 8) == [2.0**-i for i in range(1, 9)]
    got = alibi_slopes(Alibi(), 12)
    assert got[:8] == [2.0**-i for i in range(1, 9)]
    assert got[8:] == pytest.approx([0.707107, 0.353553, 0.176777, 0.088388], abs=1e-6)


def test_t5_buckets_of_32_and_128() -> None:
    distances = [0, 1, 15, 16, 20, 32, 64, 128]
    buckets = t5_buckets(T5Bias(), torch.arange(200), causal=True)
    assert [int(buckets[150, 150 - d]) for d in distances] == [0, 1, 15, 16, 17, 21, 26, 31]
    assert int(buckets[0, 199]) == 0


def test_t5_buckets_are_transformers() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    positions = torch.arange(300)
    ahead = positions[None, :] - positions[:, None]
    for causal in (True, False):
        want = T5Attention._relative_position_bucket(ahead, not causal, 32, 128)
        assert torch.equal(t5_buckets(T5Bias(), positions, causal=causal), want)


def test_dynamic_base_by_length() -> None:
    """d 128, base 1e4, factor 2, original 2048: the base at each length, and back after a long row."""
    spec = Rope(scaling=DynamicScaling(factor=2.0, original_seq_len=2048))
    for length, base in ((2048, 10000.0), (2049, 10009.92), (4096, 30527.74), (6144, 51293.79), (100, 10000.0)):
        cos, _ = rope_tables(spec, 128, torch.tensor([1]), torch.float64, torch.tensor(length))
        # the second pair's angle at position 1 is base^(-2/128)
        assert float(cos[0, 1].acos() ** (-64)) == pytest.approx(base, rel=1e-6)


# brute force


@pytest.mark.parametrize(
    "span",
    [
        ChunkedSpan(size=4),
        ChunkedSpan(size=5, causal=False),
        StridedSpan(stride=3),
        StridedSpan(stride=1),
        FixedSpan(block=4, summary=2),
        FixedSpan(block=3),
        GlobalSpan(size=3, n_global=2),
        GlobalSpan(size=2, n_global=4, causal=False),
    ],
    ids=str,
)
def test_pairs_are_those_of_the_mask(span: Span) -> None:
    for total in range(1, 20):
        at = torch.arange(total)
        mask = allowed(span, at[:, None], at[None, :]).numpy()
        assert mask.diagonal().all()
        causal = getattr(span, "causal", True)
        assert not (causal and np.triu(mask, 1).any())
        for past in range(total) if causal else (0,):
            assert legal_pairs(span, total - past, past) == mask[past:].sum()
        assert kept_tokens(span, total) <= total


def test_what_a_mask_shows() -> None:
    at = torch.arange(7)

    def rows(span: Span) -> list[str]:
        return ["".join("x" if v else "." for v in row) for row in allowed(span, at[:, None], at[None, :]).tolist()]

    assert rows(ChunkedSpan(size=3))[4] == "...xx.."
    assert rows(StridedSpan(stride=3))[6] == "x..xxxx"[:3] + "xxxx"
    assert rows(FixedSpan(block=3))[6] == "..x..xx"
    assert rows(GlobalSpan(size=2, n_global=1))[5] == "x...xx."


# laws


@pytest.mark.parametrize("name", MIXERS)
def test_counted_is_built_and_kernels_agree(name: str) -> None:
    recipe = recipe_of(MIXERS[name])
    assert resolve(recipe.to_dict()).digest == recipe.digest
    built = {p.name: (tuple(p.param.shape), p.role, p.start) for p in named_params(build(recipe, device="meta"))}
    assert built == {t.name: (t.shape, t.role, t.start) for t in tensors_of(recipe)}
    decoder = build(recipe, device="meta")
    with FlopCounterMode(display=False) as counter:
        decoder(torch.zeros(2, 12, dtype=torch.long, device="meta"))
    total = flops_of(recipe, Work(2, 12)).total
    assert counter.get_total_flops() == total.matmul + total.core_square
    assert budget(recipe, seq_len=32).params.total == sum(t.numel for t in tensors_of(recipe))
    decoder = random_decoder(recipe)
    auto = decoder(ids_of(2, 13))
    decoder.use_backend("reference")
    close(auto, decoder(ids_of(2, 13)))


@pytest.mark.parametrize("name", MIXERS)
def test_padded_packed_and_batched_are_alone(name: str) -> None:
    decoder = random_decoder(recipe_of(MIXERS[name]))
    ids = ids_of(2, 12)
    short, long = ids[:1, :5], ids[1:]
    padded = torch.zeros(2, 12, dtype=torch.long)
    padded[0, 7:], padded[1] = short[0], long[0]
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :7] = 0
    got = decoder(padded, mask)
    close(got[:1, 7:], decoder(short))
    close(got[1:], decoder(long))
    right = decoder(padded.roll(5, 1)[:1], mask.roll(5, 1)[:1])
    close(right[:, :5], decoder(short))
    packed = torch.cat((short, long), dim=1)
    segments = torch.tensor([[3] * 5 + [9] * 12])
    got = decoder(packed, segment_ids=segments)
    close(got[:, :5], decoder(short))
    close(got[:, 5:], decoder(long))


@pytest.mark.parametrize("name", MIXERS)
def test_every_kind_matters(name: str) -> None:
    recipe = recipe_of(MIXERS[name])
    plain = recipe_of({"position": "none"})
    a, b = random_decoder(recipe), random_decoder(plain)
    shared = {p.name: p.param for p in named_params(a)}
    with torch.no_grad():
        for p in named_params(b):
            p.param.copy_(shared[p.name])
    assert not torch.allclose(a(ids_of(1, 14)), b(ids_of(1, 14)), rtol=1e-3)


def test_a_first_layers_t5_table_is_shared() -> None:
    own = {"kind": "t5", "n_buckets": 8, "max_distance": 16}
    layers = {"rest": {"mixer": {"position": {**own, "table": "first"}}}}
    recipe = recipe_of({"position": own}, layers=layers, stack=["block", "2 rest"], n_layers=3)
    names = [t.name for t in tensors_of(recipe) if "position" in t.name]
    assert names == ["layers.0.mixer.position.table"]
    decoder = random_decoder(recipe)
    before = decoder(ids_of(1, 9))
    with torch.no_grad():
        decoder.layers[0].mixer.position.table.add_(torch.randn(8, 6, generator=torch.Generator().manual_seed(5)))
    assert not torch.allclose(before, decoder(ids_of(1, 9)), rtol=1e-3)
    with pytest.raises(RecipeError, match="no T5 table of its own"):
        recipe_of({"position": {**own, "table": "first"}})


def test_xielu_is_its_formula_and_counts() -> None:
    recipe = recipe_of(
        {"position": "rope"}, block={**BASE["block"], "ffn": {"kind": "mlp", "d_ff": 24, "activation": "xielu"}}
    )
    built = {p.name: (tuple(p.param.shape), p.role, p.start) for p in named_params(build(recipe, device="meta"))}
    assert built == {t.name: (t.shape, t.role, t.start) for t in tensors_of(recipe)}
    act = build(recipe, dtype=torch.float64).layers[0].ffn.act
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    want = torch.where(x > 0, 0.8 * x * x + 0.5 * x, 0.8 * (torch.expm1(x.clamp(max=-1e-6)) - x) + 0.5 * x)
    torch.testing.assert_close(act(x), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("mixer", "where"),
    [
        (
            {
                "position": {"kind": "rope", "scaling": {"kind": "longrope", "attention_factor": 1.0, **LONG}},
                "head_dim": 16,
            },
            "short_factor",
        ),
        ({"position": {"kind": "t5", "n_buckets": 8, "max_distance": 4}}, "max_distance"),
        ({"position": {"kind": "t5", "n_buckets": 6}}, "n_buckets"),
        ({"position": "rope", "span": {"kind": "fixed", "block": 2, "summary": 3}}, "summary"),
        (
            {"position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 0.5, "original_seq_len": 6}}},
            "factor",
        ),
    ],
)
def test_what_cannot_be_is_refused(mixer: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError, match=where):
        recipe_of(mixer)
