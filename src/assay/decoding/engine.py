"""Prefill and one decode step at a time, over a cache that is allocated once.

B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from assay.decoding.lean import Lean
from assay.decoding.products import LAYOUTS, Product, pack_all
from assay.model import Context, Decoder
from assay.model.norm import at_least_float32


class Engine:
    """Reads prompts, then one token a row and call. Sampling and stopping are the caller's.

    ``logits = engine.prefill(ids, padding_mask)``, then ``logits = engine.step(next_ids)`` as often as there is room.
    Rows may have any lengths. Nothing is allocated or compiled for a length. Beside the decoder's weights it holds
    ``cache.nbytes``, and ``packed_bytes`` of weights laid out for the step.

    Args:
        decoder: its weights may change between prompts; they are laid out anew then.
        batch, max_len: rows, and tokens a row at most, prompt and continuation together.
        layout: of the step's weights: ``auto`` measures what is fastest here, once a process for each shape; or one of
            ``plain``, ``columns``, ``onednn``, where the machine has it.
        cache_dtype: of keys and values; the model's when None.
        rope_length: as in ``decoder.new_cache``.
    """

    def __init__(
        self,
        decoder: Decoder,
        batch: int,
        max_len: int,
        *,
        layout: str = "auto",
        cache_dtype: torch.dtype | None = None,
        rope_length: int | None = None,
    ) -> None:
        if layout not in ("auto", *LAYOUTS):
            raise ValueError(f"layout: no such layout {layout!r}; known: auto, {', '.join(LAYOUTS)}")
        self.decoder, self.layout = decoder, layout
        self.cache = decoder.new_cache(batch, max_len, dtype=cache_dtype, rope_length=rope_length)
        self._lean: Lean | None = None
        self._seen: tuple[int, ...] = ()

    @property
    def batch(self) -> int:
        return self.cache.batch

    @property
    def max_len(self) -> int:
        return self.cache.max_len

    @property
    def products(self) -> tuple[Product, ...]:
        """The matrix products of a step, with their layouts; none before the first."""
        return () if self._lean is None else tuple(self._lean.products)

    @property
    def packed_bytes(self) -> int:
        """Bytes of copies of weights; at most those of the weights, and 0 before the first step."""
        return sum(product.nbytes for product in self.products)

    def reset(self) -> None:
        """Forget what was read; the memory stays."""
        self.cache.reset()

    @torch.inference_mode()
    def prefill(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Read a prompt (B, T), or its next piece; pads left or right.

        Returns:
            (B, V) logits after the last real token of each row, float32 or better; of an empty row, of no meaning.
        """
        if self._lean is not None and self._seen != _versions(self.decoder):
            self._lean = None  # the weights have changed
        with _evaluating(self.decoder):
            hidden = self.decoder.features(ids, padding_mask, cache=self.cache).hidden
            return at_least_float32(self.decoder.unembed(last_of(hidden, padding_mask)))

    @torch.inference_mode()
    def prepare(self) -> None:
        """Measure and lay out the weights of the step now; else the first step does it."""
        if self._lean is None:
            self._make()

    @torch.inference_mode()
    def step(self, next_ids: Tensor, active: Tensor | None = None) -> Tensor:
        """Read one token a row, (B,) or (B, 1).

        Args:
            active: (B,) bool; a row that is False reads nothing and its logits have no meaning.

        Returns:
            (B, V) logits, float32 or better.
        """
        lean = self._lean or self._make()
        ids = next_ids.reshape(-1, 1)
        append = self.cache.begin(ids, None if active is None else active.reshape(-1, 1).bool())
        ctx = Context(
            ids, append.positions, self.decoder.backend, append.mask, cache=self.cache, append=append,
            rope_length=self.cache.rope_length,
        )  # fmt: skip
        if lean.modal and self.decoder.training:
            with _evaluating(self.decoder):
                logits = lean.read(ids.squeeze(1), ctx)
        else:
            logits = lean.read(ids.squeeze(1), ctx)
        self.cache.commit(append)
        return at_least_float32(logits)

    def _make(self) -> Lean:
        self._seen = _versions(self.decoder)
        self._lean = Lean(self.decoder)
        pack_all(self._lean.products, self.batch, self.layout)
        return self._lean


def _versions(decoder: Decoder) -> tuple[int, ...]:
    """Changes whenever a weight does."""
    return tuple(n for p in decoder.parameters() for n in (p.data_ptr(), 0 if p.is_inference() else p._version))


@contextmanager
def _evaluating(decoder: Decoder) -> Iterator[None]:
    """Eval mode, and then the mode that was."""
    if not decoder.training:
        yield
        return
    decoder.eval()
    try:
        yield
    finally:
        decoder.train()


def last_of(hidden: Tensor, padding_mask: Tensor | None) -> Tensor:
    """(B, T, d) at the last real token of each row, (B, d)."""
    if padding_mask is None:
        return hidden[:, -1]
    from_end = padding_mask.bool().flip(-1).long().argmax(-1)
    at = hidden.shape[1] - 1 - from_end
    return hidden[torch.arange(len(hidden), device=hidden.device), at]
