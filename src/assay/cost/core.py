"""The core of attention on paper: scores, softmax and values, by a kernel that stores scores or one that does not.

B batch, h query heads and kv key/value heads of this device, D head_dim, T queries, S keys.
"""

from __future__ import annotations

from typing import NamedTuple

from assay.cost import ops
from assay.cost.tape import Store, Tape, Value
from assay.recipe.mixer import Attention, NormedQk
from assay.recipe.norm import LayerNorm, RMSNorm
from assay.recipe.position import Alibi, Rope, T5Bias
from assay.recipe.span import ChunkedSpan, FullSpan, WindowSpan

CORE, SOFTMAX = "attention_core", "softmax"
INDEX = 8  # bytes of an index


class Pairs(NamedTuple):
    """(query, key) pairs of one head of one sequence, and keys that are read."""

    legal: int
    square: int
    keys: int


def heads_first(tape: Tape, spec: Attention) -> bool:
    """Whether queries lie in memory head by head, so that the heads' outputs must be copied side by side.

    A rotation of part of the channels writes them so; a norm after it that makes its input contiguous undoes that.
    """
    position, qk = spec.position, spec.qk_norm
    if not isinstance(position, Rope) or position.rotary_dim(spec.head_dim) == spec.head_dim:
        return False
    if isinstance(qk, NormedQk) and qk.order == "after_rope":
        if qk.over == "width" or isinstance(qk.norm, LayerNorm | RMSNorm):
            return False
    return tape.share(spec.n_heads) > 1 and tape.at.new > 1


def alone(tape: Tape, spec: Attention) -> bool:
    """Whether keys that lie token by token lie head by head as well: one sequence, one head or one token."""
    return tape.at.batch == 1 or tape.share(spec.n_kv_heads) == 1 or tape.at.new == 1


def keeps_given(tape: Tape, spec: Attention) -> tuple[bool, bool]:
    """Whether a layer's core keeps the keys, and the values, that it is given, and not copies of its own."""
    paired = spec.cores > 1  # whose halves of the values are copies
    if not stores_scores(spec, tape.numerics.backend):
        fused = not _writes_out(tape, spec)
        return fused, fused and not paired
    head_by_head = alone(tape, spec) or heads_first(tape, spec)
    if tape.recompute_core:
        return not paired or head_by_head or spec.n_heads != spec.n_kv_heads, not paired
    repeats = _repeats(tape, spec)
    return head_by_head and not repeats, alone(tape, spec) and not repeats and not paired


def _repeats(tape: Tape, spec: Attention) -> bool:
    """Grouped heads: torch's matmul repeats keys and values for each query head, where it cannot see them as a view."""
    return spec.n_heads > spec.n_kv_heads and tape.at.batch * tape.share(spec.n_kv_heads) > 1


def stores_scores(spec: Attention, backend: str) -> bool:
    """Whether this layer's kernel writes its scores to memory: the reference does, torch's sdpa does not.

    ``auto`` takes sdpa unless the layer has a soft-cap or sinks, which it cannot honour.
    """
    plain = spec.soft_cap == "none" and spec.sinks == "none"
    return backend == "reference" or (backend == "auto" and not plain)


def needs_mask(spec: Attention, length: int) -> bool:
    """Whether the legal pairs are neither the causal triangle nor all, so that a mask is made."""
    if isinstance(spec.span, WindowSpan | ChunkedSpan):
        return spec.span.size < length
    return not isinstance(spec.span, FullSpan)


def core(tape: Tape, spec: Attention, q: Value, k: Value, v: Value, pairs: Pairs) -> Value:
    """Queries, keys and values to the heads' outputs, side by side, which may take a copy."""
    out = attend(tape, spec, q, k, v, pairs, score_bias(tape, spec, q.width, pairs))
    stored = stores_scores(spec, tape.numerics.backend)
    return ops.copy(tape, CORE, out) if stored or heads_first(tape, spec) or _writes_out(tape, spec) else out


