"""Optimizers again, slowly, one matrix at a time, in NumPy float64, from their papers.

Each is a generator function: called with a start, it takes gradients by ``send`` and yields the new value.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rule = Generator[Array, Array, None]


def run(rule: Rule, gradients: Iterable[Array]) -> list[Array]:
    """The values after each gradient."""
    next(rule)
    return [rule.send(g).copy() for g in gradients]


def _decayed(p: Array, u: Array, lr: float, decay: float, where: str) -> Array:
    mask = (u * p >= 0) if where == "aligned" else np.ones_like(p)
    return p - lr * (u + decay * mask * p)


def adam(
    p: Array, lr: float, betas: tuple[float, float], eps: float, decay: float = 0.0, l2: float = 0.0, where: str = "all"
) -> Rule:
    """arXiv:1711.05101, algorithm 2: ``l2`` in pink, ``decay`` in green."""
    m, v = np.zeros_like(p), np.zeros_like(p)
    t = 0
    while True:
        g = yield p
        t += 1
        g = g + l2 * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        u = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        p = _decayed(p, u, lr, decay, where)


def sgd(p: Array, lr: float, momentum: float, nesterov: bool, l2: float) -> Rule:
    """torch's convention: the first momentum is the first gradient."""
    b: Array | None = None
    while True:
        g = yield p
        g = g + l2 * p
        b = g if b is None else momentum * b + g
        p = p - lr * (g + momentum * b if nesterov else b)


def newton_schulz(g: Array, steps: int = 5) -> Array:
    """The quintic of K. Jordan's post, on a matrix divided by its Frobenius norm."""
    norm = np.linalg.norm(g)
    if norm == 0:
        return g
    x = g / norm
    x = x.T if g.shape[0] > g.shape[1] else x
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def muon(
    p: Array,
    lr: float,
    momentum: float = 0.95,
    nesterov: bool = True,
    decay: float = 0.0,
    adjust: str = "original",
    neuron_beta: float | None = None,
    where: str = "all",
) -> Rule:
    """The post's algorithm; the factors of arXiv:2502.16982; NorMuon of arXiv:2510.05491."""
    b, rows = np.zeros_like(p), np.zeros((p.shape[0], 1))
    m, n = p.shape
    factor = np.sqrt(max(1.0, m / n)) if adjust == "original" else 0.2 * np.sqrt(max(m, n))
    while True:
        g = yield p
        b = momentum * b + (1 - momentum) * g
        o = newton_schulz((1 - momentum) * g + momentum * b if nesterov else b)
        if neuron_beta is not None:
            rows = neuron_beta * rows + (1 - neuron_beta) * (o**2).mean(1, keepdims=True)
            normed = o / (np.sqrt(rows) + 1e-10)
            o = normed * np.linalg.norm(o) / (np.linalg.norm(normed) + 1e-10)
        p = _decayed(p, factor * o, lr, decay, where)


def soap(
    p: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    frequency: int,
    longest: int = 10_000,
    first: dict[int, Array] | None = None,
) -> Rule:
    """arXiv:2409.11321, algorithm 3, with the authors' first step (it only makes the basis) and their algorithm 4: one
    step of orthogonal iteration, columns ordered by eigenvalue.

    The first moment is kept unturned here, where the authors and the library keep it in the basis. ``first``: the first
    basis, which a factor of low rank leaves open; it must diagonalise the factors.
    """
    m, v = np.zeros_like(p), np.zeros_like(p)
    sides = [i for i in (0, 1) if p.shape[i] <= longest]
    factor: dict[int, Array] = {i: np.zeros((p.shape[i], p.shape[i])) for i in sides}
    basis: dict[int, Array] = {}
    t = 0

    def turn(x: Array, back: bool = False) -> Array:
        q = {i: (b.T if back else b) for i, b in basis.items()}
        x = q[0].T @ x if 0 in q else x
        return x @ q[1] if 1 in q else x

    def learn(g: Array) -> None:
        for i in sides:
            outer = g @ g.T if i == 0 else g.T @ g
            factor[i] = betas[1] * factor[i] + (1 - betas[1]) * outer

    while True:
        g = yield p
        if sides and not basis:
            learn(g)
            basis = {i: np.linalg.eigh(f)[1][:, ::-1] for i, f in factor.items()} if first is None else first
            for i, f in factor.items():
                turned = basis[i].T @ f @ basis[i]
                assert np.abs(turned - np.diag(np.sort(np.diag(turned))[::-1])).max() < 1e-6 * np.abs(f).max()
                assert np.abs(basis[i].T @ basis[i] - np.eye(len(f))).max() < 1e-5
            continue
        t += 1
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * turn(g) ** 2
        u = turn(m) / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        p = _decayed(p, turn(u, back=True), lr, decay, "all")
        learn(g)
        if t % frequency == 0:
            for i in sides:
                q = basis[i]
                order = np.argsort(-np.diag(q.T @ factor[i] @ q), kind="stable")
                v = np.take(v, order, axis=i)
                basis[i] = np.linalg.qr(factor[i] @ q[:, order])[0]


RULES: dict[str, Any] = {"adam": adam, "sgd": sgd, "muon": muon, "soap": soap}
