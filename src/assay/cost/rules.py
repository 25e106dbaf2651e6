"""What one part costs: its tensors, its FLOPs, what it keeps in a cache. One rule a kind, summed by the callers.

Conventions: a multiply-add is 2 FLOPs; only matrix products are counted here. Attention's two products are counted
twice, over the pairs that are legal and over the full rectangle of queries and keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from assay.recipe.base import Part
from assay.recipe.roles import ParamRole

if TYPE_CHECKING:
    from assay.cost.tape import Tape, Value


@dataclass(frozen=True)
class Tensor:
    """One parameter: its name in the built model, shape, role, and its starting constant if it is not drawn."""

    name: str
    shape: tuple[int, ...]
    role: ParamRole
    start: float | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def under(self, prefix: str) -> Tensor:
        return Tensor(f"{prefix}.{self.name}", self.shape, self.role, self.start)


@dataclass(frozen=True)
class Work:
    """A forward pass: ``batch`` sequences of ``new`` tokens each, after ``past`` tokens already in the cache."""

    batch: int
    new: int
    past: int = 0

    @property
    def tokens(self) -> int:
        return self.batch * self.new


@dataclass(frozen=True)
class Flops:
    """Forward FLOPs by what does them. ``core_*`` are attention's score and value products."""

    matmul: int = 0
    core_legal: int = 0
    core_square: int = 0

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            self.matmul + other.matmul,
            self.core_legal + other.core_legal,
            self.core_square + other.core_square,
        )

    def times(self, n: int) -> Flops:
        return Flops(self.matmul * n, self.core_legal * n, self.core_square * n)


@dataclass(frozen=True)
class CacheSize:
    """What a layer keeps for one sequence: elements added by a token, and elements held at a length."""

    per_token: int = 0
    held: int = 0

    def __add__(self, other: CacheSize) -> CacheSize:
        return CacheSize(self.per_token + other.per_token, self.held + other.held)

    def times(self, n: int) -> CacheSize:
        return CacheSize(self.per_token * n, self.held * n)


S = TypeVar("S", bound=Part)


class CostRule(Generic[S]):
    """What a kind costs. Override what differs from nothing; ``d`` is the model width the part reads and writes."""

    def tensors(self, spec: S, d: int) -> list[Tensor]:
        """The kind's parameters, named as its module names them."""
        return []

    def flops(self, spec: S, d: int, work: Work) -> Flops:
        """FLOPs of a forward pass."""
        return Flops()

    def cache(self, spec: S, d: int, length: int) -> CacheSize:
        """What is kept for a sequence of ``length`` tokens."""
        return CacheSize()

    def trace(self, spec: S, d: int, tape: Tape, x: Value) -> Value:
        """Write the part's forward pass on the tape, from its input to its output; see :mod:`assay.cost.ops`.

        Without one, the part is taken to do its matrix products, to keep its input, and to write as much: activation
        memory is then a lower bound, and the budget says so.
        """
        from assay.cost.ops import opaque

        return opaque(tape, self, spec, d, x)


_RULES: dict[type[Part], CostRule[Any]] = {}


def register_cost(spec: type[Part], rule: CostRule[Any]) -> None:
    """Name the rule of a kind."""
    _RULES[spec] = rule


def costs(*specs: type[Part]) -> Any:
    """Class decorator: this rule is the one of these kinds."""

    def apply(rule: type[CostRule[Any]]) -> type[CostRule[Any]]:
        for spec in specs:
            register_cost(spec, rule())
        return rule

    return apply


def rule_of(spec: Part) -> CostRule[Any]:
    """The rule of a part; raises LookupError for a kind nobody has costed."""
    rule = _RULES.get(type(spec))
    if rule is None:
        raise LookupError(
            f"{spec.slot} kind {spec.kind_name!r} has no cost rule: register one with assay.cost.register_cost"
        )
    return rule


@dataclass(frozen=True)
class Named:
    """Tensors under a prefix; a small helper for rules made of parts."""

    prefix: str
    found: list[Tensor] = field(default_factory=list)

    def add(self, name: str, part: Part, d: int) -> None:
        """The tensors of ``part`` (of width ``d``) under ``prefix.name``."""
        path = f"{self.prefix}.{name}" if self.prefix else name
        self.found.extend(t.under(path) for t in rule_of(part).tensors(part, d))


def linear(name: str, rows: int, columns: int, role: ParamRole, bias: bool) -> list[Tensor]:
    """A weight (out, in) and perhaps its bias."""
    out = [Tensor(f"{name}.weight", (rows, columns), role)]
    if bias:
        out.append(Tensor(f"{name}.bias", (rows,), ParamRole.BIAS, 0.0))
    return out
