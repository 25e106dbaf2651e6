"""A schedule and an optimizer of one's own: one class each, and they train, resume and are told from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PositiveFloat

from assay.model import IGNORED, build, named_params
from assay.recipe import load
from assay.training import accumulate_gradients, train
from assay.training.optim import OptimizerSpec
from assay.training.optim.groups import Group
from assay.training.schedule import Schedule
from tests.reference.optimizers import adam, run
from tests.training.test_run import config_for, numbers, own_cache, text  # noqa: F401 - fixtures


class Saw(Schedule):
    """Up and down again, every five updates."""

    kind: Literal["saw"] = "saw"
    lr: PositiveFloat

    def at(self, step: int, total: int) -> float:
        return self.lr * (1 + step % 5) / 5


class SignSgd(OptimizerSpec):
    """The sign of the gradient."""

    kind: Literal["sign_sgd"] = "sign_sgd"

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        return _Sign([g.for_torch() for g in groups if g.params], {"lr": lr})


class _Sign(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(p.grad.sign(), alpha=group["lr"])


def test_kinds_of_ones_own_train_and_resume(text: Path, tmp_path: Path) -> None:  # noqa: F811
    changes = {
        "optimizer": {"kind": "sign_sgd", "lr_multipliers": {"embedding": 2.0}},
        "schedule": {"kind": "saw", "lr": 1e-3},
        "steps": 7,
    }
    config = config_for(text, **changes)
    record = train(config, tmp_path / "straight")
    assert [row["lr"] for row in record.metrics] == pytest.approx([4e-4, 6e-4, 8e-4, 1e-3, 2e-4, 4e-4, 6e-4])
    while train(config, tmp_path / "stopping", should_stop=lambda: True).status == "interrupted":
        pass
    assert numbers(tmp_path / "stopping") == numbers(tmp_path / "straight")
    assert config.digest("x") != config_for(text, **{**changes, "optimizer": {"kind": "adamw"}}).digest("x")


def test_l2_in_the_gradient_spares_large_gradients() -> None:
    """Why decay is decoupled (arXiv:1711.05101, section 2): Adam divides L2 by the gradient's size, so a weight with
    large gradients is hardly decayed, one with small ones is; AdamW shrinks both alike.
    """
    start = np.array([[1.0, 1.0]])
    rng = np.random.default_rng(0)
    sizes = np.array([[10.0, 1e-3]])
    signs = [sizes * (1 if i % 2 else -1) * (1 + 0.1 * rng.normal()) for i in range(400)]
    l2 = run(adam(start, 1e-3, (0.9, 0.95), 1e-8, l2=0.01), signs)[-1]
    decoupled = run(adam(start, 1e-3, (0.9, 0.95), 1e-8, decay=0.5), signs)[-1]
    assert abs(l2[0, 0] - 1) < 0.02 < 0.2 < abs(l2[0, 1] - 1)
    assert decoupled[0] == pytest.approx([np.exp(-0.2)] * 2, abs=0.02)
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.Adam([p], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    for g in signs:
        p.grad = torch.from_numpy(g)
        optimizer.step()
    np.testing.assert_allclose(p.detach().numpy(), l2, rtol=1e-9)


@given(st.integers(0, 99), st.sampled_from([0.0, 1e-2]), st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_any_split_is_one_batch(seed: int, z_loss: float, sizes: list[int]) -> None:
    """Micro-batches of any size, targets ignored at random, whole rows and whole micro-batches too."""
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    ids = torch.randint(0, 256, (n, 6), generator=generator)
    targets = torch.randint(0, 256, (n, 6), generator=generator)
    targets[torch.rand(n, 6, generator=generator) < 0.3] = IGNORED
    targets[torch.rand(n, generator=generator) < 0.4] = IGNORED
    recipe = load("tiny/base", ["n_layers=1", "d_model=16", "block.mixer.n_heads=2"])
    found = []
    for split in ([n], sizes):
        decoder = build(recipe, dtype=torch.float64)
        loss = accumulate_gradients(
            decoder, list(zip(ids.split(split), targets.split(split), strict=True)), z_loss=z_loss
        )
        found.append((loss, {p.name: p.param.grad for p in named_params(decoder)}))
    (whole, want), (parts, got) = found
    assert whole.count == parts.count == int((targets != IGNORED).sum())
    torch.testing.assert_close(parts.nats, whole.nats, rtol=1e-6, atol=1e-7)
    for name, grad in want.items():
        if grad is None:
            assert whole.count == 0 and got[name] is None
            continue
        other = got[name]
        assert other is not None
        torch.testing.assert_close(other, grad, rtol=1e-9, atol=1e-13)
