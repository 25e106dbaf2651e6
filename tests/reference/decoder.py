"""A decoder for each placement of the norms, read from an authored table and a dictionary of weights by name.

One sequence at a time, one token at a time; the authored layers are complete tables, so there is no merging here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.reference.activations import activate, sigmoid
from tests.reference.attention import attend, legal_by_rule
from tests.reference.norms import Array, fix_norm, norm_vector
from tests.reference.positions import rotate, sinusoidal_row

Table = Mapping[str, Any]
Map = Callable[[Array], Array]


class Weights:
    """Parameters by name; remembers which ones were asked for."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = dict(arrays)
        self.used: set[str] = set()

    def find(self, name: str) -> Array | None:
        if name in self.arrays:
            self.used.add(name)
            return self.arrays[name]
        return None

    def need(self, name: str) -> Array:
        found = self.find(name)
        assert found is not None, f"no weight {name}"
        return found

    @property
    def unused(self) -> set[str]:
        return set(self.arrays) - self.used


def rows(f: Map, x: Array) -> Array:
    """f of every row."""
    return np.array([f(row) for row in x])


def linear(w: Weights, name: str, x: Array) -> Array:
    matrix, bias = w.need(f"{name}.weight"), w.find(f"{name}.bias")
    return rows(lambda row: matrix @ row + (0.0 if bias is None else bias), x)


def norm(w: Weights, name: str, rule: Any, x: Array) -> Array:
    gain, bias = w.find(f"{name}.gain"), w.find(f"{name}.bias")
    return rows(lambda row: norm_vector(rule, row, gain, bias), x)


# the two sublayers


