"""The decoder: embedding, blocks, head.

B batch, T tokens, d model width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.model.backend import Backend, UnsupportedBackend, backend_of
from assay.model.cache import Cache, Room, State, states_of
from assay.model.context import Context, Probe, positions_of
from assay.model.ffn import activation
from assay.model.linear_loss import linear_cross_entropy
from assay.model.loss import Loss, cross_entropy
from assay.model.norm import fix_rows
from assay.model.parts import Linear, Module, Table, build_part, dropout
from assay.model.position import sinusoidal
from assay.model.residual import Block
from assay.recipe.embedding import DenseTransform, LinearProjection, Projection
from assay.recipe.mixer import attentions_of
from assay.recipe.norm import FixNorm
from assay.recipe.position import LearnedPosition, SinusoidalPosition
from assay.recipe.recipe import Recipe
from assay.recipe.roles import ParamRole


class Features(NamedTuple):
    """What the head reads, (B, T, d) after the final norm, and what layers returned beside it."""

    hidden: Tensor
    aux: dict[str, Tensor]


def _projection(spec: Projection, d_in: int, d_out: int) -> nn.Module:
    if not isinstance(spec, LinearProjection):
        return nn.Identity()
    return Linear(d_in, d_out, ParamRole.PROJECTION, bias=spec.bias)


class Embedding(Table):
    """``dropout(norm(project(scale · table[id]) + position))``."""

    def __init__(self, recipe: Recipe) -> None:
        spec = recipe.embedding
        super().__init__(recipe.vocab_size, recipe.embedding_width, ParamRole.EMBEDDING)
        self.spec, self.d_model, self.max_seq_len = spec, recipe.d_model, recipe.max_seq_len
        self.scale = math.sqrt(recipe.d_model) if spec.scale == "sqrt_d_model" else float(spec.scale)
        self.projection = _projection(spec.projection, recipe.embedding_width, recipe.d_model)
        self.norm = build_part(spec.norm, recipe.d_model)
        if isinstance(spec.position, LearnedPosition):
            self.position = Table(recipe.max_seq_len + spec.position.offset, recipe.d_model, ParamRole.POSITION)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(B, T) ids and (T,) or (B, T) positions to (B, T, d)."""
        x = F.embedding(ids, self.table)
        if isinstance(self.spec.norm, FixNorm):
            x = fix_rows(x, self.spec.norm)
        if self.scale != 1.0:
            # rounded to the model's dtype, as the published models do: 55.5 for √3072 in bfloat16
            x = x * torch.tensor(self.scale, dtype=x.dtype, device=x.device)
        x = self.projection(x)
        position = self.spec.position
        if isinstance(position, LearnedPosition):
            x = x + F.embedding(positions + position.offset, self.position.table)
        elif isinstance(position, SinusoidalPosition):
            x = x + sinusoidal(position, self.d_model, positions, x.dtype)
        return dropout(self.norm(x), self.spec.dropout, self.training)

    def rows(self) -> Tensor:
        """The whole table (V, width) as a tied head reads it."""
        return fix_rows(self.table, self.spec.norm) if isinstance(self.spec.norm, FixNorm) else self.table


class Transform(Module):
    """``norm(activation(dense(x)))``."""

    def __init__(self, spec: DenseTransform, d: int) -> None:
        super().__init__()
        self.dense = Linear(d, d, ParamRole.PROJECTION, bias=spec.bias)
        self.act = activation(spec.activation, d)
        self.norm = build_part(spec.norm, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(x)))  # type: ignore[no-any-return]


class Head(Module):
    """``soft_cap(scale · (table · project(transform(norm(x))) + bias))``.

    A tied table is handed in, never owned twice.
    """

    table: Tensor | None
    bias: Tensor | None

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        spec, d = recipe.head, recipe.d_model
        self.norm = build_part(spec.norm, d)
        self.transform = Transform(spec.transform, d) if isinstance(spec.transform, DenseTransform) else nn.Identity()
        self.projection = _projection(spec.projection, d, recipe.head_width)
        if recipe.embedding.tied:
            self.table = None
        else:
            self.declare("table", (recipe.vocab_size, recipe.head_width), ParamRole.HEAD)
        if spec.bias:
            self.declare("bias", (recipe.vocab_size,), ParamRole.BIAS, 0.0)
        else:
            self.bias = None
        self.scale = d**-0.5 if spec.scale == "inv_sqrt_d_model" else float(spec.scale)
        self.soft_cap = None if spec.soft_cap == "none" else float(spec.soft_cap)

    def logits(self, hidden: Tensor, table: Tensor) -> Tensor:
        """Normed (..., d) to (..., V)."""
        z = F.linear(self.projection(self.transform(hidden)), table, self.bias)
        z = z if self.scale == 1.0 else z * self.scale
        return z if self.soft_cap is None else self.soft_cap * torch.tanh(z / self.soft_cap)


