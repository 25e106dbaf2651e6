"""The engine is the decoder read anew for every token, over random recipes; nothing is allocated on the way."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.decoding import Engine
from assay.recipe import Recipe
from tests.laws.common import assert_close, random_ids, seeds
from tests.strategies import random_decoder, recipes

LENGTH = 11


def prompts(seed: int, lengths: list[int], vocab: int, side: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(0, vocab, (len(lengths), width), generator=generator)
    counts, place = torch.tensor(lengths).unsqueeze(-1), torch.arange(width)
    return ids, place < counts if side == "right" else place >= width - counts


@given(
    recipes(causal=True), seeds, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.sampled_from(["left", "right"])
)
def test_steps_are_the_decoder_read_anew(recipe: Recipe, seed: int, lengths: list[int], side: str) -> None:
    decoder = random_decoder(recipe, seed)
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
