"""Weights that a run begins from instead of drawing its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from assay.model import Decoder, named_params
from assay.recipe.errors import Problem
from assay.training.config import InitFrom, RunError
from assay.training.tensors import safetensors_of

_SHOWN = 6


@dataclass(frozen=True)
class Start:
    """Weights by parameter name, and where they are from. Only they are taken: no optimizer, no step, no data order."""

    weights: Mapping[str, Tensor]
    source: str

    @classmethod
    def of(cls, model: nn.Module, source: str) -> Start:
        """A model's weights."""
        return cls({p.name: p.param.detach() for p in named_params(model)}, source)

    @cached_property
    def sha256(self) -> str:
        """Of names, shapes, types and every byte."""
        digest = hashlib.sha256()
        for chunk in safetensors_of(self.weights):
            digest.update(chunk)
        return digest.hexdigest()

    @property
    def spec(self) -> InitFrom:
        """What a run's configuration says of it."""
        return InitFrom(source=self.source, sha256=self.sha256)

    def check(self, decoder: Decoder, place: str = "init_from") -> None:
        """Raises RunError naming the first tensors that do not fit a model, which may be on the meta device."""
        wanted = {p.name: p.param for p in named_params(decoder)}
        problems = [
            Problem(
                f"{place}.{name}", f"{self.source} does not have it" if name in wanted else "the recipe has no such"
            )
            for name in sorted(wanted.keys() ^ self.weights.keys())
        ]
        for name, param in wanted.items():
            found = self.weights.get(name)
            if found is not None and found.shape != param.shape:
                shapes = list(found.shape), str(list(param.shape))
                problems.append(Problem(f"{place}.{name}", f"another shape in {self.source}", *shapes, "", True))
        if problems:
            more = len(problems) - _SHOWN
            shown = problems[:_SHOWN] + ([Problem(place, f"{more} more tensors differ")] if more > 0 else [])
            raise RunError(shown, "run")

    def fill(self, decoder: Decoder, place: str = "init_from") -> None:
        """Put the weights into a model that they fit; raises RunError, with nothing changed, where they do not."""
        self.check(decoder, place)
        with torch.no_grad():
            for p in named_params(decoder):
                p.param.copy_(self.weights[p.name])
