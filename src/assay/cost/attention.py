"""Cost rule of softmax attention."""

from __future__ import annotations

from assay.cost import ops
from assay.cost.core import Pairs, core
from assay.cost.differential import difference, difference_tensors
from assay.cost.parts import gain_tensors
from assay.cost.rules import CacheSize, CostRule, Flops, Named, Tensor, Work, costs, linear
from assay.cost.spans import kept_tokens, legal_pairs
from assay.cost.tape import Store, Tape, Value
from assay.recipe.differential import HeadPairs
from assay.recipe.ffn import Sigmoid
from assay.recipe.mixer import Attention, NormedQk
from assay.recipe.norm import LayerNorm, RMSNorm
from assay.recipe.position import Alibi, NoPosition, Rope, T5Bias
from assay.recipe.query_scale import ByPosition
from assay.recipe.roles import ParamRole


@costs(Attention)
class AttentionCost(CostRule[Attention]):
    """Projections, the two products of the core, and 2 · n_kv_heads · head_dim elements a token in the cache.

    Where keys are another layer's there is no k, no v and nothing in the cache; the core reads them all the same.
    """

    def tensors(self, spec: Attention, d: int) -> list[Tensor]:
        bias = spec.bias
        out = linear("q", spec.q_width, d, ParamRole.ATTN_IN, "q" in bias)
        if spec.source is None:
            out += linear("k", spec.kv_width, d, ParamRole.ATTN_IN, "k" in bias)
            out += linear("v", spec.kv_width, d, ParamRole.ATTN_VALUE, "v" in bias)
        if spec.output_gate != "none":
            out += linear("gate", _gate_width(spec), d, ParamRole.ATTN_IN, "gate" in bias)
        out += linear("o", d, spec.q_width, ParamRole.ATTN_OUT, "o" in bias)
        if spec.sinks == "per_head":
            out.append(Tensor("sinks", (spec.n_heads,), ParamRole.SINK, 0.0))
        if isinstance(spec.position, T5Bias) and spec.position.table == "own":
            out.append(Tensor("position.table", (spec.position.n_buckets, spec.n_heads), ParamRole.POSITION))
        out += _qk_norm_tensors(spec)
        named = Named("")
        named.add("inner_norm", spec.inner_norm, spec.q_width)
        if isinstance(spec.differential, HeadPairs):
            out += [t.under("difference") for t in difference_tensors(spec.differential, spec.head_dim)]
        return out + named.found

    def flops(self, spec: Attention, d: int, work: Work) -> Flops:
        gate = 0 if spec.output_gate == "none" else _gate_width(spec)
        widths = 2 * spec.q_width + 2 * spec.own_kv_width + gate
        # scores and values: 2 FLOPs a channel each, by query heads whatever the number of KV heads
        pair = 4 * spec.n_heads * spec.head_dim * work.batch * spec.cores
        return Flops(
            matmul=2 * work.tokens * d * widths,
            core_legal=pair * legal_pairs(spec.span, work.new, work.past),
            core_square=pair * work.new * (work.past + work.new),
        )

    def cache(self, spec: Attention, d: int, length: int) -> CacheSize:
        per_token = 2 * spec.own_kv_width
        return CacheSize(per_token, per_token * kept_tokens(spec.span, length))

    def trace(self, spec: Attention, d: int, tape: Tape, x: Value) -> Value:
        """Project, clip, norm, rotate, scale, attend, norm, gate, project: the order of :class:`Attention`."""
        bias = spec.bias

        def project(name: str, width: int) -> Value:
            return ops.linear(tape, PROJECTIONS, x, d, width, bias=name in bias, split="out")

        def prepared(name: str, heads: int) -> Value:
            y = project(name, heads * spec.head_dim)
            y = y if spec.clip_qkv == "none" else _clip(tape, y)
            return y if name == "v" else _heads(tape, spec, y, heads)

        q = prepared("q", spec.n_heads)
        if isinstance(spec.query_scale, ByPosition):
            q = _query_scale(tape, spec.query_scale, q)
        if spec.source is None:
            k, v = prepared("k", spec.n_kv_heads), prepared("v", spec.n_kv_heads)
        else:  # held where they were made
            k, v = (Value(tape.tokens * tape.share(spec.kv_width), q.width, Store(0)) for _ in range(2))
        at = tape.at
        keys = min(at.past + at.new, kept_tokens(spec.span, at.past + at.new) + at.new - 1)
        pairs = Pairs(legal_pairs(spec.span, at.new, at.past), at.new * (at.past + at.new), keys)
        run = difference if isinstance(spec.differential, HeadPairs) else core
        out = run(tape, spec, q, k, v, pairs)
        out = ops.norm(tape, "norms", spec.inner_norm, out, tape.share(spec.n_heads) * spec.head_dim)
        if spec.output_gate != "none":
            gate = project("gate", _gate_width(spec))
            gate = ops.activate(tape, "activation", _SIGMOID, gate)
            if spec.output_gate == "head":
                gate = ops.copy(tape, "activation", gate, out.n)
            out = ops.multiply(tape, "activation", out, gate)
        y = ops.linear(tape, PROJECTIONS, out, spec.q_width, d, bias="o" in bias, split="in")
        tape.held(q, k, v, out)
        return y


