"""Optimizer choices. A configuration is read without torch; an optimizer is made with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, SerializeAsAny, model_validator

from assay.recipe.base import Part, pick, refuse
from assay.recipe.roles import ParamRole

if TYPE_CHECKING:
    import torch

    from assay.training.optim.groups import Group

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Betas = Annotated[tuple[Beta, Beta], Field(strict=False)]
Role = Annotated[ParamRole, Field(strict=False)]
Family = Literal["adam", "spectral", "sgd"]  # how an update's size depends on its gradient's: for parametrisations


class OptimizerSpec(Part):
    """How parameters follow their gradients.

    ``weight_decay`` acts on the roles that decay; ``decay_by``: each update shrinks them by decay times its learning
    rate (``lr``), or by decay times the schedule alone, 1 at its peak (``schedule``), which a sweep of the rate leaves
    as it is. ``decay_where = "aligned"``: only entries that the update moves towards 0. ``lr_multipliers``: of the
    learning rate, by role. ``qk_clip``: the largest attention logit a head may have had before its query and key
    projections are scaled down (MuonClip).
    """

    slot = "optimizer"
    decay_is_coupled: ClassVar[bool] = False  # added to the gradient rather than to the update
    weight_decay: NonNegativeFloat = 0.1
    decay_by: Literal["lr", "schedule"] = "lr"
    decay_where: Literal["all", "aligned"] = "all"
    lr_multipliers: dict[Role, PositiveFloat] = {}
    qk_clip: PositiveFloat | Literal["none"] = "none"

    @model_validator(mode="after")
    def _decays(self) -> OptimizerSpec:
        for name, usual in (("decay_by", "lr"), ("decay_where", "all")):
            value = getattr(self, name)
            if value == usual:
                continue
            if self.weight_decay == 0:
                raise refuse(name, "has no effect without weight_decay", value, usual)
            if self.decay_is_coupled:
                raise refuse(name, f"{self.kind_name} adds its decay to the gradient", value, usual)
        return self

    @property
    def ledger(self) -> str:
        """The rule of :data:`assay.cost.optimizers.RULES` that counts its state."""
        return self.kind_name

    def rule_for(self, role: ParamRole, shape: tuple[int, ...]) -> str:
        """Which of its update rules a parameter follows."""
        return self.kind_name

    def family(self, rule: str) -> Family:
        """What a rule's updates scale like."""
        return "adam"

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        """The optimizer over these groups."""
        raise NotImplementedError


OptimizerSlot = Annotated[SerializeAsAny[OptimizerSpec], pick(OptimizerSpec)]


def adamw_of(groups: tuple[Group, ...], lr: float, betas: Betas, eps: float, where: str) -> torch.optim.Optimizer:
    """AdamW over groups: torch's fused kernel where there is one, the cautious one where decay asks for it."""
    import torch

    from assay.training.optim.adam import CautiousAdamW
    from assay.training.optim.groups import can_fuse

    tables = [g.for_torch(eps=eps * g.eps_scale) for g in groups]
    if where == "aligned":
        return CautiousAdamW(tables, lr=lr, betas=betas, eps=eps)
    return torch.optim.AdamW(tables, lr=lr, betas=betas, eps=eps, fused=can_fuse(groups))


class AdamW(OptimizerSpec):
    """AdamW with decoupled decay (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2), torch's fused kernel."""

    kind: Literal["adamw"] = "adamw"
    betas: Betas = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        return adamw_of(_filled(groups), lr, self.betas, self.eps, self.decay_where)


class AdamL2(OptimizerSpec):
    """Adam with decay added to the gradient, so that both moments carry it (same paper, algorithm 2, in pink)."""

    kind: Literal["adam_l2"] = "adam_l2"
    decay_is_coupled: ClassVar[bool] = True
    betas: Betas = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    @property
    def ledger(self) -> str:
        return "adamw"

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        import torch

        from assay.training.optim.groups import can_fuse

        tables = [g.for_torch(eps=self.eps * g.eps_scale) for g in _filled(groups)]
        return torch.optim.Adam(tables, lr=lr, betas=self.betas, eps=self.eps, fused=can_fuse(groups))


class Sgd(OptimizerSpec):
    """Stochastic gradient descent, ``B = momentum · B + g``; decay is added to the gradient."""

    kind: Literal["sgd"] = "sgd"
    decay_is_coupled: ClassVar[bool] = True
    momentum: Beta = 0.9
    nesterov: bool = False

    @model_validator(mode="after")
    def _moves(self) -> Sgd:
        if self.nesterov and self.momentum == 0:
            raise refuse("nesterov", "has no effect without momentum", True, "false, or a momentum above 0")
        return self

    @property
    def ledger(self) -> str:
        return "momentum" if self.momentum else "sgd"

    def family(self, rule: str) -> Family:
        return "sgd"

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        import torch

        tables: list[Mapping[str, Any]] = [g.for_torch() for g in _filled(groups)]
        return torch.optim.SGD(tables, lr=lr, momentum=self.momentum, nesterov=self.nesterov)  # type: ignore[arg-type]


def _filled(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    return tuple(g for g in groups if g.params)
