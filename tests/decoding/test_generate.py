"""Rows of tokens continued: any batch, any padding, any order of ending give each row the same tokens."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import assay
from assay.decoding import Bytes, Decoding, DecodingError, Kept, Sampling, complete, generate
from tests.decoding.slow import Uncached
from tests.laws.common import examples
from tests.pitfalls.support import decoder as small
from tests.strategies import random_decoder, recipes

SAMPLED = {"temperature": 1.2, "top_p": 0.95}


def slow(decoder: Any, ids: Tensor, n: int, mask: Tensor | None = None, **more: Any) -> Any:
    options = {k: more.pop(k) for k in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty") if k in more}
    return complete(decoder, ids, n, mask, sampling=Sampling.of(**options), engine=Uncached, **more)


@functools.cache
def model(vocab: int = 256) -> Any:
    return small({"vocab_size": vocab, "max_seq_len": 64}, dtype=torch.float32)


def prompts(lengths: list[int], left: bool = True, vocab: int = 256) -> tuple[Tensor, Tensor, list[Tensor]]:
    """A padded table, its mask, and each row alone."""
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = [torch.randint(1, vocab, (n,), generator=generator) for n in lengths]
    width = max(lengths)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        at = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, at], mask[i, at] = row, 1
    return ids, mask, rows


@given(
    recipes(causal=True), st.booleans(), st.sampled_from([{}, SAMPLED, {"temperature": 0.7, "repetition_penalty": 1.4}])
)
@examples(0.5)
def test_a_row_is_the_same_in_any_batch(recipe: Any, left: bool, options: dict[str, float]) -> None:
    """Padded = alone, batch 1 = batch n, and as the plain loop without a cache writes it."""
    decoder = random_decoder(recipe, dtype=torch.float64)
    ids, mask, rows = prompts([3, 5, 1], left, recipe.vocab_size)
    seeds = [5, 6, 5]
    options = {**options, "rope_length": 9}
    together = generate(decoder, ids, 4, mask, seed=seeds, **options)
    for row, alone in enumerate(rows):
        one = generate(decoder, alone[None], 4, seed=seeds[row], **options)
        assert one[0].tolist() == together[row].tolist()
        assert one.tolist() == slow(decoder, alone[None], 4, seed=seeds[row], **options).ids.tolist()


def test_what_a_pad_holds_matters_to_nobody() -> None:
    ids, mask, _ = prompts([2, 6, 4])
    want = generate(model(), ids, 6, mask, seed=1, repetition_penalty=1.5, **SAMPLED)
    other = torch.where(mask.bool(), ids, torch.full_like(ids, 9999))
    assert generate(model(), other, 6, mask, seed=1, repetition_penalty=1.5, **SAMPLED).tolist() == want.tolist()


def test_finished_rows_stop_and_stay() -> None:
    """Each row ends at its own stop id; after it only pads; the others go on as if alone."""
    ids, mask, rows = prompts([4, 4, 4, 4])
    free = generate(model(), ids, 12, mask, seed=[0, 1, 2, 3], temperature=1.5)
    stop = [int(free[0, 2]), int(free[1, 7])]
    out = complete(
        model(), ids, 12, mask, sampling=Sampling.of(temperature=1.5), seed=[0, 1, 2, 3], stop_ids=stop, pad_id=-7,
        logprobs=True,
    )  # fmt: skip
    for row in range(4):
        hits = [n for n in range(12) if int(free[row, n]) in stop]
        end = hits[0] + 1 if hits else 12
        assert out.lengths[row] == end
        assert out.finish[row] == ("stop_id" if hits else "length")
        assert out.ids[row, :end].tolist() == free[row, :end].tolist()
        assert set(out.ids[row, end:].tolist()) <= {-7}
        assert out.logprobs is not None
        assert not out.logprobs[row, end:].any()
        alone = generate(model(), rows[row][None], 12, seed=row, temperature=1.5, stop_ids=stop)
        assert alone[0].tolist() == free[row, :end].tolist()
    everybody = generate(model(), ids, 12, mask, stop_ids=range(256))
    assert everybody.shape == (4, 1)  # the batch stops with its last row


def test_logprobs_are_the_models_own() -> None:
    """Under the plain softmax of uncached logits, whatever filters chose the token."""
    ids, mask, rows = prompts([3, 5])
    out = complete(model(), ids, 6, mask, sampling=Sampling.of(temperature=1.7, top_k=20), seed=[1, 2], logprobs=True)
    assert out.logprobs is not None
    for row, alone in enumerate(rows):
        whole = torch.cat((alone, out.ids[row]))
        want = torch.log_softmax(model()(whole[None])[0].double(), dim=-1)
        places = range(len(alone) - 1, len(whole) - 1)
        picked = torch.stack([want[t, whole[t + 1]] for t in places])
        torch.testing.assert_close(out.logprobs[row].double(), picked, rtol=1e-5, atol=1e-5)


def test_the_penalty_counts_prompt_and_text_but_no_pads() -> None:
    """A penalty that forbids repetition: every token comes once; a pad's id, 0, may come too."""
    ids, mask, rows = prompts([3, 7])
    out = generate(model(), ids, 40, mask, repetition_penalty=1e9)
    for row, alone in enumerate(rows):
        assert len({*alone.tolist(), *out[row].tolist()}) == len(alone.unique()) + 40
        assert out[row].tolist() == generate(model(), alone[None], 40, repetition_penalty=1e9)[0].tolist()


