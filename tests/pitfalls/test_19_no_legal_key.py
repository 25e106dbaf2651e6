"""19. Rows with no legal key (pytorch/pytorch#103749): NaN forward, NaN gradients, or the mean of illegal values.

One query with every key barred, through every kernel, with a soft-cap, with sinks, in a window with pads. Right: 0,
every gradient finite, other rows unchanged.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from assay.model.backend import BACKENDS, Call, Legal
from tests.pitfalls.support import close, decoder, ids

CAPS = {"plain": None, "capped": 0.7}
CASES = [
    (backend, cap, sinks)
    for backend in ("reference", "sdpa", "auto")
    for cap in CAPS
    for sinks in (False, True)
    if backend != "sdpa" or (cap == "plain" and not sinks)
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("backend", "cap", "sinks"), CASES)
def test_a_barred_row_is_zero(backend: str, cap: str, sinks: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    q, k, v = leaf(2, 4, 5, 8), leaf(2, 2, 5, 8), leaf(2, 2, 5, 8)
    sink = leaf(4) if sinks else None
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[0, 0, 2] = False
    call = Call(Legal("mask", mask, may_be_empty=True), 0.35, CAPS[cap], sink)
    out = BACKENDS[backend].attend(q, k, v, call)
    assert torch.count_nonzero(out[0, :, 2]) == 0
    assert torch.isfinite(out).all()
    leaves = [q, k, v, *([] if sink is None else [sink])]
    for grad in torch.autograd.grad(out.float().square().sum(), leaves):
        assert torch.isfinite(grad).all()
    whole = Call(Legal("causal"), 0.35, CAPS[cap], sink)
    want = BACKENDS[backend].attend(q, k, v, whole)
    others = torch.ones(2, 5, dtype=torch.bool)
    others[0, 2] = False
    got, want = (x.transpose(1, 2)[others] for x in (out, want))
    assert close(got.double(), want.double(), 1e-2 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("span", ["full", {"kind": "window", "size": 2}], ids=["full", "window"])
@pytest.mark.parametrize("option", ["plain", "capped", "sinks"])
def test_pads_of_a_model(option: str, span: object, backend: str) -> None:
    """Pads attend to nothing, one row is nothing but pads: finite everywhere, real rows as alone."""
    extra = {"plain": {}, "capped": {"soft_cap": 0.7}, "sinks": {"sinks": "per_head"}}[option]
    model = decoder(span=span, **extra)
    model.use_backend(backend)
    x, y = ids(0, 3, 7), ids(1, 3, 7)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, :3], mask[1] = 0, 0
    logits = model(x, padding_mask=mask)
    assert torch.isfinite(logits).all()
    targets = y.masked_fill(mask == 0, -100)
    loss = model.loss(x, targets, padding_mask=mask)
    loss.sum.backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert all(torch.isfinite(grad).all() for grad in got.values())
    model.zero_grad()
    alone = [model.loss(x[:1, 3:], y[:1, 3:]), model.loss(x[2:], y[2:])]
    sum(a.sum for a in alone).backward()
    assert int(loss.count) == sum(int(a.count) for a in alone) == 11
    assert all(close(got[name], p.grad) for name, p in model.named_parameters())
    assert close(logits[2], model(x[2:])[0])
