"""12. Left-padded rows read shifted positions (unslothai/unsloth#3699).

A prompt of 6 alone, and with 3 pads on its left in a batch of three lengths: the same logits at the real places, the
same 20 greedy tokens. Learned and sinusoidal positions show the fault; plain RoPE hides it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from assay.decoding import Engine
from assay.model import Decoder
from tests.pitfalls.support import close, decoder, ids

NOPE: dict[str, Any] = {"position": "none"}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rope": ({}, {}),
    "rope, linear": ({}, {"position": {"kind": "rope", "scaling": {"kind": "linear", "factor": 4}}}),
    "rope, partial": ({}, {"position": {"kind": "rope", "fraction": 0.5, "layout": "interleaved"}}),
    "rope, yarn": ({}, {"position": {"kind": "rope", "scaling": {"kind": "yarn", "factor": 4, "original_seq_len": 8}}}),
    "learned": ({"embedding": {"position": "learned"}}, NOPE),
    "learned, offset": ({"embedding": {"position": {"kind": "learned", "offset": 2}}}, NOPE),
    "sinusoidal": ({"embedding": {"position": "sinusoidal"}}, NOPE),
    "sinusoidal, inclusive": ({"embedding": {"position": {"kind": "sinusoidal", "spacing": "inclusive"}}}, NOPE),
    "rope, dynamic": (
        {},
        {"position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 4.0, "original_seq_len": 8}}},
    ),
    "alibi": ({}, {"position": "alibi"}),
    "t5 bias": ({}, {"position": {"kind": "t5", "n_buckets": 8, "max_distance": 12}}),
    "queries by position": ({}, {"query_scale": {"kind": "by_position", "beta": 0.7, "period": 4}}),
    "differential": ({}, {"differential": {"norm": "rmsnorm"}}),
    "no position": ({}, NOPE),
    "window": ({}, {"span": {"kind": "window", "size": 3}}),
    "window and learned": ({"embedding": {"position": "learned"}}, {**NOPE, "span": {"kind": "window", "size": 3}}),
    "soft cap": ({"embedding": {"position": "learned"}}, {**NOPE, "soft_cap": 0.5}),
    "sinks": ({"embedding": {"position": "learned"}}, {**NOPE, "sinks": "per_head"}),
    "chunked": ({}, {"span": {"kind": "chunked", "size": 5}}),
    "alibi and window": ({}, {"position": "alibi", "span": {"kind": "window", "size": 4}}),
    "t5 and global tokens": (
        {},
        {
            "position": {"kind": "t5", "n_buckets": 8, "max_distance": 12},
            "span": {"kind": "window_global", "size": 4, "n_global": 2},
        },
    ),
    "strided": ({}, {"span": {"kind": "strided", "stride": 3}}),
    "fixed": ({}, {"span": {"kind": "fixed", "block": 4}}),
}
PROMPTS = [ids(1, 6), ids(2, 9), ids(3, 4)]


def left(prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(len(p) for p in prompts)
    rows = [torch.cat((torch.zeros(longest - len(p), dtype=torch.long), p)) for p in prompts]
    mask = [torch.arange(longest) >= longest - len(p) for p in prompts]
    return torch.stack(rows), torch.stack(mask).long()


def greedy(model: Decoder, prompts: list[Tensor], n: int) -> list[list[int]]:
    """n new tokens a prompt, the whole batch read anew for each."""
    batch, mask = left(prompts)
    for _ in range(n):
        new = model(batch, padding_mask=mask)[:, -1:].argmax(-1)
        batch, mask = torch.cat((batch, new), 1), torch.cat((mask, torch.ones_like(new)), 1)
    return batch[:, -n:].tolist()


def cached(model: Decoder, prompts: list[Tensor], n: int) -> list[list[int]]:
    """The same from a cache, each token read once; room for 32 tokens whatever the prompts."""
    batch, mask = left(prompts)
    engine = Engine(model, len(prompts), 32)
    logits, out = engine.prefill(batch, mask), []
    for _ in range(n):
        out.append(logits.argmax(-1))
        logits = engine.step(out[-1])
    return torch.stack(out, dim=1).tolist()


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_cached_rows_go_on_from_their_own_places(kind: str) -> None:
    over, mixer = KINDS[kind]
    model = decoder(over, **mixer)
    tokens = cached(model, PROMPTS, 20)
    assert tokens == [cached(model, [p], 20)[0] for p in PROMPTS]
    if kind != "rope, dynamic":  # whose base is that of 32 tokens here, of the current length without a cache
        assert tokens == greedy(model, PROMPTS, 20)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_row_is_the_row_alone(kind: str) -> None:
    over, mixer = KINDS[kind]
    model = decoder(over, **mixer)
    batch, mask = left(PROMPTS)
    together = model(batch, padding_mask=mask)
    for row, prompt in zip(together, PROMPTS, strict=True):
        assert close(row[-len(prompt) :], model(prompt.unsqueeze(0))[0])
    assert greedy(model, PROMPTS, 20) == [greedy(model, [p], 20)[0] for p in PROMPTS]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_shifted_positions_would_show(kind: str) -> None:
    """The six tokens three places later, nothing before them visible: what a shared index would compute."""
    over, mixer = KINDS[kind]
    model = decoder(over, **mixer)
    prompt = PROMPTS[0].unsqueeze(0)
    shifted = model.embedding(prompt, torch.arange(3, 9)) - model.embedding(prompt, torch.arange(6))
    assert shifted.abs().max() > 0.01
