"""What the difference of two attention maps costs: four vectors a layer, a second core, a norm a pair of heads."""

from __future__ import annotations

from assay.cost import ops
from assay.cost.core import CORE, Pairs, alone, attend, heads_first, score_bias, stores_scores
from assay.cost.rules import Named, Tensor
from assay.cost.tape import Store, Tape, Value
from assay.recipe.differential import HeadPairs
from assay.recipe.mixer import Attention
from assay.recipe.roles import ParamRole

DIFFERENCE = "difference"


def difference_tensors(spec: HeadPairs, head_dim: int) -> list[Tensor]:
    """The four vectors of lambda, and the norm over a pair's 2 · head_dim channels."""
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    named = Named("")
    named.add("norm", spec.norm, 2 * head_dim)
    return [Tensor(name, (head_dim,), ParamRole.LAMBDA) for name in names] + named.found


def difference(tape: Tape, spec: Attention, q: Value, k: Value, v: Value, pairs: Pairs) -> Value:
    """The core once for each half of the values, the two maps' difference, its norm, its factor."""
    assert isinstance(spec.differential, HeadPairs)
    factor = _factor(tape, spec.head_dim, q.width)
    bias = score_bias(tape, spec, q.width, pairs)
    halves = []
    for _ in range(spec.cores):
        keys = ops.copy(tape, CORE, k) if _keys_copied(tape, spec) else k
        out = attend(tape, spec, q, keys, ops.copy(tape, CORE, v), pairs, bias)
        tape.count(DIFFERENCE, out.n, out.nbytes, out.nbytes // 2)
        scaled = tape.node(DIFFERENCE, Value(out.n // 2, out.width), out, keep=(out, factor))
        halves.append(tape.node(DIFFERENCE, Value(out.n // 2, out.width), out, scaled, passes=True))
    both = tape.node(DIFFERENCE, Value(q.n, q.width), *halves)
    normed = ops.norm(tape, "norms", spec.differential.norm, both, 2 * spec.head_dim)
    return ops.multiply_by(tape, DIFFERENCE, normed)


def _keys_copied(tape: Tape, spec: Attention) -> bool:
    """Whether each product with keys that lie token by token takes a copy of them, head by head, of its own.

    Where query heads share keys, the stored core repeats them anyway.
    """
    stored = stores_scores(spec, tape.numerics.backend)
    return stored and spec.n_heads == spec.n_kv_heads and not alone(tape, spec) and not heads_first(tape, spec)


def _factor(tape: Tape, head_dim: int, width: int) -> Store:
    """Lambda from its vectors: autograd keeps them where they are cast, two exponentials, and lambda as it is used."""
    param, wide = tape.numerics.param, max(tape.numerics.wide, width)
    cast = [Store(head_dim * wide) for _ in range(4 if param < wide else 0)]
    factor = Store(width)
    tape.node(DIFFERENCE, Value(1, wide), keep=(*cast, Store(wide), Store(wide)), param_grads=4 * head_dim * param)
    return factor
