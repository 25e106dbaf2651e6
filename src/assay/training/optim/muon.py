"""Muon: momentum, orthogonalised (K. Jordan et al. 2024, kellerjordan.github.io/posts/muon; arXiv:2502.16982).

m rows (outputs), n columns (inputs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from assay.training.optim.common import descend, run_closure, sharded_like, whole
from assay.training.optim.newton_schulz import STEPS, orthogonalise

STACK_ELEMENTS = {"cpu": 1 << 19, "other": 1 << 24}  # entries orthogonalised at once; on a CPU they stay in its cache
Adjust = Literal["original", "match_rms_adamw"]


def shape_factor(m: int, n: int, adjust: str) -> float:
    """What the learning rate is multiplied by for an (m, n) matrix, rows being outputs.

    ``original``: sqrt(max(1, m / n)). ``match_rms_adamw``: 0.2 sqrt(max(m, n)), which gives an update an RMS of 0.2
    whatever its shape, that of AdamW (Liu et al. 2025, arXiv:2502.16982, eq. 4).
    """
    return math.sqrt(max(1.0, m / n)) if adjust == "original" else 0.2 * math.sqrt(max(m, n))


class Muon(torch.optim.Optimizer):
    """``B = momentum · B + (1 - momentum) · g``; ``p = (1 - lr · decay) · p - lr · factor · NS(g', B)``.

    NS orthogonalises ``g + momentum · (B - g)`` (Nesterov) or B, in ``ns_dtype``. For hidden matrices only: others
    belong to AdamW. A parameter of more than two dimensions is a stack of matrices, each by itself. A fused projection
    is the matrices it is made of: its group has ``blocks``, their heights. A sharded matrix is made whole first.

    Args:
        adjust: see :func:`shape_factor`.
        neuron_beta: NorMuon (Li et al. 2025, arXiv:2510.05491, algorithm 1): rows divided by the root of a running mean
            of their squares with this decay, the whole then brought back to its norm. None leaves it out.
        decay_where: ``aligned`` decays only entries that the update moves towards 0 (Chen et al. 2025,
            arXiv:2510.12402, algorithm 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        adjust: Adjust = "original",
        ns_dtype: torch.dtype | str = torch.bfloat16,
        *,
        ns_steps: int = STEPS,
        neuron_beta: float | None = None,
        decay_where: Literal["all", "aligned"] = "all",
    ) -> None:
        dtype = getattr(torch, ns_dtype) if isinstance(ns_dtype, str) else ns_dtype
        if adjust not in ("original", "match_rms_adamw"):
            raise ValueError(f"adjust: {adjust!r}; allowed: 'original', 'match_rms_adamw'")
        if not (lr >= 0 and 0 <= momentum < 1 and weight_decay >= 0):
            raise ValueError(f"lr {lr}, momentum {momentum}, weight_decay {weight_decay}: out of range")
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "adjust": adjust,
            "ns_dtype": dtype, "ns_steps": ns_steps, "neuron_beta": neuron_beta, "decay_where": decay_where,
            "blocks": None,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                _check(p, group["blocks"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = run_closure(closure)
        for group in self.param_groups:
            moved = [self._momentum(p, group) for p in group["params"] if p.grad is not None]
            by_shape: dict[tuple[Any, ...], list[_Matrix]] = {}
            for each in moved:
                for matrix in each.matrices(group["blocks"]):
                    key = (matrix.ahead.shape, matrix.ahead.dtype, matrix.ahead.device)
                    by_shape.setdefault(key, []).append(matrix)
            for matrices in by_shape.values():
                for some in _limited(matrices):
                    _move(some, group)
            for each in moved:
                each.put_back()
        return loss

    def _momentum(self, p: Tensor, group: dict[str, Any]) -> _Moved:
        state, grad = self.state[p], p.grad
        assert grad is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
            if group["neuron_beta"] is not None:
                state["row_squares"] = torch.zeros_like(p[..., :1])
        buffer = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - group["momentum"])
        ahead = grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        return _Moved(p, state.get("row_squares"), whole(ahead), whole(p.detach()))


class _Matrix(NamedTuple):
    """One matrix by itself: its momentum, its weights, and the mean squares of its rows; the last two are views."""

    ahead: Tensor
    weight: Tensor
    squares: Tensor | None


class _Moved:
    """A parameter on its way: its tensors whole, which are the parameter's own unless it is sharded."""

    def __init__(self, param: Tensor, squares: Tensor | None, ahead: Tensor, weight: Tensor) -> None:
        self.param, self.squares, self.ahead, self.weight = param, squares, ahead, weight
        self.whole_squares = None if squares is None else whole(squares)

    def matrices(self, blocks: tuple[int, ...] | None) -> Iterator[_Matrix]:
        """The separate matrices: every one of a stack, every block of a fused projection."""
        parts = [self.ahead, self.weight, *([] if self.whole_squares is None else [self.whole_squares])]
        stacks = [t.flatten(0, -3).unbind() if t.dim() > 2 else (t,) for t in parts]
        for each in zip(*stacks, strict=True):
            split = [t.split(blocks or each[0].shape[0]) for t in each]
            for views in zip(*split, strict=True):
                yield _Matrix(views[0], views[1], views[2] if len(views) > 2 else None)

    def put_back(self) -> None:
        """What was gathered goes back to where it came from."""
        for own, gathered in ((self.param, self.weight), (self.squares, self.whole_squares)):
            if own is not None and gathered is not None and hasattr(own, "device_mesh"):
                own.copy_(sharded_like(gathered, own))


def _move(matrices: list[_Matrix], group: dict[str, Any]) -> None:
    """Orthogonalise matrices of one shape and move their weights, in place."""
    updates = orthogonalise([m.ahead for m in matrices], group["ns_dtype"], group["ns_steps"])
    factor = shape_factor(updates[0].shape[0], updates[0].shape[1], group["adjust"])
    for m, update in zip(matrices, updates, strict=True):
        if m.squares is not None:
            update = _neuron_normed(update.to(m.weight.dtype), m.squares, group["neuron_beta"])
        descend(m.weight, update, group, factor)


def _neuron_normed(update: Tensor, squares: Tensor, beta: float) -> Tensor:
    """Rows over the root of their running mean square, the whole at the norm it had."""
    squares.lerp_(update.square().mean(-1, keepdim=True), 1 - beta)
    out = update / squares.sqrt().add_(1e-10)
    return out.mul_(torch.linalg.vector_norm(update) / torch.linalg.vector_norm(out).add_(1e-10))


def _limited(matrices: list[_Matrix]) -> Iterator[list[_Matrix]]:
    """Lists short enough that a stack of one stays within ``STACK_ELEMENTS``."""
    first = matrices[0].ahead
    limit = STACK_ELEMENTS["cpu" if first.device.type == "cpu" else "other"]
    n = max(1, limit // max(1, first.numel()))
    for i in range(0, len(matrices), n):
        yield matrices[i : i + n]


def _check(p: Tensor, blocks: tuple[int, ...] | None) -> None:
    if p.dim() < 2:
        raise ValueError(f"a parameter of shape {tuple(p.shape)}: Muon takes matrices; give it to AdamW")
    if blocks is not None and (p.dim() != 2 or sum(blocks) != p.shape[0]):
        raise ValueError(f"blocks {blocks}: their heights must add up to the rows of {tuple(p.shape)}")
