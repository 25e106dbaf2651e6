"""What is watched inside the model while it trains."""

from __future__ import annotations

import re

from torch import Tensor

from assay.model import Probe

_RESIDUAL = re.compile(r"layers\.(\d+)\.residual")
_SCORES = re.compile(r"layers\.(\d+)\.mixer\.scores")


class LayerWatch:
    """A probe that keeps, for each layer, the residual stream's RMS and the largest attention logit."""

    def __init__(self, n_layers: int) -> None:
        self._rms: list[Tensor | None] = [None] * n_layers
        self._peak: list[Tensor | None] = [None] * n_layers

    def wants(self, name: str) -> bool:
        return bool(_RESIDUAL.fullmatch(name) or _SCORES.fullmatch(name))

    def __call__(self, name: str, value: Tensor) -> None:
        hit = _RESIDUAL.fullmatch(name)
        if hit:
            self._rms[int(hit[1])] = value.detach().float().square().mean().sqrt()
            return
        hit = _SCORES.fullmatch(name)
        if hit:
            self._peak[int(hit[1])] = value.detach().float().max()

    def row(self) -> dict[str, list[float | None]]:
        """The numbers of one step: ``residual_rms`` and ``max_logit`` by layer (None where a layer has no scores)."""
        return {"residual_rms": _numbers(self._rms), "max_logit": _numbers(self._peak)}


class _Both:
    """Two probes of one forward pass."""

    def __init__(self, a: Probe, b: Probe) -> None:
        self.probes = (a, b)

    def wants(self, name: str) -> bool:
        return any(probe.wants(name) for probe in self.probes)

    def __call__(self, name: str, value: Tensor) -> None:
        for probe in self.probes:
            if probe.wants(name):
                probe(name, value)


def both(a: Probe | None, b: Probe | None) -> Probe | None:
    """Two probes as one, where both are there."""
    return _Both(a, b) if a is not None and b is not None else a if b is None else b


def _numbers(values: list[Tensor | None]) -> list[float | None]:
    return [None if v is None else float(v) for v in values]
