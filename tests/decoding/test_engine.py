"""The engine is the decoder read anew for every token, over random recipes; nothing is allocated on the way."""

from __future__ import annotations

import gc
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.decoding import Engine, lean, products
from assay.decoding.products import LAYOUTS
from assay.model import CacheFull, Decoder
from assay.recipe import Recipe, resolve
from tests.laws.common import assert_close, examples, random_ids, seeds
from tests.laws.rich import RICH
from tests.strategies import random_decoder, randomise, recipes

LENGTH = 11


def prompts(seed: int, lengths: list[int], vocab: int, side: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(0, vocab, (len(lengths), width), generator=generator)
    counts, place = torch.tensor(lengths).unsqueeze(-1), torch.arange(width)
    return ids, place < counts if side == "right" else place >= width - counts


@given(
    recipes(causal=True), seeds, st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from(["left", "right"]), st.booleans(),
)  # fmt: skip
def test_steps_are_the_decoder_read_anew(
    recipe: Recipe, seed: int, lengths: list[int], side: str, batched: bool
) -> None:
    """Whichever way a single query is attended to."""
    decoder = random_decoder(recipe, seed)
    with mock.patch.object(lean, "_in_batches", return_value=batched):
        read_anew(decoder, recipe, seed, lengths, side)


def read_anew(decoder: Decoder, recipe: Recipe, seed: int, lengths: list[int], side: str) -> None:
    engine = Engine(decoder, len(lengths), LENGTH)
    ids, mask = prompts(seed, lengths, recipe.vocab_size, side)
    texts = [row[real] for row, real in zip(ids, mask, strict=True)]
    logits = engine.prefill(ids, None if len(set(lengths)) == 1 else mask)
    for turn in range(LENGTH - max(lengths) + 1):
        for row, text in enumerate(texts):
            want = decoder(text[None], rope_length=LENGTH)[0, -1]
            assert_close(logits[row], want, what=f"row {row} after {turn} steps")
        if turn == LENGTH - max(lengths):
            break
        new = random_ids(recipe, 1, len(lengths), seed + turn)[0]
        texts = [torch.cat((text, n[None])) for text, n in zip(texts, new, strict=True)]
        logits = engine.step(new)


LLAMA = {
    "name": "llama",
    "d_model": 96,
    "vocab_size": 500,
    "max_seq_len": 64,
    "n_layers": 3,
    "embedding": {"tied": False},
    "block": {
        "mixer": {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 24, "position": "rope"},
        "ffn": {"kind": "glu", "d_ff": 200, "activation": "silu"},
        "residual": {"rule": "pre", "norm": "rmsnorm"},
    },
    "head": {"norm": "rmsnorm"},
    "init": {"weights": {"kind": "fan_in"}, "embedding": {"kind": "normal", "std": 1.0}},
}
TABLES = {"llama": LLAMA, "rotary": RICH["rotary"], "parallel": RICH["parallel"], "readers": RICH["readers"]}
EXACT = {torch.float32: 1e-5, torch.bfloat16: 4e-2}  # of the largest logit; bfloat16 against float32 arithmetic


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("dtype", list(EXACT))
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", TABLES)
def test_packed_is_plain(name: str, batch: int, dtype: torch.dtype, layout: str) -> None:
    """Every layout of the weights against the decoder that reads the same text without cache or copies."""
    recipe = resolve(TABLES[name])
    decoder = random_decoder(recipe, 1, dtype=dtype)
    engine = Engine(decoder, batch, 14, layout=layout)
    ids = random_ids(recipe, batch, 14, 2)
    engine.prefill(ids[:, :6])
    got = torch.stack([engine.step(column) for column in ids[:, 6:].T], dim=1)
    want = random_decoder(recipe, 1, dtype=dtype).float()(ids, rope_length=14)[:, 6:]
    assert_close(got, want.detach(), EXACT[dtype])
    expected = layout if layout in products.layouts_for(decoder.embedding.table, batch) else "plain"
    assert {p.layout for p in engine.products} == {expected}
    weights = sum(p.nbytes for p in decoder.parameters())
    sizes = [p.shape[0] * p.shape[1] * dtype.itemsize for p in engine.products]
    assert expected == "plain" or all(p.nbytes >= n for p, n in zip(engine.products, sizes, strict=True))
    assert engine.packed_bytes <= weights or name != "llama"  # widths that are no multiple of 16 are padded


@pytest.mark.parametrize(("batch", "threads", "batched"), [(4, 2, False), (6, 2, True), (6, 1, False)])
def test_many_rows_are_attended_to_in_batched_products(batch: int, threads: int, batched: bool) -> None:
    recipe = resolve(LLAMA)
    decoder = random_decoder(recipe, 1, dtype=torch.float32)
    ids = random_ids(recipe, batch, 9, 2)
    engine = Engine(decoder, batch, 9, layout="plain")
    real, calls = lean._attend_in_batches, []

    def watched(*args: Any) -> Tensor:
        calls.append(None)
        return real(*args)

    with (
        mock.patch.object(torch, "get_num_threads", return_value=threads),
        mock.patch.object(lean, "_attend_in_batches", watched),
    ):
        engine.prefill(ids[:, :6])
        got = torch.stack([engine.step(column) for column in ids[:, 6:].T], dim=1)
    assert_close(got, decoder(ids, rope_length=9)[:, 6:].detach(), EXACT[torch.float32])
    assert len(calls) == 3 * recipe.n_layers * batched


def test_copies_are_the_engines() -> None:
    """Packing changes no parameter and leaves nothing behind in the decoder."""
    decoder = random_decoder(resolve(LLAMA), 0, dtype=torch.float32)
    before = {k: (v.data_ptr(), v.clone()) for k, v in decoder.state_dict().items()}
    engine = Engine(decoder, 2, 8, layout="columns")
    engine.prefill(torch.ones(2, 3, dtype=torch.long))
    engine.step(torch.ones(2, dtype=torch.long))
    after = decoder.state_dict()
    assert list(after) == list(before)
    assert all(after[k].data_ptr() == pointer and torch.equal(after[k], v) for k, (pointer, v) in before.items())


def test_measured_layouts_are_kept_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` measures each shape once a process, draws no random number, and any choice gives the same numbers."""
    monkeypatch.setattr(products, "_MEASURED", 0)
    monkeypatch.setattr(products, "_CHOSEN", {})
    decoder = random_decoder(resolve(LLAMA), 0, dtype=torch.float32)
    ids = random_ids(decoder.recipe, 2, 9, 0)
    state = torch.get_rng_state()
    got = []
    for _ in range(2):
        engine = Engine(decoder, 2, 9)
        engine.prefill(ids[:, :8])
        got.append(engine.step(ids[:, 8]))
        assert len(products._CHOSEN) == len({p.shape for p in engine.products})
        monkeypatch.setattr(products, "_measured", None)  # what was chosen is not measured again
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(*got)
    assert_close(got[0], decoder(ids)[:, -1].detach(), 1e-5)


def test_a_build_without_onednn_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_ONEDNN", {})
    monkeypatch.setattr(products, "_right", lambda *_: False)
    decoder = random_decoder(resolve(LLAMA), 0, dtype=torch.float32)
    assert products.layouts_for(decoder.embedding.table, 2) == ("plain", "columns")
    engine = Engine(decoder, 1, 4, layout="onednn")
    engine.step(torch.ones(1, dtype=torch.long))
    assert {p.layout for p in engine.products} == {"plain"}
    assert products.layouts_for(decoder.embedding.table.double(), 1) == ("plain",)
    assert products.layouts_for(decoder.embedding.table.to("meta"), 1) == ("plain",)


@given(recipes(causal=True), seeds)
def test_a_row_that_waits_reads_nothing(recipe: Recipe, seed: int) -> None:
    decoder = random_decoder(recipe, seed)
    engine = Engine(decoder, 3, LENGTH)
    ids, mask = prompts(seed, [4, 2, 3], recipe.vocab_size, "left")
    texts = [row[real] for row, real in zip(ids, mask, strict=True)]
    engine.prefill(ids, mask)
    generator = torch.Generator().manual_seed(seed)
    for turn in range(5):
        new, active = random_ids(recipe, 1, 3, seed + turn)[0], torch.rand(3, generator=generator) < 0.6
        logits = engine.step(new, active)
        assert torch.isfinite(logits).all()
        for row in active.nonzero().flatten().tolist():
            texts[row] = torch.cat((texts[row], new[row : row + 1]))
            assert_close(logits[row], decoder(texts[row][None], rope_length=LENGTH)[0, -1], what=f"row {row}")
    assert engine.cache.rows == tuple(map(len, texts))


@examples(0.4)
@given(recipes(causal=True, max_layers=2), seeds)
def test_fifty_tokens_with_and_without_a_cache(recipe: Recipe, seed: int) -> None:
    """Greedy, as far as learned positions go; two logits within 1e-9 of each other would be a tie."""
    learned = recipe.embedding.position.kind_name == "learned"
    room = min(53, recipe.max_seq_len) if learned else 53
    decoder = random_decoder(recipe, seed)
    text = random_ids(recipe, 1, 3, seed)
    engine = Engine(decoder, 1, room)
    logits = engine.prefill(text)
    while text.shape[1] < room:
        new = logits.argmax(-1)
        assert int(new) == int(decoder(text, rope_length=room)[0, -1].argmax())
        text = torch.cat((text, new[None]), dim=1)
        logits = engine.step(new)


def test_weights_that_change_are_laid_out_anew() -> None:
    decoder = random_decoder(resolve(LLAMA), 0, dtype=torch.float32)
    ids = random_ids(decoder.recipe, 1, 6, 0)
    engine = Engine(decoder, 1, 6, layout="columns")
    engine.prefill(ids[:, :5])
    engine.step(ids[:, 5])
    randomise(decoder, 7)
    engine.reset()
    engine.prefill(ids[:, :5])
    assert_close(engine.step(ids[:, 5]), decoder(ids)[:, -1].detach(), 1e-5)


def test_what_replaces_a_linear_or_hooks_a_part_is_called() -> None:
    """An adapter in a linear's place, a hook on a feed-forward part or a norm: the step does as the model does."""

    class Adapted(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.weight, self.bias = inner.weight, inner.bias

        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * self.inner(x)

    decoder = random_decoder(resolve(LLAMA), 0)
    decoder.layers[0].mixer.v = Adapted(decoder.layers[0].mixer.v)
    decoder.layers[1].ffn.register_forward_hook(lambda module, args, out: out * 2)
    decoder.layers[0].register_forward_hook(lambda module, args, out: out - 0.1)
    decoder.layers[2].residual.mixer.input_norm.register_forward_hook(lambda module, args, out: out * 3)
    ids = random_ids(decoder.recipe, 2, 6, 0)
    engine = Engine(decoder, 2, 6)
    engine.prefill(ids[:, :5])
    assert_close(engine.step(ids[:, 5]), decoder(ids)[:, -1].detach())


def test_a_decoder_in_training_stays_there_and_drops_nothing() -> None:
    table = {**LLAMA, "embedding": {"tied": False, "dropout": 0.5}}
    decoder = random_decoder(resolve(table), 0).train()
    ids = random_ids(decoder.recipe, 1, 6, 0)
    engine = Engine(decoder, 1, 6)
    first, second = engine.prefill(ids[:, :5]), engine.step(ids[:, 5])
    assert decoder.training
    want = decoder.eval()(ids).detach()
    assert_close(torch.stack((first, second), dim=1), want[:, -2:])


def test_nothing_is_allocated_for_a_length() -> None:
    """64 steps of ragged rows: the same storage, no compilation, and no tensor alive that was not after the first."""
    decoder = random_decoder(resolve(LLAMA), 0, dtype=torch.float32)
    engine = Engine(decoder, 2, 80)
    ids, mask = prompts(0, [16, 9], 500, "left")
    engine.prefill(ids[:, :16], mask)
    new = torch.ones(2, dtype=torch.long)
    engine.step(new)
    held = [state.store.data_ptr() for state in engine.cache.states.values()]
    frames = dict(torch._dynamo.utils.counters["frames"])
    gc.collect()
    alive = _bytes_alive()
    for _ in range(62):
        engine.step(new)
    gc.collect()
    assert _bytes_alive() == alive
    assert held == [state.store.data_ptr() for state in engine.cache.states.values()]
    assert frames == dict(torch._dynamo.utils.counters["frames"])


def _bytes_alive() -> int:
    tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]  # not those of a trace
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_what_is_wrong_is_named() -> None:
    decoder = random_decoder(resolve(LLAMA), 0)
    with pytest.raises(
        ValueError, match="layout: no such layout 'rows'; known: auto, plain, columns, bags, onednn, onednn64"
    ):
        Engine(decoder, 1, 4, layout="rows")
    engine = Engine(decoder, 1, 4)
    engine.prefill(torch.ones(1, 4, dtype=torch.long))
    with pytest.raises(CacheFull, match="max_len = 4"):
        engine.step(torch.ones(1, dtype=torch.long))
