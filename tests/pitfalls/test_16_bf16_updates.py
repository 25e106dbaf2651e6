"""16. Updates vanish in pure bfloat16 (vllm-project/speculators PR#765): the new value rounds back to the old.

Gain at 1.0, 100 updates of -0.001: 0.9 with float32 masters, 1.0 without. Decay of 3e-5 an update on 0.02002: 0.019960
after 100, unchanged without. A run in bf16 keeps its weights, gradients and state in float32.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.model import build, named_params
from assay.recipe import load
from assay.training import RunConfig, RunError, accumulate_gradients
from assay.training.optim.groups import optimizer_groups, set_rates


def stepped(dtype: torch.dtype, start: float, grad: float, lr: float, decay: float) -> float:
    """A gain after 100 updates of SGD."""
    p = nn.Parameter(torch.full((1,), start, dtype=dtype))
    for _ in range(100):
        with torch.no_grad():
            p.mul_(1 - decay).add_(torch.full_like(p, grad), alpha=-lr)
    return float(p.detach())


def test_pure_bf16_loses_updates() -> None:
    assert stepped(torch.float32, 1.0, 1.0, 1e-3, 0.0) == pytest.approx(0.9, abs=1e-5)
    assert stepped(torch.bfloat16, 1.0, 1.0, 1e-3, 0.0) == 1.0
    assert stepped(torch.float32, 0.02002, 0.0, 0.0, 3e-5) == pytest.approx(0.019960, abs=1e-6)
    start = float(torch.tensor(0.02002, dtype=torch.bfloat16))
    assert stepped(torch.bfloat16, 0.02002, 0.0, 0.0, 3e-5) == start


@pytest.mark.parametrize("kind", ["adamw", "muon", "soap"])
def test_small_updates_arrive_under_autocast(kind: str) -> None:
    """Norm gains after 30 small updates of a bf16 run have moved by their sum; a model cast to bf16 leaves them."""
    recipe = load("tiny/base", ["n_layers=1", "d_model=16", "block.mixer.n_heads=2"])
    table = {"recipe": recipe, "seq_len": 8, "batch_size": 1, "steps": 1, "schedule": {"kind": "constant", "lr": 1e-4}}
    config = RunConfig.from_dict({**table, "optimizer": {"kind": kind}, "precision": "bf16"})
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        decoder = build(recipe, dtype=dtype)
        optimizer = config.optimizer.make(optimizer_groups(decoder, config.optimizer, recipe), 1e-4)
        gains = [p for p in named_params(decoder) if p.role == "norm_gain"]
        for step in range(30):
            ids = torch.randint(0, 256, (1, 9), generator=torch.Generator().manual_seed(step % 3))
            accumulate_gradients(decoder, [(ids[:, :-1], ids[:, 1:])], precision=config.precision)
            if dtype == torch.float32:
                assert {p.grad.dtype for p in decoder.parameters() if p.grad is not None} == {torch.float32}
            set_rates(optimizer, 1e-4, 1e-4, "lr")
            optimizer.step()
            optimizer.zero_grad()
        moved[dtype] = max(float((p.param.detach().float() - 1).abs().max()) for p in gains)
        if dtype == torch.float32:
            state = {v.dtype for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)}
            assert state == {torch.float32}
    assert moved[torch.float32] > 1e-3
    assert moved[torch.bfloat16] == 0.0


def test_pure_bf16_cannot_be_asked_for() -> None:
    table = {"recipe": "tiny/base", "seq_len": 8, "batch_size": 1, "steps": 1}
    with pytest.raises(RunError, match="precision"):
        RunConfig.from_dict({**table, "schedule": {"kind": "constant", "lr": 1e-3}, "precision": "pure_bf16"})
