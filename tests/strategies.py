"""Random small recipes, as an author would write them, and random weights for them.

``tables()`` draws authoring tables over every kind and field that a recipe has; ``recipes()`` resolves them.
Shorthands, overlays, sizing rules and stacks are drawn too. ``test_strategies.py`` holds that nothing is left out.

A few degenerate sizes are not drawn, because fields that differ mean the same there: a window of 1 (a query that sees
itself alone has no use for a score), a rotary size of 2 (one pair turns by one radian, whatever theta and layout), a
head_dim of 1, constant multipliers of 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from assay.recipe import Recipe, resolve

if TYPE_CHECKING:
    import torch

    from assay.model import Decoder

Table = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

# small tables of every kind, by slot: what a flip of a kind puts in a node's place
EXAMPLES: dict[str, dict[str, Table]] = {
    "norm": {
        "none": {},
        "rmsnorm": {"eps": 1e-3},
        "layernorm": {"eps": 1e-4},
        "scalenorm": {},
        "shift": {},
        "fixnorm": {"radius": 1.3},
    },
    "scale": {"constant": {"value": 0.7}, "scalar": {"init": 0.3}, "vector": {"init": 0.1}},
    "span": {
        "full": {},
        "window": {"size": 3},
        "chunked": {"size": 4},
        "strided": {"stride": 3},
        "fixed": {"block": 4},
        "window_global": {"size": 2, "n_global": 2},
    },
    "rope_scaling": {
        "none": {},
        "linear": {"factor": 3.0},
        "ntk": {"factor": 3.0},
        "llama3": {"factor": 4.0, "original_seq_len": 24},
        "yarn": {"factor": 4.0, "original_seq_len": 32},
        "dynamic": {"factor": 4.0, "original_seq_len": 6},
        "longrope": {
            "short_factor": [1.0, 1.5],
            "long_factor": [1.2, 3.0],
            "original_seq_len": 6,
            "attention_factor": 1.1,
        },
    },
    "position": {"none": {}, "rope": {"theta": 50.0}, "alibi": {}, "t5": {"n_buckets": 8, "max_distance": 12}},
    "embedding_position": {"none": {}, "learned": {}, "sinusoidal": {}},
    "qk_norm": {"none": {}, "norm": {"over": "head", "norm": "rmsnorm"}},
    "query_scale": {"none": {}, "by_position": {"beta": 0.5, "period": 3}},
    "kv": {"own": {}, "shared": {"layer": 0}},
    "differential": {"none": {}, "pairs": {"norm": {"kind": "rmsnorm", "eps": 1e-3}}},
    "head_transform": {"none": {}, "dense": {"activation": "gelu", "norm": "layernorm"}},
    "mixer": {
        "none": {},
        "attention": {"n_heads": 2, "n_kv_heads": 1, "head_dim": 4, "position": "rope"},
        "sum": {
            "branches": [
                {"mixer": {"kind": "attention", "n_heads": 1, "head_dim": 3, "position": "none"}},
                {"mixer": {"kind": "attention", "n_heads": 2, "head_dim": 4, "position": "rope"}, "output_scale": 0.5},
            ]
        },
    },
    "mixer_branch": {"branch": {"mixer": {"kind": "attention", "n_heads": 1, "head_dim": 3, "position": "none"}}},
    "ffn": {
        "none": {},
        "mlp": {"d_ff": 7, "activation": "gelu"},
        "glu": {"d_ff": 6, "activation": "silu"},
        "sum": {
            "branches": [
                {"ffn": {"kind": "mlp", "d_ff": 5, "activation": "relu"}},
                {"ffn": {"kind": "glu", "d_ff": 4, "activation": "silu"}, "output_scale": 0.5},
            ]
        },
    },
    "ffn_branch": {"branch": {"ffn": {"kind": "mlp", "d_ff": 5, "activation": "relu"}}},
    "activation": {
        "relu": {},
        "gelu": {},
        "gelu_tanh": {},
        "silu": {},
        "swish": {"beta": 1.7},
        "relu2": {},
        "elu": {"alpha": 0.7},
        "selu": {},
        "sigmoid": {},
        "identity": {},
        "xielu": {},
    },
    "residual": {
        "serial": {"rule": "pre"},
        "parallel": {"rule": "pre"},
        "parallel_shared_norm": {"rule": "pre"},
    },
    "projection": {"none": {}, "linear": {"dim": 5}},
    "distribution": {
        "normal": {"std": 0.05},
        "truncated_normal": {"std": 0.04},
        "fan_in": {"gain": 0.8},  # at 1 it is Xavier's start of a square matrix
        "xavier": {},
        "zero": {},
    },
    "depth_scale": {"none": {}, "total_depth": {}, "layer_depth": {}, "deepnorm": {}, "fixup": {}},
}


@dataclass(frozen=True)
class Wanted:
    """What to draw: ``dropout`` rates above 0 or none, causal spans only or both, what ``sdpa`` can honour or all."""

    dropout: bool = False
    causal: bool = False
    sdpa: bool = False
    max_layers: int = 4


def tables(
    *, dropout: bool = False, causal: bool = False, sdpa: bool = False, max_layers: int = 4
) -> st.SearchStrategy[Table]:
    """Authoring tables that ``resolve`` accepts."""
    return _tables(Wanted(dropout, causal, sdpa, max_layers))


def recipes(
    *, dropout: bool = False, causal: bool = False, sdpa: bool = False, max_layers: int = 4
) -> st.SearchStrategy[Recipe]:
    """Resolved recipes."""
    return tables(dropout=dropout, causal=causal, sdpa=sdpa, max_layers=max_layers).map(resolve)


# --- small helpers


def one(draw: Draw, *values: Any) -> Any:
    """One of the values; the first is the simplest."""
    return draw(st.sampled_from(values))


def some(draw: Draw, table: Table, key: str, *values: Any) -> None:
    """Leave ``key`` out, or set it to one of the values; more often out."""
    picked = draw(st.integers(0, 2 * len(values) + 1))
    if picked > len(values) + 1:
        table[key] = values[picked % len(values)]


def half(draw: Draw, table: Table, key: str, *values: Any) -> None:
    """Leave ``key`` out half the time; for what is rarely come by."""
    if draw(st.booleans()):
        table[key] = one(draw, *values)


def maybe(draw: Draw, odds: int = 3) -> bool:
    """True once in ``odds``."""
    return bool(draw(st.integers(0, odds - 1)) == odds - 1)


def rate(draw: Draw, want: Wanted, table: Table, key: str = "dropout") -> None:
    if want.dropout:
        some(draw, table, key, 0.1, 0.5)


# --- norms, scales


def _kind(part: Any) -> Any:
    """The kind of a part, written as a table or as its kind alone."""
    return part.get("kind") if isinstance(part, dict) else part


def norm(draw: Draw, *, none: bool = False) -> Any:
    """A norm as a table or a bare kind."""
    kinds = ["rmsnorm", "layernorm", "scalenorm", "shift"] + (["none", "none", "none"] if none else [])
    kind = one(draw, *kinds)
    table: Table = {"kind": kind}
    if kind in ("rmsnorm", "layernorm"):
        some(draw, table, "eps", 1e-6, 1e-3)
        some(draw, table, "gain", "one_plus", "none", "one")
    if kind == "layernorm":
        some(draw, table, "bias", False, True)
    if kind == "scalenorm":
        some(draw, table, "init", 2.0, "sqrt_width")
        some(draw, table, "eps", 1e-3)
    return kind if len(table) == 1 else table


def scale(draw: Draw) -> Any:
    """A multiplier as a table or a bare number."""
    return one(
        draw, 0.7, {"kind": "constant", "value": 1.3}, -0.8, {"kind": "scalar", "init": 0.0},
        {"kind": "scalar", "init": 1.0}, {"kind": "vector", "init": 1e-4}, {"kind": "vector", "init": 0.9},
    )  # fmt: skip


# --- mixers


def rope(draw: Draw, head_dim: int) -> Any:
    """RoPE whose rotary size is even and at least 4."""
    whole = head_dim - head_dim % 2
    size = one(draw, whole, whole, *range(whole, 3, -2))
    table: Table = {"kind": "rope"}
    if size != head_dim:
        table["fraction"] = size / head_dim
    some(draw, table, "theta", 100.0, 30.0, 5e5)
    some(draw, table, "layout", "interleaved", "half")
    if maybe(draw, 2):
        yarn = ["yarn"] * 5 if size >= 8 else []
        kind = one(draw, *yarn, "none", "longrope", "dynamic", "linear", "ntk", "llama3")
        scaling: Table = {"kind": kind}
        if kind not in ("none", "longrope"):
            scaling["factor"] = one(draw, 2.0, 8.0, 4.0)
        if kind == "llama3":
            scaling["original_seq_len"] = one(draw, 40, 16, 24)
            half(draw, scaling, "low_freq_factor", 0.5, 0.8, 2.0)
            half(draw, scaling, "high_freq_factor", 9.0, 6.0, 20.0)
        if kind in ("dynamic", "longrope"):
            scaling["original_seq_len"] = one(draw, 6, 8, 10)
        if kind == "longrope":
            scaling["short_factor"] = [one(draw, 1.0, 1.3) for _ in range(size // 2)]
            scaling["long_factor"] = [one(draw, 2.0, 1.1, 5.0) for _ in range(size // 2)]
            scaling["attention_factor"] = one(draw, 1.1, 1.0)
        if kind == "yarn":
            table["theta"] = one(draw, 50.0, 100.0)
            scaling["original_seq_len"] = one(draw, 64, 32, 48)
            scaling["beta_slow"] = one(draw, 0.7, 1.0, 1.2, 2.0)
            scaling["beta_fast"] = one(draw, 16.0, 4.0, 64.0)
            half(draw, scaling, "attention_factor", 1.2, 0.9, "paper")
            scaling["rounded"] = one(draw, False, True)
        table["scaling"] = scaling
    return "rope" if len(table) == 1 else table


def span(draw: Draw, want: Wanted, *, far: bool = False) -> Any:
    """A span; ``far``: one that reaches far enough for T5's wide buckets to differ."""
    kind = one(draw, "full", "strided", "fixed", *(() if far else ("window", "chunked", "window_global")))
    table: Table = {"kind": kind}
    if kind in ("window", "chunked", "window_global"):
        table["size"] = one(draw, 3, 2, 5)
    if kind == "strided":
        table["stride"] = one(draw, 3, 2, 4)
    if kind == "fixed":
        table["block"] = one(draw, 4, 3)
        half(draw, table, "summary", 2, 1)
    if kind == "window_global":
        table["n_global"] = one(draw, 1, 2)
    if not want.causal and kind not in ("strided", "fixed"):
        half(draw, table, "causal", False, True)
    return kind if len(table) == 1 else table


