"""The forward pass of a layer, of the embedding, and of head and loss, on paper; see :mod:`assay.cost.tape`.

Each mirrors one function of the model room, line by line; a test holds what they keep against what autograd keeps.
"""

from __future__ import annotations

from assay.cost import ops
from assay.cost.rules import rule_of
from assay.cost.tape import Store, Tape, Value
from assay.recipe.embedding import Projection
from assay.recipe.ffn import Ffn
from assay.recipe.layer import Layer
from assay.recipe.mixer import Mixer
from assay.recipe.norm import FixNorm
from assay.recipe.position import LearnedPosition, SinusoidalPosition
from assay.recipe.recipe import Recipe
from assay.recipe.residual import Branch, Parallel, ParallelSharedNorm, Sublayer

LOGITS_CHUNK = 1 << 24  # float32 logits that training holds at once; as many bytes in other types
_ROW_ELEMENTS = 1 << 21  # logits that its softmax copies at once
INDEX = 8  # bytes of a token id


def trace_layer(tape: Tape, layer: Layer, d: int, x: Value) -> Value:
    """``stream_norm(skip · s + branch · output_norm(f(input_norm(x))))`` of both sublayers, serial or parallel."""
    residual = layer.residual
    parts = [(p, getattr(residual, name)) for name, p in (("mixer", layer.mixer), ("ffn", layer.ffn)) if not p.is_none]
    if not isinstance(residual, Parallel | ParallelSharedNorm):
        named = [x]
        for part, rule in parts:
            x = _sublayer(tape, part, rule, d, x, named)
            tape.held(*named)
        return x
    n = x
    if isinstance(residual, ParallelSharedNorm):
        n = ops.norm(tape, "norms", residual.input_norm, x, d)
    normed = isinstance(residual, ParallelSharedNorm) and residual.skip_from == "normed"
    total = ops.scale(tape, "residual", residual.skip, n if normed else x, d)
    for part, rule in parts:
        y = rule_of(part).trace(part, d, tape, ops.norm(tape, "norms", rule.input_norm, n, d))
        total = ops.add(tape, "residual", total, _added(tape, rule, d, y))
        tape.held(x, n, y)
    return ops.norm(tape, "norms", residual.stream_norm, total, d)


def _sublayer(tape: Tape, part: Mixer | Ffn, rule: Sublayer, d: int, x: Value, named: list[Value]) -> Value:
    n = ops.norm(tape, "norms", rule.input_norm, x, d)
    y = rule_of(part).trace(part, d, tape, n)
    skip = ops.scale(tape, "residual", rule.skip, n if rule.skip_from == "normed" else x, d)
    total = ops.add(tape, "residual", skip, _added(tape, rule, d, y))
    out = ops.norm(tape, "norms", rule.stream_norm, total, d)
    tape.held(x, n)
    named.append(y)  # until the next sublayer's output takes its name
    return out


def _added(tape: Tape, rule: Branch, d: int, y: Value) -> Value:
    y = ops.dropout(tape, "dropout", ops.norm(tape, "norms", rule.output_norm, y, d), rule.dropout)
    return ops.scale(tape, "residual", rule.branch, y, d)


def trace_embedding(tape: Tape, recipe: Recipe) -> Value:
    """``dropout(norm(project(scale · table[id]) + position))``; the table's gradient is as large as the table."""
    spec, d, width = recipe.embedding, recipe.d_model, recipe.embedding_width
    op, param = "embedding", tape.numerics.param
    x = tape.stream(width)
    rows = tape.share(recipe.vocab_size)
    tape.count(op, 0, x.nbytes, x.nbytes)
    tape.node(op, x, keep=(Store(tape.tokens * INDEX),), param_grads=rows * width * param)
    if isinstance(spec.norm, FixNorm):
        ops.fix_rows(tape, "norms", tape.tokens, width, of_table=False)
    if spec.scale != 1.0:
        tape.count(op, x.n, x.nbytes, x.nbytes)
        x = tape.node(op, Value(x.n, x.width), x, keep=(Store(x.width),))  # the multiplier, rounded to the dtype
    x = _project(tape, spec.projection, x, width, d)
    if isinstance(spec.position, LearnedPosition):
        table = (recipe.max_seq_len + spec.position.offset) * d * param
        looked_up = Value(tape.at.new * d, param)
        tape.node(op, looked_up, keep=(Store(tape.at.new * INDEX),), param_grads=table)
        x = ops.add_rows(tape, op, x, looked_up)
    elif isinstance(spec.position, SinusoidalPosition):
        x = ops.add_rows(tape, op, x, Value(tape.at.new * d, x.width))
    x = ops.norm(tape, "norms", spec.norm, x, d)
    return ops.dropout(tape, "dropout", x, spec.dropout)


