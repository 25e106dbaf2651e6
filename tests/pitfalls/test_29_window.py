"""29. Window of w keys or w + 1 (huggingface/transformers#39408).

w = 4, 8 tokens: 1, 2, 3, 4, 4, 4, 4, 4 keys, on every kernel, in FLOPs and in the cache. w = 1 sees itself alone,
w >= length is full.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.cost import budget
from assay.cost.spans import legal_pairs
from assay.model.backend import BACKENDS, Call, Legal
from assay.model.context import Context, positions_of
from assay.recipe import Recipe
from assay.recipe.span import FullSpan, WindowSpan
from tests.pitfalls.support import close, decoder, ids, recipe, record

COUNTS = [1, 2, 3, 4, 4, 4, 4, 4]


def legal(size: int, length: int) -> Legal:
    batch = torch.zeros(1, length, dtype=torch.long)
    return Context(batch, positions_of(length, batch.device, None, None), BACKENDS["auto"]).legal(WindowSpan(size=size))


@pytest.mark.parametrize("name", ["reference", "sdpa", "auto"])
def test_keys_a_kernel_uses(name: str) -> None:
    q = torch.zeros(1, 1, 8, 4)
    out = BACKENDS[name].attend(q, q, torch.eye(8)[None, None], Call(legal(4, 8), 1.0))
    assert (out > 0).sum(-1).flatten().tolist() == COUNTS
    assert (out[0, 0, 7] > 0).tolist() == [False] * 4 + [True] * 4


def test_transformers_mask_agrees() -> None:
    masking = pytest.importorskip("transformers.masking_utils")
    overlay = masking.sliding_window_overlay(4)
    theirs = [[bool(overlay(0, 0, i, j)) and j <= i for j in range(8)] for i in range(8)]
    assert legal(4, 8).as_mask(8, 8, torch.device("cpu"))[0, 0].tolist() == theirs


def windowed(size: int) -> Recipe:
    return recipe({"n_layers": 1}, span={"kind": "window", "size": size})


def test_flops_and_cache() -> None:
    # 4 query heads of 8: 4 · 32 FLOPs a pair; 2 key/value heads of 8: 64 bytes a token in bf16
    cost = budget(windowed(4), seq_len=8)
    assert cost.flops.by_op["attention_core_legal"] == 4 * 32 * sum(COUNTS)
    assert (cost.cache.bytes, cost.cache.bytes_per_token) == (4 * 64, 64)
    assert [legal_pairs(WindowSpan(size=4), 1, past) for past in range(8)] == COUNTS


@pytest.mark.parametrize("size", [8, 9, 100])
def test_a_wide_window_is_full(size: int) -> None:
    assert legal(size, 8).kind == "causal"
    assert legal_pairs(WindowSpan(size=size), 8, 0) == legal_pairs(FullSpan(), 8, 0) == 36
    x = ids(0, 2, 8)
    with torch.no_grad():
        assert torch.equal(decoder(span={"kind": "window", "size": size})(x), decoder()(x))
        assert not close(decoder(span={"kind": "window", "size": 7})(x), decoder()(x), 1e-6)


def test_a_window_of_one_sees_itself() -> None:
    """Then what stood before a token cannot matter."""
    model = decoder(span={"kind": "window", "size": 1})
    x: Any = ids(0, 1, 8)
    y = x.clone()
    y[0, :7] = (y[0, :7] + 1) % 32
    with torch.no_grad():
        assert close(model(x)[0, 7], model(y)[0, 7])


@torch.no_grad()
def test_keys_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of 4 places, 4 keys and no more for each query; prompts longer than the window, in pieces too."""
    model = decoder({"n_layers": 1}, span={"kind": "window", "size": 4})
    recording = record(monkeypatch, model)
    cache = model.new_cache(1, 8, dtype=torch.bfloat16)
    assert cache.nbytes == budget(windowed(4), seq_len=8).cache.bytes
    x = ids(0, 1, 8)
    for token in x.T:
        model(token[None], cache=cache)
    assert [k.shape[2] for _, k, _, _ in recording.calls] == COUNTS
    exact = model.new_cache(1, 8)
    parts = torch.cat([model(part, cache=exact) for part in x.split((5, 3), dim=1)], dim=1)
    assert close(parts, model(x))
