"""The loss of one update: sums over micro-batches, divided once by the number of targets of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.model import IGNORED, Decoder, Probe
from assay.training.telemetry import both


@dataclass(frozen=True)
class StepLoss:
    """Means over the targets of an update, as tensors: cross-entropy in nats, log Z, and log² Z."""

    nats: Tensor
    log_z: Tensor
    z_squared: Tensor
    count: int


def accumulate_gradients(
    decoder: Decoder,
    micro_batches: Sequence[tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]],
    *,
    z_loss: float = 0.0,
    precision: str = "fp32",
    probe: Probe | None = None,
    watch: Probe | None = None,
) -> StepLoss:
    """Add to ``.grad`` the gradient of the mean loss over all micro-batches together.

    Equal to one backward pass over the concatenated batch, whatever the split and however many targets are ignored.

    Args:
        micro_batches: ids and targets, (b, T) each, and, where documents are isolated, which document each id is of.
        z_loss: coefficient of log² Z; 0 adds nothing to the graph.
        probe: watches the first micro-batch.
        watch: watches every micro-batch.
    """
    count = sum(int((each[1] != IGNORED).sum()) for each in micro_batches)
    device = micro_batches[0][0].device
    nats, log_z, z_squared = (torch.zeros((), device=device) for _ in range(3))
    for i, (ids, targets, *segments) in enumerate(micro_batches):
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = decoder.loss(
                ids,
                targets,
                segment_ids=segments[0] if segments else None,
                probe=both(probe if i == 0 else None, watch),
                z_loss=z_loss,
            )
        if count:
            (loss.aux["objective"] / count).backward()
        nats = nats + loss.sum.detach().float()
        log_z = log_z + loss.aux["log_z"].float()
        z_squared = z_squared + loss.aux["z_squared"].detach().float()
    over = max(count, 1)
    return StepLoss(nats / over, log_z / over, z_squared / over, count)
