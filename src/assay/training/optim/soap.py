"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv:2409.11321, algorithm 3).

m rows, n columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from assay.training.optim.adam import adam_update, start_moments
from assay.training.optim.common import descend, run_closure, sharded_like, whole

LARGEST_SIDE = 10_000  # a longer side keeps the standard basis (max_precond_dim of the authors' code)


class NonFiniteGradient(ArithmeticError):
    """A gradient with NaN or infinity, which running statistics would keep for ever; nothing was changed."""


class SOAP(torch.optim.Optimizer):
    """For a matrix G of size (m, n) with factors ``L = E[G G^T]``, ``R = E[G^T G]`` and their eigenvectors Q, P:
    Adam on ``Q^T G P``, its update turned back.

    As in the authors' code, the first gradient only makes the basis and moves nothing, and a gradient is turned by the
    basis of those before it. Every ``precondition_frequency`` updates the basis takes one step of orthogonal iteration:
    columns ordered by their eigenvalue (the second moment with them), then QR of ``L Q``. The first moment keeps its
    meaning: it is turned back and into the new basis. A side longer than ``LARGEST_SIDE`` is not turned; a parameter
    of fewer than two dimensions is plain AdamW. A parameter of more dimensions is refused.

    Raises:
        NonFiniteGradient: from ``step``, before anything is changed.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
    ) -> None:
        if precondition_frequency < 1:
            raise ValueError(f"precondition_frequency: {precondition_frequency}; allowed: 1, 2, 3, ...")
        if not (lr >= 0 and all(0 <= b < 1 for b in betas) and eps > 0 and weight_decay >= 0):
            raise ValueError(f"lr {lr}, betas {betas}, eps {eps}, weight_decay {weight_decay}: out of range")
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decay_where": "all",
            "precondition_frequency": precondition_frequency,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 2:
                    raise ValueError(f"a parameter of shape {tuple(p.shape)}: SOAP takes matrices, give each alone")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = run_closure(closure)
        active = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if active and not _all_finite([p.grad for p, _ in active]):
            raise NonFiniteGradient("a gradient is not finite: statistics and weights stay as they were")
        for p, group in active:
            state = self.state[p]
            if not state:
                start_moments(p, state)
            if p.dim() < 2:
                descend(p, adam_update(p.grad, state, group["betas"], group["eps"]), group)
            else:
                self._turned(p, state, group)
        return loss

    def _turned(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """One update of a matrix."""
        assert p.grad is not None
        grad = whole(p.grad)
        sides = [side for side in (0, 1) if grad.shape[side] <= LARGEST_SIDE]
        fresh = not any(f"factor_{side}" in state for side in sides)
        if fresh and sides:
            for side in sides:
                n = grad.shape[side]
                state[f"factor_{side}"] = grad.new_zeros(n, n)
            _learn(grad, state, sides, group["betas"][1])
            for side in sides:
                state[f"basis_{side}"] = eigenbasis(state[f"factor_{side}"])
            return
        sharded = grad is not p.grad
        if sharded:  # the moments live in the basis, whole as it is
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = whole(state[name])
        update = _turn(adam_update(_turn(grad, state, sides), state, group["betas"], group["eps"]), state, sides, True)
        descend(p, sharded_like(update, p), group)
        _learn(grad, state, sides, group["betas"][1])
        if sides and int(state["step"]) % group["precondition_frequency"] == 0:
            refresh(state, sides)


def _all_finite(grads: list[Tensor | None]) -> bool:
    """One synchronisation for all: a sum of absolute values is finite only if each is (or overflows, also a fault)."""
    sums = [torch.linalg.vector_norm(whole(g).float(), ord=torch.inf) for g in grads if g is not None]
    return bool(torch.stack([s.to(sums[0].device) for s in sums]).isfinite().all())


def _turn(x: Tensor, state: dict[str, Any], sides: list[int], back: bool = False) -> Tensor:
    """``Q^T x P``, or ``Q x P^T``."""
    q: Tensor
    if 0 in sides:
        q = state["basis_0"]
        x = (q if back else q.mT) @ x
    if 1 in sides:
        q = state["basis_1"]
        x = x @ (q.mT if back else q)
    return x


def _learn(grad: Tensor, state: dict[str, Any], sides: list[int], beta: float) -> None:
    """Advance ``E[G G^T]`` and ``E[G^T G]``."""
    for side in sides:
        a = grad if side == 0 else grad.mT
        state[f"factor_{side}"].addmm_(a, a.mT, beta=beta, alpha=1 - beta)


def eigenbasis(factor: Tensor) -> Tensor:
    """Eigenvectors of a symmetric matrix, largest eigenvalue first; in float64 where float32 fails."""
    scaled = _scaled(factor)
    try:
        vectors: Tensor = torch.linalg.eigh(scaled)[1]
    except RuntimeError:  # torch.linalg.LinAlgError: no convergence
        vectors = torch.linalg.eigh(scaled.double())[1]
    return vectors.flip(-1).to(factor.dtype).contiguous()


def refresh(state: dict[str, Any], sides: list[int]) -> None:
    """One step of orthogonal iteration on each basis; both moments follow their basis."""
    first = _turn(state["exp_avg"], state, sides, True)
    for side in sides:
        factor = _scaled(state[f"factor_{side}"])
        q = state[f"basis_{side}"].to(factor.dtype)
        turned = factor @ q
        order = (q * turned).sum(0).argsort(descending=True, stable=True)
        state["exp_avg_sq"] = state["exp_avg_sq"].index_select(side, order)
        fresh = torch.linalg.qr(turned[:, order])[0]
        # QR leaves the sign of a column open; one that turns round would do no harm but is kept
        sign = torch.where((fresh * q[:, order]).sum(0) < 0, -1.0, 1.0).to(fresh.dtype)
        state[f"basis_{side}"] = (fresh * sign).to(state["exp_avg_sq"].dtype)
    state["exp_avg"] = _turn(first, state, sides)


def _scaled(factor: Tensor) -> Tensor:
    """The factor with its largest entry at 1 (eigenvectors do not change), in float32 or better; zero becomes I."""
    x = factor if factor.dtype == torch.float64 else factor.float()
    peak = x.abs().amax()
    one = torch.eye(x.shape[0], dtype=x.dtype, device=x.device)
    return torch.where(peak > 0, x / torch.where(peak > 0, peak, 1.0), one)
