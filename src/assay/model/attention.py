"""Softmax attention, every option of the recipe in one forward.

B batch, T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.model.backend import Call, scores
from assay.model.cache import KeyValues, Room, UnsupportedCache
from assay.model.context import Context
from assay.model.differential import Difference
from assay.model.norm import gain_norm
from assay.model.parts import Linear, Module, Table, build_part, builds
from assay.model.position import turn
from assay.recipe.differential import HeadPairs
from assay.recipe.mixer import Attention as AttentionSpec
from assay.recipe.mixer import NormedQk
from assay.recipe.norm import LayerNorm, RMSNorm
from assay.recipe.position import Rope, T5Bias
from assay.recipe.query_scale import ByPosition
from assay.recipe.roles import ParamRole


@builds(AttentionSpec)
class Attention(Module):
    """Multi-head, grouped-query or multi-query attention; see :class:`assay.recipe.mixer.Attention` for the order."""

    sinks: Tensor | None

    def __init__(self, spec: AttentionSpec, d: int) -> None:
        super().__init__()
        self.spec = spec
        self.span_key, self.position_key = repr(spec.span), repr(spec.position)
        self.bias_key = f"{self.position_key} {self.span_key}"  # what keys stand where is the span's, with a cache
        bias = spec.bias
        self.q = Linear(d, spec.q_width, ParamRole.ATTN_IN, bias="q" in bias)
        if spec.source is None:
            self.k = Linear(d, spec.kv_width, ParamRole.ATTN_IN, bias="k" in bias)
            self.v = Linear(d, spec.kv_width, ParamRole.ATTN_VALUE, bias="v" in bias)
        self.offers = False  # to later layers; the decoder, which knows them, says so
        if spec.output_gate != "none":
            width = spec.n_heads if spec.output_gate == "head" else spec.q_width
            self.gate = Linear(d, width, ParamRole.ATTN_IN, bias="gate" in bias)
        self.o = Linear(spec.q_width, d, ParamRole.ATTN_OUT, bias="o" in bias)
        self.inner_norm = build_part(spec.inner_norm, spec.q_width)
        self.difference: Difference | None = None
        if isinstance(spec.differential, HeadPairs):
            self.difference = Difference(spec.differential, spec.head_dim)
        if spec.sinks == "per_head":
            self.declare("sinks", (spec.n_heads,), ParamRole.SINK, 0.0)
        else:
            self.sinks = None
        self.q_norm = _qk_norm(spec, spec.n_heads)
        if spec.source is None:
            self.k_norm = _qk_norm(spec, spec.n_kv_heads)
        self.position: Table | None = None
        if isinstance(spec.position, T5Bias) and spec.position.table == "own":
            self.position = Table(spec.position.n_buckets, spec.n_heads, ParamRole.POSITION)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, d) to (B, T, d)."""
        spec = self.spec
        q = self.heads(self._clipped(self.q(x)), spec.n_heads, self.q_norm, ctx)
        if isinstance(spec.query_scale, ByPosition):
            q = q * ctx.query_scale(spec.query_scale, q.dtype)
        k, v = self._keys(x, ctx) if spec.source is None else ctx.keys_of(spec.source)
        call = Call(
            legal=ctx.legal(spec.span, self.span_key),
            scale=spec.scale_value,
            soft_cap=None if spec.soft_cap == "none" else spec.soft_cap,
            sinks=self.sinks,
            bias=ctx.score_bias(spec, None if self.position is None else self.position.table, q.dtype, self.bias_key),
            dropout=spec.dropout if self.training else 0.0,
        )
        if ctx.watches("mixer.scores"):
            ctx.show("mixer.scores", _shown_scores(q, k, call))
        if self.difference is None:
            out = ctx.backend.attend(q, k, v, call).transpose(1, 2).flatten(-2)
        else:
            out = self.difference(v, lambda half: ctx.backend.attend(q, k, half, call), ctx.layer)
        out = self.inner_norm(out)
        if spec.output_gate != "none":
            gate = torch.sigmoid(self.gate(x))
            if spec.output_gate == "head":
                gate = gate.repeat_interleave(spec.head_dim, dim=-1)
            out = out * gate
        return self.o(out)  # type: ignore[no-any-return]

    def _clipped(self, x: Tensor) -> Tensor:
        c = self.spec.clip_qkv
        return x if c == "none" else x.clamp(-c, c)

    def _keys(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Keys and values that the queries are held against, (B, K, S, D), those in the cache among them."""
        spec = self.spec
        k, v = self._clipped(self.k(x)), self._clipped(self.v(x))
        k = self.heads(k, spec.n_kv_heads, self.k_norm, ctx)
        v = v.unflatten(-1, (spec.n_kv_heads, spec.head_dim)).transpose(1, 2)
        if ctx.append is not None:
            k, v = ctx.state(self).extend(k, v, ctx.append)
        if self.offers:
            ctx.offer_keys(k, v)
        return k, v

    def new_state(self, room: Room) -> KeyValues | None:
        """Where a cache keeps this attention's keys and values, after norm and rotation; None where it has none."""
        if not self.spec.span.is_causal:
            raise UnsupportedCache(
                f"span {self.spec.span.kind_name} is not causal: a token read later changes what earlier ones saw; "
                "call without a cache"
            )
        if self.spec.source is not None:
            return None
        return KeyValues(room, self.spec.span, self.spec.n_kv_heads, self.spec.head_dim)

    def heads(self, x: Tensor, n: int, norm: nn.Module, ctx: Context) -> Tensor:
        """(B, T, n·D) to (B, n, T, D), normed and rotated."""
        spec, qk = self.spec, self.spec.qk_norm
        over_width = isinstance(qk, NormedQk) and qk.over == "width"
        late = isinstance(qk, NormedQk) and qk.order == "after_rope"
        if not late:
            x = norm(x) if over_width else norm(x.unflatten(-1, (n, spec.head_dim))).flatten(-2)
        x = x.unflatten(-1, (n, spec.head_dim)).transpose(1, 2)
        if isinstance(spec.position, Rope):
            own, partner = ctx.rope(spec.position, spec.head_dim, x.dtype, self.position_key)
            x = turn(x, own, partner, spec.position.layout)
        if late:
            x = x.transpose(1, 2)
            x = norm(x.flatten(-2)).unflatten(-1, (n, spec.head_dim)) if over_width else norm(x)
            x = x.transpose(1, 2)
        return x


def _qk_norm(spec: AttentionSpec, n_heads: int) -> Any:
    qk = spec.qk_norm
    if not isinstance(qk, NormedQk):
        return nn.Identity()
    if qk.gain_per == "head":
        assert isinstance(qk.norm, RMSNorm | LayerNorm)
        return gain_norm(qk.norm, (n_heads, spec.head_dim))
    return build_part(qk.norm, spec.head_dim if qk.over == "head" else n_heads * spec.head_dim)


def _shown_scores(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """Scores for a probe, -inf where illegal."""
    s = scores(q.detach(), k.detach(), call)
    s = s if call.bias is None else s + call.bias.detach().to(s.dtype)
    mask = call.legal.as_mask(q.shape[2], k.shape[2], q.device)
    return s if mask is None else s.masked_fill(~mask, -torch.inf)
