"""Cross-entropy as (sum, count): divided once, by whoever owns the whole batch.

N tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

IGNORED = -100
CHUNK_ELEMENTS = 1 << 24  # logits held at once, 64 MiB in float32


@dataclass(frozen=True)
class Loss:
    """Nats summed over the ``count`` targets that are not ignored.

    ``aux``: ``z_squared`` is the sum of log² Z (with gradient, for z-loss), ``log_z`` the sum of log Z (without).
    """

    sum: Tensor
    count: Tensor
    aux: dict[str, Tensor]

    def __iter__(self) -> Iterator[Any]:
        """``sum, count, aux = decoder.loss(...)``."""
        return iter((self.sum, self.count, self.aux))


def cross_entropy(hidden: Tensor, targets: Tensor, unembed: Callable[[Tensor], Tensor], vocab_size: int) -> Loss:
    """Cross-entropy of ``unembed(hidden)`` against ``targets``, the logits made in chunks of tokens.

    Args:
        hidden: (N, d).
        targets: (N,) ids; ``IGNORED`` (-100) leaves a place out.
        unembed: (n, d) to logits (n, V).
        vocab_size: V, to size the chunks; a chunk is recomputed in the backward pass when there are several.
    """
    chunk = max(1, CHUNK_ELEMENTS // vocab_size)
    if hidden.shape[0] <= chunk:
        nll, z2, z = _chunk_loss(hidden, targets, unembed)
    else:
        parts = []
        for start in range(0, hidden.shape[0], chunk):
            args = (hidden[start : start + chunk], targets[start : start + chunk], unembed)
            parts.append(checkpoint(_chunk_loss, *args, use_reentrant=False))
        nll, z2, z = (torch.stack(column).sum() for column in zip(*parts, strict=True))
    return Loss(nll, (targets != IGNORED).sum(), {"z_squared": z2, "log_z": z.detach()})


def _chunk_loss(hidden: Tensor, targets: Tensor, unembed: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    logits = unembed(hidden)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    real = targets != IGNORED
    log_z = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(-1, targets.masked_fill(~real, 0).unsqueeze(-1)).squeeze(-1)
    zero = log_z.new_zeros(())
    nll = torch.where(real, log_z - picked, zero).sum()
    counted = torch.where(real, log_z, zero)
    return nll, counted.square().sum(), counted.sum()


def mean(loss: Loss) -> Tensor:
    """Nats per target; 0 (with a gradient of 0) when every target is ignored."""
    return loss.sum / loss.count.clamp_min(1)


__all__ = ["CHUNK_ELEMENTS", "IGNORED", "Loss", "cross_entropy", "mean"]
