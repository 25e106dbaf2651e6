"""Measures of the architecture: shape, attention, norms, positions, ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from assay.atlas.census import has
from assay.atlas.counting import recount
from assay.atlas.records import Model, QkNormFact
from assay.atlas.subject import Reading, Subject, measure, parts_in
from assay.recipe.ffn import Glu, Mlp
from assay.recipe.layer import norms_of
from assay.recipe.mixer import Attention, NormedQk
from assay.recipe.norm import LayerNorm, Norm, RMSNorm
from assay.recipe.position import LinearScaling, Llama3Scaling, NtkScaling, Rope, YarnScaling
from assay.recipe.roles import ParamRole
from assay.recipe.span import FullSpan, WindowSpan

Readings = Iterator[Reading]


def _dense_ratio(m: Model, gated: bool) -> float | None:
    return m.ffn_ratio if m.gated is gated and m.moe == "na" else None


def _plain_attention(m: Model, value: Any) -> Any:
    """A fact of attention that is not latent."""
    return value if m.attention in ("mha", "gqa", "mqa") else None


# --- shape


@measure("ffn.ratio.gated", "d_ff / d_model of gated feed-forward parts", lambda m: _dense_ratio(m, True))
def _(s: Subject) -> Readings:
    yield from (Reading(f.d_ff / s.recipe.d_model, n) for n, f in s.ffns if isinstance(f, Glu))


@measure("ffn.ratio.plain", "d_ff / d_model of ungated feed-forward parts", lambda m: _dense_ratio(m, False))
def _(s: Subject) -> Readings:
    yield from (Reading(f.d_ff / s.recipe.d_model, n) for n, f in s.ffns if isinstance(f, Mlp))


@measure("ffn.gated", "whether feed-forward parts are gated", lambda m: m.gated)
def _(s: Subject) -> Readings:
    yield from (Reading(isinstance(f, Glu), n) for n, f in s.ffns)


@measure("ffn.activation", "activation of feed-forward parts", lambda m: m.activation)
def _(s: Subject) -> Readings:
    yield from (Reading(f.activation.kind_name, n) for n, f in s.ffns)


@measure("attention.ratio", "heads x head_dim / d_model", lambda m: _plain_attention(m, m.attention_ratio))
def _(s: Subject) -> Readings:
    yield from (Reading(a.q_width / s.recipe.d_model, n) for n, a in s.attentions)


@measure("attention.head_dim", "channels a head", lambda m: _plain_attention(m, m.head_dim))
def _(s: Subject) -> Readings:
    yield from (Reading(a.head_dim, n) for n, a in s.attentions)


@measure("attention.kv_heads", "key and value heads", lambda m: _plain_attention(m, m.n_kv_heads))
def _(s: Subject) -> Readings:
    yield from (Reading(a.n_kv_heads, n) for n, a in s.attentions)


@measure("attention.group", "query heads a key and value head", lambda m: _plain_attention(m, m.kv_group))
def _(s: Subject) -> Readings:
    yield from (Reading(a.n_heads // a.n_kv_heads, n) for n, a in s.attentions)


@measure("shape.aspect", "d_model / n_layers", lambda m: m.aspect_ratio)
def _(s: Subject) -> Readings:
    yield Reading(s.recipe.d_model / s.recipe.n_layers)


@measure("shape.layers", "layers", lambda m: m.n_layers)
def _(s: Subject) -> Readings:
    yield Reading(s.recipe.n_layers)


@measure("shape.params", "parameters", lambda m: m.params.total)
def _(s: Subject) -> Readings:
    yield Reading(s.params.total)


@measure("shape.widths", "widths of the matrices, each")
def _(s: Subject) -> Readings:
    yield Reading(s.recipe.d_model, "d_model")
    for name, f in s.ffns:
        yield Reading(f.d_ff, f"{name}: d_ff")
    for name, a in s.attentions:
        yield Reading(a.q_width, f"{name}: heads x head_dim")
        yield Reading(a.kv_width, f"{name}: KV heads x head_dim")


# --- ends


@measure("vocab.size", "rows of the token table", lambda m: m.vocab_size)
def _(s: Subject) -> Readings:
    yield Reading(s.recipe.vocab_size)


def _table_share(m: Model) -> float | None:
    count = recount(m)
    table = count.parts.get("token table", 0)
    return table / (count.total - count.parts.get("head table", 0)) if count.counted else None


@measure("embedding.share", "share of the token table in the model, one table counted", _table_share)
def _(s: Subject) -> Readings:
    table = s.params.by_role[ParamRole.EMBEDDING]
    yield Reading(table / (s.params.total - s.params.by_role.get(ParamRole.HEAD, 0)))


@measure("embedding.tied", "whether head and embedding share a table", lambda m: m.tied_embeddings)
def _(s: Subject) -> Readings:
    yield Reading(s.recipe.embedding.tied)


@measure("head.soft_cap", "soft-cap of the output logits, where there is one", lambda m: _number(m.final_softcap))
def _(s: Subject) -> Readings:
    if s.recipe.head.soft_cap != "none":
        yield Reading(s.recipe.head.soft_cap)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# --- norms, block, bias


def _norm_kind(m: Model) -> str | None:
    return "layernorm" if (m.norm_kind or "").startswith("layernorm") else m.norm_kind


@measure("norm.kind", "kinds of norm in the stream", _norm_kind)
def _(s: Subject) -> Readings:
    for layer, _ in s.layers:
        for _, norm in norms_of(layer.residual):
            if not norm.is_none:
                yield Reading(norm.kind_name, layer.name)


def _all_norms(s: Subject) -> Iterator[tuple[str, Norm]]:
    for layer, _ in s.layers:
        yield from ((f"{layer.name}: {path}", norm) for path, norm in norms_of(layer))
    yield "head.norm", s.recipe.head.norm


@measure("norm.bias", "whether norms have a bias", lambda m: m.norm_bias)
def _(s: Subject) -> Readings:
    for where, norm in _all_norms(s):
        if isinstance(norm, LayerNorm | RMSNorm):
            yield Reading(isinstance(norm, LayerNorm) and norm.bias, where.partition(":")[0])


@measure("norm.eps", "epsilon of norms", lambda m: m.norm_eps)
def _(s: Subject) -> Readings:
    for where, norm in _all_norms(s):
        if isinstance(norm, LayerNorm | RMSNorm):
            yield Reading(norm.eps, where.partition(":")[0])


@measure("norm.placement", "where norms stand", lambda m: (m.norm_placement or "").removesuffix("-post") or None)
def _(s: Subject) -> Readings:
    deep = [layer for layer, _ in s.layers if _skip_scaled(layer)]
    for name, place in s.placements:
        scaled = place == "post" and any(layer.name == name for layer in deep)
        yield Reading("deepnorm" if scaled else place, name)


def _skip_scaled(layer: Any) -> bool:
    skip = getattr(getattr(layer.residual, "mixer", None), "skip", getattr(layer.residual, "skip", None))
    return skip is not None and getattr(skip, "value", 1.0) != 1.0


@measure("norm.final", "whether a norm stands before the head", lambda m: m.norm_final)
def _(s: Subject) -> Readings:
    yield Reading(not s.recipe.head.norm.is_none)


@measure("block.form", "serial or parallel sublayers", lambda m: m.block)
def _(s: Subject) -> Readings:
    for layer, _ in s.layers:
        form = layer.residual.kind_name
        yield Reading("parallel" if form.startswith("parallel") else form, layer.name)


def _bias_words(m: Model) -> str | None:
    if m.biases is None:
        return None
    words = {"attn_qkv": "qkv", "attn_out": "attention output", "ffn": "feed-forward"}
    return ", ".join(sorted(words[b] for b in m.biases if b in words)) or "none"


@measure("bias.linear", "biases of linear layers", _bias_words)
def _(s: Subject) -> Readings:
    groups = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "attention output", "gate": "gate"}
    found = {groups[b] for _, a in s.attentions for b in a.bias} | {"feed-forward" for _, f in s.ffns if f.bias}
    yield Reading(", ".join(sorted(found)) or "none")


@measure("dropout.rate", "largest dropout, of the recipe or of the run", lambda m: m.training.dropout)
def _(s: Subject) -> Readings:
    rates = [s.recipe.embedding.dropout, *(a.dropout for _, a in s.attentions), *(f.dropout for _, f in s.ffns)]
    for layer, _ in s.layers:
        rates += [getattr(getattr(layer.residual, side), "dropout", 0.0) for side in ("mixer", "ffn")]
    yield Reading(max(*rates, float(s.settings.get("dropout", 0.0))))


# --- attention: logits, positions, spans


def _control(qk: bool | None, cap: bool | None) -> str | None:
    if qk is None or cap is None:
        return None
    return "QK-norm and soft-cap" if qk and cap else "QK-norm" if qk else "soft-cap" if cap else "none"


@measure("attention.control", "what bounds attention logits", lambda m: _control(has(m.qk_norm), has(m.attn_softcap)))
def _(s: Subject) -> Readings:
    for name, a in s.attentions:
        yield Reading(_control(isinstance(a.qk_norm, NormedQk), a.soft_cap != "none"), name)


@measure("attention.soft_cap", "soft-cap of attention logits, where there is one", lambda m: _number(m.attn_softcap))
def _(s: Subject) -> Readings:
    yield from (Reading(a.soft_cap, n) for n, a in s.attentions if a.soft_cap != "none")


@measure("qk_norm.over", "what QK-norm norms", lambda m: m.qk_norm.over if isinstance(m.qk_norm, QkNormFact) else None)
def _(s: Subject) -> Readings:
    yield from (Reading(a.qk_norm.over, n) for n, a in s.attentions if isinstance(a.qk_norm, NormedQk))


@measure("qk_norm.gain", "gain of QK-norm", lambda m: m.qk_norm.gain if isinstance(m.qk_norm, QkNormFact) else None)
def _(s: Subject) -> Readings:
    for name, a in s.attentions:
        if isinstance(a.qk_norm, NormedQk):
            yield Reading(getattr(a.qk_norm.norm, "gain", "one") != "none", name)


def _scale(m: Model) -> float | None:
    if m.attn_scale == "default":
        return 1.0
    return m.attn_scale * math.sqrt(m.head_dim) if isinstance(m.attn_scale, float) and m.head_dim else None


@measure("attention.scale", "factor on q·k, times sqrt(head_dim)", _scale)
def _(s: Subject) -> Readings:
    yield from (Reading(a.scale_value * math.sqrt(a.head_dim), n) for n, a in s.attentions)


@measure("position.kind", "positions inside attention, or on the embedding", lambda m: m.position)
def _(s: Subject) -> Readings:
    outer = s.recipe.embedding.position.kind_name
    kinds = {a.position.kind_name for _, a in s.attentions} - {"none"}
    if outer != "none":
        kinds.add(outer)
    yield from (Reading(kind) for kind in sorted(kinds) or ["none"])


def rope_bound(context: float) -> float:
    """The smallest base for a context: 0.0424 · context^1.628 (Men et al. 2024, arXiv:2405.14591, figure 1)."""
    return float(0.0424 * context**1.628)


_STRETCHES = (LinearScaling, NtkScaling, Llama3Scaling, YarnScaling)


def _theta_margin(m: Model) -> float | None:
    if not isinstance(m.rope_theta, int | float) or not isinstance(m.context_length, int):
        return None
    factor = m.rope_scaling.get("factor", 1.0) if not isinstance(m.rope_scaling, str | None) else 1.0
    return float(m.rope_theta / rope_bound(m.context_length / factor))


@measure("rope.theta_margin", "RoPE base over the smallest that its context asks for", _theta_margin)
def _(s: Subject) -> Readings:
    for name, a in s.attentions:
        if not isinstance(a.position, Rope):
            continue
        reach = min(s.recipe.max_seq_len, a.span.size) if isinstance(a.span, WindowSpan) else s.recipe.max_seq_len
        scaling = a.position.scaling
        factor = scaling.factor if isinstance(scaling, _STRETCHES) else 1.0
        yield Reading(a.position.theta / rope_bound(reach / factor), name)


def _local_ratio(m: Model) -> float | None:
    if isinstance(m.local_to_global, tuple) and isinstance(m.sliding_window, int):
        return m.local_to_global[0] / m.local_to_global[1]
    return math.inf if isinstance(m.sliding_window, int) and m.attention_pattern == "sliding" else None


@measure("span.local_ratio", "windowed layers a full layer, where some are windowed", _local_ratio)
def _(s: Subject) -> Readings:
    local, full = _spans(s)
    if local:
        yield Reading(local / full if full else math.inf)


def _spans(s: Subject) -> tuple[int, int]:
    """How many layers see a window only, and how many see everything."""
    local = full = 0
    for layer, depths in s.layers:
        spans = [a.span for a in _attentions(layer.mixer)]
        if any(isinstance(span, FullSpan) for span in spans):
            full += len(depths)
        elif any(isinstance(span, WindowSpan) for span in spans):
            local += len(depths)
    return local, full


def _attentions(mixer: Any) -> list[Attention]:
    return list(parts_in(mixer, Attention))


def _window(m: Model) -> int | None:
    return m.sliding_window if isinstance(m.sliding_window, int) else None


@measure("span.window", "size of windows", _window)
def _(s: Subject) -> Readings:
    yield from (Reading(a.span.size, n) for n, a in s.attentions if isinstance(a.span, WindowSpan))


@measure("span.window_share", "size of windows over the longest sequence")
def _(s: Subject) -> Readings:
    for name, a in s.attentions:
        if isinstance(a.span, WindowSpan):
            yield Reading(a.span.size / s.recipe.max_seq_len, name)


@measure("span.last_full", "whether the last attention layer sees everything, where some are windowed")
def _(s: Subject) -> Readings:
    local, full = _spans(s)
    if local and full:
        last = next(f for f in (_attentions(layer.mixer) for layer in reversed(s.recipe.layers)) if f)
        yield Reading(any(isinstance(a.span, FullSpan) for a in last))