def position(draw: Draw, head_dim: int) -> Any:
    """What an attention knows about order."""
    kind = one(draw, *(["rope"] * 4 if head_dim >= 4 else []), "none", "alibi", "t5")
    if kind == "rope":
        return rope(draw, head_dim)
    table: Table = {"kind": kind}
    if kind == "alibi":
        half(draw, table, "max_bias", 4.0, 8.0)
        half(draw, table, "multiplier", 0.5, 2.0)
    if kind == "t5":
        table["n_buckets"] = one(draw, 8, 4, 16)
        table["max_distance"] = one(draw, 12, 9)
        half(draw, table, "table", "own")
    return kind if len(table) == 1 else table


def qk_norm(draw: Draw, rotates: bool, n_heads: int) -> Table:
    """One head is the whole width; a norm by length alone is the same before and after a rotation."""
    normed = norm(draw)
    normed = "rmsnorm" if _kind(normed) == "shift" else normed
    kind, gain = _kind(normed), normed.get("gain", "one") if isinstance(normed, dict) else "one"
    gained = kind != "scalenorm" and gain != "none"
    table: Table = {"over": one(draw, "head", "width") if n_heads > 1 else "head", "norm": normed}
    if table["over"] == "head" and gained:
        half(draw, table, "gain_per", "head", "shared")
    if rotates:
        by_length = kind == "scalenorm" or (kind == "rmsnorm" and gain == "none")
        some(draw, table, "order", *(() if by_length else ("after_rope",)), "before_rope")
    return table


