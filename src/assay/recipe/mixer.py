"""Mixers: what a layer does across tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny, field_validator, model_validator

from assay.recipe.base import FillError, Part, Sizes, pick, refuse
from assay.recipe.differential import DifferentialSlot, HeadPairs, NoDifferential, check_pairs
from assay.recipe.ffn import names_of
from assay.recipe.norm import NO_NORM, DropoutRate, LayerNorm, NormSlot, RMSNorm, ScaleNorm
from assay.recipe.position import DynamicScaling, LongRopeScaling, NtkScaling, PositionSlot, Rope, YarnScaling
from assay.recipe.query_scale import NoQueryScale, QueryScaleSlot
from assay.recipe.roles import ParamRole
from assay.recipe.sharing import KeysSlot, OwnKeys, SharedKeys
from assay.recipe.span import FullSpan, SpanSlot


class Mixer(Part):
    """What a layer does across tokens; ``none`` leaves the sublayer out."""

    slot = "mixer"
    matrix_roles: ClassVar[tuple[ParamRole, ...]] = (ParamRole.ATTN_IN, ParamRole.ATTN_VALUE, ParamRole.ATTN_OUT)


MixerSlot = Annotated[SerializeAsAny[Mixer], pick(Mixer)]


class NoMixer(Mixer):
    """No mixing sublayer."""

    kind: Literal["none"] = "none"
    matrix_roles: ClassVar[tuple[ParamRole, ...]] = ()


class QkNorm(Part):
    """Norm of queries and keys before their product (Dehghani et al. 2023, arXiv:2302.05442, §2)."""

    slot = "qk_norm"
    default_kind: ClassVar[str | None] = "norm"


QkNormSlot = Annotated[SerializeAsAny[QkNorm], pick(QkNorm)]


class NoQkNorm(QkNorm):
    """Queries and keys as they are."""

    kind: Literal["none"] = "none"


class NormedQk(QkNorm):
    """``over``: each ``head`` alone (Qwen3, Gemma 3) or the whole projection, ``width`` (OLMo 2).

    ``gain_per``: one gain shared by all heads, or one for each ``head`` (Cohere, StableLM). ``order``: before the
    rotation (usual) or after it (Hunyuan, Llama 4).
    """

    kind: Literal["norm"] = "norm"
    over: Literal["head", "width"]
    norm: NormSlot
    gain_per: Literal["shared", "head"] = "shared"
    order: Literal["before_rope", "after_rope"] = "before_rope"

    @model_validator(mode="after")
    def _effective(self) -> NormedQk:
        if self.norm.is_none:
            raise refuse("norm", "a QK-norm without a norm has no effect", "none", 'qk_norm = "none"')
        if self.norm.kind_name == "shift":
            raise refuse("norm", "a shift normalises nothing", "shift", "rmsnorm, layernorm, scalenorm")
        if self.gain_per == "head":
            if self.over == "width":
                raise refuse("gain_per", "the gain over the width already has one entry a channel", "head", "shared")
            if not isinstance(self.norm, RMSNorm | LayerNorm) or self.norm.gain == "none":
                raise refuse("gain_per", "the norm has no gain to keep per head", "head", "shared")
        return self


_PROJECTIONS = ("q", "k", "v", "gate", "o")


class Attention(Mixer):
    """Softmax attention: MHA, GQA (Ainslie et al. 2023, arXiv:2305.13245) or MQA by ``n_kv_heads``.

    Query head h reads key/value head ``h // (n_heads / n_kv_heads)``. Order inside: project, clip, split heads,
    QK-norm, rotate, ``query_scale``, score ``scale · q·k``, soft-cap ``c·tanh(s/c)``, mask, softmax (with a sink logit
    a head), dropout, sum of values, ``differential``, ``inner_norm`` over all heads, output gate, output projection.

    ``scale``: ``inv_sqrt_head_dim``, ``inv_head_dim`` (muP) or a number. ``output_gate``: a sigmoid of the input, one a
    ``channel`` or one a ``head``. ``sinks``: a learned logit a head that takes probability and gives nothing.
    ``kv``: keys and values of the layer's own, or an earlier layer's; then there is no k, no v and no norm of keys.
    """

    kind: Literal["attention"] = "attention"
    n_heads: PositiveInt
    n_kv_heads: PositiveInt
    head_dim: PositiveInt
    position: PositionSlot
    span: SpanSlot = FullSpan()
    kv: KeysSlot = OwnKeys()
    scale: PositiveFloat | Literal["inv_sqrt_head_dim", "inv_head_dim"] = "inv_sqrt_head_dim"
    bias: tuple[Literal["q", "k", "v", "gate", "o"], ...] = ()
    clip_qkv: PositiveFloat | Literal["none"] = "none"
    qk_norm: QkNormSlot = NoQkNorm()
    query_scale: QueryScaleSlot = NoQueryScale()
    differential: DifferentialSlot = NoDifferential()
    soft_cap: PositiveFloat | Literal["none"] = "none"
    sinks: Literal["none", "per_head"] = "none"
    output_gate: Literal["none", "head", "channel"] = "none"
    inner_norm: NormSlot = NO_NORM
    dropout: DropoutRate = 0.0

    @field_validator("bias", mode="before")
    @classmethod
    def _bias(cls, value: Any) -> Any:
        return names_of(_PROJECTIONS, value)

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        """``n_kv_heads`` = n_heads, ``head_dim`` = d_model / n_heads where absent; ``bias = "all"`` where it can."""
        n_heads = raw.get("n_heads")
        if isinstance(n_heads, int) and n_heads > 0:
            raw.setdefault("n_kv_heads", n_heads)
            if "head_dim" not in raw:
                if sizes.d_model % n_heads:
                    raise FillError(
                        "head_dim",
                        f"d_model {sizes.d_model} is not divisible by n_heads {n_heads}, so head_dim has no default",
                        allowed="a head_dim, or n_heads that divides d_model",
                    )
                raw["head_dim"] = sizes.d_model // n_heads
        kv = raw.get("kv", "own")
        absent = [] if kv == "own" or (isinstance(kv, dict) and kv.get("kind") == "own") else ["k", "v"]
        absent += ["gate"] if raw.get("output_gate", "none") == "none" else []
        if raw.get("bias") == "all" and absent:
            raw["bias"] = [p for p in _PROJECTIONS if p not in absent]
        scale, head_dim = raw.get("scale"), raw.get("head_dim")
        if isinstance(scale, float) and isinstance(head_dim, int) and head_dim > 0:
            # one architecture, one digest: a number that a rule gives is written as the rule
            rules = {head_dim**-0.5: "inv_sqrt_head_dim", 1 / head_dim: "inv_head_dim"}
            raw["scale"] = rules.get(scale, scale)
        return raw

    @model_validator(mode="after")
    def _effective(self) -> Attention:
        if self.n_heads % self.n_kv_heads:
            raise refuse(
                "n_kv_heads", f"does not divide n_heads = {self.n_heads}", self.n_kv_heads, _divisors(self.n_heads)
            )
        if isinstance(self.position, Rope):
            try:
                self.position.rotary_dim(self.head_dim)
            except ValueError as error:
                raise refuse("position.fraction", str(error), self.position.fraction) from None
            _check_factors(self.position, self.head_dim)
            if isinstance(self.qk_norm, NormedQk) and self.qk_norm.order == "after_rope":
                _check_order(self.qk_norm, self.position)
        elif isinstance(self.qk_norm, NormedQk) and self.qk_norm.order == "after_rope":
            raise refuse("qk_norm.order", "there is no rotation to come after", "after_rope", "before_rope")
        if isinstance(self.qk_norm, NormedQk) and self.qk_norm.over == "width" and self.n_heads == 1:
            raise refuse("qk_norm.over", "one head is the whole width", "width", '"head", which is the same')
        if isinstance(self.differential, HeadPairs):
            check_pairs(self.differential, {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads}, self.dropout)
        if self.source is not None and {"k", "v"} & set(self.bias):
            raise refuse("bias", "keys and values are another layer's: no k, no v", list(self.bias), "q, gate, o")
        if "gate" in self.bias and self.output_gate == "none":
            raise refuse(
                "bias", "a bias on a gate that does not exist", list(self.bias), "output_gate, or no gate bias"
            )
        return self

    @property
    def scale_value(self) -> float:
        """The factor on q·k as a number."""
        if self.scale == "inv_sqrt_head_dim":
            return float(self.head_dim**-0.5)
        if self.scale == "inv_head_dim":
            return 1.0 / self.head_dim
        return float(self.scale)

    @property
    def cores(self) -> int:
        """How often scores and values are multiplied: pairs of heads take the two halves of the values in turn."""
        return 2 if isinstance(self.differential, HeadPairs) else 1

    @property
    def source(self) -> int | None:
        """The depth of the layer whose keys and values are read; None: the layer's own."""
        return self.kv.layer if isinstance(self.kv, SharedKeys) else None

    @property
    def q_width(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Channels of the keys that are read."""
        return self.n_kv_heads * self.head_dim

    @property
    def own_kv_width(self) -> int:
        """Channels of the keys that are projected, and kept in a cache: none where they are another layer's."""
        return self.kv_width if self.source is None else 0


def _check_order(qk_norm: NormedQk, position: Rope) -> None:
    """A norm that sees only the length of a vector commutes with its rotation, unless the rotation also stretches."""
    norm = qk_norm.norm
    by_length = isinstance(norm, ScaleNorm) or (isinstance(norm, RMSNorm) and norm.gain == "none")
    if by_length and not isinstance(position.scaling, YarnScaling | LongRopeScaling):
        message = f"has no effect: a {norm.kind_name} without a gain a channel commutes with the rotation"
        raise refuse("qk_norm.order", message, "after_rope", "before_rope")


def _check_factors(position: Rope, head_dim: int) -> None:
    scaling, pairs = position.scaling, position.rotary_dim(head_dim) // 2
    if isinstance(scaling, LongRopeScaling) and len(scaling.short_factor) != pairs:
        n = len(scaling.short_factor)
        raise refuse("position.scaling.short_factor", f"{n} factors for {pairs} pairs", n, f"{pairs} numbers")
    if isinstance(scaling, DynamicScaling | NtkScaling) and pairs < 2:
        raise refuse("position.scaling.kind", "needs more than one rotary pair", scaling.kind, "none, linear")


class MixerBranch(Part):
    """One term of a ``sum``: ``output_scale · output_norm(mixer(input_norm(input_scale · x)))``."""

    slot = "mixer_branch"
    kind: Literal["branch"] = "branch"
    default_kind: ClassVar[str | None] = "branch"
    mixer: MixerSlot
    input_scale: float = 1.0
    output_scale: float = 1.0
    input_norm: NormSlot = NO_NORM
    output_norm: NormSlot = NO_NORM


class MixerSum(Mixer):
    """The sum of several mixers of the same input (Falcon-H1: attention + state space)."""

    kind: Literal["sum"] = "sum"
    branches: Annotated[
        tuple[Annotated[SerializeAsAny[MixerBranch], pick(MixerBranch)], ...], Field(min_length=2, strict=False)
    ]

    @field_validator("branches")
    @classmethod
    def _real(cls, value: tuple[MixerBranch, ...]) -> tuple[MixerBranch, ...]:
        if any(b.mixer.is_none for b in value):
            raise ValueError("a branch of a sum cannot be none")
        return value


def check_sources(mixers: Sequence[Mixer]) -> None:
    """What is read must be there, and be what the reader takes it for; ``mixers`` in order of depth.

    Raises an error that names the place, for a validator to pass on.
    """
    for depth, mixer in enumerate(mixers):
        path = f"layers.{depth}.mixer"
        if not isinstance(mixer, Attention):
            if any(spec.source is not None for spec in attentions_of(mixer)):
                raise refuse(path, "inside a sum an attention has keys of its own", "shared", 'kv = "own"')
            continue
        if mixer.source is None:
            continue
        if mixer.source >= depth:
            raise refuse(f"{path}.kv.layer", "is no earlier layer", mixer.source, f"less than {depth}")
        source = mixers[mixer.source]
        if not isinstance(source, Attention) or source.source is not None:
            message = f"layer {mixer.source} has no keys of its own"
            raise refuse(f"{path}.kv.layer", message, mixer.source, "the depth of an attention with keys of its own")
        rotated = isinstance(mixer.position, Rope) or isinstance(source.position, Rope)
        for field in ("n_kv_heads", "head_dim", "span", *(("position",) if rotated else ())):
            if getattr(mixer, field) != getattr(source, field):
                found, other = (_shown(getattr(spec, field)) for spec in (mixer, source))
                raise refuse(
                    f"{path}.{field}", f"the keys are those of layer {mixer.source}", found, f"{other}, as there"
                )


def _shown(value: Any) -> Any:
    return str(value.model_dump(mode="json")) if isinstance(value, Part) else value


def attentions_of(mixer: Mixer) -> list[Attention]:
    """Every attention in a mixer, those of a sum's branches too."""
    if isinstance(mixer, MixerSum):
        return [spec for branch in mixer.branches for spec in attentions_of(branch.mixer)]
    return [mixer] if isinstance(mixer, Attention) else []


def _divisors(n: int) -> str:
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return "a divisor: " + ", ".join(map(str, divisors[:16]))
