"""How parameters start: a distribution a role, and how the matrices that write to the stream shrink with depth.

Norm gains start at their neutral value, biases and Fixup's shifts at 0, learned scales at the number in the recipe,
sinks at 0; all other tensors are drawn as the recipe's ``init`` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, SerializeAsAny

from assay.recipe.base import Part, Spec, pick
from assay.recipe.roles import ParamRole

MATRIX_ORDER = (
    ParamRole.EMBEDDING,
    ParamRole.POSITION,
    ParamRole.PROJECTION,
    ParamRole.ATTN_IN,
    ParamRole.ATTN_VALUE,
    ParamRole.ATTN_OUT,
    ParamRole.FFN_IN,
    ParamRole.FFN_OUT,
    ParamRole.HEAD,
    ParamRole.LAMBDA,
)


@dataclass(frozen=True)
class Draw:
    """A distribution, complete: ``normal`` (std; cut at ``cutoff`` std if finite) or ``uniform`` on ±bound or zero."""

    kind: Literal["normal", "uniform", "zero"]
    std: float = 0.0
    cutoff: float = math.inf

    def __str__(self) -> str:
        if self.kind == "zero" or self.std == 0:
            return "0"
        if self.kind == "uniform":
            return f"U(±{self.std * math.sqrt(3):.6g})"
        cut = "" if math.isinf(self.cutoff) else f" cut at {self.cutoff:g} std"
        return f"N(0, {self.std:.6g}){cut}"

    def scaled(self, factor: float) -> Draw:
        return Draw(self.kind, self.std * factor, self.cutoff)


class Distribution(Part):
    """Where a matrix's entries are drawn from."""

    slot = "distribution"

    def draw(self, fan_in: int, fan_out: int) -> Draw:
        """The distribution for a matrix with these fans; for tables the fan-in is their width."""
        raise NotImplementedError


DistributionSlot = Annotated[SerializeAsAny[Distribution], pick(Distribution)]


class Normal(Distribution):
    """N(0, std²)."""

    kind: Literal["normal"] = "normal"
    std: PositiveFloat

    def draw(self, fan_in: int, fan_out: int) -> Draw:
        return Draw("normal", self.std)


class TruncatedNormal(Distribution):
    """N(0, std²) redrawn outside ±``cutoff`` standard deviations; std is that of the normal before the cut."""

    kind: Literal["truncated_normal"] = "truncated_normal"
    std: PositiveFloat
    cutoff: PositiveFloat = 3.0

    def draw(self, fan_in: int, fan_out: int) -> Draw:
        return Draw("normal", self.std, self.cutoff)


class FanIn(Distribution):
    """Standard deviation ``gain / sqrt(fan_in)``, optionally cut (LeCun 1998; T5 and muP base)."""

    kind: Literal["fan_in"] = "fan_in"
    gain: PositiveFloat = 1.0
    cutoff: PositiveFloat | Literal["none"] = "none"

    def draw(self, fan_in: int, fan_out: int) -> Draw:
        return Draw("normal", self.gain / math.sqrt(fan_in), math.inf if self.cutoff == "none" else self.cutoff)


class Xavier(Distribution):
    """Standard deviation ``gain · sqrt(2 / (fan_in + fan_out))`` (Glorot & Bengio 2010, eq. 16)."""

    kind: Literal["xavier"] = "xavier"
    gain: PositiveFloat = 1.0
    shape: Literal["normal", "uniform"] = "normal"

    def draw(self, fan_in: int, fan_out: int) -> Draw:
        return Draw(self.shape, self.gain * math.sqrt(2.0 / (fan_in + fan_out)))


class Zero(Distribution):
    """All zero."""

    kind: Literal["zero"] = "zero"

    def draw(self, fan_in: int, fan_out: int) -> Draw:
        return Draw("zero")