def attention(draw: Draw, want: Wanted, d_model: int) -> Table:
    n_heads = one(draw, 2, 4, 1, 3)
    table: Table = {"kind": "attention", "n_heads": n_heads}
    kv = one(draw, None, *(n for n in range(1, n_heads + 1) if n_heads % n == 0))
    if kv is not None:
        table["n_kv_heads"] = kv
    head_dim = one(draw, 4, 8, 6, 5, 8, 3, 7, 9)
    if d_model % n_heads == 0 and d_model // n_heads >= 3 and maybe(draw):
        head_dim = d_model // n_heads
    else:
        table["head_dim"] = head_dim
    table["position"] = position(draw, head_dim)
    rotates = _kind(table["position"]) == "rope"
    if maybe(draw, 2):
        table["span"] = span(draw, want, far=_kind(table["position"]) == "t5")
    some(draw, table, "scale", "inv_head_dim", 0.3, 1.0, "inv_sqrt_head_dim")
    some(draw, table, "clip_qkv", 0.9, 2.5, "none")
    if maybe(draw, 2):
        table["qk_norm"] = qk_norm(draw, rotates, n_heads)
    if maybe(draw, 5):
        table["query_scale"] = {"kind": "by_position", "beta": one(draw, 0.5, 1.5), "period": one(draw, 3, 2)}
        some(draw, table["query_scale"], "first", 1, 0)
    paired = n_heads % 2 == 0 and (kv or n_heads) % 2 == 0 and maybe(draw, 4)
    if paired:
        table["differential"] = {"kind": "pairs", "norm": pair_norm(draw)}
        half(draw, table["differential"], "start", 0.4, "by_depth")
    some(draw, table, "output_gate", "head", "channel", "none")
    if maybe(draw):
        names = ["q", "k", "v", "o"] + (["gate"] if table.get("output_gate", "none") != "none" else [])
        table["bias"] = one(draw, "all", "none", ["v"], names, ["o", "k"], names[-1:])
    if not want.sdpa:
        some(draw, table, "soft_cap", 2.0, 6.0, "none")
        some(draw, table, "sinks", "per_head", "none")
    if maybe(draw):
        table["inner_norm"] = norm(draw, none=True)
    if not paired:
        rate(draw, want, table)
    return table


