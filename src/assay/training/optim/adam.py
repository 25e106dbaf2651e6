"""Adam with decay where torch's has no kernel for it: cautious."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from assay.training.optim.common import descend, run_closure


def adam_update(grad: Tensor, state: dict[str, Any], betas: tuple[float, float], eps: float) -> Tensor:
    """``m̂ / (sqrt(v̂) + eps)`` with both moments advanced in ``state`` (Kingma & Ba 2015, arXiv:1412.6980, alg. 1)."""
    state["step"] += 1
    step = float(state["step"])
    first: Tensor = state["exp_avg"]
    second: Tensor = state["exp_avg_sq"]
    first.lerp_(grad, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
    root = second.sqrt().div_((1 - betas[1] ** step) ** 0.5).add_(eps)
    return first / root.mul_(1 - betas[0] ** step)


def start_moments(p: Tensor, state: dict[str, Any]) -> None:
    """Zero moments and a step counter of one parameter, named as torch names them."""
    state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
    state["exp_avg"] = torch.zeros_like(p)
    state["exp_avg_sq"] = torch.zeros_like(p)


class CautiousAdamW(torch.optim.Optimizer):
    """AdamW that decays only entries which the update moves towards 0 (Chen et al. 2025, arXiv:2510.12402)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        where: Literal["aligned"] = "aligned"
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decay_where": where}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    start_moments(p, state)
                descend(p, adam_update(p.grad, state, group["betas"], group["eps"]), group)
        return loss
