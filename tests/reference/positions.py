"""Rotary and sinusoidal positions, one pair of channels at a time."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

from tests.reference.norms import Array


def plain(theta: float, r: int) -> list[float]:
    """Su et al. 2021 (arXiv:2104.09864), section 3.3: theta_k = theta^(-2(k-1)/r) for k = 1 .. r/2."""
    return [theta ** (-2.0 * (k - 1) / r) for k in range(1, r // 2 + 1)]


def linear(theta: float, r: int, factor: float) -> list[float]:
    """Chen et al. 2023 (arXiv:2306.15595), eq. 4: position m becomes m / factor."""
    return [f / factor for f in plain(theta, r)]


def ntk(theta: float, r: int, factor: float) -> list[float]:
    """ "NTK-aware" interpolation (YaRN, arXiv:2309.00071, definition 1): b' = b s^(|D| / (|D| - 2))."""
    return plain(theta * factor ** (r / (r - 2)), r)


def llama3(theta: float, r: int, factor: float, low: float, high: float, original: int) -> list[float]:
    """Llama 3.1's released scaling: three bands by wavelength, as in its ``apply_scaling``."""
    out = []
    for f in plain(theta, r):
        wavelength = 2 * math.pi / f
        if wavelength < original / high:
            out.append(f)
        elif wavelength > original / low:
            out.append(f / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def yarn(theta: float, r: int, factor: float, original: int, fast: float, slow: float, rounded: bool) -> list[float]:
    """YaRN's released code: a ramp over the pair index between the pairs that turn ``fast`` and ``slow`` times."""

    def correction(turns: float) -> float:
        return (r * math.log(original / (turns * 2 * math.pi))) / (2 * math.log(theta))

    first, last = correction(fast), correction(slow)
    if rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, r - 1)
    if first == last:
        last += 0.001
    out = []
    for k, f in enumerate(plain(theta, r)):
        interpolate = min(max((k - first) / (last - first), 0.0), 1.0)
        out.append(f / factor * interpolate + f * (1.0 - interpolate))
    return out


def frequencies(rope: dict[str, Any], head_dim: int) -> tuple[list[float], float]:
    """Frequencies of the turning pairs and the factor on cos and sin, from an authored RoPE table."""
    r = round(rope.get("fraction", 1.0) * head_dim)
    theta = rope.get("theta", 10_000.0)
    scaling = rope.get("scaling", {"kind": "none"})
    kind = scaling["kind"]
    if kind == "none":
        return plain(theta, r), 1.0
    s = scaling["factor"]
    if kind == "linear":
        return linear(theta, r, s), 1.0
    if kind == "ntk":
        return ntk(theta, r, s), 1.0
    original = scaling["original_seq_len"]
    if kind == "llama3":
        return llama3(theta, r, s, scaling["low_freq_factor"], scaling["high_freq_factor"], original), 1.0
    assert kind == "yarn", kind
    slow, fast = scaling.get("beta_slow", 1.0), scaling.get("beta_fast", 32.0)
    found = yarn(theta, r, s, original, fast, slow, scaling.get("rounded", True))
    amplitude = scaling.get("attention_factor", "paper")
    # section 3.4: sqrt(1/t) = 0.1 ln(s) + 1
    return found, (0.1 * math.log(s) + 1.0 if s > 1 else 1.0) if amplitude == "paper" else amplitude


def rotate(x: Array, position: int, rope: dict[str, Any]) -> Array:
    """One head's vector turned: pair k is multiplied by exp(i position theta_k) as a complex number."""
    found, amplitude = frequencies(rope, len(x))
    n = len(found)
    out = np.array(x, dtype=np.float64)
    for k, f in enumerate(found):
        a, b = (k, k + n) if rope.get("layout", "half") == "half" else (2 * k, 2 * k + 1)
        turned = complex(x[a], x[b]) * cmath.exp(1j * position * f) * amplitude
        out[a], out[b] = turned.real, turned.imag
    return out


def sinusoidal_row(position: int, d: int, theta: float, layout: str, spacing: str = "paper", offset: int = 0) -> Array:
    """Vaswani et al. 2017 (arXiv:1706.03762), section 3.5; ``half`` puts all sines first (tensor2tensor).

    ``inclusive`` is tensor2tensor's spacing: exp(-i ln(theta) / (pairs - 1)), zeros to fill up.
    """
    if spacing == "inclusive":
        pairs = d // 2
        angles = [(position + offset) * math.exp(-i * math.log(theta) / (pairs - 1)) for i in range(pairs)]
    else:
        pairs = (d + 1) // 2
        angles = [(position + offset) / theta ** (2 * i / d) for i in range(pairs)]
    if layout == "half":
        row = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    else:
        row = [f(a) for a in angles for f in (math.sin, math.cos)]
    return np.array([*row, 0.0][:d])
