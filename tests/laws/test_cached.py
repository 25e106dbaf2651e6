"""Cached = uncached, in float64, over random recipes: however a text is cut into calls, padded or batched.

Lengths that RoPE scalings depend on are fixed when a cache is made, so the whole text is read at that ``rope_length``.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.cost import cache_of
from assay.model import CacheFull, Decoder, UnsupportedCache
from assay.recipe import Recipe, resolve
from tests.laws.common import assert_close, backends, examples, random_ids, seeds
from tests.laws.rich import RICH
from tests.strategies import random_decoder, recipes

LENGTH = 11  # past every window, and within the shortest context

causal = recipes(causal=True)


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """Sizes of calls that add up to LENGTH; whole, one by one and in between."""
    kind = draw(st.sampled_from(["chunks", "prefill", "single", "whole"]))
    if kind == "single":
        return [1] * LENGTH
    if kind == "whole":
        return [LENGTH]
    out = [draw(st.integers(1, LENGTH))]
    while sum(out) < LENGTH:
        out.append(draw(st.integers(1, LENGTH - sum(out))) if kind == "chunks" else 1)
    return out


@given(causal, seeds, backends, cuts())
def test_cached_is_uncached(recipe: Recipe, seed: int, backend: str, sizes: list[int]) -> None:
    """In any number of calls, up to the last token that there is room for; one more is refused and changes nothing."""
    decoder = random_decoder(recipe, seed, backend)
    ids = random_ids(recipe, 2, LENGTH + 1, seed)
    want = decoder(ids[:, :LENGTH], rope_length=LENGTH)
    cache = decoder.new_cache(2, LENGTH)
    held = [state.store.data_ptr() for state in cache.states.values()]
    for _ in range(2):  # and again after a reset, in the same memory
        parts = [decoder(part, cache=cache) for part in ids[:, :LENGTH].split(sizes, dim=1)]
        assert_close(torch.cat(parts, dim=1), want)
        assert cache.lengths.tolist() == [LENGTH] * 2
        with pytest.raises(CacheFull, match=f"max_len = {LENGTH};.*{LENGTH + 1}"):
            decoder(ids[:, LENGTH:], cache=cache)
        assert cache.length == LENGTH
        cache.reset()
    assert held == [state.store.data_ptr() for state in cache.states.values()]


@given(causal, seeds, st.integers(1, 40), st.integers(1, 3))
def test_bytes_are_those_of_the_budget(recipe: Recipe, seed: int, max_len: int, batch: int) -> None:
    max_len = min(max_len, recipe.max_seq_len)
    cache = random_decoder(recipe, seed).new_cache(batch, max_len)
    assert cache.nbytes == 8 * batch * cache_of(recipe, max_len).held
    half = random_decoder(recipe, seed).new_cache(batch, max_len, dtype=torch.bfloat16)
    assert half.nbytes * 4 == cache.nbytes


@examples(1.6)
@given(causal, seeds, backends, st.sampled_from(["left", "right", "anywhere"]), st.integers(0, 3), st.booleans())
def test_padded_is_alone(recipe: Recipe, seed: int, backend: str, side: str, single: int, empty: bool) -> None:
    """Ragged rows in several padded calls, some of one place: each row's logits are those of its tokens by themselves.

    What an empty row, or a row that waits, is given is finite and forgotten.
    """
    decoder = random_decoder(recipe, seed, backend)
    generator = torch.Generator().manual_seed(seed)
    cache = decoder.new_cache(3, LENGTH)
    got: list[list[Tensor]] = [[], [], []]
    texts: list[list[Tensor]] = [[], [], []]
    widths = [int(n) for n in torch.randint(1, 6, (3,), generator=generator)]
    for turn, width in enumerate([*widths[:2], *[1] * single, widths[2]]):
        ids = random_ids(recipe, 3, width, seed + turn)
        room = LENGTH - cache.lengths
        mask = _padding(room.clamp_max(width), width, side, generator)
        if empty and turn == 0:
            mask[1] = False
        logits = decoder(ids, mask.long() if turn % 2 else mask, cache=cache)
        assert torch.isfinite(logits).all()
        for row in range(3):
            got[row].append(logits[row, mask[row]])
            texts[row].append(ids[row, mask[row]])
    for row in range(3):
        text = torch.cat(texts[row])
        assert cache.rows[row] == len(text) == int(cache.lengths[row])
        if len(text):
            assert_close(torch.cat(got[row]), decoder(text[None], rope_length=LENGTH)[0], what=f"row {row}")


def _padding(most: Tensor, width: int, side: str, generator: torch.Generator) -> Tensor:
    """(rows, width) with at most ``most`` tokens a row."""
    counts = (torch.rand(len(most), generator=generator) * (most + 1)).long().clamp_max(most).unsqueeze(-1)
    place = torch.arange(width)
    if side == "right":
        return place < counts
    if side == "left":
        return place >= width - counts
    order = torch.rand(len(most), width, generator=generator).argsort(-1)
    return order < counts


@given(causal, seeds, backends)
def test_batch_of_one_is_batch_of_many(recipe: Recipe, seed: int, backend: str) -> None:
    decoder = random_decoder(recipe, seed, backend)
    ids = random_ids(recipe, 4, LENGTH, seed)
    sizes = [6, 1, 1, LENGTH - 8]
    together = _read(decoder, ids, sizes)
    assert_close(together, torch.cat([_read(decoder, row[None], sizes) for row in ids]))


def _read(decoder: Decoder, ids: Tensor, sizes: list[int], rope_length: int | None = None) -> Tensor:
    cache = decoder.new_cache(len(ids), LENGTH, rope_length=rope_length)
    return torch.cat([decoder(part, cache=cache) for part in ids.split(sizes, dim=1)], dim=1)


@pytest.mark.parametrize("name", ["rotary", "parallel"])
@pytest.mark.parametrize("rope_length", [5, 7, 40])
def test_the_rope_length_is_the_caches(name: str, rope_length: int) -> None:
    decoder = random_decoder(resolve(RICH[name]), 3)
    ids = random_ids(decoder.recipe, 2, LENGTH, 0)
    want = decoder(ids, rope_length=rope_length)
    assert_close(_read(decoder, ids, [4, 1, 6], rope_length), want)
    same = torch.equal(decoder(ids, rope_length=60), decoder(ids, rope_length=5))
    assert same == (name == "parallel")  # only dynamic NTK and LongRoPE ask for it
    cache = decoder.new_cache(2, LENGTH, rope_length=rope_length)
    with pytest.raises(ValueError, match=f"rope_length: 6, but the cache was made with {rope_length}"):
        decoder(ids, cache=cache, rope_length=6)


@examples(0.4)
@given(recipes(), seeds)
def test_what_is_not_causal_is_refused(recipe: Recipe, seed: int) -> None:
    """A recipe makes a cache, or says which layer cannot have one."""
    decoder = random_decoder(recipe, seed)
    if '"causal": false' in recipe.to_json():
        with pytest.raises(UnsupportedCache, match=r"layers\.\d+\.mixer.*not causal"):
            decoder.new_cache(1, LENGTH)
    else:
        assert decoder.new_cache(1, LENGTH).batch == 1


def test_nothing_is_differentiated_and_modes_mix() -> None:
    """A cache made or used under inference_mode serves outside it, and the other way round."""
    decoder = random_decoder(resolve(RICH["parallel"]), 0)
    ids = random_ids(decoder.recipe, 1, LENGTH, 0)
    want = decoder(ids)
    with torch.inference_mode():
        cache = decoder.new_cache(1, LENGTH)
        first = decoder(ids[:, :4], cache=cache)
    second = decoder(ids[:, 4:6], cache=cache)
    assert not second.requires_grad
    with torch.inference_mode():
        third = decoder(ids[:, 6:], cache=cache)
    assert_close(torch.cat((first, second, third), dim=1).clone(), want.detach())


def test_bad_calls_are_named() -> None:
    decoder = random_decoder(resolve(RICH["rotary"]), 0)
    ids = random_ids(decoder.recipe, 2, 5, 0)
    cache = decoder.new_cache(3, 8)
    with pytest.raises(ValueError, match="2 rows, but the cache was made for batch = 3"):
        decoder(ids, cache=cache)
    with pytest.raises(ValueError, match="one document a row"):
        decoder(ids, segment_ids=torch.zeros_like(ids), cache=decoder.new_cache(2, 8))
    with pytest.raises(ValueError, match="max_len: 15 tokens, but the learned positions end at max_seq_len = 14"):
        decoder.new_cache(1, 15)
    with pytest.raises(ValueError, match="max_len: 0"):
        decoder.new_cache(1, 0)
    with pytest.raises(UnsupportedCache, match="another model"):
        random_decoder(decoder.recipe, 0)(ids, cache=decoder.new_cache(2, 8))
    ragged = decoder.new_cache(2, 4)
    with pytest.raises(CacheFull, match="row 1 would hold 5"):
        decoder(ids, torch.tensor([[1, 1, 0, 0, 0], [1] * 5]), cache=ragged)
    assert ragged.rows == (0, 0)
