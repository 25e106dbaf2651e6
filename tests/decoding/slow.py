"""The engine's contract without a cache: every row alone, read anew for every token."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.model import Decoder


class Uncached:
    """Logits of each row's last token, by reading the whole row by itself."""

    def __init__(self, decoder: Decoder, batch: int, max_len: int, rope_length: int) -> None:
        self.decoder, self.batch, self.max_len = decoder, batch, max_len
        self.rope_length = rope_length
        self.rows: list[list[int]] = []

    def prefill(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask.bool()
        self.rows = [row[keep].tolist() for row, keep in zip(ids, real, strict=True)]
        return self._read()

    def reset(self) -> None:
        self.rows = []

    def step(self, next_ids: Tensor) -> Tensor:
        for row, token in zip(self.rows, next_ids.tolist(), strict=True):
            row.append(token)
        return self._read()

    def _read(self) -> Tensor:
        assert len(self.rows) == self.batch
        assert max(map(len, self.rows)) <= self.max_len
        last = [self.decoder(torch.tensor([row]), rope_length=self.rope_length)[0, -1] for row in self.rows]
        logits = torch.stack(last)
        return logits if logits.dtype == torch.float64 else logits.float()
