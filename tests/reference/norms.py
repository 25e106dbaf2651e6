"""Norms, one vector at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def layer_norm(x: Array, gain: Array | None, bias: Array | None, eps: float) -> Array:
    """Ba et al. 2016 (arXiv:1607.06450), eq. 4: mean and biased variance over the units of one layer."""
    n = len(x)
    mu = sum(float(v) for v in x) / n
    variance = sum((float(v) - mu) ** 2 for v in x) / n
    out = np.empty(n)
    for i in range(n):
        out[i] = (x[i] - mu) / math.sqrt(variance + eps)
        out[i] = out[i] * (1.0 if gain is None else gain[i]) + (0.0 if bias is None else bias[i])
    return out


def rms_norm(x: Array, gain: Array | None, eps: float) -> Array:
    """Zhang & Sennrich 2019 (arXiv:1910.07467), eq. 4, with eps under the root as in their code."""
    n = len(x)
    rms = math.sqrt(sum(float(v) ** 2 for v in x) / n + eps)
    return np.array([x[i] / rms * (1.0 if gain is None else gain[i]) for i in range(n)])


def scale_norm(x: Array, g: float, eps: float) -> Array:
    """Nguyen & Salazar 2019 (arXiv:1910.05895), eq. 5: g x / ||x||, the length held away from 0."""
    length = math.sqrt(sum(float(v) ** 2 for v in x))
    return np.array([g * float(v) / max(length, eps) for v in x])


def fix_norm(row: Array, radius: float, eps: float) -> Array:
    """Nguyen & Chiang 2018 (arXiv:1710.01329), section 3: an embedding row brought to one length."""
    return scale_norm(row, radius, eps)


def norm_vector(rule: Any, x: Array, gain: Array | None, bias: Array | None) -> Array:
    """The norm an authored table (or its kind alone) stands for, on one vector."""
    table = {"kind": rule} if isinstance(rule, str) else rule
    kind = table["kind"]
    if kind in ("none", "fixnorm"):
        return x
    if kind == "shift":
        assert bias is not None
        return np.array([float(v) + bias.item() for v in x])
    if kind == "scalenorm":
        assert gain is not None
        return scale_norm(x, gain.item(), table.get("eps", 1e-5))
    if table.get("gain", "one") == "one_plus":
        assert gain is not None
        gain = np.array([1.0 + float(g) for g in gain])
    if kind == "layernorm":
        return layer_norm(x, gain, bias, table.get("eps", 1e-5))
    assert kind == "rmsnorm", kind
    return rms_norm(x, gain, table.get("eps", 1e-6))
