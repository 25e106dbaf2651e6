"""What the laws share: batches, gradients, and one way to say "the same number"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.model import Decoder, Loss, named_params
from assay.recipe import Recipe

REL = 1e-9  # in float64
seeds = st.integers(0, 2**16)
backends = st.sampled_from(["auto", "reference"])


def examples(share: float) -> Callable[[Any], Any]:
    """This share of the profile's examples, for a law whose every example is dear."""
    return settings(max_examples=max(2, round(share * settings().max_examples)))


def random_ids(recipe: Recipe, batch: int, length: int, seed: int = 0) -> Tensor:
    """(batch, length) token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, recipe.vocab_size, (batch, length), generator=generator)


def random_targets(recipe: Recipe, batch: int, length: int, seed: int = 0) -> Tensor:
    """(batch, length) targets, about one in five ignored."""
    targets = random_ids(recipe, batch, length, seed + 1)
    generator = torch.Generator().manual_seed(seed + 2)
    return targets.masked_fill(torch.rand(batch, length, generator=generator) < 0.2, -100)


def assert_close(got: Tensor, want: Tensor, rel: float = REL, what: str = "values") -> None:
    """Every entry within ``rel`` of the largest entry wanted."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    assert torch.isfinite(got).all(), f"{what}: not finite"
    assert torch.isfinite(want).all(), f"{what}: not finite where it is compared with"
    if want.numel():
        worst, size = (got.double() - want.double()).abs().max().item(), want.abs().max().item()
        assert worst <= rel * max(size, 1e-12), f"{what}: off by {worst:.3g}, largest {size:.3g}"


def grads_of(decoder: nn.Module, scalar: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter by name; zeros where a parameter has no part."""
    params = {p.name: p.param for p in named_params(decoder)}
    grads = torch.autograd.grad(scalar, list(params.values()), allow_unused=True)
    pairs = zip(params.items(), grads, strict=True)
    return {name: torch.zeros_like(param) if grad is None else grad for (name, param), grad in pairs}


def loss_grads(decoder: Decoder, *args: Any, **kwargs: Any) -> tuple[Loss, dict[str, Tensor]]:
    """``decoder.loss`` and the gradient of its sum."""
    loss = decoder.loss(*args, **kwargs)
    return loss, grads_of(decoder, loss.sum)


def assert_grads_close(got: dict[str, Tensor], want: dict[str, Tensor], rel: float = REL) -> None:
    """Every gradient within ``rel`` of its largest entry, or of 1/1000 of the model's largest.

    Some gradients are zero but for rounding (a key's bias under softmax), so they need the model's own scale.
    """
    assert list(got) == list(want)
    largest = max(g.abs().max().item() for g in want.values())
    for name, grad in want.items():
        assert torch.isfinite(got[name]).all(), f"gradient of {name} is not finite"
        worst = (got[name].double() - grad.double()).abs().max().item()
        size = max(grad.abs().max().item(), 1e-3 * largest, 1e-12)
        assert worst <= rel * size, f"gradient of {name}: off by {worst:.3g}, largest {size:.3g}"


def summed(grads: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Gradients added name by name."""
    total: dict[str, Tensor] = {}
    for each in grads:
        total = {name: g + total[name] if total else g for name, g in each.items()}
    return total
