"""Logits of transformers' own tiny models, built from their own configs, against ours.

Every weight is random on their side, gains and biases too, then carried over by name. Lengths go past every window and
past every stretched context.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from assay.model import Decoder, build, named_params
from assay.recipe import resolve
from assay.recipe.merge import apply_overrides
from tests.reference.families import CONTEXT, FAMILIES, VOCAB, WINDOW

LENGTH = 41
TOLERANCE = 1e-5  # of the largest logit
assert WINDOW < LENGTH < CONTEXT


@cache
def theirs(name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Their parameters under our names, the ids, their logits."""
    transformers = pytest.importorskip("transformers")
    family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(family.kind, **family.config)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    model.eval()
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for path, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in path or "ln_" in path or p.dim() == 1:
                p.add_(0.4 * noise)  # gains around where they start, biases around 0
            else:
                p.copy_(noise * p.shape[-1] ** -0.5)
    ids = torch.randint(0, VOCAB, (2, LENGTH), generator=generator)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    params = {path: p.detach() for path, p in model.named_parameters(remove_duplicate=False)}
    return family.translate(params), ids, logits


def ours(name: str, table: dict[str, Any]) -> Decoder:
    params, _, _ = theirs(name)
    decoder = build(resolve(table)).eval()
    mine = {p.name: p.param for p in named_params(decoder)}
    assert sorted(params) == sorted(mine)
    with torch.no_grad():
        for path, p in mine.items():
            assert p.shape == params[path].shape, path
            p.copy_(params[path])
    return decoder


def difference(decoder: Decoder, name: str) -> float:
    _, ids, logits = theirs(name)
    with torch.no_grad():
        return float((decoder(ids) - logits).abs().max() / logits.abs().max())


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits(name: str, backend: str) -> None:
    decoder = ours(name, FAMILIES[name].recipe)
    decoder.use_backend(backend)
    assert difference(decoder, name) < TOLERANCE


FLIPS = [(name, flip) for name, family in FAMILIES.items() for flip in family.flips]


@pytest.mark.parametrize(("name", "flip"), FLIPS)
def test_one_changed_field_is_seen(name: str, flip: str) -> None:
    """The same weights under a recipe that differs in one field: the comparison above would fail."""
    decoder = ours(name, apply_overrides(FAMILIES[name].recipe, [flip]))
    assert difference(decoder, name) > 10 * TOLERANCE