class Decoder(nn.Module):
    """A recipe as a torch module. Build it with :func:`assay.build`.

    ``backend`` chooses the attention kernel: ``auto``, ``sdpa`` or ``reference``; it is execution, not architecture,
    and may be changed at any time with :meth:`use_backend`.
    """

    def __init__(self, recipe: Recipe, backend: str = "auto") -> None:
        super().__init__()
        self.recipe = recipe
        self.embedding = Embedding(recipe)
        self.layers = nn.ModuleList(Block(layer, recipe.d_model) for layer in recipe.layers)
        for source in set(recipe.kv_sources) - {None}:
            self.layers[source].mixer.offers = True  # type: ignore[index, union-attr]
        self.head = Head(recipe)
        self.use_backend(backend)

    def use_backend(self, name: str) -> None:
        """Choose the attention kernel; raises UnsupportedBackend where it cannot honour a layer of the recipe."""
        backend = backend_of(name)
        for i, layer in enumerate(self.recipe.layers):
            for spec in attentions_of(layer.mixer):
                reason = backend.refuses(spec)
                if reason is not None:
                    raise UnsupportedBackend(
                        f"layers.{i}.mixer: backend {name!r} refuses: {reason}; use auto or reference"
                    )
        self.backend: Backend = backend

    def forward(
        self,
        ids: Tensor,
        padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: Cache | None = None,
        *,
        rope_length: int | None = None,
        probe: Probe | None = None,
    ) -> Tensor:
        """Logits of every position.

        Args:
            ids: (B, T) token ids.
            padding_mask: (B, T), 1 = token, 0 = pad, pads left or right. A padded row equals the row alone.
            segment_ids: (B, T) integers; tokens see only their own document, whose positions start at 0.
            cache: made by :meth:`new_cache`; the tokens of ``ids`` are added to it, and see what it holds. Nothing is
                differentiated then.
            rope_length: the length for RoPE scalings that depend on it (dynamic NTK, LongRoPE); each row's own when
                None, and a cache's own with a cache.
            probe: watches named tensors; see :class:`assay.model.context.Probe`.

        Returns:
            (B, T, V).
        """
        features = self.features(ids, padding_mask, segment_ids, cache, rope_length=rope_length, probe=probe)
        if cache is None:
            return self.unembed(features.hidden)
        with torch.no_grad():
            return self.unembed(features.hidden)

    def features(
        self,
        ids: Tensor,
        padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: Cache | None = None,
        *,
        rope_length: int | None = None,
        probe: Probe | None = None,
    ) -> Features:
        """What the head reads: (B, T, d) after the final norm. Arguments as in :meth:`forward`."""
        if cache is not None:
            out: Features = self._append(ids, padding_mask, segment_ids, cache, rope_length, probe)
            return out
        return self._read(ids, self._context(ids, padding_mask, segment_ids, rope_length, probe))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _append(
        self,
        ids: Tensor,
        padding_mask: Tensor | None,
        segment_ids: Tensor | None,
        cache: Cache,
        rope_length: int | None,
        probe: Probe | None,
    ) -> Features:
        """Read ``ids`` behind what the cache holds. Never compiled: each length would be guarded on."""
        if segment_ids is not None:
            raise ValueError("segment_ids: a cache holds one document a row; call without a cache, or without segments")
        if rope_length not in (None, cache.rope_length):
            raise ValueError(f"rope_length: {rope_length}, but the cache was made with {cache.rope_length}")
        append = cache.begin(ids, self._mask(ids, padding_mask))
        ctx = Context(
            ids, append.positions, self.backend, append.mask, probe=probe, cache=cache, append=append,
            rope_length=cache.rope_length,
        )  # fmt: skip
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            out = self._read(ids, ctx)
        cache.commit(append)
        return out

    def new_cache(
        self, batch: int, max_len: int, *, dtype: torch.dtype | None = None, rope_length: int | None = None
    ) -> Cache:
        """A cache for ``batch`` rows of at most ``max_len`` real tokens each, on the model's device.

        Args:
            dtype: of what it keeps; the model's when None.
            rope_length: for RoPE scalings that depend on the length; ``max_len`` when None.

        Raises:
            UnsupportedCache: a layer that cannot be decoded from a cache; names it.
        """
        for name, value in (("batch", batch), ("max_len", max_len), ("rope_length", rope_length)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is not positive")
        if isinstance(self.recipe.embedding.position, LearnedPosition) and max_len > self.recipe.max_seq_len:
            raise ValueError(
                f"max_len: {max_len} tokens, but the learned positions end at max_seq_len = {self.recipe.max_seq_len}"
            )
        table = self.embedding.table
        with torch.inference_mode(False):
            room = Room(batch, max_len, table.device, dtype or table.dtype)
            states: dict[nn.Module, State] = {}
            for i, block in enumerate(self.layers):
                for name in block.sublayers:  # type: ignore[union-attr]
                    part = getattr(block, name)
                    states.update(states_of(part, f"layers.{i}.{name}", room, mixes=name == "mixer"))
            return Cache(room, states, max_len if rope_length is None else rope_length)

    def _read(self, ids: Tensor, ctx: Context) -> Features:
        probe = ctx.probe
        x = self.embedding(ids, ctx.positions)
        ctx.embedded = x
        if probe is not None and probe.wants("embedding"):
            probe("embedding", x)
        for i, block in enumerate(self.layers):
            ctx.layer = i
            x = block(x, ctx)
            ctx.show("residual", x)
        return Features(self.head.norm(x), {})

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of normed hidden states (..., d)."""
        table = self.head.table if self.head.table is not None else self.embedding.rows()
        return self.head.logits(hidden, table)

    def loss(
        self,
        ids: Tensor,
        targets: Tensor,
        padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        *,
        probe: Probe | None = None,
        z_loss: float = 0.0,
    ) -> Loss:
        """Summed cross-entropy in nats. ``targets`` (B, T) stand at the position that predicts them; -100 is ignored.

        Logits are made a chunk of tokens at a time, never whole. ``aux["objective"]`` is the sum with ``z_loss`` times
        the sum of log² Z; its gradient is the one made beside the value.
        """
        features = self.features(ids, padding_mask, segment_ids, probe=probe)
        loss = self._cross_entropy(features.hidden.flatten(0, 1), targets.flatten(), z_loss)
        return replace(loss, aux={**features.aux, **loss.aux})

    def _cross_entropy(self, hidden: Tensor, targets: Tensor, z_loss: float) -> Loss:
        head = self.head
        table = head.table if head.table is not None else self.embedding.rows()
        if hasattr(table, "device_mesh"):  # a sharded table is gathered by the operations on it
            loss = cross_entropy(hidden, targets, self.unembed, self.recipe.vocab_size)
            objective = loss.sum + z_loss * loss.aux["z_squared"] if z_loss else loss.sum
            return replace(loss, aux={**loss.aux, "objective": objective})
        x = head.projection(head.transform(hidden))
        return linear_cross_entropy(
            x, table, head.bias, targets, scale=head.scale, soft_cap=head.soft_cap, z_loss=z_loss
        )

    def _context(
        self,
        ids: Tensor,
        padding_mask: Tensor | None,
        segment_ids: Tensor | None,
        rope_length: int | None,
        probe: Probe | None,
    ) -> Context:
        mask = self._mask(ids, padding_mask)
        if segment_ids is not None and segment_ids.shape != ids.shape:
            raise ValueError(f"segment_ids: shape {tuple(segment_ids.shape)} is not that of ids, {tuple(ids.shape)}")
        length = ids.shape[1]
        if isinstance(self.recipe.embedding.position, LearnedPosition) and length > self.recipe.max_seq_len:
            raise ValueError(
                f"ids: {length} tokens, but the learned positions end at max_seq_len = {self.recipe.max_seq_len}"
            )
        positions = positions_of(length, ids.device, mask, segment_ids)
        return Context(ids, positions, self.backend, mask, segment_ids, probe, rope_length=rope_length)

    def _mask(self, ids: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        if ids.dim() != 2:
            raise ValueError(f"ids: expected shape (batch, length), got {tuple(ids.shape)}")
        if padding_mask is None:
            return None
        if padding_mask.shape != ids.shape:
            raise ValueError(f"padding_mask: shape {tuple(padding_mask.shape)} is not that of ids, {tuple(ids.shape)}")
        return padding_mask.bool()