def mixer(w: Weights, name: str, table: Table, x: Array, kept: dict[int, tuple[Array, Array]]) -> Array:
    """What an authored mixer makes of (T, d); ``kept``: keys and values of the layers before, by depth."""
    if table["kind"] == "sum":
        return sum_of(w, name, table, x, lambda w, name, branch, x: mixer(w, name, branch["mixer"], x, kept))
    heads, d_head = table["n_heads"], table["head_dim"]
    length = len(x)
    q = _turned(w, f"{name}.q_norm", table, _projected(w, f"{name}.q", table, x, heads))
    if "kv" in table:
        k, v = kept[table["kv"]["layer"]]
    else:
        groups = table.get("n_kv_heads", heads)
        k = _turned(w, f"{name}.k_norm", table, _projected(w, f"{name}.k", table, x, groups))
        v = _projected(w, f"{name}.v", table, x, groups)
        kept[int(name.split(".")[1])] = k, v
    if "query_scale" in table:
        q = np.array([query_scale(table["query_scale"], t) * token for t, token in enumerate(q)])
    if "differential" in table:
        v = paired_values(v)
    scale = table.get("scale", "inv_sqrt_head_dim")
    out = attend(
        q.transpose(1, 0, 2),
        k.transpose(1, 0, 2),
        v.transpose(1, 0, 2),
        scale={"inv_sqrt_head_dim": 1 / math.sqrt(d_head), "inv_head_dim": 1 / d_head}.get(scale, scale),
        legal=legal_by_rule(table.get("span", "full")),
        soft_cap=table.get("soft_cap"),
        sinks=w.need(f"{name}.sinks") if table.get("sinks") == "per_head" else None,
    )
    if "differential" in table:
        out = difference(w, f"{name}.difference", table["differential"], out, int(name.split(".")[1]))
    joined = norm(w, f"{name}.inner_norm", table.get("inner_norm", "none"), out.transpose(1, 0, 2).reshape(length, -1))
    if "output_gate" in table:
        gates = linear(w, f"{name}.gate", x)
        for t in range(length):
            for c in range(heads * d_head):
                joined[t, c] *= sigmoid(float(gates[t, c // d_head if table["output_gate"] == "head" else c]))
    return linear(w, f"{name}.o", joined)


def _projected(w: Weights, name: str, table: Table, x: Array, heads: int) -> Array:
    """(T, d) to (T, heads, D), clipped."""
    y = linear(w, name, x)
    if "clip_qkv" in table:
        y = np.minimum(np.maximum(y, -table["clip_qkv"]), table["clip_qkv"])
    return y.reshape(len(x), heads, table["head_dim"])


def query_scale(rule: Table, position: int) -> float:
    """Llama 4's attention temperature: a step each ``period`` positions."""
    return float(1 + rule["beta"] * math.log(1 + math.floor((position + rule.get("first", 0)) / rule["period"])))


def paired_values(v: Array) -> Array:
    """(T, K, D) to (T, K, 2D): key/value heads g and g + K/2 both hold both values."""
    half = v.shape[1] // 2
    out = np.empty((*v.shape[:2], 2 * v.shape[2]))
    for t in range(len(v)):
        for g in range(half):
            out[t, g] = out[t, g + half] = [*v[t, g], *v[t, g + half]]
    return out


def difference(w: Weights, name: str, rule: Table, out: Array, depth: int) -> Array:
    """Ye et al. 2024 (arXiv:2410.05258), equations 1 to 4, on outputs (H, T, 2D) of maps: to (H/2, T, 2D)."""
    q1, k1, q2, k2 = (w.need(f"{name}.lambda_{v}") for v in ("q1", "k1", "q2", "k2"))
    start = rule.get("start", "by_depth")
    start = 0.8 - 0.6 * math.exp(-0.3 * depth) if start == "by_depth" else start
    factor = math.exp(q1 @ k1) - math.exp(q2 @ k2) + start
    pairs = len(out) // 2
    plain = [out[i] - factor * out[i + pairs] for i in range(pairs)]
    return np.array([(1 - start) * norm(w, f"{name}.norm", rule["norm"], pair) for pair in plain])


def _turned(w: Weights, name: str, table: Table, x: Array) -> Array:
    """(T, heads, D) normed and rotated, in the authored order."""
    qk, position = table.get("qk_norm"), table["position"]

    def normed(x: Array) -> Array:
        if qk is None:
            return x
        if qk["over"] == "width":
            return norm(w, name, qk["norm"], x.reshape(len(x), -1)).reshape(x.shape)
        gain, bias = w.find(f"{name}.gain"), w.find(f"{name}.bias")
        own = qk.get("gain_per", "shared") == "head"
        out = np.empty_like(x)
        for t in range(x.shape[0]):
            for h in range(x.shape[1]):
                g, b = (a[h] if own and a is not None else a for a in (gain, bias))
                out[t, h] = norm_vector(qk["norm"], x[t, h], g, b)
        return out

    def rotated(x: Array) -> Array:
        if position == "none":
            return x
        return np.array([[rotate(head, t, position) for head in token] for t, token in enumerate(x)])

    if qk is not None and qk.get("order") == "after_rope":
        return normed(rotated(x))
    return rotated(normed(x))


def ffn(w: Weights, name: str, table: Table, x: Array) -> Array:
    """What an authored feed-forward part makes of (T, d)."""
    if table["kind"] == "sum":
        return sum_of(w, name, table, x, lambda w, name, branch, x: ffn(w, name, branch["ffn"], x))
    up = linear(w, f"{name}.up", x)
    if table["kind"] == "mlp":
        up = norm(w, f"{name}.act_norm", table.get("act_norm", "none"), up)
        hidden = rows(lambda row: activate(table["activation"], row), up)
    else:
        gate = linear(w, f"{name}.gate", x)
        if "clamp" in table:
            c = table["clamp"]
            gate, up = np.minimum(gate, c), np.minimum(np.maximum(up, -c), c)
        hidden = rows(lambda row: activate(table["activation"], row), gate) * (up + table.get("up_offset", 0.0))
    hidden = norm(w, f"{name}.inner_norm", table.get("inner_norm", "none"), hidden)
    return linear(w, f"{name}.down", hidden)


def sum_of(w: Weights, name: str, table: Table, x: Array, part: Callable[[Weights, str, Table, Array], Array]) -> Array:
    """Branches of one input, each with its multipliers and norms."""
    out = np.zeros_like(x)
    for i, branch in enumerate(table["branches"]):
        at = f"{name}.branches.{i}"
        y = norm(w, f"{at}.input_norm", branch.get("input_norm", "none"), branch.get("input_scale", 1.0) * x)
        y = norm(w, f"{at}.output_norm", branch.get("output_norm", "none"), part(w, f"{at}.part", branch, y))
        out += branch.get("output_scale", 1.0) * y
    return out


# a layer of each placement: (x, mixer, ffn, norm at a slot, weight at a slot, number of layers)

Slot = Callable[[str, Array], Array]
Value = Callable[[str], Array]


def post(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """Vaswani et al. 2017, section 3.1: LayerNorm(x + Sublayer(x))."""
    x = n("mixer.stream_norm", x + m(x))
    return n("ffn.stream_norm", x + f(x))


def pre(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """Xiong et al. 2020 (arXiv:2002.04745), table 1, right."""
    x = x + m(n("mixer.input_norm", x))
    return x + f(n("ffn.input_norm", x))


def sandwich(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """CogView's sandwich norm (Ding et al. 2021, arXiv:2105.13290), Gemma 2."""
    x = x + n("mixer.output_norm", m(n("mixer.input_norm", x)))
    return x + n("ffn.output_norm", f(n("ffn.input_norm", x)))


def reordered(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """OLMo 2 (arXiv:2501.00656), eq. 1 and 2."""
    x = x + n("mixer.output_norm", m(x))
    return x + n("ffn.output_norm", f(x))


def deepnorm(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """Wang et al. 2022 (arXiv:2203.00555), figure 2: LayerNorm(alpha x + f(x)), alpha = (2M)^(1/4)."""
    alpha = math.sqrt(math.sqrt(2 * depth))
    x = n("mixer.stream_norm", alpha * x + m(x))
    return n("ffn.stream_norm", alpha * x + f(x))


def rezero(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """Bachlechner et al. 2020 (arXiv:2003.04887), eq. 4: x + alpha_i F(x)."""
    x = x + value("mixer.branch.scale").item() * m(x)
    return x + value("ffn.branch.scale").item() * f(x)


def layerscale(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """Touvron et al. 2021 (arXiv:2103.17239), eq. 4: x + diag(lambda) SA(norm(x))."""
    x = x + rows(lambda y: np.diag(value("mixer.branch.scale")) @ y, m(n("mixer.input_norm", x)))
    return x + rows(lambda y: np.diag(value("ffn.branch.scale")) @ y, f(n("ffn.input_norm", x)))


def fixup(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """Zhang et al. 2019 (arXiv:1901.09321), figure 1: a scalar bias, the branch, a scalar multiplier, a scalar bias."""
    for name, g in (("mixer", m), ("ffn", f)):
        before, after = value(f"{name}.input_norm.bias").item(), value(f"{name}.stream_norm.bias").item()
        x = x + (value(f"{name}.branch.scale").item() * g(x + before) + after)
    return x


def normed_skip(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """MiniMax-01 (arXiv:2501.08313): the skip leaves from behind the input norm."""
    y = n("mixer.input_norm", x)
    x = y + m(y)
    y = n("ffn.input_norm", x)
    return y + f(y)


def parallel(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """GPT-NeoX-20B (arXiv:2204.06745), section 2.1: x + Attn(LN1(x)) + FF(LN2(x))."""
    return x + m(n("mixer.input_norm", x)) + f(n("ffn.input_norm", x))


def parallel_shared_norm(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    """GPT-J, PaLM (arXiv:2204.02311, section 2): x + MLP(LN(x)) + Attention(LN(x))."""
    y = n("input_norm", x)
    return x + f(y) + m(y)


def no_norm(x: Array, m: Map, f: Map, n: Slot, value: Value, depth: int) -> Array:
    x = x + m(x)
    return x + f(x)


# placement -> its layer, and how a recipe writes it; NORM stands for the norm of the test
NORM = "the norm"
PLACEMENTS: dict[str, tuple[Callable[..., Array], dict[str, Any]]] = {
    "post": (post, {"rule": "post", "norm": NORM}),
    "pre": (pre, {"rule": "pre", "norm": NORM}),
    "sandwich": (sandwich, {"rule": "sandwich", "norm": NORM}),
    "reordered": (reordered, {"rule": "reordered", "norm": NORM}),
    "deepnorm": (deepnorm, {"rule": "deepnorm", "norm": NORM}),
    "rezero": (rezero, {"rule": "rezero"}),
    "layerscale": (layerscale, {"rule": "layerscale", "norm": NORM}),
    "fixup": (fixup, {"rule": "fixup"}),
    "normed_skip": (normed_skip, {"rule": "pre", "norm": NORM, "skip_from": "normed"}),
    "parallel": (parallel, {"form": "parallel", "rule": "pre", "norm": NORM}),
    "parallel_shared_norm": (parallel_shared_norm, {"form": "parallel_shared_norm", "rule": "pre", "norm": NORM}),
    "none": (no_norm, {"rule": "none"}),
}


def logits(table: Table, placement: str, norm_rule: Any, weights: Weights, ids: list[int]) -> Array:
    """Logits (T, V) of one sequence.

    Args:
        table: an authored recipe whose ``layers`` are complete and whose ``stack`` lists one name a layer.
        placement: which of :data:`PLACEMENTS` its layers follow; ``norm_rule`` is the norm it places.
        weights: by name.
        ids: the tokens, no pads.
    """
    w, d = weights, table["d_model"]
    embedding, head = table["embedding"], table["head"]
    fixed = embedding.get("norm", "none")
    fixed = fixed if isinstance(fixed, Mapping) and fixed["kind"] == "fixnorm" else None
    token_table = w.need("embedding.table")
    if fixed is not None:
        token_table = rows(lambda row: fix_norm(row, fixed["radius"], fixed["eps"]), token_table)
    scale = embedding.get("scale", 1.0)
    x = np.array([token_table[i] for i in ids]) * (math.sqrt(d) if scale == "sqrt_d_model" else scale)
    if "projection" in embedding:
        x = linear(w, "embedding.projection", x)
    place = embedding.get("position", {"kind": "none"})
    for t in range(len(ids)):
        if place["kind"] == "learned":
            x[t] += w.need("embedding.position.table")[t + place["offset"]]
        elif place["kind"] == "sinusoidal":
            words = {key: place[key] for key in ("spacing", "offset") if key in place}
            x[t] += sinusoidal_row(t, d, place.get("theta", 10_000.0), place.get("layout", "interleaved"), **words)
    x = norm(w, "embedding.norm", embedding.get("norm", "none"), x)

    step = PLACEMENTS[placement][0]
    stack = table["stack"]
    kept: dict[int, tuple[Array, Array]] = {}
    for i, layer_name in enumerate(stack):
        layer, at = table["layers"][layer_name], f"layers.{i}"
        x = step(
            x,
            lambda x, at=at, layer=layer: mixer(w, f"{at}.mixer", layer["mixer"], x, kept),
            lambda x, at=at, layer=layer: ffn(w, f"{at}.ffn", layer["ffn"], x),
            lambda slot, x, at=at: norm(w, f"{at}.residual.{slot}", norm_rule, x),
            lambda slot, at=at: w.need(f"{at}.residual.{slot}"),
            len(stack),
        )

    x = norm(w, "head.norm", head["norm"], x)
    if "transform" in head:
        rule = head["transform"]
        x = rows(lambda row: activate(rule["activation"], row), linear(w, "head.transform.dense", x))
        x = norm(w, "head.transform.norm", rule["norm"], x)
    if "projection" in head:
        x = linear(w, "head.projection", x)
    out_table = token_table if embedding["tied"] else w.need("head.table")
    bias = w.need("head.bias") if head.get("bias") else 0.0
    scale = head.get("scale", 1.0)
    z = (x @ out_table.T + bias) * (1 / math.sqrt(d) if scale == "inv_sqrt_d_model" else scale)
    cap = head.get("soft_cap")
    return z if cap is None else cap * np.tanh(z / cap)
