"""Every field counts: change one, and the parameters, start, cost or numbers change, or the recipe is refused."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.cost import budget, starts_of, tensors_of
from assay.recipe import Recipe, resolve
from tests.laws.common import random_ids
from tests.laws.flips import Flip, every_field, flipped, flips_of
from tests.laws.rich import RICH
from tests.strategies import random_decoder, recipes

CHANGED = 1e-11  # of the largest logit: above rounding, far below what any field does


def changes(before: Recipe, after: Recipe) -> str | None:
    """The first of: parameters, start, cost, logits, training; None when the two recipes are one model."""
    if tensors_of(before) != tensors_of(after):
        return "parameters"
    if list(map(str, starts_of(before))) != list(map(str, starts_of(after))):
        return "start"
    if costs(before) != costs(after):
        return "cost"
    if differ(logits(before), logits(after)):
        return "logits"
    if differ(logits(before, training=True), logits(after, training=True)):
        return "training"
    return None


def costs(recipe: Recipe) -> dict[str, Any]:
    out = budget(recipe, batch=2).to_dict()
    return {key: value for key, value in out.items() if key not in ("name", "digest")}


@lru_cache(maxsize=4)
def logits(recipe: Recipe, training: bool = False) -> Tensor:
    """At a short length and at the longest: some fields matter only to one of them."""
    decoder = random_decoder(recipe).train(training)
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.cat([decoder(random_ids(recipe, 2, n)) for n in (5, recipe.max_seq_len)], dim=1)


def differ(a: Tensor, b: Tensor) -> bool:
    assert torch.isfinite(a).all()
    assert torch.isfinite(b).all()
    return (a - b).abs().max().item() > CHANGED * max(a.abs().max().item(), b.abs().max().item())


def counts(recipe: Recipe, flip: Flip) -> bool | None:
    """Whether a field counts; None where nothing else may stand in its place."""
    seen = []
    for value in flip.values:
        other = flipped(recipe, flip, value)
        if other is None:
            continue
        assert other.digest != recipe.digest, f"{flip}: {value!r} is accepted, but the digest is the same"
        seen.append(changes(recipe, other))
        if flip.every:
            assert seen[-1] is not None, f"{flip}: {value!r} is accepted and changes nothing"
        elif seen[-1] is not None:
            return True
    return any(seen) if seen else None


@given(recipes(dropout=True), st.data())
def test_every_field_counts(recipe: Recipe, data: st.DataObject) -> None:
    everything = flips_of(recipe)
    picked = data.draw(st.lists(st.integers(0, len(everything) - 1), min_size=10, max_size=10, unique=True))
    for flip in (everything[i] for i in picked):
        assert counts(recipe, flip) is not False, f"{flip}: accepted and without effect: {flip.values}"


@pytest.mark.parametrize("name", RICH)
def test_every_field_of_a_rich_recipe_counts(name: str) -> None:
    """Place by place, in one of the layers that are alike there."""
    recipe = resolve(RICH[name])
    flips = {(*_place(flip), repr(flip.before), flip.every): flip for flip in flips_of(recipe)}
    for flip in flips.values():
        assert counts(recipe, flip) is not False, f"{flip}: accepted and without effect: {flip.values}"


def _place(flip: Flip) -> tuple[str | int, ...]:
    return flip.path[2:] if flip.path[0] == "layers" else flip.path


def test_no_field_is_left_out() -> None:
    """The rich recipes hold every field there is, each with another value that is accepted."""
    held: set[tuple[str, str]] = set()
    for table in RICH.values():
        recipe = resolve(table)
        for flip in flips_of(recipe):
            key = (flip.spec.__name__, flip.field)
            if key not in held and any(flipped(recipe, flip, value) is not None for value in flip.values):
                held.add(key)
    assert every_field() - held == set()
    assert held - every_field() == set()
