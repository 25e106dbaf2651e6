"""What the optimizers here share: the last line of an update, and parameters that are sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def run_closure(closure: Callable[[], Any] | None) -> Any:
    """The loss that torch's optimizers may be asked to compute again."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def descend(p: Tensor, update: Tensor, group: dict[str, Any], factor: float = 1.0) -> None:
    """``p - lr · (factor · update + weight_decay · p)``, in place: decoupled decay (arXiv:1711.05101, algorithm 2).

    ``decay_where = "aligned"`` decays only where ``update · p >= 0``, entries that the update moves towards 0: cautious
    decay (Chen et al. 2025, arXiv:2510.12402, algorithm 1).
    """
    lr, decay = group["lr"], group["weight_decay"]
    if decay and group.get("decay_where", "all") == "aligned":
        p.mul_(1 - lr * decay * (update * p >= 0).to(p.dtype))
    elif decay:
        p.mul_(1 - lr * decay)
    p.add_(update, alpha=-lr * factor)


def whole(x: Tensor) -> Tensor:
    """A sharded tensor gathered, any other as it is: what acts on a matrix as a whole must not see a shard."""
    full = getattr(x, "full_tensor", None)
    return x if full is None else full()


def sharded_like(x: Tensor, like: Tensor) -> Tensor:
    """A whole tensor laid out as ``like``; every rank holds all of it and keeps its own part."""
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
