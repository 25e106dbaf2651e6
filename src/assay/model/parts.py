"""The base of every module here: parameters that know their role, and how a part of a recipe becomes a module.

No module keeps a buffer: what can be computed from the recipe is computed, so casts and ``to_empty`` lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.recipe.base import Part
from assay.recipe.extension import module_factory, register_module
from assay.recipe.roles import ParamRole


@dataclass(frozen=True)
class ParamInfo:
    """What a parameter is for, and the constant it starts at (None: drawn as the recipe's init says)."""

    role: ParamRole
    start: float | None


class Module(nn.Module):
    """A module whose parameters are declared with their role."""

    def __init__(self) -> None:
        super().__init__()
        self.param_info: dict[str, ParamInfo] = {}

    def declare(self, name: str, shape: tuple[int, ...], role: ParamRole, start: float | None = None) -> None:
        """Register an uninitialised parameter; ``start`` is its constant, None means drawn."""
        self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.param_info[name] = ParamInfo(role, start)


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Inverted dropout; a rate of 0 costs nothing (torch's own draws a mask even then)."""
    return F.dropout(x, rate) if training and rate > 0 else x


class Linear(Module):
    """``x W^T + b`` with W of shape (d_out, d_in)."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, d_in: int, d_out: int, role: ParamRole, *, bias: bool = False) -> None:
        super().__init__()
        self.declare("weight", (d_out, d_in), role)
        if bias:
            self.declare("bias", (d_out,), ParamRole.BIAS, 0.0)
        else:
            self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Table(Module):
    """Rows of a learned table."""

    table: Tensor

    def __init__(self, rows: int, width: int, role: ParamRole) -> None:
        super().__init__()
        self.declare("table", (rows, width), role)


@dataclass(frozen=True)
class NamedParam:
    """One parameter of a model with all that rules ask about it."""

    name: str
    param: nn.Parameter
    role: ParamRole
    start: float | None


def named_params(model: nn.Module) -> Iterator[NamedParam]:
    """Every parameter once, with its role. Raises TypeError for one that declares none."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        info: dict[str, ParamInfo] = getattr(module, "param_info", {})
        for name, param in module.named_parameters(recurse=False):
            if id(param) in seen:
                continue
            seen.add(id(param))
            full = f"{prefix}.{name}" if prefix else name
            if name not in info:
                raise TypeError(
                    f"{full}: a parameter without a role; declare it with Module.declare, or build matrices with Linear"
                )
            yield NamedParam(full, param, info[name].role, info[name].start)


class ByKind:
    """A function with one implementation a kind, looked up in a plain table, which torch.compile can trace.

    ``@function.register(Kind)`` adds one; kinds without any raise LookupError saying what is missing.
    """

    def __init__(self, missing: str) -> None:
        self.missing = missing
        self.table: dict[type[Part], Callable[..., Any]] = {}

    def register(self, spec: type[Part]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self.table[spec] = function
            return function

        return add

    def __call__(self, spec: Part, *args: Any) -> Any:
        function = self.table.get(type(spec))
        if function is None:
            raise LookupError(f"{spec.slot} kind {spec.kind_name!r} has no {self.missing}")
        return function(spec, *args)


F_ = TypeVar("F_", bound=Callable[..., nn.Module])


def builds(*specs: type[Part]) -> Callable[[F_], F_]:
    """Decorator: this class or function, called ``(spec, d)``, makes the module of these kinds."""

    def apply(factory: F_) -> F_:
        for spec in specs:
            register_module(spec, factory)
        return factory

    return apply


def build_part(spec: Part, d: int) -> Any:
    """The module of a part that reads and writes width ``d``; raises LookupError for a kind without one."""
    factory = module_factory(type(spec))
    if factory is None:
        raise LookupError(f"{spec.slot} kind {spec.kind_name!r} has no module: register one with assay.plugin")
    return factory(spec, d)
