"""Writing the layers of a model as an authored recipe: its stack, mixer, feed-forward part and residual."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.atlas.records import Model, QkNormFact
from assay.recipe import Recipe
from assay.recipe.base import Part, kinds_of
from assay.recipe.ffn import Activation, Ffn
from assay.recipe.mixer import Attention, Mixer
from assay.recipe.norm import Norm
from assay.recipe.position import Position, RopeScaling
from assay.recipe.span import Span

Table = dict[str, Any]


@dataclass
class Draft:
    """A table being written: what stands in for unknown facts, and what keeps it from being written."""

    model: Model
    assumed: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def need(self, slot: type[Part], kind: str) -> str:
        """The kind, with a reason against the recipe if this version has no such kind."""
        if kind not in kinds_of(slot):
            self.reasons.append(f"no {slot.slot} kind {kind!r} in this version")
        return kind

    def need_field(self, spec: type[Any], name: str, what: str) -> None:
        if name not in spec.model_fields:
            self.reasons.append(f"{what}: {spec.__name__.lower()} has no field {name!r} in this version")

    def fact(self, name: str) -> Any:
        """A fact that a recipe cannot do without."""
        value = getattr(self.model, name)
        if value is None:
            self.reasons.append(f"{name} was not found in a source")
        return value

    def soft(self, name: str, stands_in: str) -> Any:
        """A fact with a default; None where it is unknown, which is then said."""
        value = getattr(self.model, name)
        if value is None:
            self.assumed.append(f"{name} was not found in a source: {stands_in} stands in")
        return value


# --- the stack: which layers, in what order


def stack_of(draft: Draft) -> Table:
    m = draft.model
    n = draft.fact("n_layers")
    cycle = _cycle(m)
    return {"stack": [{"cycle": cycle, "n_layers": n}]} if cycle else {"n_layers": n}


def _cycle(m: Model) -> list[str]:
    """One turn of the layer pattern; empty where all layers are alike."""
    if _alternates(m):
        assert isinstance(m.local_to_global, tuple)
        local, full = m.local_to_global
        return [_counted(local, "local"), _counted(full, "global")]
    if m.nope_layers and m.nope_layers.startswith("every "):
        period = int("".join(c for c in m.nope_layers if c.isdigit()))
        return [_counted(period - 1, "rope"), "nope"]
    return []


def _alternates(m: Model) -> bool:
    return isinstance(m.local_to_global, tuple) and isinstance(m.sliding_window, int)


def _counted(n: int, name: str) -> str:
    return name if n == 1 else f"{n} {name}"


def layers_of(draft: Draft) -> Table:
    m = draft.model
    if _alternates(m):
        local: Table = {"span": {"kind": "window", "size": m.sliding_window}, "position": _position(draft, "local")}
        full: Table = {"position": _position(draft, "global")}
        if not isinstance(m.layer_overrides, str | None):
            full |= {k: m.layer_overrides[k] for k in ("head_dim", "n_kv_heads", "k_eq_v") if k in m.layer_overrides}
        return {"local": {"mixer": local}, "global": {"mixer": full}}
    if _cycle(m):
        return {"rope": {"mixer": {"position": _position(draft, "all")}}, "nope": {"mixer": {"position": "none"}}}
    return {}


# --- inside a layer


def mixer_of(draft: Draft) -> Table:
    m = draft.model
    if m.attention == "mla":
        draft.need(Mixer, "mla")
    if m.attention == "mqa-shared-kv":
        draft.need(Mixer, "compressed_attention")
    if not isinstance(m.hybrid, str | None):
        draft.need(Mixer, str(m.hybrid["kind"]))
    table: Table = {"kind": "attention", "n_heads": draft.fact("n_heads")}
    table["n_kv_heads"] = draft.fact("n_kv_heads")
    table["head_dim"] = draft.fact("head_dim")
    if not _cycle(m):
        table["position"] = _position(draft, "all")
        table.update(_span(draft))
    scale = draft.soft("attn_scale", "1/sqrt(head_dim)")
    if isinstance(scale, float):
        table["scale"] = scale
    biases = draft.fact("biases") or ()
    bias = [p for group, names in (("attn_qkv", "qkv"), ("attn_out", "o")) if group in biases for p in names]
    if bias:
        table["bias"] = bias
    if isinstance(m.qk_norm, QkNormFact):
        table["qk_norm"] = _qk_norm(draft, m.qk_norm)
    elif m.qk_norm is None:
        draft.soft("qk_norm", "none")
    if isinstance(m.attn_softcap, float):
        table["soft_cap"] = m.attn_softcap
    if m.sinks != "none":
        table["sinks"] = m.sinks
    if m.output_gate != "none":
        table["output_gate"] = m.output_gate
    if m.training.dropout and "attention" in m.training.dropout_on:
        table["dropout"] = m.training.dropout
    _other_mixing(draft)
    return table


def _other_mixing(draft: Draft) -> None:
    """What attention of this version may lack."""
    m = draft.model
    if not isinstance(m.layer_overrides, str | None):
        over = m.layer_overrides
        if over.get("k_eq_v"):
            draft.need_field(Attention, "k_eq_v", "keys used as values in full layers")
        if "kv_shared_last" in over:
            draft.need_field(Attention, "kv", "last layers that read the keys of an earlier one")
        if "per_layer_embedding" in over:
            draft.need_field(Recipe, "connections", "per-layer embeddings")
    pattern = m.attention_pattern or ""
    if pattern.startswith(("sparse", "first 3 layers full")):
        draft.need(Mixer, "sparse_attention")
    if pattern.startswith("chunked"):
        draft.need(Span, "chunked")


def _span(draft: Draft) -> Table:
    m = draft.model
    if isinstance(m.sliding_window, int):
        return {"span": {"kind": "window", "size": m.sliding_window}}
    if m.sliding_window is None and "banded" in (m.attention_pattern or ""):
        draft.assumed.append("the width of the banded layers is unpublished: every layer is full")
    return {}


_POSITIONS = {"alibi": "alibi", "t5_relative": "t5", "transformer-xl relative": "transformer_xl"}


def _position(draft: Draft, where: str) -> Any:
    """The position of all layers, or of the ``local`` or ``global`` ones."""
    m = draft.model
    kind = draft.fact("position")
    if kind in ("none", "learned", "sinusoidal") or (where == "global" and m.nope_layers == "full-attention layers"):
        return "none"
    if kind in _POSITIONS:
        return draft.need(Position, _POSITIONS[kind])
    if m.nope_layers == "all":
        return "none"
    rope: Table = {"kind": "rope"}
    theta = m.rope_theta_local if where == "local" and isinstance(m.rope_theta_local, int | float) else m.rope_theta
    if theta is None:
        draft.soft("rope_theta", "10000")
    else:
        rope["theta"] = float(theta)
    if isinstance(m.partial_rotary, float) and m.partial_rotary != 1.0:
        rope["fraction"] = m.partial_rotary
    layout = draft.soft("rope_layout", "half")
    if layout == "interleaved":
        rope["layout"] = layout
    scaling = _scaling(draft, where)
    if scaling:
        rope["scaling"] = scaling
    return rope


_SCALING_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_seq_len", "beta_fast", "beta_slow")


def _scaling(draft: Draft, where: str) -> Table:
    scaling = draft.model.rope_scaling
    if isinstance(scaling, str | None) or (where == "local" and "where" in scaling):
        return {}
    kind = draft.need(RopeScaling, str(scaling["kind"]))
    table: Table = {"kind": kind}
    for key in _SCALING_FIELDS:
        if key in scaling:
            value = scaling[key]
            table[key] = value if key == "original_seq_len" else float(value)
    if scaling.get("truncate") is False:
        table["rounded"] = False
    if kind == "yarn" and "factor" not in table:
        draft.reasons.append("the factor of YaRN was not found in a source")
    return table


def _qk_norm(draft: Draft, fact: QkNormFact) -> Table:
    kind = draft.need(Norm, "rmsnorm" if fact.norm == "l2" else fact.norm)
    norm: Table = {"kind": kind}
    if draft.model.norm_eps is not None:
        norm["eps"] = draft.model.norm_eps
    if not fact.gain:
        norm["gain"] = "none"
    elif fact.zero_centred:
        norm["gain"] = "one_plus"
    if kind == "layernorm":
        norm["bias"] = False
    table: Table = {"over": fact.over, "norm": norm}
    if fact.gain_per == "head":
        table["gain_per"] = "head"
    if fact.order == "after_rope":
        table["order"] = "after_rope"
    if fact.note and "values also normalised" in fact.note:
        draft.need_field(Attention, "v_norm", "normed values")
    return table


def ffn_of(draft: Draft) -> Table:
    m = draft.model
    if not isinstance(m.moe, str | None):
        draft.need(Ffn, "moe")
        if "moe" in kinds_of(Ffn):
            draft.reasons.append("experts are not written yet")
        return {}
    activation = draft.fact("activation")
    gated = draft.fact("gated")
    table: Table = {"kind": "glu" if gated else "mlp", "d_ff": draft.fact("d_ff")}
    if activation is not None:
        table["activation"] = draft.need(Activation, activation)
    if "ffn" in (m.biases or ()):
        table["bias"] = "all"
    return table


def norm_of(draft: Draft) -> Table:
    m = draft.model
    kind = draft.fact("norm_kind")
    if kind is None:
        return {}
    table: Table = {"kind": draft.need(Norm, "layernorm" if kind.startswith("layernorm") else kind)}
    eps = draft.soft("norm_eps", "the recipe's default")
    if eps is not None:
        table["eps"] = eps
    if kind == "layernorm_nonparametric":
        table["gain"] = "none"
    elif kind == "layernorm1p" or m.norm_zero_centred:
        table["gain"] = "one_plus"
    if table["kind"] == "layernorm" and not m.norm_bias:
        table["bias"] = False
    return table


_RULES = {"pre": "pre", "post": "post", "sandwich": "sandwich", "reordered": "reordered", "deepnorm-post": "deepnorm"}


def residual_of(draft: Draft) -> Table:
    m = draft.model
    placement = draft.fact("norm_placement")
    table: Table = {}
    if m.block == "parallel":
        table["form"] = "parallel_shared_norm" if m.parallel_norms == 1 else "parallel"
        if m.parallel_norms is None:
            draft.fact("parallel_norms")
    table["rule"] = _RULES.get(placement, placement)
    table["norm"] = norm_of(draft)
    if isinstance(m.residual_scale, float):
        table["branch"] = m.residual_scale
    elif m.residual_scale is None:
        draft.soft("residual_scale", "1")
    elif m.residual_scale != "none" and placement != "deepnorm-post":
        draft.need_field(Recipe, "connections", str(m.residual_scale))
    if m.training.dropout and "residual" in m.training.dropout_on:
        table["dropout"] = m.training.dropout
    return table
