"""Residual rules: where norms stand and what is added to what. One formula, no class a placement.

Serial, for each sublayer f: ``y = stream_norm( skip · s + branch · output_norm( f( input_norm(x) ) ) )``, with
``s = x``, or the normed input where ``skip_from = "normed"``. Parallel: both sublayers read the same x, their branches
are summed once. Shorthands (``residual = "pre"``) are expanded here, once, when a recipe is resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import SerializeAsAny, model_validator

from assay.recipe.base import FillError, Part, Sizes, Spec, pick, refuse
from assay.recipe.errors import Problem, nearest
from assay.recipe.norm import NO_NORM, DropoutRate, NormSlot
from assay.recipe.scale import UNIT_SCALE, ConstantScale, ScaleSlot

BRANCH_KEYS = ("input_norm", "output_norm", "branch", "dropout")
STREAM_KEYS = ("stream_norm", "skip", "skip_from")
RULE_KEYS = ("rule", "norm", "init")
DEFAULT_NORM = "rmsnorm"


class Branch(Spec):
    """One sublayer's side of a residual: ``branch · dropout(output_norm(f(input_norm(x))))``."""

    input_norm: NormSlot = NO_NORM
    output_norm: NormSlot = NO_NORM
    branch: ScaleSlot = UNIT_SCALE
    dropout: DropoutRate = 0.0


class Sublayer(Branch):
    """One sublayer and its own place in the stream (serial form)."""

    stream_norm: NormSlot = NO_NORM
    skip: ScaleSlot = UNIT_SCALE
    skip_from: Literal["stream", "normed"] = "stream"

    @model_validator(mode="after")
    def _effective(self) -> Sublayer:
        if self.skip_from == "normed" and self.input_norm.is_none:
            raise refuse("skip_from", "there is no normed input to skip from", "normed", '"stream", or an input_norm')
        return self


