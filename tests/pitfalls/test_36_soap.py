"""36. SOAP: eigen-decomposition fails, or basis and second moment part company (nikhilvyas/SOAP#14).

Zeros, rank-one, constant, tiny, huge gradients: always finite, bases orthonormal to 1e-5. A step with NaN is refused
before any statistic changes. A refresh that only reorders the basis leaves the update of a gradient as it was to 1 %.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from assay.training.optim import SOAP, NonFiniteGradient
from assay.training.optim.soap import refresh

SHAPE = (12, 7)


def gradients(stream: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(SHAPE, generator=generator) for _ in range(12)]
    one = torch.outer(torch.randn(12, generator=generator), torch.randn(7, generator=generator))
    return {
        "zeros first": [torch.zeros(SHAPE)] * 3 + noise[3:],
        "zeros": [torch.zeros(SHAPE)] * 12,
        "rank one": [one * (1 + i) for i in range(12)],
        "constant": [noise[0]] * 12,
        "tiny": [g * 1e-20 for g in noise],
        "huge": [g * 1e6 for g in noise],
        "tiny, then huge": [g * (1e-20 if i < 6 else 1e6) for i, g in enumerate(noise)],
        "one entry": [torch.eye(12, 7) * (torch.arange(12) == i).float().unsqueeze(-1) for i in range(12)],
    }[stream]


STREAMS = ["zeros first", "zeros", "rank one", "constant", "tiny", "huge", "tiny, then huge", "one entry"]


@pytest.mark.parametrize("frequency", [1, 4])
@pytest.mark.parametrize("stream", STREAMS)
def test_always_finite_and_orthonormal(stream: str, frequency: int) -> None:
    p = nn.Parameter(torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)))
    start = p.detach().clone()
    optimizer = SOAP([p], lr=0.01, precondition_frequency=frequency)
    for g in gradients(stream):
        p.grad = g.clone()
        optimizer.step()
        state = optimizer.state[p]
        assert all(bool(v.isfinite().all()) for v in state.values())
        assert bool(p.isfinite().all())
        for side in (0, 1):
            q = state[f"basis_{side}"]
            assert float((q.mT @ q - torch.eye(len(q))).abs().max()) < 1e-5
    assert float((p.detach() - start).norm()) < 2 * 12 * 0.01 * 84**0.5  # each an Adam step of 84 entries, turned


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_refused_whole(bad: float) -> None:
    p = nn.Parameter(torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)))
    optimizer = SOAP([p], lr=0.01, precondition_frequency=2)
    for g in gradients("constant")[:5]:
        p.grad = g.clone()
        optimizer.step()
    before = {k: v.clone() for k, v in optimizer.state[p].items()}
    weights = p.detach().clone()
    p.grad[3, 2] = bad
    with pytest.raises(NonFiniteGradient):
        optimizer.step()
    assert torch.equal(p.detach(), weights)
    assert all(torch.equal(optimizer.state[p][k], v) for k, v in before.items())


def test_a_reordered_basis_keeps_the_update() -> None:
    """Factors whose eigenvectors are the basis in another order: the refresh permutes it, second moment with it."""
    generator = torch.Generator().manual_seed(0)
    q0 = torch.linalg.qr(torch.randn(12, 12, generator=generator))[0]
    q1 = torch.linalg.qr(torch.randn(7, 7, generator=generator))[0]
    rank = [torch.randperm(n, generator=generator).float() + 1 for n in SHAPE]  # eigenvalues, out of order
    state = {
        "exp_avg": torch.randn(SHAPE, generator=generator),
        "exp_avg_sq": torch.rand(SHAPE, generator=generator) + 0.01,
        "factor_0": q0 @ torch.diag(rank[0]) @ q0.mT,
        "factor_1": q1 @ torch.diag(rank[1]) @ q1.mT,
        "basis_0": q0.clone(),
        "basis_1": q1.clone(),
    }

    def update() -> Tensor:
        turned = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
        return state["basis_0"] @ turned @ state["basis_1"].mT

    before = update()
    refresh(state, [0, 1])
    assert not torch.allclose(state["basis_0"], q0, atol=0.1)
    assert float((update() - before).norm() / before.norm()) < 0.01


def test_short_and_long_tensors() -> None:
    """A vector is plain AdamW from its first gradient; a stack is refused."""
    p = nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    SOAP([p], lr=0.1, weight_decay=0.0).step()
    torch.testing.assert_close(p.detach(), torch.full((5,), 0.9))
    with pytest.raises(ValueError, match="each alone"):
        SOAP([nn.Parameter(torch.zeros(2, 3, 4))])