def pair_norm(draw: Draw) -> Any:
    """A norm over the channels of two heads: any that normalises, or none."""
    normed = norm(draw, none=True)
    return "rmsnorm" if _kind(normed) == "shift" else normed


def mixer_branch(draw: Draw, want: Wanted, d_model: int, deep: bool) -> Table:
    part = mixer(draw, want, d_model, deep=False) if deep else attention(draw, want, d_model)
    return branch(draw, {"mixer": part})


def branch(draw: Draw, table: Table) -> Table:
    some(draw, table, "input_scale", 0.6, -1.4)
    some(draw, table, "output_scale", 1.5, 0.4)
    for key in ("input_norm", "output_norm"):
        if maybe(draw):
            table[key] = norm(draw, none=True)
    some(draw, table, "kind", "branch")
    return table


def mixer(draw: Draw, want: Wanted, d_model: int, deep: bool = True) -> Any:
    if not maybe(draw, 5):
        return attention(draw, want, d_model)
    inside = deep and maybe(draw, 4)
    return {"kind": "sum", "branches": [mixer_branch(draw, want, d_model, inside) for _ in range(one(draw, 2, 3))]}


# --- feed-forward


def activation(draw: Draw) -> Any:
    kinds = ("silu", "gelu", "relu", "xielu", "gelu_tanh", "relu2", "swish", "elu", "selu", "sigmoid", "identity")
    kind = one(draw, *kinds)
    if kind == "swish":
        return {"kind": kind, "beta": one(draw, 1.702, 0.5)}
    if kind == "xielu" and maybe(draw, 2):
        return {"kind": kind, "alpha": one(draw, 0.9, 2.0), "beta": one(draw, 0.4, 0.5)}
    if kind == "elu" and maybe(draw, 2):
        return {"kind": kind, "alpha": 0.5}
    return kind


def width(draw: Draw) -> Any:
    """d_ff, or a rule for it."""
    return one(
        draw, 8, 5, 12, {"ratio": "8/3", "multiple_of": 4}, {"ratio": 1.5, "rounding": "nearest"},
        {"ratio": 2, "multiplier": 0.75, "multiple_of": 3, "rounding": "down"},
    )  # fmt: skip


def plain_ffn(draw: Draw, want: Wanted) -> Table:
    kind = one(draw, "glu", "mlp")
    table: Table = {"kind": kind, "d_ff": width(draw), "activation": activation(draw)}
    names = ["gate", "up", "down"] if kind == "glu" else ["up", "down"]
    if maybe(draw, 2):
        table["bias"] = one(draw, "all", "none", ["down"], names[:1], names[:2])
    if kind == "mlp" and maybe(draw, 5):
        table["act_norm"] = norm(draw, none=True)
    if kind == "glu":
        some(draw, table, "clamp", 1.0, 3.0, "none")
        some(draw, table, "up_offset", 1.0, -0.5)
    if maybe(draw):
        table["inner_norm"] = norm(draw, none=True)
    rate(draw, want, table)
    return table