def attend(tape: Tape, spec: Attention, q: Value, k: Value, v: Value, pairs: Pairs, bias: Value | None = None) -> Value:
    """Queries, keys and values to the heads' outputs, head by head; ``bias`` is added to the scores."""
    stored = stores_scores(spec, tape.numerics.backend)
    run = _stored if stored else _fused
    if not (tape.train and tape.recompute_core and stored):
        return run(tape, spec, q, k, v, pairs, bias)
    inside = Tape(tape.at, tape.numerics, tp=tape.tp)
    out = run(inside, spec, q, k, v, pairs, bias)
    for op, work in inside.work.items():
        entry = tape.work.setdefault(op, type(work)())
        entry.add(work)
        entry.backward_flops += work.flops  # the core runs once more
        entry.backward_bytes += work.bytes
    ins = (q, k, v) if bias is None else (q, k, v, bias)
    own = sum(s.nbytes for s in inside.kept if s not in [value.store for value in ins])
    # until it is computed again only the inputs are held; then all of the core at once
    return tape.node(CORE, out, *ins, keep=ins, scratch=own + inside.backward_rise())


def _softmax_flops(spec: Attention, stored: bool) -> int:
    return 4 + stored + (3 if spec.soft_cap != "none" else 0)


def _count_core(tape: Tape, spec: Attention, n_pairs: int, *moved: int) -> None:
    flops = 4 * tape.share(spec.n_heads) * spec.head_dim * tape.at.batch * n_pairs
    tape.count(CORE, flops, *moved, backward_bytes=2 * sum(moved))


def _fused(tape: Tape, spec: Attention, q: Value, k: Value, v: Value, pairs: Pairs, bias: Value | None) -> Value:
    """torch's scaled_dot_product_attention: keeps q, k, v, output, a log-sum a query, and what is added."""
    heads, batch = tape.share(spec.n_heads), tape.at.batch
    keys = _key_bytes(tape, spec, pairs.keys)
    out = Value(q.n, q.width)
    _count_core(tape, spec, pairs.legal, q.nbytes, keys, keys, out.nbytes)
    n = heads * batch * pairs.legal
    tape.count(SOFTMAX, _softmax_flops(spec, False) * n + q.n, 0, backward_bytes=0)
    if _writes_out(tape, spec):
        return _written_out(tape, spec, q, k, v, bias, heads * batch * pairs.square)
    keep: list[Value | Store] = [q, k, v, out, Store(heads * tape.tokens * tape.numerics.wide)]
    if bias is not None:
        masked = spec.span.is_causal or needs_mask(spec, tape.at.new + tape.at.past)
        keep.append(Store(bias.nbytes) if masked else bias)  # with the mask added, a sum of its own
    elif needs_mask(spec, tape.at.new + tape.at.past):
        keep.append(Store(pairs.square * q.width))
    return tape.node(CORE, out, q, k, v, keep=tuple(keep), scratch=q.nbytes)


def _writes_out(tape: Tape, spec: Attention) -> bool:
    """Whether torch's fused attention falls back to stored scores: with dropout or a learned bias, on a CPU."""
    return tape.train and not tape.numerics.fused and (spec.dropout > 0 or isinstance(spec.position, T5Bias))


def _written_out(tape: Tape, spec: Attention, q: Value, k: Value, v: Value, bias: Value | None, n: int) -> Value:
    """With dropout or a learned bias torch's CPU kernel writes the scores out, in float32: they are kept."""
    group, wide = spec.n_heads // spec.n_kv_heads, max(tape.numerics.wide, q.width)
    out = Value(q.n, wide)
    keep = [Value(q.n, wide), Value(k.n * group, wide), Value(v.n * group, wide), Value(n, wide)]
    if spec.dropout > 0:
        keep += [Value(n, wide), Value(n, wide)]  # the noise, and its product with the probabilities
    ins = (q, k, v) if bias is None else (q, k, v, bias)
    tape.node(CORE, out, *ins, keep=tuple(keep), scratch=2 * n * wide)
    return ops.cast(tape, CORE, out, q.width)


