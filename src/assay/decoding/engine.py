"""Prefill and one decode step at a time, over a cache that is allocated once.

B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.model import Decoder


class Engine:
    """Reads prompts, then one token a row and call. Sampling and stopping are the caller's.

    ``logits = engine.prefill(ids, padding_mask)``, then ``logits = engine.step(next_ids)`` as often as there is room.
    Rows may have any lengths. Nothing is allocated for, or compiled for, a length.

    Args:
        decoder: put into eval mode here; the weights are those it has when a prompt is read.
        batch, max_len: rows, and tokens a row at most, prompt and continuation together.
        cache_dtype: of keys and values; the model's when None.
        rope_length: as in ``decoder.new_cache``.
    """

    def __init__(
        self,
        decoder: Decoder,
        batch: int,
        max_len: int,
        *,
        cache_dtype: torch.dtype | None = None,
        rope_length: int | None = None,
    ) -> None:
        self.decoder = decoder.eval()
        self.cache = decoder.new_cache(batch, max_len, dtype=cache_dtype, rope_length=rope_length)

    @property
    def batch(self) -> int:
        return self.cache.batch

    @property
    def max_len(self) -> int:
        return self.cache.max_len

    def reset(self) -> None:
        """Forget what was read; the memory stays."""
        self.cache.reset()

    @torch.inference_mode()
    def prefill(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Read a prompt (B, T), or its next piece; pads left or right.

        Returns:
            (B, V) float32 logits after the last real token of each row; of a row without any, of no meaning.
        """
        hidden = self.decoder.features(ids, padding_mask, cache=self.cache).hidden
        return self.decoder.unembed(last_of(hidden, padding_mask)).float()

    @torch.inference_mode()
    def step(self, next_ids: Tensor, active: Tensor | None = None) -> Tensor:
        """Read one token a row, (B,) or (B, 1).

        Args:
            active: (B,) bool; a row that is False reads nothing and its logits have no meaning.

        Returns:
            (B, V) float32 logits.
        """
        mask = None if active is None else active.reshape(-1, 1)
        hidden = self.decoder.features(next_ids.reshape(-1, 1), mask, cache=self.cache).hidden
        return self.decoder.unembed(hidden[:, 0]).float()


def last_of(hidden: Tensor, padding_mask: Tensor | None) -> Tensor:
    """(B, T, d) at the last real token of each row, (B, d)."""
    if padding_mask is None:
        return hidden[:, -1]
    from_end = padding_mask.bool().flip(-1).long().argmax(-1)
    at = hidden.shape[1] - 1 - from_end
    return hidden[torch.arange(len(hidden), device=hidden.device), at]
