"""Compiled = eager: the same numbers, and one graph without a break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import Phase, given, settings

from assay.model import Decoder
from assay.recipe import Recipe, resolve
from tests.laws.common import REL, assert_close, random_ids, random_targets, seeds
from tests.laws.rich import RICH
from tests.strategies import random_decoder, recipes

LENGTH = 11


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_compiled_is_eager(recipe: Recipe, seed: int) -> None:
    """Logits of a padded batch, loss and gradients of a whole one, in one graph."""
    torch._dynamo.reset()
    decoder = random_decoder(recipe, seed)
    ids, targets = random_ids(recipe, 3, LENGTH, seed), random_targets(recipe, 3, LENGTH, seed)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [1]])

    def numbers(decoder: Decoder) -> tuple[torch.Tensor, ...]:
        return decoder(ids, padding_mask=mask), decoder.loss(ids, targets).sum

    compiled = torch.compile(numbers, backend="aot_eager", fullgraph=True, dynamic=False)
    want, got = numbers(decoder), compiled(decoder)
    for name, a, b in zip(("padded logits", "loss"), got, want, strict=True):
        assert_close(a, b, what=name)
    params = list(decoder.parameters())
    for a, b in zip(torch.autograd.grad(got[1], params), torch.autograd.grad(want[1], params), strict=True):
        largest = max(float(b.abs().max()), 1e-3)
        assert float((a - b).abs().max()) <= REL * largest


@pytest.mark.parametrize("name", RICH)
def test_compiled_is_eager(name: str) -> None:
    assert_compiled_is_eager(resolve(RICH[name]), 1)


@pytest.mark.slow
@settings(max_examples=12, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(recipes(max_layers=2), seeds)
def test_compiled_is_eager_for_random_recipes(recipe: Recipe, seed: int) -> None:
    assert_compiled_is_eager(recipe, seed)
