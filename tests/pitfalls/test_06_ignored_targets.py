"""06. All targets ignored in one micro-batch (pytorch/pytorch#70348): 0/0, then NaN everywhere.

Two micro-batches, one fully ignored: loss and gradients equal the other alone. All ignored: loss 0, no weight change.
"""

from __future__ import annotations

import pytest
import torch

from assay.model import IGNORED, mean, named_params
from tests.pitfalls.support import close, decoder, ids


def test_an_ignored_half_changes_nothing() -> None:
    model = decoder()
    x, y = ids(0, 2, 7), ids(1, 2, 7)
    empty = torch.full_like(y, IGNORED)
    alone = model.loss(x, y)
    alone.sum.backward()
    want = {p.name: p.param.grad.clone() for p in named_params(model)}
    model.zero_grad()
    both = [model.loss(x, y), model.loss(x, empty)]
    sum(loss.sum for loss in both).backward()
    assert sum(int(loss.count) for loss in both) == int(alone.count) == 14
    assert float(sum(loss.sum.detach() for loss in both)) == float(alone.sum.detach())
    assert all(close(p.param.grad, want[p.name], 1e-12) for p in named_params(model))
    # and as rows of one batch
    model.zero_grad()
    joined = model.loss(torch.cat((x, x)), torch.cat((y, empty)))
    joined.sum.backward()
    assert int(joined.count) == 14
    assert float(joined.sum.detach()) == pytest.approx(float(alone.sum.detach()), rel=1e-12)
    assert all(close(p.param.grad, want[p.name]) for p in named_params(model))


def test_all_ignored_is_zero_and_moves_nothing() -> None:
    model = decoder()
    loss = model.loss(ids(0, 2, 7), torch.full((2, 7), IGNORED))
    assert (float(loss.sum.detach()), int(loss.count), float(mean(loss).detach())) == (0.0, 0, 0.0)
    mean(loss).backward()
    for p in named_params(model):
        assert p.param.grad is not None
        assert torch.count_nonzero(p.param.grad) == 0, p.name
