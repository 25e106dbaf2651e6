"""Greedy continuations of every family are transformers' own, token by token.

Ours: a left-padded batch through the engine, from a cache. transformers': ``generate`` for each row alone. Past every
window and past the original context of LongRoPE; dynamic NTK stays within its own, where the base is fixed: beyond it
transformers keeps keys of older bases. Where transformers' two best logits are nearer than MARGIN of its largest, the
token is a tie and the row is compared no further; TIES says how many rows may end so.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from assay.decoding import Engine
from assay.interop import from_hf
from assay.model.cache import UnsupportedCache
from tests.interop.cases import CASES, CONTEXT, WINDOW
from tests.interop.support import ids_of

LENGTHS, NEW = (20, 17), 12
MARGIN, TIES = 2e-5, 0  # twice what logits are held to
assert max(LENGTHS) + NEW <= CONTEXT
assert min(LENGTHS) > WINDOW


def theirs(model: Any, prompt: Tensor) -> tuple[list[int], Tensor]:
    """New tokens, and the gap between the two best logits of each over the largest |logit|."""
    model.generation_config.eos_token_id = None
    out = model.generate(
        prompt[None], attention_mask=torch.ones_like(prompt)[None], do_sample=False, max_new_tokens=NEW,
        pad_token_id=0, eos_token_id=None, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    logits = torch.cat(out.logits)
    best = logits.topk(2, dim=-1).values
    return out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]) / logits.abs().amax(-1)


def ours(folder: Any, prompts: list[Tensor]) -> list[list[int]]:
    longest = max(len(p) for p in prompts)
    ids = torch.stack([torch.cat((p.new_zeros(longest - len(p)), p)) for p in prompts])
    mask = torch.stack([torch.arange(longest) >= longest - len(p) for p in prompts])
    engine = Engine(from_hf(folder), len(prompts), longest + NEW)
    logits, out = engine.prefill(ids, mask), []
    for _ in range(NEW):
        out.append(logits.argmax(-1))
        logits = engine.step(out[-1])
    return torch.stack(out, dim=1).tolist()


BOTH_WAYS = ("bert",)  # reads both ways: it continues nothing


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_what_reads_both_ways_is_refused(name: str, bench: Any) -> None:
    with pytest.raises(UnsupportedCache, match="not causal"):
        ours(bench(name).folder, [ids_of(1)[0]])


@pytest.mark.parametrize("name", [name for name in CASES if name not in BOTH_WAYS])
def test_greedy_tokens(name: str, bench: Any) -> None:
    b = bench(name)
    prompts = [row[:n] for row, n in zip(ids_of(3), LENGTHS, strict=True)]
    ties = 0
    for got, prompt in zip(ours(b.folder, prompts), prompts, strict=True):
        want, gap = theirs(b.model, prompt)
        tied = (gap < MARGIN).nonzero().flatten().tolist()
        end = tied[0] if tied else NEW
        ties += bool(tied)
        assert got[:end] == want[:end]
    assert ties <= TIES
