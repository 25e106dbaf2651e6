"""Attention kernels. Execution, not architecture: all give the same numbers, or refuse what they cannot do.

B batch, H query heads, K key/value heads, T queries, S keys, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from assay.model.parts import dropout
from assay.recipe.mixer import Attention


class UnsupportedBackend(ValueError):
    """A backend that cannot honour what a recipe asks of it."""


@dataclass(frozen=True)
class Legal:
    """Which pairs count: the causal triangle, all, or a Boolean mask (B or 1, 1, T, S), True = legal."""

    kind: str
    mask: Tensor | None = None
    may_be_empty: bool = False  # a query may have no legal key; its output is 0
    _made: dict[tuple[str, int, int, torch.dtype], Tensor] = field(default_factory=dict, compare=False, repr=False)

    def as_mask(self, t: int, s: int, device: torch.device) -> Tensor | None:
        """The pairs as a mask that broadcasts to (B, H, T, S); None when all are legal."""
        if self.kind == "all":
            return None
        if self.kind == "causal":
            # bottom right: the last query sees the last key, also when keys outnumber queries
            return torch.ones(t, s, dtype=torch.bool, device=device).tril(s - t)
        return self.mask

    def as_bias(self, t: int, s: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """What is added to scores: 0 where legal, else -inf, or, if a row may have no legal key, a number whose
        softmax is finite. None when all are legal. Made once a pass, for all layers that share these pairs.
        """
        key = (str(device), t, s, dtype)
        if key not in self._made:
            mask = self.as_mask(t, s, device)
            if mask is None:
                return None
            barred = torch.finfo(dtype).min / 2 if self.may_be_empty else -torch.inf
            self._made[key] = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill(~mask, barred)
        return self._made[key]


@dataclass(frozen=True)
class Call:
    """One attention call beyond q, k, v."""

    legal: Legal
    scale: float
    soft_cap: float | None = None
    sinks: Tensor | None = None  # (H,)
    bias: Tensor | None = None  # (1 or B, H, T, S), added to the scores: ALiBi, T5
    dropout: float = 0.0


class Backend(Protocol):
    """``refuses`` says why a spec cannot run here; ``attend`` maps (B,H,T,D), (B,K,S,D), (B,K,S,D) to (B,H,T,D)."""

    name: str

    def refuses(self, spec: Attention) -> str | None: ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor: ...


def scores(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """Scaled and capped scores (B, H, T, S), before the mask; float32 or better."""
    b, h, t, d = q.shape
    kv = k.shape[1]
    if h == kv:
        s = torch.matmul(q * call.scale, k.transpose(-1, -2))
    else:
        grouped = (q * call.scale).reshape(b, kv, h // kv, t, d)
        s = torch.matmul(grouped, k.unsqueeze(2).transpose(-1, -2)).reshape(b, h, t, k.shape[2])
    s = s if s.dtype == torch.float64 else s.float()
    return s if call.soft_cap is None else call.soft_cap * torch.tanh(s / call.soft_cap)


class Reference:
    """Written out: scores, cap, mask, softmax, values. Honours every option."""

    name = "reference"

    def refuses(self, spec: Attention) -> str | None:
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        b, h, t, _ = q.shape
        kv = k.shape[1]
        s = scores(q, k, call)
        bias = call.legal.as_bias(t, k.shape[2], s.dtype, q.device)
        s = s if call.bias is None else s + call.bias.to(s.dtype)
        s = s if bias is None else s + bias
        if call.sinks is not None:
            sink = call.sinks.to(s.dtype).reshape(1, h, 1, 1).expand(b, h, t, 1)
            p = torch.softmax(torch.cat((s, sink), dim=-1), dim=-1)[..., :-1]
        else:
            p = torch.softmax(s, dim=-1)
        if call.legal.may_be_empty and call.legal.mask is not None:
            p = p * call.legal.mask  # a row without a legal key is uniform after softmax; it must give 0
        p = dropout(p, call.dropout, training=True).to(v.dtype)
        if h == kv:
            return torch.matmul(p, v)
        out = torch.matmul(p.reshape(b, kv, h // kv, t, -1), v.unsqueeze(2))
        return out.reshape(b, h, t, v.shape[-1])


class Sdpa:
    """torch's scaled_dot_product_attention: flash and memory-efficient kernels where the machine has them."""

    name = "sdpa"

    def refuses(self, spec: Attention) -> str | None:
        if spec.soft_cap != "none":
            return f"it cannot cap scores (soft_cap = {spec.soft_cap})"
        if spec.sinks != "none":
            return "it has no sink logits"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        legal = call.legal
        # the fused flag aligns at the top left, right only for square calls
        t, s = q.shape[2], k.shape[2]
        causal = legal.kind == "causal" and t == s and call.bias is None
        mask = None if causal else legal.as_mask(t, s, q.device)
        added = mask
        if call.bias is not None:
            barred = legal.as_bias(t, s, q.dtype, q.device)
            added = call.bias.to(q.dtype) if barred is None else call.bias.to(q.dtype) + barred
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=added, dropout_p=call.dropout, is_causal=causal, scale=call.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        if legal.may_be_empty and mask is not None:
            out = out.masked_fill(~mask.any(-1, keepdim=True), 0.0)
        return out


BACKENDS: dict[str, Backend] = {"reference": Reference(), "sdpa": Sdpa()}


class Auto:
    """sdpa where it honours the call, else the reference."""

    name = "auto"

    def refuses(self, spec: Attention) -> str | None:
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        plain = call.soft_cap is None and call.sinks is None
        return BACKENDS["sdpa" if plain else "reference"].attend(q, k, v, call)


BACKENDS["auto"] = Auto()


def backend_of(name: str) -> Backend:
    """A backend by name; raises UnsupportedBackend listing the known ones."""
    if name not in BACKENDS:
        raise UnsupportedBackend(f"no such attention backend {name!r}; known: {', '.join(sorted(BACKENDS))}")
    return BACKENDS[name]
