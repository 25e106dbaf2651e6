"""What lower precision costs: float32 gradients against float64, bfloat16 logits within a bound of its own.

A drawn recipe can be as ill-conditioned as it likes (a LayerNorm of five ReLU² outputs that are all but zero), so each
is measured first: how far its float64 numbers move when every weight moves by a rounding of the lower precision.
"""

from __future__ import annotations

import torch
from hypothesis import assume, given

from assay.model import Decoder, named_params
from assay.recipe import Recipe
from tests.laws.common import examples, grads_of, random_ids, random_targets, seeds
from tests.strategies import random_decoder, recipes

LENGTH = 11


def in_float64(decoder: Decoder) -> Decoder:
    """The same weights, exactly, in a float64 decoder."""
    other = random_decoder(decoder.recipe)
    other.load_state_dict(decoder.state_dict())
    return other


def step(decoder: Decoder, seed: int, rate: float) -> dict[str, torch.Tensor]:
    """One step of gradient descent on the mean loss, and the gradients after it."""
    ids, targets = random_ids(decoder.recipe, 4, LENGTH, seed), random_targets(decoder.recipe, 4, LENGTH, seed)
    loss = decoder.loss(ids, targets)
    grads = grads_of(decoder, loss.sum / loss.count)
    with torch.no_grad():
        for p in named_params(decoder):
            p.param.sub_(rate * grads[p.name])
    after = decoder.loss(ids, targets)
    return grads_of(decoder, after.sum / after.count)


def off(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    """The distance between two gradients of a whole model, relative to the second."""
    distance = sum((got[name].double() - grad.double()).square().sum() for name, grad in want.items())
    return float((distance / sum(grad.double().square().sum() for grad in want.values())).sqrt())


def moved(decoder: Decoder, by: float, seed: int) -> Decoder:
    """The decoder in float64 with every weight a fraction ``by`` larger or smaller, at random."""
    other = in_float64(decoder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in other.parameters():
            param.mul_(1 + by * (2 * torch.randint(0, 2, param.shape, generator=generator) - 1))
    return other


@examples(0.8)
@given(recipes(), seeds)
def test_float32_gradients_are_within_1e_5_after_a_step(recipe: Recipe, seed: int) -> None:
    """For every recipe whose gradient can be had in float32 at all: half a rounding of its weights moves it < 1e-6."""
    single = random_decoder(recipe, seed, dtype=torch.float32)
    want = step(in_float64(single), seed, 0.01)
    assume(off(step(moved(single, 2**-24, seed), seed, 0.01), want) < 1e-6)
    assert off(step(single, seed, 0.01), want) <= 1e-5


@examples(0.8)
@given(recipes(), seeds)
def test_bfloat16_logits_are_within_a_rounding_of_the_weights(recipe: Recipe, seed: int) -> None:
    """As far off as the float64 logits of models whose weights are each off by 2^-8, times 2: the bound of bf16."""
    half = random_decoder(recipe, seed, dtype=torch.bfloat16)
    ids = random_ids(recipe, 4, LENGTH, seed)
    with torch.no_grad():
        got, want = half(ids), in_float64(half)(ids)
        off_by_a_rounding = [float((moved(half, 2**-8, seed + i)(ids) - want).norm()) for i in range(3)]
    assert got.dtype == torch.bfloat16
    assert float((got.double() - want).norm()) <= 2 * max(off_by_a_rounding) + 2**-9 * float(want.norm())