def test_stop_strings_end_a_row_across_tokens() -> None:
    """Byte tokens: a stop string of three bytes that the model writes anyway."""
    ids, _, _ = prompts([4, 4])
    free = generate(model(), ids, 20, temperature=2.0, seed=[3, 4], min_p=0.0)
    text = Bytes().decode(free[0].tolist())
    stop = next(text[i : i + 2] for i in range(4, len(text)) if text[i : i + 2].isascii() and len(text[i : i + 2]) == 2)
    out = complete(model(), ids, 20, sampling=Sampling.of(temperature=2.0), seed=[3, 4], stop=[stop], tokenizer=Bytes())
    assert out.finish[0] == "stop"
    assert stop in Bytes().decode(out.ids[0, : out.lengths[0]].tolist())
    assert stop not in Bytes().decode(out.ids[0, : out.lengths[0] - 1].tolist())
    assert out.ids[1, : out.lengths[1]].tolist() == free[1, : out.lengths[1]].tolist()


def test_a_table_wider_than_its_tokenizer_never_gives_the_rest() -> None:
    ids, mask, _ = prompts([4, 2])
    work = Decoding(
        model(), ids, mask, max_new_tokens=30, sampling=Sampling.of(temperature=3.0), seeds=[1, 2], vocab=50
    )
    assert max(int(step.ids.max()) for step in work) < 50


def test_an_engine_kept_from_batch_to_batch() -> None:
    """Rows of each batch as if alone; one engine for batches of a size, another for the rest."""
    kept, made = Kept(20), []
    for lengths in ([3, 5], [7, 1], [4, 4], [6]):
        ids, mask, rows = prompts(lengths)
        out = complete(
            model(), ids, 8, mask, sampling=Sampling.of(temperature=1.1), seed=3, rope_length=20, engine=kept
        )
        assert kept._made is not None
        made.append(kept._made[1])
        for row, alone in enumerate(rows):
            want = generate(model(), alone[None], 8, temperature=1.1, seed=3, rope_length=20)
            assert out.ids[row].tolist() == want[0].tolist()
    assert made[0] is made[1] is made[2] is not made[3]


def test_the_mode_of_the_model_is_given_back() -> None:
    decoder = small({"block": {"residual": {"rule": "pre", "norm": "rmsnorm", "dropout": 0.5}}}).train()
    ids = torch.ones(1, 3, dtype=torch.long)
    assert generate(decoder, ids, 4).tolist() == generate(decoder.eval(), ids, 4).tolist()
    assert generate(decoder.train(), ids, 4) is not None
    assert decoder.training
    assert not torch.is_inference_mode_enabled()


