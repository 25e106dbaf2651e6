"""A decoder as the shortest chain of calls that reads one token a row.

The same numbers as ``decoder(ids, cache=cache)``: q, k and v, and gate and up, are one product each; norms and scales
that do nothing are no calls; a single query is attended to without a mask. What has no short form here, a plugin's
mixer for one, is called as it is. B batch, d model width, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.decoding.products import Product
from assay.model import Context, Decoder
from assay.model.attention import Attention
from assay.model.backend import Call
from assay.model.cache import Append, KeyValues
from assay.model.ffn import Glu, Mlp
from assay.model.norm import LayerNorm, RmsNorm
from assay.model.parts import Linear
from assay.model.position import turn
from assay.model.residual import Block, Sum
from assay.recipe.mixer import NormedQk
from assay.recipe.position import NoPosition, Rope
from assay.recipe.query_scale import ByPosition

Unary = Callable[[Tensor], Tensor]
Part = Callable[[Tensor, Context], Tensor]


class Lean:
    """The chain of one decoder. ``read`` runs it; ``products`` are the matrices it multiplies by, to be laid out.

    ``modal``: some call asks whether the decoder is in training; the others never drop anything.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.modal = decoder.recipe.embedding.dropout > 0
        self.products: list[Product] = []
        self.blocks = [self._block(block) for block in decoder.layers]  # type: ignore[arg-type]
        head = decoder.head
        table = head.table if head.table is not None else decoder.embedding.rows()
        self.before_table = [_unary(part) for part in (head.norm, head.transform, head.projection)]
        self.table = self._product([table], [head.bias])

    def read(self, ids: Tensor, ctx: Context) -> Tensor:
        """(B,) ids to (B, V) logits, in the model's dtype."""
        x = self.decoder.embedding(ids.unsqueeze(-1), ctx.positions)
        ctx.embedded = x
        x = x.squeeze(1)
        for i, block in enumerate(self.blocks):
            ctx.layer = i
            x = block(x, ctx)
        for step in self.before_table:
            x = x if step is None else step(x)
        z, head = self.table.run(x), self.decoder.head
        z = z if head.scale == 1.0 else z * head.scale
        return z if head.soft_cap is None else head.soft_cap * torch.tanh(z / head.soft_cap)

    def _product(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Product:
        product = Product(weights, biases)
        self.products.append(product)
        return product

    def _linears(self, *linears: Linear) -> Product:
        return self._product([linear.weight for linear in linears], [linear.bias for linear in linears])

    def _part(self, module: nn.Module) -> Part:
        if _as_built(module):
            if type(module) is Attention and module.difference is None:
                inner = [module.q, *((module.k, module.v) if module.spec.source is None else ())]
                inner += [module.gate] if module.spec.output_gate != "none" else []
                return LeanAttention(module, self._linears(*inner), self._linears(module.o))
            if type(module) is Glu:
                return _glu(module, self._linears(module.gate, module.up), self._linears(module.down))
            if type(module) is Mlp:
                return _mlp(module, self._linears(module.up), self._linears(module.down))
        if type(module) is Sum:
            return self._sum(module)
        return self._whole(module)

    def _sum(self, module: Sum) -> Part:
        terms = []
        for branch in module.branches:
            before = _chain(_times(branch.input_scale), _unary(branch.input_norm))  # type: ignore[arg-type]
            after = _chain(_unary(branch.output_norm), _times(branch.output_scale))  # type: ignore[arg-type]
            terms.append((before, self._part(branch.part), after))  # type: ignore[arg-type]

        def run(x: Tensor, ctx: Context) -> Tensor:
            total: Tensor | None = None
            for before, part, after in terms:
                y = part(x if before is None else before(x), ctx)
                y = y if after is None else after(y)
                total = y if total is None else total + y
            assert total is not None
            return total

        return run

    def _block(self, block: Block) -> Part:
        if block._forward_hooks or block._forward_pre_hooks:
            return self._whole(block)
        rules = block.residual
        sides: list[Any] = [(getattr(rules, name), self._part(getattr(block, name))) for name in block.sublayers]
        if rules.serial:
            return _serial([(rule, part) for rule, part in sides])
        return _parallel(rules, sides)

    def _whole(self, module: nn.Module) -> Part:
        """A module called as the decoder calls it."""
        self.modal = True
        return lambda x, ctx: module(x.unsqueeze(1), ctx).squeeze(1)


def _as_built(module: nn.Module) -> bool:
    """True where nothing inside was put in a linear's place (an adapter) or hooked: the weights then say all."""
    inside = list(module.modules())
    linears = [getattr(module, name, None) for name in ("q", "k", "v", "o", "gate", "up", "down")]
    replaced = any(part is not None and type(part) is not Linear for part in linears)
    return not replaced and not any(part._forward_hooks or part._forward_pre_hooks for part in inside)


# --- norms, scales and other calls of one argument; None stands for the identity


def _unary(module: nn.Module) -> Unary | None:
    if isinstance(module, nn.Identity):
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return module
    if type(module) is RmsNorm and len(module.shape) == 1:
        return _rms(module)
    if type(module) is LayerNorm and len(module.shape) == 1:
        return _layer_norm(module)
    return module.forward


def _rms(module: RmsNorm) -> Unary:
    """On a CPU written out in few calls; elsewhere torch has a kernel."""
    parameter = next(module.parameters(), None)
    if parameter is None or parameter.device.type != "cpu":
        return module.forward
    wide = parameter.dtype if parameter.dtype == torch.float64 else torch.float32
    gain, _ = module.affine(wide)
    assert gain is not None
    gain, eps, share = gain.detach(), torch.tensor(module.eps, dtype=wide), 1.0 / module.shape[-1]

    def run(x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        y = torch.addcmul(eps, size, size, value=share).rsqrt_() * x * gain
        return y if y.dtype == x.dtype else y.to(x.dtype)

    return run


def _layer_norm(module: LayerNorm) -> Unary:
    parameter = next(module.parameters(), None)
    if parameter is None or parameter.dtype not in (torch.float32, torch.float64):
        return module.forward
    gain, bias = module.affine(parameter.dtype)
    gain, bias = None if gain is None else gain.detach(), None if bias is None else bias.detach()
    return lambda x: F.layer_norm(x, module.shape, gain, bias, module.eps)


def _times(value: float) -> Unary | None:
    return None if value == 1.0 else lambda x: x * value


def _chain(*steps: Unary | None) -> Unary | None:
    """One after another, left to right."""
    found = [step for step in steps if step is not None]
    if not found:
        return None
    if len(found) == 1:
        return found[0]

    def run(x: Tensor) -> Tensor:
        for step in found:
            x = step(x)
        return x

    return run


# --- blocks


def _serial(sides: list[tuple[Any, Part]]) -> Part:
    """``stream_norm(skip · s + branch · output_norm(f(input_norm(x))))``, one sublayer after the other."""
    steps = []
    for rule, part in sides:
        norm, skip, stream = _unary(rule.input_norm), _unary(rule.skip), _unary(rule.stream_norm)
        steps.append(
            (norm, part, _chain(_unary(rule.output_norm), _unary(rule.branch)), skip, stream, rule.from_normed)
        )

    def run(x: Tensor, ctx: Context) -> Tensor:
        for norm, part, after, skip, stream, from_normed in steps:
            n = x if norm is None else norm(x)
            y = part(n, ctx)
            y = y if after is None else after(y)
            s = n if from_normed else x
            x = (s if skip is None else skip(s)) + y
            x = x if stream is None else stream(x)
        return x

    return run


def _parallel(rules: Any, sides: list[tuple[Any, Part]]) -> Part:
    """Both sublayers read the same stream."""
    shared, skip, stream = _unary(rules.input_norm), _unary(rules.skip), _unary(rules.stream_norm)
    steps = [
        (_unary(rule.input_norm), part, _chain(_unary(rule.output_norm), _unary(rule.branch))) for rule, part in sides
    ]

    def run(x: Tensor, ctx: Context) -> Tensor:
        n = x if shared is None else shared(x)
        s = n if rules.from_normed else x
        total = s if skip is None else skip(s)
        for norm, part, after in steps:
            y = part(n if norm is None else norm(n), ctx)
            total = total + (y if after is None else after(y))
        return total if stream is None else stream(total)

    return run


# --- feed-forward


def _glu(module: Glu, wide: Product, down: Product) -> Part:
    spec, inner, act, d_ff = module.spec, _unary(module.inner_norm), module.act, module.spec.d_ff
    clamp = None if spec.clamp == "none" else float(spec.clamp)

    def run(x: Tensor, ctx: Context) -> Tensor:
        both = wide.run(x)
        gate, up = both[:, :d_ff], both[:, d_ff:]
        if clamp is not None:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        if spec.up_offset:
            up = up + spec.up_offset
        h = act(gate) * up
        return down.run(h if inner is None else inner(h))

    return run


def _mlp(module: Mlp, up: Product, down: Product) -> Part:
    chain = _chain(_unary(module.act_norm), module.act, _unary(module.inner_norm))
    assert chain is not None
    return lambda x, ctx: down.run(chain(up.run(x)))


# --- attention


class LeanAttention:
    """One query a row against the cache of one attention."""

    def __init__(self, module: Attention, wide: Product, o: Product) -> None:
        spec = module.spec
        self.module, self.spec, self.wide, self.o = module, spec, wide, o
        self.clip = None if spec.clip_qkv == "none" else float(spec.clip_qkv)
        self.inner = _unary(module.inner_norm)
        self.q, self.kv = spec.q_width, spec.own_kv_width
        self.by_heads = not isinstance(spec.qk_norm, NormedQk) and isinstance(spec.position, Rope | NoPosition)
        self.plain = spec.soft_cap == "none" and spec.sinks == "none" and isinstance(spec.position, Rope | NoPosition)
        self.groups = (spec.n_kv_heads, spec.n_heads // spec.n_kv_heads, spec.head_dim)

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, d) to (B, d)."""
        y = self.wide.run(x)
        qkv = y[:, : self.q + 2 * self.kv] if self.spec.output_gate != "none" else y
        if self.clip is not None:
            qkv = qkv.clamp(-self.clip, self.clip)
        q, k, v = self._split(qkv, ctx)
        if isinstance(self.spec.query_scale, ByPosition):
            q = q * ctx.query_scale(self.spec.query_scale, q.dtype).squeeze(1)
        out = self._attend(q, k, v, ctx)
        out = out if self.inner is None else self.inner(out)
        if self.spec.output_gate != "none":
            gate = torch.sigmoid(y[:, self.q + 2 * self.kv :])
            if self.spec.output_gate == "head":
                gate = gate.repeat_interleave(self.spec.head_dim, dim=-1)
            out = out * gate
        return self.o.run(out)

    def _split(self, qkv: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """(B, q + 2 kv) to queries (B, H, D), keys and values (B, K, D), normed and rotated; K = 0 without keys."""
        spec = self.spec
        n_kv_heads = self.kv // spec.head_dim
        if self.by_heads:
            heads = qkv.view(len(qkv), -1, spec.head_dim)
            both, v = heads[:, : spec.n_heads + n_kv_heads], heads[:, spec.n_heads + n_kv_heads :]
            if isinstance(spec.position, Rope):
                own, partner = ctx.rope(spec.position, spec.head_dim, qkv.dtype, self.module.position_key)
                both = turn(both, own.squeeze(1), partner.squeeze(1), spec.position.layout)
            return both[:, : spec.n_heads], both[:, spec.n_heads :], v
        q, k, v = qkv.unsqueeze(1).split((self.q, self.kv, self.kv), dim=-1)
        q = self.module.heads(q, spec.n_heads, self.module.q_norm, ctx).squeeze(2)
        if not n_kv_heads:
            return q, q[:, :0], q[:, :0]
        k = self.module.heads(k, spec.n_kv_heads, self.module.k_norm, ctx).squeeze(2)
        return q, k, v.view(len(v), spec.n_kv_heads, spec.head_dim)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> Tensor:
        """(B, H, D) queries against the keys kept, the new one among them, to (B, H·D)."""
        spec, module = self.spec, self.module
        keys, values = self._keys(k, v, ctx) if spec.source is None else ctx.keys_of(spec.source)
        legal = ctx.legal(spec.span, module.span_key)
        if self.plain and not legal.may_be_empty and ctx.backend.name != "reference":
            q = q.view(len(q), *self.groups)  # the query heads of a group are so many queries of their key head
            if legal.kind == "all" and _in_batches(q):
                return _attend_in_batches(q, keys, values, spec.scale_value)
            mask = None if legal.kind == "all" else legal.as_mask(1, keys.shape[2], q.device)
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=spec.scale_value)
            return out.reshape(len(q), -1)
        table = None if module.position is None else module.position.table
        call = Call(
            legal=legal,
            scale=spec.scale_value,
            soft_cap=None if spec.soft_cap == "none" else spec.soft_cap,
            sinks=module.sinks,
            bias=ctx.score_bias(spec, table, q.dtype, module.bias_key),
        )
        return ctx.backend.attend(q.unsqueeze(2), keys, values, call).reshape(len(q), -1)

    def _keys(self, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Keys and values that are seen, (B, K, S, D), the new ones stored among them."""
        assert ctx.append is not None
        keys, values = _stored(ctx.state(self.module), k, v, ctx.append)
        if self.module.offers:
            ctx.offer_keys(keys, values)
        return keys, values


def _in_batches(q: Tensor) -> bool:
    """True where two batched products beat the fused kernel: float32 on several threads of a CPU, many rows and key
    heads, little work in each (measured: bench/decode.md).
    """
    batch, n_kv_heads, group, head_dim = q.shape
    few = group * head_dim <= 192 and batch >= 4 and batch * n_kv_heads >= 12
    return few and q.device.type == "cpu" and q.dtype == torch.float32 and torch.get_num_threads() > 1


def _attend_in_batches(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """(B, K, G, D) queries that see every key (B, K, S, D), to (B, H·D)."""
    scores = torch.baddbmm(q.new_empty(()), q.flatten(0, 1), keys.flatten(0, 1).mT, beta=0, alpha=scale)
    return torch.bmm(scores.softmax(-1), values.flatten(0, 1)).view(len(q), -1)


def _stored(state: KeyValues, k: Tensor, v: Tensor, append: Append) -> tuple[Tensor, Tensor]:
    """New keys and values (B, K, D) written; those that the query sees, (B, K, S, D)."""
    if not append.uniform or append.fresh or state.store.dtype != k.dtype:
        return state.extend(k.unsqueeze(2), v.unsqueeze(2), append)
    places = state.places
    store = state.store
    at = store.select(3, places.slot(append.past))
    at[0].copy_(k)
    at[1].copy_(v)
    kept = store.narrow(3, 0, append.visible(places))
    return kept[0], kept[1]
