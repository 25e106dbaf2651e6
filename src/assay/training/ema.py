"""A running mean of the weights, beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """``mean = decay · mean + (1 - decay) · weights`` after each update, from the starting weights (Polyak & Juditsky
    1992; exponential as in Izmailov et al. 2018, arXiv:1803.05407). By parameter name; in the weights' dtype.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.params = dict(model.named_parameters())
        self.mean = {name: p.detach().clone() for name, p in self.params.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights as they are now into the mean."""
        for name, p in self.params.items():
            self.mean[name].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put a saved mean back, by name."""
        for name, mean in self.mean.items():
            mean.copy_(saved[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the mean as its weights; they come back afterwards, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, p in self.params.items():
            p.data, self.mean[name] = self.mean[name], p.data