PROJECTIONS = "attention_projections"
_SIGMOID = Sigmoid()


def _clip(tape: Tape, x: Value) -> Value:
    tape.count("activation", 2 * x.n, x.nbytes, x.nbytes)
    return tape.node("activation", Value(x.n, x.width), x, keep=(x,))


def _query_scale(tape: Tape, spec: ByPosition, q: Value) -> Value:
    """Queries times one factor a position, made once a pass for all layers that share it."""
    factor = Store(tape.at.new * q.width, ("query_scale", spec, q.width))
    tape.count("rope", q.n, q.nbytes, q.nbytes)
    return tape.node("rope", Value(q.n, q.width), q, keep=(factor,))


def _heads(tape: Tape, spec: Attention, x: Value, heads: int) -> Value:
    """Queries or keys, normed and rotated."""
    qk, own = spec.qk_norm, tape.share(heads)
    late = isinstance(qk, NormedQk) and qk.order == "after_rope"
    if not late:
        x = _qk_norm(tape, spec, x, own)
    if isinstance(spec.position, Rope):
        x = ops.rotate(tape, "rope", spec.position, x, spec.head_dim)
    elif not isinstance(spec.position, NoPosition | Alibi | T5Bias):
        x = ops.unknown(tape, "rope", f"position {spec.position.kind_name}", x)
    return _qk_norm(tape, spec, x, own) if late else x


def _qk_norm(tape: Tape, spec: Attention, x: Value, heads: int) -> Value:
    qk = spec.qk_norm
    if not isinstance(qk, NormedQk):
        return x
    width = spec.head_dim if qk.over == "head" else heads * spec.head_dim
    return ops.norm(tape, "norms", qk.norm, x, width, gain=heads * width if qk.gain_per == "head" else None)


def _gate_width(spec: Attention) -> int:
    return spec.n_heads if spec.output_gate == "head" else spec.q_width


def _qk_norm_tensors(spec: Attention) -> list[Tensor]:
    qk = spec.qk_norm
    if not isinstance(qk, NormedQk):
        return []
    out = []
    keys = (("k_norm", spec.n_kv_heads),) if spec.source is None else ()
    for name, heads in (("q_norm", spec.n_heads), *keys):
        if qk.gain_per == "head" and isinstance(qk.norm, RMSNorm | LayerNorm):
            out += [t.under(name) for t in gain_tensors(qk.norm, (heads, spec.head_dim))]
        else:
            named = Named("")
            named.add(name, qk.norm, spec.head_dim if qk.over == "head" else heads * spec.head_dim)
            out += named.found
    return out
