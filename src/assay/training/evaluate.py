"""Validation loss over fixed windows, with the error that comes from their finite number; and bits per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.model import IGNORED, Decoder
from assay.training.data.batches import rows_of, validation_starts
from assay.training.data.corpus import Corpus, Held
from assay.training.data.spec import STREAM, DocumentsPacking, Packing

_LOGITS = 1 << 26  # held at once


@dataclass(frozen=True)
class Evaluation:
    """A model on the validation split.

    Attributes:
        loss: mean nats a target token.
        stderr: standard error of that mean over windows.
        n_tokens: targets.
        bits_per_byte: nats of the targets that stand for text, over log 2 and the bytes they stand for: comparable
            between tokenizers. BOS and EOS are in neither sum. NaN where no target stands for text.
        n_bytes: bytes of text that the targets stand for.
        by_part: the loss on each corpus of a mixture; empty for a single one.
    """

    loss: float
    stderr: float
    n_tokens: int
    bits_per_byte: float = math.nan
    n_bytes: int = 0
    by_part: dict[str, float] = field(default_factory=dict)


@torch.inference_mode()
def evaluate(
    decoder: Decoder,
    corpus: Corpus,
    seq_len: int,
    *,
    packing: Packing = STREAM,
    precision: str = "fp32",
    batch: int = 64,
) -> Evaluation:
    """The mean loss over every window of the validation split; the model is in eval mode meanwhile.

    At most ``batch`` windows at once, fewer where their logits would be many.
    """
    training = decoder.training
    decoder.eval()
    batch = max(1, min(batch, _LOGITS // (seq_len * decoder.recipe.vocab_size)))
    isolated = isinstance(packing, DocumentsPacking)
    try:
        found = {p.name: _windows(decoder, p.held, seq_len, isolated, precision, batch) for p in corpus.parts}
    finally:
        decoder.train(training)
    sums, counts, text, n_bytes = (np.concatenate(column) for column in zip(*found.values(), strict=True))
    loss = float(sums.sum() / counts.sum())
    n = len(sums)
    # of a ratio of sums: with equal counts, the standard deviation of the windows' means over the root of their number
    spread = math.sqrt(float(np.square(sums - loss * counts).sum()) / (n - 1)) if n > 1 else math.nan
    total = int(n_bytes.sum())
    return Evaluation(
        loss,
        spread / (float(counts.mean()) * math.sqrt(n)),
        int(counts.sum()),
        float(text.sum()) / (math.log(2) * total) if total else math.nan,
        total,
        {name: float(s.sum() / c.sum()) for name, (s, c, _, _) in found.items()} if len(found) > 1 else {},
    )


Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]


def _windows(decoder: Decoder, held: Held, seq_len: int, isolated: bool, precision: str, batch: int) -> Columns:
    """For each window: nats of its targets, how many they are, nats of those that stand for text, bytes of text."""
    device = next(decoder.parameters()).device
    starts = validation_starts(held.stream.size, seq_len)
    rows: list[tuple[Tensor, ...]] = []
    for i in range(0, len(starts), batch):
        here = starts[i : i + batch]
        given = rows_of(held.stream, here, seq_len, isolated).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = decoder(given.ids, segment_ids=given.segments)
        nll = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), given.targets.flatten(), ignore_index=IGNORED, reduction="none"
        ).unflatten(0, given.ids.shape)
        nll, real = nll.double().cpu(), (given.targets != IGNORED).cpu()
        places = here[:, None] + np.arange(1, seq_len + 1)
        text = real & torch.from_numpy(~held.special[places])
        size = torch.from_numpy(held.bytes[places])
        rows.append((nll.sum(-1), real.sum(-1).double(), (nll * text).sum(-1), (size * text).sum(-1)))
    sums, counts, text_sums, sizes = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
    return sums, counts, text_sums, sizes