def ffn(draw: Draw, want: Wanted, deep: bool = True) -> Table:
    if not maybe(draw, 5):
        return plain_ffn(draw, want)
    inside = deep and maybe(draw, 4)
    branches = []
    for _ in range(one(draw, 2, 3)):
        branches.append(branch(draw, {"ffn": ffn(draw, want, deep=False) if inside else plain_ffn(draw, want)}))
    return {"kind": "sum", "branches": branches}


# --- residuals

_RULES = ("pre", "post", "sandwich", "reordered", "deepnorm", "layerscale", "rezero", "fixup", "none")
_SHARED_RULES = ("pre", "sandwich", "layerscale", "fixup")  # those with an input norm


def rule(draw: Draw, names: tuple[str, ...] = _RULES) -> Any:
    """A shorthand, with or without its options."""
    table: Table = {"rule": one(draw, *names)}
    if table["rule"] not in ("rezero", "fixup", "none") and maybe(draw, 2):
        table["norm"] = norm(draw)
    if table["rule"] in ("rezero", "layerscale", "fixup"):
        some(draw, table, "init", 0.2)
    return table["rule"] if len(table) == 1 and maybe(draw, 2) else table


def places(draw: Draw, want: Wanted, *, stream: bool, shared: bool = False) -> Table:
    """A rule written out, slot by slot."""
    table: Table = {}
    for key in ("input_norm", "output_norm"):
        if maybe(draw, 2) and not (shared and key == "input_norm"):
            table[key] = norm(draw, none=True)
    if maybe(draw):
        table["branch"] = scale(draw)
    rate(draw, want, table)
    if stream:
        table.update(stream_places(draw, normed=table.get("input_norm", "none") != "none"))
    return table


def stream_places(draw: Draw, *, normed: bool) -> Table:
    table: Table = {}
    if maybe(draw):
        table["stream_norm"] = norm(draw, none=True)
    if maybe(draw):
        table["skip"] = scale(draw)
    if normed:
        half(draw, table, "skip_from", "normed", "stream")
    return table


def serial_side(draw: Draw, want: Wanted) -> Any:
    return rule(draw) if maybe(draw, 2) else places(draw, want, stream=True)


def residual(draw: Draw, want: Wanted, missing: str | None) -> Any:
    """A residual in any form; where a sublayer is missing, serial and without a rule for it."""
    style = one(draw, "rule", "slots", "sides", *(() if missing else ("parallel", "parallel_shared_norm")))
    if style == "rule":
        table = rule(draw)
    elif style == "slots":
        table = places(draw, want, stream=True)
    elif style == "sides":
        table = {side: serial_side(draw, want) for side in ("mixer", "ffn") if side != missing}
        if missing is None and maybe(draw, 4):
            shared = places(draw, want, stream=True)
            shared.pop("skip_from", None)  # a side may take the norm away that it skips from
            sides = [side for side in table.values() if isinstance(side, dict) and "rule" not in side]
            read = {key: value for key, value in shared.items() if any(key not in side for side in sides)}
            table = {**read, **table}
    elif style == "parallel":
        table = {"form": style, **_joint(draw, want, ("pre", "sandwich", "reordered", "layerscale", "rezero", "none"))}
        table.update(stream_places(draw, normed=False))
    else:
        table = {"form": style, **_joint(draw, want, _SHARED_RULES, shared=True)}
        if "rule" not in table:
            table["input_norm"] = norm(draw)
        table.update(stream_places(draw, normed=True))
    if isinstance(table, dict) and style in ("rule", "slots"):
        some(draw, table, "form", "serial")
    return table


def _joint(draw: Draw, want: Wanted, rules: tuple[str, ...], *, shared: bool = False) -> Table:
    """The sides of a parallel form: one rule for both, or each its slots."""
    if maybe(draw, 2):
        table = rule(draw, rules)
        return dict(table) if isinstance(table, dict) else {"rule": table}
    return {side: places(draw, want, stream=False, shared=shared) for side in ("mixer", "ffn")}


# --- layers and the stack


def layer(draw: Draw, want: Wanted, d_model: int) -> Table:
    missing = one(draw, None, None, None, None, "ffn", "mixer")
    return {
        "mixer": "none" if missing == "mixer" else mixer(draw, want, d_model),
        "ffn": one(draw, "none", {"kind": "none"}) if missing == "ffn" else ffn(draw, want),
        "residual": residual(draw, want, missing),
    }