class Residual(Part):
    """How the two sublayers of a layer meet the residual stream."""

    slot = "residual"
    tag = "form"
    default_kind: ClassVar[str | None] = "serial"

    @classmethod
    def shorthand(cls, value: Any, sizes: Sizes | None) -> Any:
        """``"pre"`` is ``{rule = "pre", norm = "rmsnorm"}``; a rule name of a norm placement."""
        return {"rule": value} if isinstance(value, str) else value

    @classmethod
    def unfilled(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """The slots alone, those written for both sublayers in each of them; rules are no fields."""
        slots = BRANCH_KEYS + STREAM_KEYS
        own = {key: value for key, value in raw.items() if key in cls.model_fields and key not in ("mixer", "ffn")}
        joint = {key: value for key, value in raw.items() if key in slots and key not in own}
        for name in ("mixer", "ffn"):
            written = raw.get(name)
            own[name] = {**joint, **_only(written, slots)} if isinstance(written, Mapping) else joint
        return own


ResidualSlot = Annotated[SerializeAsAny[Residual], pick(Residual)]


class Serial(Residual):
    """Mixer, then feed-forward, each with its own rule."""

    form: Literal["serial"] = "serial"
    mixer: Sublayer
    ffn: Sublayer

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        return split(raw, sizes, shared=())


class Parallel(Residual):
    """``y = stream_norm(skip · x + m(n1 x) + f(n2 x))``: each sublayer has its own input norm (GPT-NeoX)."""

    form: Literal["parallel"] = "parallel"
    mixer: Branch
    ffn: Branch
    stream_norm: NormSlot = NO_NORM
    skip: ScaleSlot = UNIT_SCALE

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        return split(raw, sizes, shared=("stream_norm", "skip"))


class ParallelSharedNorm(Residual):
    """``y = stream_norm(skip · s + m(n x) + f(n x))``: one norm feeds both sublayers (GPT-J, PaLM, Cohere)."""

    form: Literal["parallel_shared_norm"] = "parallel_shared_norm"
    input_norm: NormSlot
    mixer: Branch
    ffn: Branch
    stream_norm: NormSlot = NO_NORM
    skip: ScaleSlot = UNIT_SCALE
    skip_from: Literal["stream", "normed"] = "stream"

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        return split(raw, sizes, shared=("input_norm", "stream_norm", "skip", "skip_from"))

    @model_validator(mode="after")
    def _effective(self) -> ParallelSharedNorm:
        if self.input_norm.is_none:
            raise refuse("input_norm", "a shared norm of no kind", "none", 'a norm, or form = "parallel"')
        for name in ("mixer", "ffn"):
            if not getattr(self, name).input_norm.is_none:
                raise refuse(f"{name}.input_norm", "the input norm is shared", allowed="none; or form = parallel")
        return self


IDENTITY = Sublayer()
_UNIT = ConstantScale(value=1.0)


def _deepnorm(norm: Any, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    # decoder-only: alpha = (2 M)^(1/4), Wang et al. 2022, arXiv:2203.00555, table in figure 2
    return {"stream_norm": norm, "skip": {"kind": "constant", "value": (2.0 * sizes.n_layers) ** 0.25}}


_RULES: dict[str, Callable[[Any, dict[str, Any], Sizes], dict[str, Any]]] = {
    "pre": lambda norm, raw, sizes: {"input_norm": norm},
    "post": lambda norm, raw, sizes: {"stream_norm": norm},
    "sandwich": lambda norm, raw, sizes: {"input_norm": norm, "output_norm": norm},
    "reordered": lambda norm, raw, sizes: {"output_norm": norm},
    "deepnorm": _deepnorm,
    "rezero": lambda norm, raw, sizes: {"branch": {"kind": "scalar", "init": raw.get("init", 0.0)}},
    "layerscale": lambda norm, raw, sizes: {
        "input_norm": norm,
        "branch": {"kind": "vector", "init": raw.get("init", 1e-4)},
    },
    "fixup": lambda norm, raw, sizes: {
        "input_norm": "shift",
        "branch": {"kind": "scalar", "init": raw.get("init", 1.0)},
        "stream_norm": "shift",  # after the multiplier, as in the authors' figure 1
    },
    "none": lambda norm, raw, sizes: {},
}
NORMLESS = ("rezero", "fixup", "none")
_WITH_INIT = ("rezero", "layerscale", "fixup")


def expand(raw: Any, sizes: Sizes, path: str) -> dict[str, Any]:
    """A rule's table with its shorthand ``rule`` (and ``norm``, ``init``) replaced by the slots they stand for."""
    if isinstance(raw, str):
        raw = {"rule": raw}
    if not isinstance(raw, Mapping):
        raise FillError(path, "not a residual rule", raw, f"one of {', '.join(_RULES)}, or a table")
    table = dict(raw)
    prefix = f"{path}." if path else ""
    given = {key: table.pop(key) for key in ("norm", "init") if key in table}
    if "rule" not in table:
        for key in given:
            raise FillError(f"{prefix}{key}", "has no effect without a rule", given[key], "rule = " + ", ".join(_RULES))
        return table
    rule = table.pop("rule")
    if not isinstance(rule, str) or rule not in _RULES:
        near = nearest(rule, _RULES) if isinstance(rule, str) else None
        raise FillError(f"{prefix}rule", "no such residual rule", rule, ", ".join(_RULES), near or "")
    if "norm" in given and rule in NORMLESS:
        raise FillError(f"{prefix}norm", f"the rule {rule!r} places no norm", given["norm"], "leave it out")
    if "init" in given and rule not in _WITH_INIT:
        raise FillError(f"{prefix}init", f"the rule {rule!r} has no learned scale", given["init"], "leave it out")
    return {**_RULES[rule](given.get("norm", DEFAULT_NORM), given, sizes), **table}


def _only(table: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key in keys}


def _unknown(table: Any, allowed: tuple[str, ...], prefix: str = "") -> list[Problem]:
    return [
        Problem(
            f"{prefix}{key}",
            "unknown key",
            table[key],
            ", ".join(allowed),
            nearest(str(key), allowed) or "",
            has_value=True,
        )
        for key in (table if isinstance(table, Mapping) else ())
        if key not in allowed
    ]


def _expanded(raw: Any, sizes: Sizes, path: str, faults: list[Problem]) -> dict[str, Any]:
    try:
        return expand(raw, sizes, path)
    except FillError as error:
        faults += error.problems
        return {}


def _hidden(joint: dict[str, Any], raw: dict[str, Any], shared: tuple[str, ...]) -> list[Problem]:
    """Slots written for both sides that reach neither: a rule of its own replaces them, a slot of its own hides one."""
    sides = [raw.get(name, {}) for name in ("mixer", "ffn")]
    open_ = [side for side in sides if not isinstance(side, str) and not (isinstance(side, Mapping) and "rule" in side)]
    return [
        Problem(key, "has no effect: mixer and ffn each have their own", value, "leave it out", has_value=True)
        for key, value in joint.items()
        if key not in (*shared, *RULE_KEYS) and all(isinstance(side, Mapping) and key in side for side in open_)
    ]


def split(raw: dict[str, Any], sizes: Sizes, shared: tuple[str, ...]) -> dict[str, Any]:
    """Distribute what is written for the whole residual onto ``mixer`` and ``ffn``; ``shared`` keys stay."""
    allowed = ("form", *RULE_KEYS, *BRANCH_KEYS, *STREAM_KEYS, "mixer", "ffn")
    inner = (*RULE_KEYS, *BRANCH_KEYS, *STREAM_KEYS)
    faults = _unknown(raw, allowed)
    joint_raw = _only(raw, inner)
    rest = {k: v for k, v in raw.items() if k not in joint_raw and k not in ("mixer", "ffn")}
    joint = _expanded(joint_raw, sizes, "", faults)
    kept = {k: v for k, v in joint.items() if k in shared}
    each = {k: v for k, v in joint.items() if k not in shared}
    out = {**rest, **kept}
    faults += _hidden(joint_raw, raw, shared)
    for name in ("mixer", "ffn"):
        own = raw.get(name, {})
        if isinstance(own, Spec):
            out[name] = own
            continue
        faults += _unknown(own, inner, f"{name}.")
        table = _expanded(own, sizes, name, faults)
        # a rule of its own replaces the joint one; single slots are laid over it
        has_rule = isinstance(own, str) or (isinstance(own, Mapping) and "rule" in own)
        out[name] = table if has_rule else {**each, **table}
        for key in shared:
            if has_rule and key in out[name]:
                message = f"sets {key}, which this form shares"
                faults.append(Problem(f"{name}.rule", message, own, f"{key} beside the form", has_value=True))
    if faults:
        raise FillError.of(faults)
    return out
