"""Counted = built: what is computed from a recipe is what the model holds and does."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from assay.cost import Work, budget, flops_of, tensors_of
from assay.model import Decoder, build, named_params
from assay.model.span import allowed
from assay.recipe import Recipe
from assay.recipe.mixer import Attention, Mixer, MixerSum
from tests.laws.common import backends, examples
from tests.strategies import recipes


def on_meta(recipe: Recipe, backend: str = "auto") -> Decoder:
    return build(recipe, device="meta", dtype=torch.float64, backend=backend)


def attentions(mixer: Mixer) -> list[Attention]:
    if isinstance(mixer, MixerSum):
        return [spec for branch in mixer.branches for spec in attentions(branch.mixer)]
    return [mixer] if isinstance(mixer, Attention) else []


@given(recipes(dropout=True))
def test_every_tensor_is_counted(recipe: Recipe) -> None:
    """Names, shapes, roles and starting constants, one by one; the totals follow."""
    built = {p.name: (tuple(p.param.shape), p.role, p.start) for p in named_params(on_meta(recipe))}
    counted = tensors_of(recipe)
    assert {t.name: (t.shape, t.role, t.start) for t in counted} == built
    assert len(counted) == len(built)
    params = budget(recipe).params
    assert params.total == sum(p.numel() for p in on_meta(recipe).parameters())
    assert params.total == sum(params.by_role.values()) == sum(params.by_component.values())


@examples(0.6)
@given(recipes(dropout=True), backends, st.sampled_from([(2, 7), (1, 1), (3, 12)]))
def test_flops_are_those_of_torchs_counter(recipe: Recipe, backend: str, size: tuple[int, int]) -> None:
    """Forward, and training as three times that: exact, with whole attention squares as the counter sees them."""
    decoder = on_meta(recipe, backend)
    ids = torch.zeros(size, dtype=torch.long, device="meta")
    total = flops_of(recipe, Work(*size)).total
    with FlopCounterMode(display=False) as forward:
        decoder(ids)
    assert forward.get_total_flops() == total.matmul + total.core_square
    with FlopCounterMode(display=False) as training:
        decoder.loss(ids, ids).sum.backward()
    assert training.get_total_flops() == 3 * forward.get_total_flops()
    counts = budget(recipe, *size).flops
    assert counts.forward_full == forward.get_total_flops()
    assert counts.train_per_token == training.get_total_flops() // (size[0] * size[1])
    assert sum(v for k, v in counts.by_op.items() if k != "attention_core_legal") == counts.forward_full


@given(recipes(), st.integers(1, 9), st.integers(0, 9), st.integers(1, 3))
def test_legal_pairs_are_those_of_the_masks(recipe: Recipe, new: int, past: int, batch: int) -> None:
    """Attention counts exactly the (query, key) pairs that the model's masks allow, cached keys among them."""
    query = torch.arange(past, past + new).unsqueeze(-1)
    key = torch.arange(past + new).unsqueeze(0)
    legal = square = 0
    for layer in recipe.layers:
        for spec in attentions(layer.mixer):
            cores = 1 if spec.differential.is_none else 2  # one for each half of the values
            a_pair = 4 * batch * spec.n_heads * spec.head_dim * cores
            legal += a_pair * int(allowed(spec.span, query, key).expand(new, past + new).sum())
            square += a_pair * new * (past + new)
    total = flops_of(recipe, Work(batch, new, past)).total
    assert (total.core_legal, total.core_square) == (legal, square)


@given(recipes(causal=True), st.integers(1, 14))
def test_steps_sum_to_the_whole(recipe: Recipe, length: int) -> None:
    """Token by token costs what all at once costs, where no query sees a later key."""
    whole = flops_of(recipe, Work(1, length)).total
    steps = [flops_of(recipe, Work(1, 1, past)).total for past in range(length)]
    assert sum(s.core_legal for s in steps) == whole.core_legal
    assert sum(s.matmul for s in steps) == whole.matmul