def score_bias(tape: Tape, spec: Attention, width: int, pairs: Pairs) -> Value | None:
    """What a position adds to the scores, (heads, T, S): made once a pass (ALiBi) or looked up in each layer (T5)."""
    heads, position = tape.share(spec.n_heads), spec.position
    n = heads * pairs.square
    if isinstance(position, Alibi):
        tape.count(SOFTMAX, heads * tape.at.batch * pairs.legal, n * width)
        return Value(n, width, Store(n * width, ("alibi", position, spec.n_heads)))
    if not isinstance(position, T5Bias):
        return None
    if id(spec) in tape.biases:  # two cores of one attention add the same
        return tape.biases[id(spec)]
    tape.count(SOFTMAX, heads * tape.at.batch * pairs.legal, n * width)
    param = tape.numerics.param
    grads = position.n_buckets * heads * param
    rows = tape.node(SOFTMAX, Value(n, param), keep=(Store(pairs.square * INDEX),), param_grads=grads)
    tape.biases[id(spec)] = bias = ops.cast(tape, SOFTMAX, rows, width)
    return bias


def _key_bytes(tape: Tape, spec: Attention, keys: int) -> int:
    """Bytes of all keys (or values) that are read, the cached ones among them."""
    width = tape.numerics.read(train=tape.train or not tape.at.past)
    return tape.at.batch * tape.share(spec.n_kv_heads) * spec.head_dim * keys * width


def _stored(tape: Tape, spec: Attention, q: Value, k: Value, v: Value, pairs: Pairs, bias: Value | None) -> Value:
    """Written out: scores and probabilities of the whole square are stored, in float32 until the values' product."""
    heads, batch, group = tape.share(spec.n_heads), tape.at.batch, spec.n_heads // spec.n_kv_heads
    n, wide = heads * batch * pairs.square, max(tape.numerics.wide, q.width)
    keys = _key_bytes(tape, spec, pairs.keys)
    scaled = tape.node(CORE, Value(q.n, q.width), q)
    repeats = _repeats(tape, spec)
    k = ops.copy(tape, CORE, k, k.n * group) if repeats else k
    if spec.source is not None and not repeats and not alone(tape, spec):
        # a product copies what lies token by token, and that copy is what is kept: here beside the source's
        k = k if heads_first(tape, spec) else tape.node(CORE, Value(k.n, k.width), k)
        v = tape.node(CORE, Value(v.n, v.width), v)
    s = tape.node(CORE, Value(n, q.width), scaled, k, keep=(scaled, k))
    s = ops.cast(tape, SOFTMAX, s, wide)
    if spec.soft_cap != "none":
        s = tape.node(SOFTMAX, Value(n, wide), s)
        capped = Value(n, wide)
        s = tape.node(SOFTMAX, capped, s, keep=(capped,), scratch=n * wide)
        s = tape.node(SOFTMAX, Value(n, wide), s)
    if bias is not None:
        ins = (s, ops.cast(tape, SOFTMAX, bias, wide)) if isinstance(spec.position, T5Bias) else (s,)
        s = tape.node(SOFTMAX, Value(n, wide), *ins, passes=True)
    if needs_mask(spec, tape.at.new + tape.at.past) or spec.span.is_causal:
        s = tape.node(SOFTMAX, Value(n, wide), s, passes=True)
    sinks = spec.sinks != "none"
    if sinks:
        s = tape.node(SOFTMAX, Value(n + heads * tape.tokens, wide), s, param_grads=heads * tape.numerics.param)
    p = Value(s.n, wide)
    tape.node(SOFTMAX, p, s, keep=(p,))
    if sinks:
        p = tape.node(SOFTMAX, Value(n, wide, p.store), p)
    p = ops.dropout(tape, SOFTMAX, p, spec.dropout)
    p = ops.cast(tape, SOFTMAX, p, v.width)
    v = ops.copy(tape, CORE, v, v.n * group) if repeats else v
    out = Value(q.n, q.width)
    tape.node(CORE, out, p, v, keep=(p, v))
    _count_core(tape, spec, pairs.square, q.nbytes, keys, keys, n * s.width, n * p.width, out.nbytes)
    tape.count(SOFTMAX, _softmax_flops(spec, True) * n + q.n, n * s.width, n * p.width)
    return out
