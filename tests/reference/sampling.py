"""Sampling written out, one token after another, from the papers; float64 NumPy."""

from __future__ import annotations

import math

import numpy as np


def softmax(z: list[float]) -> list[float]:
    top = max(z)
    weights = [math.exp(x - top) if x > -math.inf else 0.0 for x in z]
    total = math.fsum(weights)
    return [w / total for w in weights]


def penalised(z: list[float], seen: set[int], penalty: float) -> list[float]:
    out = list(z)
    for token in seen:
        out[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    return out


def top_k(z: list[float], k: int) -> list[float]:
    edge = sorted(z, reverse=True)[min(k, len(z)) - 1]
    return [x if x >= edge else -math.inf for x in z]


def top_p(z: list[float], p: float) -> list[float]:
    probs = softmax(z)
    ranked = sorted(range(len(z)), key=lambda i: (-z[i], i))
    kept: set[int] = set()
    mass: list[float] = []
    for token in ranked:
        if math.fsum(mass) >= p:
            break
        kept.add(token)
        mass.append(probs[token])
    return [x if i in kept else -math.inf for i, x in enumerate(z)]


def min_p(z: list[float], share: float) -> list[float]:
    probs = softmax(z)
    return [x if q >= share * max(probs) else -math.inf for x, q in zip(z, probs, strict=True)]


def distribution(
    z: list[float],
    *,
    temperature: float,
    k: int | None = None,
    p: float = 1.0,
    share: float = 0.0,
    penalty: float = 1.0,
    seen: set[int] | None = None,
) -> np.ndarray:
    """What a token is drawn from, (V,)."""
    z = [x / temperature for x in penalised(z, seen or set(), penalty)]
    if k is not None:
        z = top_k(z, k)
    if p < 1:
        z = top_p(z, p)
    if share > 0:
        z = min_p(z, share)
    return np.array(softmax(z))