def test_in_the_public_api() -> None:
    assert assay.generate is generate
    assert generate(model(), torch.tensor([[1, 2]]), max_new_tokens=3).shape == (1, 3)


LEARNED = {"embedding": {"tied": False, "position": "learned"}, "block": {"mixer": {"position": {"kind": "none"}}}}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"ids": [[]]}, ("prompt", "row 0 is empty")),
        ({"ids": [[1, 2], [3, 4]], "mask": [[1, 1], [0, 0]]}, ("prompt", "row 1 is empty")),
        ({"ids": [[1, 2], [3, 32]]}, ("ids", "row 1, place 1", "32", "0 to 31")),
        ({"ids": [[1, -1]]}, ("row 0, place 1", "-1")),
        ({"ids": [[1.0]]}, ("ids", "float32", "integers")),
        ({"ids": [1, 2]}, ("ids", "(2,)", "(batch, length)")),
        ({"max_new_tokens": 0}, ("max_new_tokens", "at least 1")),
        ({"mask": [[1]]}, ("padding_mask", "(1, 2)")),
        ({"ids": [[1] * 64]}, ("64 tokens", "max_seq_len = 64", "at most 63")),
        ({"ids": [[1] * 60], "max_new_tokens": 5}, ("60 tokens and 5 new ones are 65", "max_new_tokens = 4")),
        ({"seed": [1, 2]}, ("seed", "2 seeds for 1 rows")),
        ({"stop": ["x"]}, ("stop", "a tokenizer")),
    ],
)
def test_faults(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    given_: dict[str, Any] = {"ids": [[1, 2]], "max_new_tokens": 2, **change}
    ids, mask = torch.tensor(given_.pop("ids")), given_.pop("mask", None)
    if ids.numel() == 0:
        ids = ids.long()
    with pytest.raises(DecodingError) as error:
        generate(small(LEARNED), ids, padding_mask=None if mask is None else torch.tensor(mask), **given_)
    for part in parts:
        assert part in str(error.value)


def test_a_model_that_looks_ahead_cannot_write() -> None:
    with pytest.raises(DecodingError, match=r"layers\.0\.mixer: span full is not causal"):
        generate(small(span={"kind": "full", "causal": False}), torch.tensor([[1, 2]]), 3)


def test_weights_that_are_no_numbers_are_named() -> None:
    decoder = small(dtype=torch.float32)
    with torch.no_grad():
        decoder.layers[1].ffn.up.weight[0, 3] = torch.nan
    with pytest.raises(DecodingError, match=r"layers\.1\.ffn\.up\.weight \(1 of 384 values\)"):
        generate(decoder, torch.tensor([[1, 2]]), 3)
    for wrong in (torch.nan, torch.inf):  # in one logit of many
        decoder = small(dtype=torch.float32)
        with torch.no_grad():
            decoder.head.table[5, 0] = wrong
        for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.5}):
            with pytest.raises(DecodingError, match=r"head\.table \(1 of 512 values\)"):
                generate(decoder, torch.tensor([[1, 2]]), 3, **options)
    half = small(dtype=torch.float16)
    with torch.no_grad():
        half.head.table.fill_(6e4)
    with pytest.raises(DecodingError, match=r"overflowed in torch\.float16"):
        generate(half, torch.tensor([[1, 2]]), 3)


@pytest.mark.parametrize("n", [10**13, 10**17, 10**19])
def test_a_cache_that_does_not_fit_is_told(n: int) -> None:
    with pytest.raises(DecodingError, match=r"max_new_tokens: the cache of 1 rows of 1[0,]+2 tokens does not fit"):
        generate(model(), torch.tensor([[1, 2]]), n)


def test_what_is_kept_of_a_finished_decoding_is_small() -> None:
    """A file of prompts keeps one for every batch: nothing of them may be of the vocabulary's size."""
    work = Decoding(
        model(), torch.tensor([[1, 2]]), max_new_tokens=2, sampling=Sampling(repetition_penalty=1.3), seeds=[0]
    )
    assert len(list(work)) == 2
    assert sum(value.nbytes for value in vars(work).values() if isinstance(value, Tensor)) < 64