def _project(tape: Tape, spec: Projection, x: Value, n_in: int, n_out: int) -> Value:
    if spec.is_none:
        return x
    return ops.linear(tape, "embedding_projection", x, n_in, n_out, bias=bool(getattr(spec, "bias", False)))


def trace_head(tape: Tape, recipe: Recipe, x: Value) -> Value:
    """The final norm: what the head reads."""
    return ops.norm(tape, "norms", recipe.head.norm, x, recipe.d_model)


def trace_logits(tape: Tape, recipe: Recipe, hidden: Value) -> Value:
    """Transform, projection, output table, bias, scale and soft-cap."""
    head, op = recipe.head, "unembedding"
    x = rule_of(head.transform).trace(head.transform, recipe.d_model, tape, hidden)
    x = _project(tape, head.projection, x, recipe.d_model, recipe.head_width)
    made = recipe.embedding.tied and isinstance(recipe.embedding.norm, FixNorm)
    if made:
        ops.fix_rows(tape, "norms", tape.share(recipe.vocab_size), recipe.head_width, of_table=True)
    z = ops.linear(tape, op, x, recipe.head_width, recipe.vocab_size, bias=head.bias, split="out", made=made)
    if head.scale != 1.0:
        z = ops.multiply_by(tape, "logits", z)
    if head.soft_cap != "none":
        tape.count("logits", 3 * z.n, z.nbytes, z.nbytes)
        divided, capped = Value(z.n, z.width), Value(z.n, z.width)
        tape.node("logits", divided, z)
        tape.node("logits", capped, divided, keep=(capped,), scratch=z.nbytes)
        z = tape.node("logits", Value(z.n, z.width), capped)
    return z


def trace_loss(tape: Tape, recipe: Recipe, hidden: Value) -> Value:
    """Cross-entropy whose gradient is made with its value: keeps what the output table reads and the targets.

    Logits exist a chunk of tokens at a time; the gradients of the table and of what it reads wait for the backward
    pass, as if made there.
    """
    head, at, n = recipe.head, tape.numerics, tape.tokens
    x = rule_of(head.transform).trace(head.transform, recipe.d_model, tape, hidden)
    x = _project(tape, head.projection, x, recipe.d_model, recipe.head_width)
    rows, columns = tape.share(recipe.vocab_size), recipe.head_width
    keep: list[Value | Store] = [x, Store(n * INDEX)]
    if recipe.embedding.tied and isinstance(recipe.embedding.norm, FixNorm):
        ops.fix_rows(tape, "norms", rows, columns, of_table=True)
        keep.append(Store(rows * columns * at.param))
    z, weight = Value(n * rows, at.compute), rows * columns * at.compute
    tape.count(
        "unembedding", 2 * n * rows * columns, weight, x.nbytes, z.nbytes, backward_bytes=2 * (weight + x.nbytes)
    )
    if head.bias:
        tape.count("biases", z.n, rows * z.width, backward_bytes=rows * z.width)
    steps = (head.scale != 1.0) + 3 * (head.soft_cap != "none")
    if steps:
        tape.count("logits", steps * z.n, z.nbytes, z.nbytes)
    tape.count("loss", 4 * z.n + 3 * n, z.nbytes, z.nbytes, backward_bytes=0)
    cast = weight if at.autocast else 0
    scratch = logits_chunk(recipe, n, at.compute) * rows * at.compute + min(z.n, _ROW_ELEMENTS) * at.wide + cast
    grads = (rows * columns + (rows if head.bias else 0)) * at.param
    return tape.node("unembedding", Value(1, at.wide), x, keep=tuple(keep), param_grads=grads, scratch=scratch)


def logits_chunk(recipe: Recipe, tokens: int, width: int) -> int:
    """Tokens whose logits, of ``width`` bytes each, exist at once in training."""
    return min(tokens, max(1, 4 * LOGITS_CHUNK // (width * recipe.vocab_size)))
