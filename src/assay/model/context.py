"""What every mixer and feed-forward part is called with, so that a new idea needs no new argument everywhere.

B batch, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.model.backend import Backend, Legal
from assay.model.cache import Append, Cache, places_of
from assay.model.position import (
    alibi_bias,
    depends_on_length,
    frequencies_of,
    query_factor,
    spread,
    t5_buckets,
    tables_at,
)
from assay.model.span import allowed, is_everything, is_plain_causal
from assay.recipe.mixer import Attention
from assay.recipe.position import Alibi, Rope, T5Bias
from assay.recipe.query_scale import ByPosition
from assay.recipe.span import Span


class Probe(Protocol):
    """Watches named tensors of a forward pass. ``wants`` is asked first, so what nobody watches is never computed."""

    def wants(self, name: str) -> bool: ...

    def __call__(self, name: str, value: Tensor) -> None: ...


@dataclass
class Context:
    """One forward pass.

    Attributes:
        ids: (B, T) token ids.
        positions: (T,), or (B, T) where rows differ; counted over real tokens, from 0 in each document.
        padding_mask: (B, T) bool, True = token; None when every place is one.
        segment_ids: (B, T) integers, equal within a document; None for one document a row.
        embedded: (B, T, d) what entered the first layer.
        sources: what earlier layers offered to later ones, by depth.
        cache: the decoding cache; none is made in training. append: what this pass adds to it.
        rope_length: the length that RoPE scalings which depend on it take; None for each row's own.
        layer: depth of the layer that is running; -1 outside the stack.
    """

    ids: Tensor
    positions: Tensor
    backend: Backend
    padding_mask: Tensor | None = None
    segment_ids: Tensor | None = None
    probe: Probe | None = None
    embedded: Tensor | None = None
    sources: dict[int, Any] = field(default_factory=dict)
    cache: Cache | None = None
    append: Append | None = None
    rope_length: int | None = None
    layer: int = -1
    _legal: dict[str, Legal] = field(default_factory=dict)
    _rope: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _alibi: dict[str, Tensor] = field(default_factory=dict)
    _query: dict[str, Tensor] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def name(self, what: str) -> str:
        """The probe name of a tensor of the running layer."""
        return f"layers.{self.layer}.{what}"

    def watches(self, what: str) -> bool:
        return self.probe is not None and self.probe.wants(self.name(what))

    def show(self, what: str, value: Tensor) -> None:
        """Hand a tensor of the running layer to the probe, if one wants it."""
        if self.probe is not None and self.probe.wants(self.name(what)):
            self.probe(self.name(what), value)

    def state(self, module: nn.Module) -> Any:
        """What the module keeps in the cache, as its ``new_state`` made it; None without a cache."""
        return None if self.cache is None else self.cache.state(module)

    def offer_keys(self, k: Tensor, v: Tensor) -> None:
        """The running layer's keys and values, (B, K, S, D), for later layers to read."""
        self.sources.setdefault(self.layer, {})["kv"] = (k, v)

    def keys_of(self, layer: int) -> tuple[Tensor, Tensor]:
        """What the layer at this depth offered."""
        k, v = self.sources[layer]["kv"]
        return k, v

    def rope(self, spec: Rope, head_dim: int, dtype: torch.dtype, key: str = "") -> tuple[Tensor, Tensor]:
        """Factors for :func:`turn`, (1 or B, 1, T, r): computed once a pass for all layers that share them.

        ``key`` names the spec for sharing; a module that is compiled makes it once, since hashing a spec is not traced.
        """
        key = f"{key or spec!r} {head_dim} {dtype}"
        if key not in self._rope:
            cos, sin = tables_at(*self._frequencies(spec, head_dim, key), self.positions, dtype)
            own, partner = spread(cos, sin, spec.layout)
            shape = (-1, 1, *own.shape[-2:])
            self._rope[key] = (own.reshape(shape), partner.reshape(shape))
        return self._rope[key]

    def _frequencies(self, spec: Rope, head_dim: int, key: str) -> tuple[Tensor, float]:
        if self.cache is None:
            return frequencies_of(spec, head_dim, self.lengths() if depends_on_length(spec) else None)
        kept = self.cache.frequencies  # the RoPE length is the cache's, so its passes share them
        if key not in kept:
            frequency, factor = frequencies_of(spec, head_dim, self.lengths() if depends_on_length(spec) else None)
            device = "cpu" if self.ids.device.type == "mps" else self.ids.device  # which has no float64
            kept[key] = frequency.to(device), factor
        return kept[key]

    def query_scale(self, spec: ByPosition, dtype: torch.dtype) -> Tensor:
        """The factor on every query, (1 or B, 1, T, 1), made once a pass."""
        key = f"{spec.beta} {spec.period} {spec.first} {dtype}"
        if key not in self._query:
            factor = query_factor(spec, self.positions, dtype)
            self._query[key] = factor.reshape(-1, 1, factor.shape[-1], 1)
        return self._query[key]

    def lengths(self) -> Tensor:
        """The number of real tokens in each position's row, or document: a scalar, or (B, T)."""
        if self.rope_length is not None:
            return torch.tensor(self.rope_length, device=self.ids.device)
        if self.padding_mask is None and self.segment_ids is None:
            return torch.tensor(self.length, device=self.ids.device)
        if self.segment_ids is None:
            assert self.padding_mask is not None
            return self.padding_mask.sum(-1, keepdim=True).expand_as(self.ids)
        same = self.segment_ids.unsqueeze(-1) == self.segment_ids.unsqueeze(-2)
        if self.padding_mask is not None:
            same = same & self.padding_mask.unsqueeze(-2)
        return same.sum(-1)

    def key_positions(self, span: Span) -> Tensor:
        """Positions of the keys that the pass's queries are held against: its own tokens, or those of the cache."""
        if self.append is None or self.append.fresh:
            return self.positions
        return self.append.keys(places_of(span, self.append.max_len)).positions

    def score_bias(self, spec: Attention, table: Tensor | None, dtype: torch.dtype, key: str = "") -> Tensor | None:
        """What the attention's position adds to its scores, (1 or B, H, T, S); None for positions that add nothing."""
        position = spec.position
        if isinstance(position, Alibi):
            key = f"{key or repr((position, spec.span))} {spec.n_heads} {dtype}"
            if key not in self._alibi:
                seen = self.key_positions(spec.span)
                self._alibi[key] = alibi_bias(position, spec.n_heads, self.positions, seen, dtype)
            return self._alibi[key]
        if isinstance(position, T5Bias):
            if position.table == "own":
                assert table is not None
                self.sources.setdefault(self.layer, {})["t5"] = table
            else:
                table = self.sources[0]["t5"]
            seen = self.key_positions(spec.span)
            bias = F.embedding(t5_buckets(position, self.positions, seen, causal=spec.span.is_causal), table)
            bias = bias if bias.dim() == 4 else bias.unsqueeze(0)
            return bias.permute(0, 3, 1, 2).to(dtype)
        return None

    def legal(self, span: Span, key: str = "") -> Legal:
        """The legal pairs of a span in this pass, made once for all layers that share it; ``key`` as in ``rope``."""
        key = key or repr(span)
        if key not in self._legal:
            self._legal[key] = self._make_legal(span)
        return self._legal[key]

    def _make_legal(self, span: Span) -> Legal:
        if self.append is not None and not self.append.fresh:
            return self.append.legal(span)
        if self.padding_mask is None and self.segment_ids is None:
            if is_plain_causal(span, self.length):
                return Legal("causal")
            if is_everything(span, self.length):
                return Legal("all")
        query = self.positions.unsqueeze(-1)
        key = self.positions.unsqueeze(-2)
        mask = allowed(span, query, key)
        if self.segment_ids is not None:
            mask = mask & (self.segment_ids.unsqueeze(-1) == self.segment_ids.unsqueeze(-2))
        if self.padding_mask is not None:
            mask = mask & self.padding_mask.unsqueeze(-2) & self.padding_mask.unsqueeze(-1)
        mask = mask if mask.dim() == 3 else mask.unsqueeze(0)
        return Legal("mask", mask.unsqueeze(1), may_be_empty=self.padding_mask is not None)


def positions_of(length: int, device: torch.device, padding_mask: Tensor | None, segment_ids: Tensor | None) -> Tensor:
    """Position of every token: (T,), or (B, T) counting real tokens of the same document; pads have position 0."""
    if padding_mask is None and segment_ids is None:
        return torch.arange(length, device=device)
    if segment_ids is None:
        assert padding_mask is not None
        return (padding_mask.long().cumsum(-1) - 1).clamp_min(0)
    earlier = torch.ones(length, length, dtype=torch.bool, device=device).tril(-1)
    same = (segment_ids.unsqueeze(-1) == segment_ids.unsqueeze(-2)) & earlier
    if padding_mask is not None:
        same = same & padding_mask.unsqueeze(-2) & padding_mask.unsqueeze(-1)
    return same.sum(-1)