def overlay(draw: Draw, want: Wanted, base: Table) -> Table:
    """A few changes of a layer that leave it valid."""
    over: Table = {}
    mixing = base["mixer"]
    if isinstance(mixing, dict) and mixing["kind"] == "attention":
        inner: Table = {}
        if _kind(mixing["position"]) != "t5" and maybe(draw, 2):
            inner["span"] = {"kind": "window", "size": one(draw, 4, 2)}
        after = mixing.get("qk_norm", {}).get("order") == "after_rope"
        if not after and _kind(mixing["position"]) != "t5" and maybe(draw):
            inner["position"] = one(draw, "none", "alibi")
        some(draw, inner, "scale", 0.5)
        if inner:
            over["mixer"] = inner
    if base["ffn"] not in ("none", {"kind": "none"}) and maybe(draw, 2):
        other = "mlp" if base["ffn"]["kind"] == "glu" else "glu"
        over["ffn"] = {"kind": other, "d_ff": one(draw, 6, 9), "activation": activation(draw)}
    form = base["residual"].get("form", "serial") if isinstance(base["residual"], dict) else "serial"
    whole = mixing != "none" and base["ffn"] not in ("none", {"kind": "none"})
    if whole and form == "serial" and (not over or maybe(draw)):
        over["residual"] = one(draw, *_RULES)
    return over


def share_t5(draw: Draw, first: Table, later: Table) -> None:
    """Where the first layer has a T5 table, the other may take its attention and read that table."""
    if _kind(first["mixer"]) == "attention" and _kind(first["mixer"]["position"]) == "t5" and later["mixer"] != "none":
        if not maybe(draw):
            own = first["mixer"]["position"]
            later["mixer"] = {**first["mixer"], "position": {**own, "table": "first"}, "scale": 0.6}


_NAMES = ("local", "global", "a-2", "x_1")


def layers(draw: Draw, want: Wanted, d_model: int) -> Table:
    """``block``, ``layers`` and ``stack`` or ``n_layers``, in one of the ways they are written."""
    style = one(draw, "block", "named", "overlaid", "shared")
    most = want.max_layers
    if style == "block" or most == 1:
        return {"block": layer(draw, want, d_model), "n_layers": draw(st.integers(1, most))}
    n_named = one(draw, *range(min(3, most), 0, -1))
    names = _NAMES[:n_named]
    if style == "named":
        out: Table = {"layers": {name: layer(draw, want, d_model) for name in names}}
        if n_named > 1:
            share_t5(draw, *list(out["layers"].values())[:2])
    elif style == "shared":
        shared = {"ffn": plain_ffn(draw, want), "residual": residual(draw, want, None)}
        out = {"block": shared, "layers": {name: {"mixer": mixer(draw, want, d_model)} for name in names}}
    else:
        block = layer(draw, want, d_model)
        out = {"block": block, "layers": {name: overlay(draw, want, block) for name in names}}
        if len(names) < most:
            names = (*names, "block")
    out["stack"] = stack(draw, list(names), most)
    share_keys(draw, names[0], out["layers"])
    if maybe(draw, 4):
        out["n_layers"] = _count(out["stack"])
        if "cycle" in out["stack"][0] and maybe(draw, 2):
            del out["stack"][0]["n_layers"]  # a single cycle may take its length from n_layers
    return out


def share_keys(draw: Draw, first: str, layers: Table) -> None:
    """Let another layer's attention read the keys of the first, now and then; what is of queries is its own."""
    source = layers.get(first, {}).get("mixer")
    readers = [n for n, layer in layers.items() if n != first and _kind(layer.get("mixer")) in ("attention", "sum")]
    if not readers or _kind(source) != "attention" or not maybe(draw, 2):
        return
    own = ("qk_norm", "query_scale", "clip_qkv", "output_gate", "scale", "inner_norm", "soft_cap")
    mixing = {key: value for key, value in source.items() if key not in own or not maybe(draw)}
    if mixing.get("bias", "all") != "all":
        mixing["bias"] = [n for n in mixing["bias"] if n in ("q", "o")] if mixing["bias"] != "none" else "none"
    layers[one(draw, *readers)]["mixer"] = {**mixing, "kv": {"layer": one(draw, first, 0)}}


def stack(draw: Draw, names: list[str], most: int) -> list[Any]:
    """An order and counts of these layers, each used, at most ``most`` together."""
    room = most - len(names)
    if len(names) > 1 and maybe(draw, 2):
        return [{"cycle": list(names), "n_layers": len(names) + one(draw, *range(room, -1, -1))}]
    out: list[Any] = []
    for name in names:
        extra = draw(st.integers(0, room))
        room -= extra
        out.append(name if extra == 0 else f"{extra + 1} {name}")
    return out


