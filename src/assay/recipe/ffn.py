"""Feed-forward parts and their activations."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny, field_validator, model_validator

from assay.recipe.base import FillError, Part, Sizes, pick, refuse
from assay.recipe.errors import Problem
from assay.recipe.norm import NO_NORM, DropoutRate, NormSlot
from assay.recipe.roles import ParamRole


class Activation(Part):
    """An elementwise nonlinearity."""

    slot = "activation"


ActivationSlot = Annotated[SerializeAsAny[Activation], pick(Activation)]


class Relu(Activation):
    """max(0, x)."""

    kind: Literal["relu"] = "relu"


class Gelu(Activation):
    """x · Φ(x), exact (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""

    kind: Literal["gelu"] = "gelu"


class GeluTanh(Activation):
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))): the tanh approximation of GELU."""

    kind: Literal["gelu_tanh"] = "gelu_tanh"


class Silu(Activation):
    """x · sigmoid(x)."""

    kind: Literal["silu"] = "silu"


class Swish(Activation):
    """x · sigmoid(beta · x) (Ramachandran et al. 2017, arXiv:1710.05941); beta = 1 is silu, 1.702 is sigmoid-GELU."""

    kind: Literal["swish"] = "swish"
    beta: PositiveFloat


class Relu2(Activation):
    """max(0, x)² (Primer, So et al. 2021, arXiv:2109.08668; Nemotron-4)."""

    kind: Literal["relu2"] = "relu2"


class Elu(Activation):
    """x for x > 0, else alpha (exp(x) - 1) (Clevert et al. 2015, arXiv:1511.07289)."""

    kind: Literal["elu"] = "elu"
    alpha: PositiveFloat = 1.0


class Selu(Activation):
    """ELU with the self-normalising constants (Klambauer et al. 2017, arXiv:1706.02515)."""

    kind: Literal["selu"] = "selu"


class Sigmoid(Activation):
    """1 / (1 + exp(-x)); in a GLU, the gate of Dauphin et al. 2016."""

    kind: Literal["sigmoid"] = "sigmoid"


class Identity(Activation):
    """x; in a GLU, the bilinear layer."""

    kind: Literal["identity"] = "identity"


class XIelu(Activation):
    """A trainable xIELU (Huang & Schlag 2024, arXiv:2411.13010, eq. 5; Apertus).

    ``alpha_p · x² + beta · x`` for x > 0, else ``alpha_n · (exp(min(x, -1e-6)) - 1 - x) + beta · x``, with learned
    scalars ``alpha_p = softplus(a_p)`` and ``alpha_n = beta + softplus(a_n)``, which start at ``alpha``.
    """

    kind: Literal["xielu"] = "xielu"
    alpha: PositiveFloat = 0.8
    beta: PositiveFloat = 0.5

    @model_validator(mode="after")
    def _reachable(self) -> XIelu:
        if self.alpha <= self.beta:
            raise refuse("alpha", "alpha_n starts above beta", self.alpha, f"> beta = {self.beta:g}")
        return self


class Ffn(Part):
    """What a layer does to each token alone; ``none`` leaves the sublayer out."""

    slot = "ffn"
    matrix_roles: ClassVar[tuple[ParamRole, ...]] = (ParamRole.FFN_IN, ParamRole.FFN_OUT)


FfnSlot = Annotated[SerializeAsAny[Ffn], pick(Ffn)]


class NoFfn(Ffn):
    """No feed-forward sublayer."""

    kind: Literal["none"] = "none"
    matrix_roles: ClassVar[tuple[ParamRole, ...]] = ()


def names_of(allowed: tuple[str, ...], value: Any) -> Any:
    """A set of projection names in fixed order; ``all`` and ``none`` stand for the two extremes."""
    if value in ("all", "none"):
        return allowed if value == "all" else ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected 'all', 'none' or a list of {', '.join(allowed)}")
    unknown = [v for v in value if v not in allowed]
    if unknown or len(set(value)) != len(value):
        raise ValueError(f"expected 'all', 'none' or a list without repeats of {', '.join(allowed)}")
    return tuple(name for name in allowed if name in value)


class Mlp(Ffn):
    """``down(dropout(inner_norm(act(act_norm(up(x))))))``: two matrices (Vaswani et al. 2017, eq. 2)."""

    kind: Literal["mlp"] = "mlp"
    d_ff: PositiveInt
    activation: ActivationSlot
    bias: tuple[Literal["up", "down"], ...] = ()
    act_norm: NormSlot = NO_NORM
    inner_norm: NormSlot = NO_NORM
    dropout: DropoutRate = 0.0

    @field_validator("bias", mode="before")
    @classmethod
    def _bias(cls, value: Any) -> Any:
        return names_of(("up", "down"), value)

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        return sized(raw, sizes)


class Glu(Ffn):
    """``down(act(gate(x)) · (up(x) + up_offset))``: three matrices (Shazeer 2020, arXiv:2002.05202, eq. 6).

    ``clamp`` c bounds the gate's pre-activation above by c and ``up`` to [-c, c] (gpt-oss, which has
    ``up_offset = 1``). ``inner_norm``, then dropout, stand before ``down``.
    """

    kind: Literal["glu"] = "glu"
    d_ff: PositiveInt
    activation: ActivationSlot
    bias: tuple[Literal["gate", "up", "down"], ...] = ()
    clamp: PositiveFloat | Literal["none"] = "none"
    up_offset: float = 0.0
    inner_norm: NormSlot = NO_NORM
    dropout: DropoutRate = 0.0

    @field_validator("bias", mode="before")
    @classmethod
    def _bias(cls, value: Any) -> Any:
        return names_of(("gate", "up", "down"), value)

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        return sized(raw, sizes)


class FfnBranch(Part):
    """One term of a ``sum``: ``output_scale · output_norm(ffn(input_norm(input_scale · x)))``."""

    slot = "ffn_branch"
    kind: Literal["branch"] = "branch"
    default_kind: ClassVar[str | None] = "branch"
    ffn: FfnSlot
    input_scale: float = 1.0
    output_scale: float = 1.0
    input_norm: NormSlot = NO_NORM
    output_norm: NormSlot = NO_NORM


class FfnSum(Ffn):
    """The sum of several feed-forward branches of the same input (Gemma 4: dense + MoE)."""

    kind: Literal["sum"] = "sum"
    branches: Annotated[
        tuple[Annotated[SerializeAsAny[FfnBranch], pick(FfnBranch)], ...], Field(min_length=2, strict=False)
    ]

    @field_validator("branches")
    @classmethod
    def _real(cls, value: tuple[FfnBranch, ...]) -> tuple[FfnBranch, ...]:
        if any(b.ffn.is_none for b in value):
            raise ValueError("a branch of a sum cannot be none")
        return value


def sized(raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Apply a sizing rule in ``d_ff``: ``{ratio = "8/3", multiple_of = 256}`` becomes a number.

    ``ratio`` times d_model (exact arithmetic), times ``multiplier`` (Llama's ffn_dim_multiplier), rounded to
    ``multiple_of`` in the direction ``rounding`` (``up``, ``down`` or ``nearest``).
    """
    rule = raw.get("d_ff")
    if not isinstance(rule, dict):
        return raw
    allowed = ("ratio", "multiple_of", "multiplier", "rounding")
    unknown = sorted(set(rule) - set(allowed))
    if unknown:
        listed = ", ".join(allowed)
        raise FillError.of(
            [Problem(f"d_ff.{key}", "unknown key", rule[key], listed, has_value=True) for key in unknown]
        )
    if "ratio" not in rule:
        raise FillError("d_ff.ratio", "missing; it has no default", allowed='a number or a fraction such as "8/3"')
    width = _fraction(rule, "ratio") * sizes.d_model * _fraction(rule, "multiplier", "1")
    multiple = rule.get("multiple_of", 1)
    if not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 1:
        raise FillError("d_ff.multiple_of", "not a positive integer", multiple, "1, 64, 256, ...")
    steps = width / multiple
    roundings = {"up": -((-steps).__floor__()), "down": steps.__floor__(), "nearest": round(steps)}
    rounding = rule.get("rounding", "up")
    if not isinstance(rounding, str) or rounding not in roundings:
        raise FillError("d_ff.rounding", "no such rounding", rounding, ", ".join(roundings))
    if roundings[rounding] < 1:
        raise FillError("d_ff", "the sizing rule gives a width of zero", rule, "a rule that gives at least 1")
    return {**raw, "d_ff": roundings[rounding] * multiple}


def _fraction(rule: dict[str, Any], key: str, default: str = "") -> Fraction:
    value = rule.get(key, default)
    try:
        if isinstance(value, bool):
            raise ValueError
        out = Fraction(value) if isinstance(value, int | str) else Fraction(repr(float(value)))
    except (ValueError, TypeError, ZeroDivisionError):
        raise FillError(f"d_ff.{key}", "not a number", value, 'a number or a fraction such as "8/3"') from None
    if out <= 0:
        raise FillError(f"d_ff.{key}", "not positive", value, 'a positive number or a fraction such as "8/3"')
    return out
