"""03. Average of averages over micro-batches of unequal token count (huggingface/transformers#24725).

A: 10 targets, mean 2.0. B: 100 targets, mean 1.0. Right: 120/110 = 1.090909, not 1.5. Here: what the model's loss is
made of, so that the division can come last.
"""

from __future__ import annotations

import pytest
import torch

from assay.model import IGNORED, Decoder, cross_entropy, named_params
from assay.model.loss import Loss
from tests.pitfalls.support import close, decoder, ids


def with_mean(n: int, nats: float) -> Loss:
    """n targets of two classes, each costing this many nats."""
    p = torch.tensor(-nats, dtype=torch.float64).exp()
    logits = torch.stack((p.log(), (1 - p).log())).expand(n, 2)
    return cross_entropy(logits, torch.zeros(n, dtype=torch.long), lambda x: x, vocab_size=2)


def test_120_over_110() -> None:
    a, b = with_mean(10, 2.0), with_mean(100, 1.0)
    assert float((a.sum + b.sum) / (a.count + b.count)) == pytest.approx(1.090909, abs=1e-6)
    assert float((a.sum / a.count + b.sum / b.count) / 2) == pytest.approx(1.5)


def gradients(model: Decoder, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Of the summed loss over the summed count."""
    model.zero_grad()
    losses = [model.loss(*batch) for batch in batches]
    count = sum(int(loss.count) for loss in losses)
    for loss in losses:
        (loss.sum / count).backward()
    return {p.name: p.param.grad.clone() for p in named_params(model)}


@pytest.mark.parametrize("split", [[6], [1, 5], [2, 2, 2], [1] * 6])
def test_gradients_do_not_depend_on_the_split(split: list[int]) -> None:
    model = decoder()
    x, y = ids(0, 6, 9), ids(1, 6, 9)
    for row in range(6):
        y[row, : row + 2] = IGNORED  # every row has a count of its own
    whole = gradients(model, [(x, y)])
    parts = gradients(model, list(zip(x.split(split), y.split(split), strict=True)))
    assert all(close(parts[name], grad) for name, grad in whole.items())
