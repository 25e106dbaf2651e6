"""Phrases of what stands in a layer: norms, positions, spans, mixers and feed-forward parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from assay.recipe.base import Part, Sizes, Spec
from assay.recipe.differential import HeadPairs, NoDifferential
from assay.recipe.ffn import Elu, FfnBranch, FfnSum, Glu, Mlp, NoFfn, Swish, XIelu
from assay.recipe.mixer import Attention, MixerBranch, MixerSum, NoMixer, NoQkNorm, NormedQk
from assay.recipe.norm import FixNorm, LayerNorm, NoNorm, RMSNorm, ScaleNorm, Shift
from assay.recipe.position import (
    Alibi,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPosition,
    NoScaling,
    NtkScaling,
    Rope,
    T5Bias,
    YarnScaling,
)
from assay.recipe.query_scale import ByPosition, NoQueryScale
from assay.recipe.sharing import OwnKeys, SharedKeys
from assay.recipe.span import ChunkedSpan, FixedSpan, FullSpan, GlobalSpan, StridedSpan, WindowSpan
from assay.recipe.words import Phrase, Said, clauses, dropout_words, joined, many, number, says, value_words, words

# kinds whose phrase is one expression
_SHORT: dict[type[Spec], Phrase] = {
    NoNorm: lambda spec, sizes: "no norm",
    ScaleNorm: lambda spec, sizes: f"ScaleNorm (eps {number(spec.eps)}, from {value_words(spec.init, sizes)})",
    FixNorm: lambda spec, sizes: f"FixNorm (radius {number(spec.radius)}, eps {number(spec.eps)})",
    Shift: lambda spec, sizes: "learned scalar shift",
    NoPosition: lambda spec, sizes: "no position in attention (NoPE)",
    NoScaling: lambda spec, sizes: "no scaling",
    LinearScaling: lambda spec, sizes: f"linear scaling by {number(spec.factor)}",
    NtkScaling: lambda spec, sizes: f"NTK-aware scaling by {number(spec.factor)}",
    DynamicScaling: lambda spec, sizes: f"dynamic NTK scaling by {number(spec.factor)} past {spec.original_seq_len:,}",
    NoMixer: lambda spec, sizes: "no mixer",
    NoQkNorm: lambda spec, sizes: "no QK-norm",
    NoQueryScale: lambda spec, sizes: "queries not scaled by position",
    OwnKeys: lambda spec, sizes: "keys and values of its own",
    NoDifferential: lambda spec, sizes: "no difference of maps",
    NoFfn: lambda spec, sizes: "no feed-forward part",
}
for _cls, _phrase in _SHORT.items():
    says(_cls)(_phrase)


# norms


@says(LayerNorm, RMSNorm)
def _norm(spec: LayerNorm | RMSNorm, sizes: Sizes) -> Said:
    gain = {"one": [], "one_plus": ["gain 1+g"], "none": ["no gain"]}[spec.gain]
    bias = ["no bias"] if isinstance(spec, LayerNorm) and not spec.bias else []
    name = "LayerNorm" if isinstance(spec, LayerNorm) else "RMSNorm"
    return joined(name, [f"eps {number(spec.eps)}", *gain, *bias])


# positions and spans


@says(Rope)
def _rope(spec: Rope, sizes: Sizes) -> Said:
    out = [f"RoPE, theta {number(spec.theta)}"]
    if spec.fraction != 1:
        out.append(f"on {number(spec.fraction)} of each head")
    if spec.layout != "half":
        out.append(f"{spec.layout} pairs")
    if not spec.scaling.is_none:
        out.append(words(spec.scaling, sizes))
    return ", ".join(out)


@says(Llama3Scaling)
def _llama3(spec: Llama3Scaling, sizes: Sizes) -> Said:
    bands = f"bands {number(spec.low_freq_factor)} to {number(spec.high_freq_factor)}"
    return f"Llama 3 scaling by {number(spec.factor)} from {spec.original_seq_len:,} ({bands})"


@says(YarnScaling)
def _yarn(spec: YarnScaling, sizes: Sizes) -> Said:
    details = [f"beta {number(spec.beta_slow)} to {number(spec.beta_fast)}"]
    if spec.attention_factor != "paper":
        details.append(f"attention factor {value_words(spec.attention_factor, sizes)}")
    if not spec.rounded:
        details.append("bounds not rounded")
    return joined(f"YaRN by {number(spec.factor)} from {spec.original_seq_len:,}", details)


@says(LongRopeScaling)
def _longrope(spec: LongRopeScaling, sizes: Sizes) -> Said:
    details = [
        f"attention factor {number(spec.attention_factor)}",
        _factors("short", spec.short_factor),
        _factors("long", spec.long_factor),
    ]
    return joined(f"LongRoPE past {spec.original_seq_len:,}", details)


_LISTED = 8  # factors that are listed one by one


def _factors(name: str, values: Sequence[float]) -> str:
    """``short factors 1, 1.05``; many by their range, with a digest that tells two lists of one range apart."""
    if len(values) <= _LISTED:
        return f"{name} factors {', '.join(map(number, values))}"
    digest = hashlib.sha256(repr(tuple(values)).encode()).hexdigest()[:8]
    return f"{len(values)} {name} factors {number(min(values))} to {number(max(values))} [{digest}]"


@says(Alibi)
def _alibi(spec: Alibi, sizes: Sizes) -> Said:
    bias = [] if spec.max_bias == 8 else [f"max bias {number(spec.max_bias)}"]
    return joined("ALiBi", [*bias, *([] if spec.multiplier == 1 else [f"slopes × {number(spec.multiplier)}"])])


@says(T5Bias)
def _t5(spec: T5Bias, sizes: Sizes) -> Said:
    shared = ["the first layer's table"] if spec.table == "first" else []
    return ", ".join([f"T5 bias, {spec.n_buckets:,} buckets up to distance {spec.max_distance:,}", *shared])


@says(FullSpan, WindowSpan, ChunkedSpan, GlobalSpan)
def _span(spec: FullSpan | WindowSpan | ChunkedSpan | GlobalSpan, sizes: Sizes) -> Said:
    if isinstance(spec, FullSpan):
        return "full causal attention" if spec.causal else "full bidirectional attention"
    chunked = isinstance(spec, ChunkedSpan)
    said = f"{'attention inside chunks' if chunked else 'sliding window'} of {spec.size:,}"
    said += "" if spec.causal else ", both ways"
    if isinstance(spec, GlobalSpan):
        said += f"{'' if spec.causal else ','} and {many(spec.n_global, 'global position')}"
    return said


@says(StridedSpan)
def _strided(spec: StridedSpan, sizes: Sizes) -> Said:
    return f"strided attention of stride {spec.stride:,}"


@says(FixedSpan)
def _fixed(spec: FixedSpan, sizes: Sizes) -> Said:
    kept = "key" if spec.summary == 1 else f"{spec.summary:,} keys"
    return f"fixed attention (blocks of {spec.block:,}, the last {kept} of each earlier block)"


# mixers


def head_words(spec: Attention) -> str:
    """The attention's name by its KV heads: multi-head, grouped-query or multi-query."""
    dim = f"of {spec.head_dim:,}"
    if spec.n_kv_heads == spec.n_heads:
        return f"multi-head attention, {many(spec.n_heads, 'head')} {dim}"
    heads = many(spec.n_heads, "query head")
    if spec.n_kv_heads == 1:
        return f"multi-query attention, {heads} on 1 KV head {dim}"
    return f"grouped-query attention, {heads} on {spec.n_kv_heads:,} KV heads {dim}"


