"""The operations that a layer's forward is written with, as the model room's code runs them under autograd.

Elementwise FLOPs: an addition, multiplication, division, comparison or special function (exp, tanh, erf, square root)
is 1. Counts an element:

* LayerNorm 5 (sum; subtract; square, sum; multiply), + 1 gain, + 1 bias. RMSNorm 3 (square, sum; multiply), + 1 gain.
  ScaleNorm 4 (square, sum; multiply by g; divide). The texts' round figure is "about 5 d a token".
* rotation 3 a turned channel; softmax 4 a legal pair (maximum, subtract, exp, sum), 1 more for the division where
  the probabilities are stored, 3 for a soft-cap; the scale is 1 a query channel.
* residual addition 1, constant or learned multiplier 1, dropout 2, bias 1.
* cross-entropy 4 a logit (maximum, subtract, exp, sum); soft-cap of logits 3.
* activations: :data:`ACTIVATIONS`; a gate's product 1, its clamp 3, its offset 1.

The backward pass of an elementwise operation is counted as twice its forward, as that of a matrix product is.
"""

from __future__ import annotations

from typing import Any

from assay.cost.rules import CostRule
from assay.cost.tape import Store, Tape, Value
from assay.recipe.ffn import Activation, XIelu
from assay.recipe.norm import FixNorm, LayerNorm, NoNorm, Norm, RMSNorm, ScaleNorm, Shift
from assay.recipe.position import Rope
from assay.recipe.scale import ConstantScale, ScalarScale, Scale, VectorScale

# kind -> FLOPs an element, and what is kept: the input, the output, both (swish), or the output of an inner step
ACTIVATIONS: dict[str, tuple[int, str]] = {
    "relu": (1, "output"),
    "relu2": (2, "inner"),  # max, square
    "gelu": (5, "input"),  # divide, erf, add, two multiplications
    "gelu_tanh": (9, "input"),  # cube 2, multiply, add, multiply, tanh, add, two multiplications
    "silu": (4, "input"),  # negate, exp, add, divide
    "swish": (6, "both"),  # beta, sigmoid 4, multiply
    "elu": (4, "input"),  # exp, subtract, multiply, select
    "selu": (5, "input"),
    "sigmoid": (4, "output"),
    "identity": (0, "nothing"),
}


def cast(tape: Tape, op: str, x: Value, width: int) -> Value:
    """x in another width: a copy, or x itself."""
    return x if x.width == width else tape.node(op, Value(x.n, width), x)


def copy(tape: Tape, op: str, x: Value, n: int | None = None) -> Value:
    """A contiguous or repeated copy of x."""
    return tape.node(op, Value(x.n if n is None else n, x.width), x)


def add(tape: Tape, op: str, a: Value, b: Value) -> Value:
    """a + b, where a goes straight through and b is the branch."""
    out = Value(a.n, max(a.width, b.width))
    # the value that both paths came from receives two gradients, summed once
    tape.count(op, a.n, a.nbytes, b.nbytes, out.nbytes, backward_bytes=3 * out.nbytes)
    return tape.node(op, out, a, b, passes=a.width == b.width)


def add_rows(tape: Tape, op: str, x: Value, rows: Value) -> Value:
    """x plus rows that every sequence shares."""
    out = Value(x.n, max(x.width, rows.width))
    tape.count(op, x.n, x.nbytes, rows.nbytes, out.nbytes, backward_bytes=out.nbytes)
    return tape.node(op, out, x, rows, passes=x.width == out.width)


def multiply_by(tape: Tape, op: str, x: Value, *, flops: int = 1) -> Value:
    """x times a constant, or another elementwise step that keeps nothing."""
    out = Value(x.n, x.width)
    tape.count(op, flops * x.n, x.nbytes, out.nbytes)
    return tape.node(op, out, x)


def multiply(tape: Tape, op: str, a: Value, b: Value) -> Value:
    """The product of two activations."""
    out = Value(a.n, max(a.width, b.width))
    tape.count(op, a.n, a.nbytes, b.nbytes, out.nbytes)
    return tape.node(op, out, a, b, keep=(a, b))


def dropout(tape: Tape, op: str, x: Value, rate: float) -> Value:
    """Inverted dropout: keeps its mask, a Boolean on an accelerator, a number of x's width on a CPU."""
    if not tape.train or rate <= 0.0:
        return x
    mask = Store(x.n * (1 if tape.numerics.fused else x.width))
    out = Value(x.n, x.width)
    tape.count(op, 2 * x.n, x.nbytes, out.nbytes)
    return tape.node(op, out, x, keep=(mask,))