@dataclass(frozen=True)
class Place:
    """Where a matrix stands in the stack, for depth rules."""

    role: ParamRole
    layer: int  # 0-based; -1 outside the stack
    n_branches: int  # sublayers of the whole stack that write to the stream (2 L when no layer lacks one)
    n_layers: int


class DepthScale(Part):
    """How much smaller the matrices start as the stack gets deeper."""

    slot = "depth_scale"

    def factor(self, place: Place) -> float:
        """The multiplier of the drawn standard deviation."""
        raise NotImplementedError

    def zeroes(self, role: ParamRole) -> bool:
        """True where the rule starts a role at 0 whatever its distribution."""
        return False


DepthScaleSlot = Annotated[SerializeAsAny[DepthScale], pick(DepthScale)]


class NoDepthScale(DepthScale):
    """The same at every depth."""

    kind: Literal["none"] = "none"

    def factor(self, place: Place) -> float:
        return 1.0


class TotalDepth(DepthScale):
    """1/sqrt(number of residual branches), 1/sqrt(2L), on what writes to the stream (GPT-2, Radford et al. 2019)."""

    kind: Literal["total_depth"] = "total_depth"

    def factor(self, place: Place) -> float:
        return place.n_branches**-0.5 if place.role.writes_to_stream else 1.0


class LayerDepth(DepthScale):
    """1/sqrt(2(l + 1)) on what layer l (from 0) writes to the stream (Zhang et al. 2019, arXiv:1908.11365)."""

    kind: Literal["layer_depth"] = "layer_depth"

    def factor(self, place: Place) -> float:
        return (2.0 * (place.layer + 1)) ** -0.5 if place.role.writes_to_stream else 1.0


class DeepNormScale(DepthScale):
    """beta = (8M)^(-1/4) on values, attention output and feed-forward (Wang et al. 2022, arXiv:2203.00555, fig. 2)."""

    kind: Literal["deepnorm"] = "deepnorm"

    def factor(self, place: Place) -> float:
        small = (ParamRole.ATTN_VALUE, ParamRole.ATTN_OUT, ParamRole.FFN_IN, ParamRole.FFN_OUT)
        return (8.0 * place.n_layers) ** -0.25 if place.role in small else 1.0


class FixupScale(DepthScale):
    """Fixup (Zhang et al. 2019, arXiv:1901.09321, §3): branch ends and an untied head start at 0, the rest of a branch
    is divided by n^(1/(2m - 2)), n branches of m = 2 matrices in a row: 1/sqrt(n).
    """

    kind: Literal["fixup"] = "fixup"

    def zeroes(self, role: ParamRole) -> bool:
        return role.writes_to_stream or role is ParamRole.HEAD

    def factor(self, place: Place) -> float:
        if self.zeroes(place.role):
            return 0.0
        small = (ParamRole.ATTN_VALUE, ParamRole.FFN_IN)
        return place.n_branches**-0.5 if place.role in small else 1.0


class RoleInit(Spec):
    """One role's distribution."""

    role: ParamRole = Field(strict=False)
    distribution: DistributionSlot


class Init(Spec):
    """A distribution for each role of matrix that the recipe has, and the depth rule.

    Written as a table: ``weights`` for every role, then roles by name (``embedding = {kind = "normal", std = 1.0}``).
    """

    roles: tuple[RoleInit, ...]
    depth: DepthScaleSlot = NoDepthScale()

    def of(self, role: ParamRole) -> Distribution:
        """The distribution of a role; raises KeyError for one the recipe does not have."""
        for entry in self.roles:
            if entry.role is role:
                return entry.distribution
        raise KeyError(role)

    def draw(self, place: Place, fan_in: int, fan_out: int) -> Draw:
        """How a matrix of this role and place starts."""
        return self.of(place.role).draw(fan_in, fan_out).scaled(self.depth.factor(place))


DEFAULT_WEIGHTS: dict[str, Any] = {"kind": "normal", "std": 0.02}
