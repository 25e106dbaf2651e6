"""Which parameters share their settings: by role, every parameter in exactly one group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from assay.model import NamedParam, named_params
from assay.recipe.parametrization import STANDARD, Parametrization
from assay.recipe.roles import ParamRole
from assay.training.optim.spec import OptimizerSpec

if TYPE_CHECKING:
    from assay.recipe import Recipe


@dataclass(frozen=True)
class Group:
    """Parameters that share their optimizer settings; ``rule`` is the optimizer's rule that moves them.

    ``lr_scale`` and ``eps_scale`` multiply the run's learning rate and the optimizer's eps.
    """

    name: str
    weight_decay: float
    params: tuple[NamedParam, ...]
    rule: str = "adamw"
    lr_scale: float = 1.0
    eps_scale: float = 1.0

    def for_torch(self, **settings: Any) -> dict[str, Any]:
        """The group as torch takes it; ``decay`` keeps the decay asked for, whatever ``weight_decay`` is set to."""
        return {
            "params": [p.param for p in self.params],
            "weight_decay": self.weight_decay,
            "name": self.name,
            "decay": self.weight_decay,
            "lr_scale": self.lr_scale,
            **settings,
        }


def decay_groups(
    model: nn.Module, weight_decay: float, exempt: frozenset[ParamRole] = frozenset()
) -> tuple[Group, Group]:
    """Two groups, ``decay`` and ``no_decay``: roles that decay by :attr:`ParamRole.decays`, less the ``exempt``.

    Raises AssertionError if a parameter would be in both or in none.
    """
    decay: list[NamedParam] = []
    rest: list[NamedParam] = []
    for p in named_params(model):
        (decay if p.role.decays and p.role not in exempt else rest).append(p)
    groups = (Group("decay", weight_decay, tuple(decay)), Group("no_decay", 0.0, tuple(rest)))
    _check_cover(groups, model)
    return groups


def optimizer_groups(
    model: nn.Module, spec: OptimizerSpec, recipe: Recipe, parametrization: Parametrization = STANDARD
) -> tuple[Group, ...]:
    """The groups of a run: parameters with one rule, one decay and one multiplier each, in order of appearance.

    ``recipe`` is the one before the parametrisation. Raises AssertionError unless every parameter is in one group.
    """
    found: dict[Settings, list[NamedParam]] = {}
    for p in named_params(model):
        settings = settings_of(p.name, p.role, tuple(p.param.shape), spec, recipe, parametrization)
        found.setdefault(settings, []).append(p)
    groups = tuple(
        Group(s.name, s.weight_decay, tuple(params), s.rule, s.lr_scale, s.eps_scale) for s, params in found.items()
    )
    _check_cover(groups, model)
    return groups


@dataclass(frozen=True)
class Settings:
    """How one parameter is moved."""

    rule: str
    weight_decay: float
    lr_scale: float
    eps_scale: float

    @property
    def name(self) -> str:
        decays = "decay" if self.weight_decay else "no_decay"
        parts = [*([] if self.rule in ("adamw", "adam_l2", "sgd") else [self.rule]), decays]
        return " ".join([*parts, *([] if self.lr_scale == 1 else [f"lr x {self.lr_scale:g}"])])


def settings_of(
    name: str,
    role: ParamRole,
    shape: tuple[int, ...],
    spec: OptimizerSpec,
    recipe: Recipe,
    parametrization: Parametrization = STANDARD,
) -> Settings:
    """How a parameter is moved, by its role; by its name only whether it stands in a layer."""
    rule = spec.rule_for(role, shape)
    in_layer = name.startswith("layers.")
    scales = parametrization.scales(role, in_layer, spec.family(rule), recipe)
    return Settings(
        rule=rule,
        weight_decay=spec.weight_decay * (scales.decay if spec.decay_by == "lr" else 1.0) if role.decays else 0.0,
        lr_scale=spec.lr_multipliers.get(role, 1.0) * scales.lr,
        eps_scale=scales.eps,
    )


def set_rates(optimizer: torch.optim.Optimizer, lr: float, peak: float, decay_by: str) -> None:
    """The learning rate and decay of the next update in every group.

    torch's rules shrink by ``lr · weight_decay``; with ``decay_by = "schedule"`` that product is ``decay · lr / peak``.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
        group["weight_decay"] = group["decay"]
        if decay_by == "schedule":
            group["weight_decay"] = group["decay"] / (peak * group["lr_scale"])


def groups_table(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """A row a parameter: name, shape, role, rule, group, decay, multiplier; what ``assay train --groups`` prints."""
    return [
        {
            "name": p.name,
            "shape": list(p.param.shape),
            "role": str(p.role),
            "rule": group.rule,
            "group": group.name,
            "weight_decay": group.weight_decay,
            "lr_scale": group.lr_scale,
        }
        for group in groups
        for p in group.params
    ]


def can_fuse(groups: Iterable[Group]) -> bool:
    """True where torch has fused kernels for every parameter."""
    params = [p.param for group in groups for p in group.params]
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps", "xpu") for p in params)


def _check_cover(groups: Iterable[Group], model: nn.Module) -> None:
    covered = [id(p.param) for group in groups for p in group.params]
    assert sorted(covered) == sorted(id(p) for p in model.parameters()), "groups do not cover every parameter once"
