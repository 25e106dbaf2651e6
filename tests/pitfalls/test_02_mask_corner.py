"""02. Causal mask anchored at the wrong corner when queries are fewer than keys (pytorch/pytorch#108108).

Two queries, five keys: 11110 / 11111. torch's own flag gives 10000 / 11000.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from assay.model.backend import BACKENDS, Call, Legal
from assay.model.span import allowed
from assay.recipe.span import WindowSpan
from tests.pitfalls.support import close, decoder, ids
from tests.pitfalls.test_12_left_padding import KINDS

RIGHT = [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def seen_keys(out: torch.Tensor) -> list[list[int]]:
    """Which keys each query of one head used, when the values are the unit vectors."""
    return (out[0, 0] > 0).int().tolist()


@pytest.mark.parametrize("name", ["reference", "sdpa", "auto"])
def test_allowed_keys(name: str) -> None:
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4)
    out = BACKENDS[name].attend(q, k, torch.eye(5)[None, None], Call(Legal("causal"), 1.0))
    assert seen_keys(out) == RIGHT
    assert Legal("causal").as_mask(2, 5, torch.device("cpu")).int().tolist() == RIGHT


def test_torchs_flag_has_the_other_corner() -> None:
    out = F.scaled_dot_product_attention(
        torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4), torch.eye(5)[None, None], is_causal=True
    )
    assert seen_keys(out) == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]


@pytest.mark.parametrize("name", ["reference", "sdpa", "auto"])
@pytest.mark.parametrize("split", [(5, 3), (5, 1, 1, 1), (1,) * 8])
def test_chunks_of_queries_equal_the_whole(name: str, split: tuple[int, ...]) -> None:
    """8 tokens as 8, as 5+3, as 5+1+1+1, as 1x8, each chunk before the keys so far."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 8, 6, generator=generator)
    k, v = torch.randn(2, 2, 2, 8, 6, generator=generator)
    call = Call(Legal("causal"), 0.4)
    whole = BACKENDS[name].attend(q, k, v, call)
    start, parts = 0, []
    for n in split:
        end = start + n
        parts.append(BACKENDS[name].attend(q[:, :, start:end], k[:, :, :end], v[:, :, :end], call))
        start = end
    assert torch.allclose(torch.cat(parts, dim=2), whole, atol=1e-5)


def test_a_window_counts_back_from_the_query() -> None:
    """The same corner for a window of 3: queries 3 and 4 of 5."""
    query, key = torch.arange(3, 5).unsqueeze(-1), torch.arange(5).unsqueeze(-2)
    assert allowed(WindowSpan(size=3), query, key).int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_a_model_behind_its_cache(kind: str) -> None:
    """Every position scheme and span: the logits of 8 tokens however they come."""
    over, mixer = KINDS[kind]
    model = decoder(over, **mixer)
    x = ids(0, 2, 8)
    want = model(x)
    for split in ((8,), (5, 3), (5, 1, 1, 1), (1,) * 8):
        cache = model.new_cache(2, 8)
        assert close(torch.cat([model(part, cache=cache) for part in x.split(split, dim=1)], dim=1), want)