@says(NormedQk)
def _qk_norm(spec: NormedQk, sizes: Sizes) -> Said:
    over = "each head" if spec.over == "head" else "the whole width"
    gain = ", one gain a head" if spec.gain_per == "head" else ""
    order = ", after the rotation" if spec.order == "after_rope" else ""
    return f"QK-norm over {over}, {words(spec.norm, sizes)}{gain}{order}"


@says(ByPosition)
def _by_position(spec: ByPosition, sizes: Sizes) -> Said:
    first = f", positions from {spec.first}" if spec.first else ""
    return f"queries × 1 + {number(spec.beta)} ln of every {spec.period:,} positions{first}"


@says(HeadPairs)
def _pairs(spec: HeadPairs, sizes: Sizes) -> Said:
    start = "by depth" if spec.start == "by_depth" else number(spec.start)
    return f"differential: maps of paired heads subtracted, lambda from {start}, then {words(spec.norm, sizes)}"


@says(SharedKeys)
def _shared(spec: SharedKeys, sizes: Sizes) -> Said:
    return f"keys and values of layer {spec.layer}"


@says(Attention)
def _attention(spec: Attention, sizes: Sizes) -> Said:
    out = [head_words(spec), words(spec.position, sizes), words(spec.span, sizes)]
    if spec.source is not None:
        out.append(words(spec.kv, sizes))
    if not spec.qk_norm.is_none:
        out.append(words(spec.qk_norm, sizes))
    out += [words(part, sizes) for part in (spec.query_scale, spec.differential) if not part.is_none]
    if spec.scale != "inv_sqrt_head_dim":
        out.append(f"scores scaled by {value_words(spec.scale, sizes)}")
    if spec.bias:
        out.append(f"bias on {', '.join(spec.bias)}")
    if spec.clip_qkv != "none":
        out.append(f"q, k, v clipped to ±{number(spec.clip_qkv)}")
    if spec.soft_cap != "none":
        out.append(f"scores soft-capped at {number(spec.soft_cap)}")
    if spec.sinks != "none":
        out.append("a sink logit a head")
    if spec.output_gate != "none":
        out.append(f"sigmoid output gate, one a {spec.output_gate}")
    if not spec.inner_norm.is_none:
        out.append(f"{words(spec.inner_norm, sizes)} before the output projection")
    return out + dropout_words(spec.dropout)


