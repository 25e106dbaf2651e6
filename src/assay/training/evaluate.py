"""Validation loss over fixed windows, with the error that comes from their finite number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from assay.model import Decoder
from assay.training.data import Corpus
from assay.training.data.batches import validation_starts, windows

LOGITS = 1 << 26  # logits made at once, 256 MiB in float32


@dataclass(frozen=True)
class Evaluation:
    """Mean nats a token, and the standard error of that mean over windows."""

    loss: float
    stderr: float
    n_tokens: int


@torch.inference_mode()
def evaluate(decoder: Decoder, corpus: Corpus, seq_len: int, *, precision: str = "fp32", batch: int = 64) -> Evaluation:
    """The mean loss over every window of the validation split; the model is in eval mode meanwhile.

    At most ``batch`` windows at once, and fewer where their logits would be large.
    """
    batch = max(1, min(batch, LOGITS // (seq_len * decoder.recipe.vocab_size)))
    starts = validation_starts(corpus.val, seq_len)
    device = next(decoder.parameters()).device
    training = decoder.training
    decoder.eval()
    means: list[torch.Tensor] = []
    for i in range(0, len(starts), batch):
        ids, targets = (t.to(device) for t in windows(corpus.val, starts[i : i + batch], seq_len))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = decoder(ids)
        nll = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), reduction="none"
        ).unflatten(0, ids.shape)
        means.append(nll.double().mean(-1).cpu())
    decoder.train(training)
    rows = torch.cat(means)
    stderr = float(rows.std() / math.sqrt(len(rows))) if len(rows) > 1 else math.nan
    return Evaluation(float(rows.mean()), stderr, len(rows) * seq_len)
