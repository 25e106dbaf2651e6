"""Which parameters decay: by role, every parameter in exactly one group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from assay.model import NamedParam, named_params
from assay.recipe.roles import ParamRole


@dataclass(frozen=True)
class Group:
    """Parameters that share their optimizer settings."""

    name: str
    weight_decay: float
    params: tuple[NamedParam, ...]

    def for_torch(self) -> dict[str, Any]:
        return {"params": [p.param for p in self.params], "weight_decay": self.weight_decay, "name": self.name}


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
    covered = [id(p.param) for group in groups for p in group.params]
    assert sorted(covered) == sorted(id(p) for p in model.parameters()), "groups do not cover every parameter once"
    return groups


def groups_table(groups: tuple[Group, ...]) -> list[dict[str, Any]]:
    """A row a parameter: name, shape, role, group, decay; what ``assay train --groups`` prints."""
    return [
        {
            "name": p.name,
            "shape": list(p.param.shape),
            "role": str(p.role),
            "group": group.name,
            "weight_decay": group.weight_decay,
        }
        for group in groups
        for p in group.params
    ]
