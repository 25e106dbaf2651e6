"""Optimizer choices. A configuration is read without torch; an optimizer is made with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, SerializeAsAny

from assay.recipe.base import Part, pick

if TYPE_CHECKING:
    import torch

    from assay.training.optim.groups import Group

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimizerSpec(Part):
    """How parameters follow their gradients."""

    slot = "optimizer"
    weight_decay: NonNegativeFloat = 0.1

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        """The optimizer over these groups."""
        raise NotImplementedError

    def state_bytes(self, n_params: int) -> int:
        """Bytes of optimizer state for this many float32 parameters."""
        raise NotImplementedError


OptimizerSlot = Annotated[SerializeAsAny[OptimizerSpec], pick(OptimizerSpec)]


class AdamW(OptimizerSpec):
    """AdamW with decoupled decay (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2), torch's fused kernel."""

    kind: Literal["adamw"] = "adamw"
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        import torch

        tables: list[dict[str, Any]] = [g.for_torch() for g in groups if g.params]
        return torch.optim.AdamW(tables, lr=lr, betas=self.betas, eps=self.eps, fused=True)

    def state_bytes(self, n_params: int) -> int:
        return 8 * n_params  # two float32 moments