@says(MixerSum, FfnSum)
def _sum(spec: MixerSum | FfnSum, sizes: Sizes) -> Said:
    branches = [words(branch, sizes) for branch in spec.branches]
    return " + ".join([f"sum of {len(branches)}: [{branches[0]}]", *(f"[{b}]" for b in branches[1:])])


@says(MixerBranch, FfnBranch)
def _sum_branch(spec: MixerBranch | FfnBranch, sizes: Sizes) -> Said:
    out = [*clauses(spec.mixer if isinstance(spec, MixerBranch) else spec.ffn, sizes)]
    for side in ("input", "output"):
        scale, norm = getattr(spec, f"{side}_scale"), getattr(spec, f"{side}_norm")
        out += [] if scale == 1 else [f"{side} × {number(scale)}"]
        out += [] if norm.is_none else [f"{side} {words(norm, sizes)}"]
    return out


# feed-forward parts

_GLU_NAMES = {
    "silu": "SwiGLU",
    "gelu": "GEGLU",
    "gelu_tanh": "GEGLU (tanh GELU)",
    "relu": "ReGLU",
    "sigmoid": "GLU",
    "identity": "bilinear GLU",
}
_ACTIVATION_NAMES = {
    "relu": "ReLU",
    "gelu": "GELU",
    "gelu_tanh": "tanh GELU",
    "silu": "SiLU",
    "relu2": "squared ReLU",
    "selu": "SELU",
    "sigmoid": "sigmoid",
    "identity": "identity",
}


def ffn_name(spec: Mlp | Glu, sizes: Sizes) -> str:
    """``SwiGLU``, ``ReLU MLP``: the shape and its activation in one name."""
    act = spec.activation
    if isinstance(spec, Glu):
        return _GLU_NAMES.get(act.kind_name, f"{activation_name(act, sizes)} GLU")
    return f"{activation_name(act, sizes)} MLP"


def activation_name(act: Part, sizes: Sizes) -> str:
    """The activation's usual name."""
    if isinstance(act, Swish):
        return f"Swish (beta {number(act.beta)})"
    if isinstance(act, Elu):
        return f"ELU (alpha {number(act.alpha)})"
    if isinstance(act, XIelu):
        defaults = XIelu()
        starts = [] if act.alpha == defaults.alpha else [f"alpha from {number(act.alpha)}"]
        return joined("xIELU", starts + ([] if act.beta == defaults.beta else [f"beta {number(act.beta)}"]))
    return _ACTIVATION_NAMES.get(act.kind_name) or words(act, sizes)


def width_words(d_ff: int, sizes: Sizes) -> str:
    """``11,008 (2.69x)``: the width and its ratio to d_model."""
    return f"{d_ff:,} ({d_ff / sizes.d_model:.2f}x)"


@says(Mlp, Glu)
def _ffn(spec: Mlp | Glu, sizes: Sizes) -> Said:
    out = [f"{ffn_name(spec, sizes)}, width {width_words(spec.d_ff, sizes)}"]
    if spec.bias:
        out.append(f"bias on {', '.join(spec.bias)}")
    if isinstance(spec, Glu) and spec.clamp != "none":
        out.append(f"gate and up clamped at {number(spec.clamp)}")
    if isinstance(spec, Glu) and spec.up_offset:
        out.append(f"up + {number(spec.up_offset)}")
    if isinstance(spec, Mlp) and not spec.act_norm.is_none:
        out.append(f"{words(spec.act_norm, sizes)} before the activation")
    if not spec.inner_norm.is_none:
        out.append(f"{words(spec.inner_norm, sizes)} before the down projection")
    return out + dropout_words(spec.dropout)
