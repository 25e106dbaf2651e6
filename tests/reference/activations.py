"""Activations, one number at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.reference.norms import Array


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def gelu(x: float) -> float:
    """Hendrycks & Gimpel 2016: x times the normal distribution function."""
    return x * 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def elu(x: float, alpha: float) -> float:
    return x if x > 0 else alpha * (math.exp(x) - 1.0)


def selu(x: float) -> float:
    """Klambauer et al. 2017, with the constants of their eq. 14."""
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def xielu(x: float, alpha: float, beta: float) -> float:
    """With both slopes at their start, alpha."""
    return alpha * x * x + beta * x if x > 0 else alpha * (math.expm1(min(x, -1e-6)) - x) + beta * x


def activate(rule: Any, x: Array) -> Array:
    """The activation an authored table (or its kind alone) stands for, on each entry."""
    table = {"kind": rule} if isinstance(rule, str) else rule
    functions = {
        "relu": lambda x: max(x, 0.0),
        "relu2": lambda x: max(x, 0.0) ** 2,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "silu": lambda x: x * sigmoid(x),
        "swish": lambda x: x * sigmoid(table["beta"] * x),
        "elu": lambda x: elu(x, table.get("alpha", 1.0)),
        "selu": selu,
        "sigmoid": sigmoid,
        "identity": lambda x: x,
        "xielu": lambda x: xielu(x, table.get("alpha", 0.8), table.get("beta", 0.5)),
    }
    f = functions[table["kind"]]
    return np.array([f(float(v)) for v in x])
