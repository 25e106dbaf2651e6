"""The coordinate check: how far a few updates move what a model computes, at several widths.

Under muP it does not depend on the width (Yang et al. 2022, arXiv:2203.03466, appendix D.1).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from assay.model import Decoder, build
from assay.recipe.mixer import attentions_of
from assay.recipe.parametrization import CompleteP, Mup, Parametrization, Standard
from assay.recipe.recipe import Recipe
from assay.recipe.widen import widened
from assay.training.config import RunConfig
from assay.training.loss import accumulate_gradients
from assay.training.optim.groups import optimizer_groups, set_rates


@dataclass(frozen=True)
class WidthRow:
    """One width: root mean squares of changes since the start, means over seeds.

    ``logits``: after each update; ``residual``: of the stream after each layer, after the last update.
    """

    width: int
    params: int
    logits: tuple[float, ...]
    residual: tuple[float, ...]
    logits_sd: float  # over seeds, after the last update


@dataclass(frozen=True)
class CoordinateCheck:
    """``ratio``: the logits' change at the largest width over that at the smallest, after the last update."""

    parametrization: str
    base_width: int
    lr: float
    seeds: int
    rows: tuple[WidthRow, ...]

    @property
    def ratio(self) -> float:
        return self.rows[-1].logits[-1] / self.rows[0].logits[-1]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def coordinate_check(
    recipe: Recipe,
    widths: Sequence[int],
    *,
    parametrization: str = "mup",
    base_width: int | None = None,
    optimizer: str | dict[str, Any] = "adamw",
    lr: float = 3e-3,
    steps: int = 5,
    seeds: int = 3,
    batch_size: int = 8,
    seq_len: int = 32,
    device: str = "cpu",
    on_done: Callable[[], None] | None = None,
) -> CoordinateCheck:
    """Train the recipe at several widths for a few updates on one batch of random tokens and measure how far it moves.

    Args:
        parametrization: ``standard``, ``mup`` or ``completep``.
        base_width: where the parametrisation changes nothing; by default the smallest width.
        on_done: called after each of the ``len(widths) · seeds`` runs.

    Raises:
        RecipeError, RunError: a recipe that cannot be made that wide, or that the parametrisation does not know.
    """
    ordered = sorted(widths)
    base = ordered[0] if base_width is None else base_width
    rows = []
    for width in ordered:
        config = RunConfig.from_dict(
            {
                "recipe": widened(recipe, width),
                "seq_len": min(seq_len, recipe.max_seq_len),
                "batch_size": batch_size,
                "steps": steps,
                "schedule": {"kind": "constant", "lr": lr},
                "optimizer": optimizer,
                "parametrization": _chosen(parametrization, recipe, base),
                "numerics": {"device": device},
            },
            "coord-check",
        )
        found = []
        for seed in range(seeds):
            found.append(_moves(config, seed))
            if on_done is not None:
                on_done()
        rows.append(_row(width, found))
    return CoordinateCheck(parametrization, base, lr, seeds, tuple(rows))


def _chosen(kind: str, recipe: Recipe, base: int) -> Parametrization | dict[str, Any]:
    """The parametrisation at this base, head sizes as they are there."""
    if kind == "standard":
        return Standard()
    sizes = {a.head_dim for layer in widened(recipe, base).layers for a in attentions_of(layer.mixer)}
    head_dim = sizes.pop() if len(sizes) == 1 else "same"
    if kind == "completep":
        return CompleteP(base_width=base, base_depth=recipe.n_layers, base_head_dim=head_dim)
    return Mup(base_width=base, base_head_dim=head_dim) if kind == "mup" else {"kind": kind}


class _Stream:
    """A probe that keeps the residual stream after each layer."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def wants(self, name: str) -> bool:
        return name.endswith(".residual")

    def __call__(self, name: str, value: Tensor) -> None:
        self.kept.append(value.detach().float())


@torch.no_grad()
def _watched(decoder: Decoder, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    probe = _Stream()
    return decoder(ids, probe=probe).float(), probe.kept


def _moves(config: RunConfig, seed: int) -> tuple[list[float], list[float], int]:
    """RMS changes: of the logits after each update, of the stream by layer after the last; and the parameters."""
    decoder = build(config.built, seed, config.numerics.device)
    groups = optimizer_groups(decoder, config.optimizer, config.recipe, config.parametrization)
    optimizer = config.optimizer.make(groups, config.lr_at(1))
    tokens = _zipf(config.recipe.vocab_size, (config.batch_size, config.seq_len + 1), seed)
    ids, targets = (t.to(config.numerics.device) for t in (tokens[:, :-1], tokens[:, 1:]))
    decoder.eval()  # dropout would move it too
    before, streams = _watched(decoder, ids)
    logits: list[float] = []
    after: list[Tensor] = []
    for step in range(1, config.steps + 1):
        accumulate_gradients(decoder, [(ids, targets)], precision=config.precision)
        set_rates(optimizer, config.lr_at(step), config.schedule.peak, config.optimizer.decay_by)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now, after = _watched(decoder, ids)
        logits.append(_rms(now - before))
    n = sum(p.numel() for p in decoder.parameters())
    return logits, [_rms(a - b) for a, b in zip(after, streams, strict=True)], n


def _zipf(vocab_size: int, shape: tuple[int, int], seed: int) -> Tensor:
    """Random tokens with frequencies like those of words, 1 / rank: something that all widths learn first."""
    weights = 1.0 / torch.arange(1, vocab_size + 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(weights, shape[0] * shape[1], replacement=True, generator=generator).reshape(shape)


def _row(width: int, found: list[tuple[list[float], list[float], int]]) -> WidthRow:
    last = [logits[-1] for logits, _, _ in found]
    return WidthRow(
        width=width,
        params=found[0][2],
        logits=tuple(statistics.fmean(column) for column in zip(*(f[0] for f in found), strict=True)),
        residual=tuple(statistics.fmean(column) for column in zip(*(f[1] for f in found), strict=True)),
        logits_sd=statistics.stdev(last) if len(last) > 1 else 0.0,
    )


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