def _count(entries: list[Any]) -> int:
    return sum(e["n_layers"] if isinstance(e, dict) else int(e.split()[0]) if e[0].isdigit() else 1 for e in entries)


# --- the ends


def distribution(draw: Draw) -> Any:
    kind = one(draw, "normal", "truncated_normal", "fan_in", "xavier", "zero")
    table: Table = {"kind": kind}
    if kind in ("normal", "truncated_normal"):
        table["std"] = one(draw, 0.02, 0.3)
    if kind == "truncated_normal":
        some(draw, table, "cutoff", 2.0, 1.0)
    if kind == "fan_in":
        some(draw, table, "gain", 0.8)
        some(draw, table, "cutoff", 2.0, "none")
    if kind == "xavier":
        some(draw, table, "gain", 1.4)
        half(draw, table, "shape", "uniform", "normal")
    return kind if len(table) == 1 and maybe(draw, 2) else table


def start(draw: Draw, roles: list[str], n_branches: int) -> Table:
    """An ``init`` for these roles; a depth rule where there is depth, and where there is something to shrink."""
    table: Table = {}
    depth: Table = {}
    if n_branches > 1:
        half(draw, depth, "depth", "total_depth", "fixup", "layer_depth", "deepnorm", {"kind": "total_depth"}, "none")
    rule = depth.get("depth", "none")
    shrunk = {"fixup": ("attn_value", "ffn_in"), "none": ()}.get(str(rule), ("attn_out", "ffn_out"))
    zeroed = ("attn_out", "ffn_out", "head") if rule == "fixup" else ()
    for role in roles:
        if role not in (*shrunk, *zeroed) and maybe(draw, 4):
            table[role] = distribution(draw)
    if rule == "none" and maybe(draw, 2):
        table["weights"] = distribution(draw)
    elif rule != "none":
        half(draw, table, "weights", {"kind": "fan_in"}, {"kind": "xavier"}, {"kind": "truncated_normal", "std": 0.1})
        some(draw, table, shrunk[0] if shrunk[0] in roles else shrunk[1], {"kind": "normal", "std": 0.03})
    if all(role in table or role in zeroed for role in roles):
        table.pop("weights", None)
    return {**table, **depth}


def embedding(draw: Draw, want: Wanted) -> Table:
    table: Table = {"tied": one(draw, True, False)}
    some(draw, table, "scale", "sqrt_d_model", 2.5, 0.5)
    if maybe(draw, 5):
        table["projection"] = {"kind": "linear", "dim": one(draw, 5, 7, 11)}
        some(draw, table["projection"], "bias", True, False)
    kind = one(draw, None, "learned", "sinusoidal", "none")
    if kind is not None:
        table["position"] = {"kind": kind}
        if kind == "learned":
            some(draw, table["position"], "offset", 2, 1)
        if kind == "sinusoidal":
            some(draw, table["position"], "theta", 50.0, 1e3)
            half(draw, table["position"], "layout", "half", "interleaved")
            half(draw, table["position"], "spacing", "inclusive", "paper")
            some(draw, table["position"], "offset", 2, 1)
    if maybe(draw, 2):
        table["norm"] = norm(draw, none=True)
        if maybe(draw, 2):
            table["norm"] = {"kind": "fixnorm"}
            half(draw, table["norm"], "radius", 1.7, 0.6)
            half(draw, table["norm"], "eps", 1e-3, 1e-4)
    rate(draw, want, table)
    return table


def head(draw: Draw, entry: Table) -> Table:
    table: Table = {"norm": norm(draw, none=True)}
    if maybe(draw, 5):
        table["transform"] = {"kind": "dense", "activation": activation(draw), "norm": norm(draw, none=True)}
        some(draw, table["transform"], "bias", True, False)
    projection = entry.get("projection")
    if entry["tied"] and projection is not None:
        table["projection"] = {"kind": "linear", "dim": projection["dim"]}
    elif not entry["tied"] and maybe(draw, 5):
        table["projection"] = {"kind": "linear", "dim": one(draw, 5, 6)}
    if "projection" in table:
        some(draw, table["projection"], "bias", True, False)
    some(draw, table, "bias", True)
    some(draw, table, "scale", "inv_sqrt_d_model", 1.6)
    some(draw, table, "soft_cap", 4.0, 12.0)
    return table