def linear(
    tape: Tape, op: str, x: Value, n_in: int, n_out: int, *, bias: bool = False, split: str = "", made: bool = False
) -> Value:
    """``x W^T + b``: keeps x, in the width it is multiplied in.

    Args:
        split: ``out``: tensor parallelism divides the outputs; ``in``: the inputs; empty: neither.
        made: the weight is itself computed from the parameter, and is kept too.
    """
    numerics = tape.numerics
    rows = tape.share(n_out) if split == "out" else n_out
    columns = tape.share(n_in) if split == "in" else n_in
    if numerics.autocast:
        x = cast(tape, op, x, numerics.compute)
    # under autocast the working copy of the weight
    kept_weight = (Store(rows * columns * numerics.compute),) if made or numerics.autocast else ()
    y = tape.inner(rows, x.width) if split == "out" or tape.sp == 1 else tape.stream(rows, x.width)
    weight = rows * columns * numerics.read(train=tape.train)
    tape.count(
        op,
        2 * tape.tokens * rows * columns,
        weight,
        x.nbytes,
        y.nbytes,
        backward_bytes=2 * (weight + x.nbytes + y.nbytes),
    )
    if bias:
        tape.count("biases", y.n, rows * x.width, backward_bytes=rows * x.width)
    grads = (rows * columns + (rows if bias else 0)) * numerics.param
    return tape.node(op, y, x, keep=(x, *kept_weight), param_grads=grads)


def norm(tape: Tape, op: str, spec: Norm, x: Value, width: int, *, gain: int | None = None) -> Value:
    """A norm over groups of ``width`` elements; ``gain``: elements of its gain where that is not one a channel."""
    if isinstance(spec, NoNorm | FixNorm):
        return x
    if isinstance(spec, Shift):
        tape.count(op, x.n, x.nbytes, x.nbytes)
        return tape.node(op, Value(x.n, x.width), x, param_grads=tape.numerics.param)
    if isinstance(spec, ScaleNorm):
        return _scale_norm(tape, op, x, width)
    if not isinstance(spec, LayerNorm | RMSNorm):
        return unknown(tape, op, f"norm {spec.kind_name}", x)
    wide, param = tape.numerics.wide, tape.numerics.param
    y = cast(tape, op, x, max(wide, x.width))
    rows, n_gain = Store(x.n // width * y.width), width if gain is None else gain
    own = gain is not None  # a gain a head is multiplied in a step of its own
    has_gain, has_bias = spec.gain != "none", isinstance(spec, LayerNorm) and spec.bias
    out = Value(y.n, y.width)
    keep: list[Value | Store] = [y, rows]
    if isinstance(spec, LayerNorm):
        keep.append(Store(rows.nbytes))  # mean and reciprocal deviation
    normed = Value(y.n, y.width)
    if has_gain and (own or (isinstance(spec, RMSNorm) and not tape.numerics.fused)):
        keep.append(normed)  # the product with the gain is a step of its own
    if has_gain and (param != y.width or spec.gain == "one_plus"):
        keep.append(Store(n_gain * y.width))  # the gain in float32, or with its one added
    if has_bias and not own and param != y.width:
        keep.append(Store(n_gain * y.width))
    flops = (5 if isinstance(spec, LayerNorm) else 3) + has_gain + has_bias
    tape.count(op, flops * x.n, (has_gain + has_bias) * n_gain * param, x.nbytes, x.nbytes)
    grads = (has_gain + has_bias) * n_gain * param
    scratch = y.nbytes if isinstance(spec, RMSNorm) and not tape.numerics.fused else 0
    tape.node(op, out, y, keep=tuple(keep), param_grads=grads, scratch=scratch)
    return cast(tape, op, out, x.width)


def _scale_norm(tape: Tape, op: str, x: Value, width: int) -> Value:
    y = cast(tape, op, x, max(tape.numerics.wide, x.width))
    rows = x.n // width * y.width
    scaled, out = Value(y.n, y.width), Value(y.n, y.width)
    keep: tuple[Value | Store, ...] = (y, Store(rows), Store(rows), scaled)
    if tape.numerics.param != y.width:
        keep = (*keep, Store(y.width))
    tape.count(op, 4 * x.n, x.nbytes, x.nbytes)
    tape.node(op, out, y, keep=keep, param_grads=tape.numerics.param, scratch=y.nbytes)
    return cast(tape, op, out, x.width)


def fix_rows(tape: Tape, op: str, rows: int, width: int, *, of_table: bool) -> None:
    """Rows of the token table brought to one length.

    Keeps the rows (unless they are the parameter itself), their lengths twice, and the numerator.
    """
    param, wide = tape.numerics.param, max(tape.numerics.wide, tape.numerics.param)
    n = rows * width
    keep = [Store(rows * wide), Store(rows * wide), Store(n * wide)]
    if param != wide or not of_table:
        keep.append(Store(n * wide))
    tape.count(op, 4 * n, n * param, n * param)
    tape.node(op, Value(n, param), keep=tuple(keep))


def activate(tape: Tape, op: str, spec: Activation, x: Value) -> Value:
    """An elementwise nonlinearity."""
    if isinstance(spec, XIelu):
        return _xielu(tape, op, x)
    if spec.kind_name not in ACTIVATIONS:
        return unknown(tape, op, f"activation {spec.kind_name}", x)
    flops, kept = ACTIVATIONS[spec.kind_name]
    if kept == "nothing":
        return x
    out = Value(x.n, x.width)
    keep: dict[str, tuple[Value | Store, ...]] = {
        "input": (x,),
        "output": (out,),
        "inner": (Store(x.nbytes),),
        "both": (x, Store(x.nbytes)),
    }
    tape.count(op, flops * x.n, x.nbytes, out.nbytes)
    return tape.node(op, out, x, keep=keep[kept], scratch=x.nbytes if kept in ("inner", "both") else 0)


def _xielu(tape: Tape, op: str, x: Value) -> Value:
    """Keeps x, expm1 of its negative side, both sides, one side's first product, which side, and two scalars."""
    w = x.width
    keep: list[Value | Store] = [x, *(Value(x.n, w) for _ in range(3)), Store(x.n), Store(w), Store(w)]
    tape.count(op, 10 * x.n, x.nbytes, x.nbytes)
    return tape.node(op, Value(x.n, w), x, keep=tuple(keep), param_grads=2 * tape.numerics.param, scratch=2 * x.nbytes)


def rotate(tape: Tape, op: str, spec: Rope, x: Value, head_dim: int) -> Value:
    """Rotary positions on ``rotary_dim`` of every ``head_dim`` channels, in float32 or better.

    The two tables (tokens, rotary size) are made once a pass and kept once for all layers that share them.
    """
    r = spec.rotary_dim(head_dim)
    wide = max(tape.numerics.wide, x.width)
    table = tape.at.new * r * wide
    tables = tuple(Store(table, ("rope", spec, head_dim, side)) for side in ("own", "partner"))
    n = x.n // head_dim * r
    tape.count(op, 3 * n, 2 * table, n * x.width, n * x.width)
    turned = Value(n, wide)
    tape.node(op, turned, x, keep=tables, scratch=2 * turned.nbytes)
    out = cast(tape, op, turned, x.width)
    return out if r == head_dim else tape.node(op, Value(x.n, x.width), out)


def scale(tape: Tape, op: str, spec: Scale, x: Value, width: int) -> Value:
    """A multiplier of the stream or of a branch."""
    if isinstance(spec, ConstantScale):
        return x if spec.value == 1.0 else multiply_by(tape, op, x)
    n = 1 if isinstance(spec, ScalarScale) else width
    out = Value(x.n, x.width)
    keep: tuple[Value | Store, ...] = (x,) if tape.numerics.param == x.width else (x, Store(n * x.width))
    if not isinstance(spec, ScalarScale | VectorScale):
        return unknown(tape, op, f"scale {spec.kind_name}", x)
    tape.count(op, x.n, n * tape.numerics.param, x.nbytes, out.nbytes)
    return tape.node(op, out, x, keep=keep, param_grads=n * tape.numerics.param, scratch=x.nbytes)


def unknown(tape: Tape, op: str, what: str, x: Value) -> Value:
    """A step that nobody described: it is taken to read x, keep x, and write as much."""
    tape.unknown.add(what)
    out = Value(x.n, x.width)
    tape.count(op, x.n, x.nbytes, out.nbytes)
    return tape.node(op, out, x, keep=(x,))


def opaque(tape: Tape, rule: CostRule[Any], spec: Any, d: int, x: Value) -> Value:
    """A part that has no trace: its FLOPs, its parameters, its input kept, an output as large."""
    tape.unknown.add(f"{spec.slot} {spec.kind_name}")
    flops = rule.flops(spec, d, tape.at)
    weights = sum(t.numel for t in rule.tensors(spec, d)) * tape.numerics.param
    out = Value(x.n, x.width)
    tape.count("other", flops.matmul + flops.core_legal, weights, x.nbytes, out.nbytes)
    return tape.node("other", out, x, keep=(x,), param_grads=weights)