@st.composite
def _tables(draw: Draw, want: Wanted) -> Table:
    d_model = one(draw, 8, 12, 9, 16, 24)
    table: Table = {
        "name": "drawn",
        "d_model": d_model,
        "vocab_size": one(draw, 11, 16, 29, 40),
        "max_seq_len": one(draw, 16, 12, 24),
        **layers(draw, want, d_model),
        "embedding": embedding(draw, want),
    }
    some(draw, table, "notes", "a note")
    some(draw, table, "sources", ["arXiv:1706.03762"])
    table["head"] = head(draw, table["embedding"])
    init = start(draw, roles_of(table), n_branches_of(table))
    if init or maybe(draw, 2):
        table["init"] = init
    return table


def roles_of(table: Table) -> list[str]:
    """The drawn matrices of an authored table's model."""
    parts = [table.get("block", {}), *table.get("layers", {}).values()]
    mixes = any(p.get("mixer", "none") not in ("none", {"kind": "none"}) for p in parts)
    feeds = any(p.get("ffn", "none") not in ("none", {"kind": "none"}) for p in parts)
    out = ["embedding"]
    if table["embedding"].get("position", {}).get("kind") == "learned" or any(_own_t5(p.get("mixer")) for p in parts):
        out.append("position")
    if "projection" in table["embedding"] or "projection" in table["head"] or "transform" in table["head"]:
        out.append("projection")
    out += ["attn_in", "attn_value", "attn_out"] if mixes else []
    out += ["ffn_in", "ffn_out"] if feeds else []
    out += [] if table["embedding"]["tied"] else ["head"]
    return [*out, "lambda"] if any(_differs(p.get("mixer")) for p in parts) else out


def _differs(mixing: Any) -> bool:
    """Differential attention in a mixer."""
    if not isinstance(mixing, dict):
        return False
    return "differential" in mixing or any(_differs(branch["mixer"]) for branch in mixing.get("branches", ()))


def _own_t5(mixing: Any) -> bool:
    """A T5 table in a mixer."""
    if not isinstance(mixing, dict):
        return False
    if mixing.get("kind") == "sum":
        return any(_own_t5(branch["mixer"]) for branch in mixing["branches"])
    place = mixing.get("position")
    return _kind(place) == "t5" and not (isinstance(place, dict) and place.get("table") == "first")


def n_branches_of(table: Table) -> int:
    """Sublayers that write to the stream, over the whole stack, at least: a count of 1 is exact."""
    layers = table.get("n_layers") or _count(table["stack"])
    one_sided = [p for p in (table.get("block", {}), *table.get("layers", {}).values()) if "none" in _sides(p)]
    return int(layers) if one_sided or layers > 1 else 2


def _sides(part: Table) -> list[Any]:
    return ["none" if part.get(side) in ("none", {"kind": "none"}) else "some" for side in ("mixer", "ffn")]


# --- weights


def randomise(decoder: Decoder, seed: int = 0) -> Decoder:
    """Every parameter random, in place: gains, biases, scales and sinks too. A value depends on seed and name only."""
    import torch

    from assay.model import named_params

    with torch.no_grad():
        for p in named_params(decoder):
            digest = hashlib.blake2b(f"{seed}/{p.name}".encode(), digest_size=7).digest()
            generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))
            noise = torch.randn(p.param.shape, generator=generator, dtype=torch.float64, device="cpu")
            p.param.copy_(_value(str(p.role), p.start, noise))
    return decoder


def _value(role: str, start: float | None, noise: torch.Tensor) -> torch.Tensor:
    if role == "norm_gain":
        return start * (1 + 0.25 * noise) if start else 0.25 * noise  # type: ignore[operator, return-value]
    if role == "scale":
        return noise.sign() * (0.7 + 0.2 * noise.abs().clamp(max=2.0))
    if role == "bias":
        return 0.3 * noise
    if role in ("sink", "embedding", "position"):
        return noise
    return 0.5 * noise / noise.shape[-1] ** 0.5


def random_decoder(recipe: Recipe, seed: int = 0, backend: str = "auto", dtype: torch.dtype | None = None) -> Decoder:
    """A decoder in eval mode with all weights random; float64 unless said."""
    import torch

    from assay.model import build

    decoder = build(recipe, device="meta", dtype=dtype or torch.float64, backend=backend)
    return randomise(decoder.to_empty(device="cpu"), seed).eval()


__all__ = ["EXAMPLES", "Table", "Wanted", "random_decoder", "randomise", "recipes", "replace", "roles_of", "tables"]
