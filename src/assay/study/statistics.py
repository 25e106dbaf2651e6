"""The arithmetic of a verdict: differences of seed means, their intervals, and what a plan could see at all.

Every difference is ``mean(change) - mean(baseline)``. Sizes in *sd* are in units of the pooled seed standard
deviation. scipy and numpy are loaded when a number is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

Interval = tuple[float, float]
MIN_PERMUTATION = 4  # below, an exact test of 3 against 3 cannot go under p = 0.1
MAX_PERMUTATIONS = 200_000
MIN_BOOTSTRAP = 8
_RESAMPLES = 9_999


@dataclass(frozen=True)
class Difference:
    """Welch's comparison of two groups (Welch 1947, Biometrika 34). ``sd`` is the pooled seed standard deviation."""

    nats: float
    interval: Interval
    p: float
    df: float
    standard_error: float
    sd: float
    n: tuple[int, int]
    confidence: float

    @property
    def in_sd(self) -> float | None:
        """The difference in pooled seed standard deviations; None where the seeds do not vary."""
        return self.nats / self.sd if self.sd > 0 else None

    @property
    def hedges_g(self) -> float | None:
        """``J · d``, ``J = Γ(m/2) / (√(m/2) Γ((m-1)/2))``, ``m = n1 + n2 - 2`` (Hedges 1981, eq. 6e)."""
        if self.in_sd is None:
            return None
        m = sum(self.n) - 2
        if m < 2:
            return None
        return self.in_sd * math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, summed without loss."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """The unbiased variance, ``Σ (x - x̄)² / (n - 1)``."""
    if len(values) < 2:
        raise ValueError(f"variance: needs 2 values, has {len(values)}")
    centre = mean(values)
    return math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1)


def sd(values: Sequence[float]) -> float:
    """The sample standard deviation."""
    return math.sqrt(variance(values))


def pooled_sd(*groups: Sequence[float]) -> float:
    """``√( Σ (n_i - 1) s_i² / Σ (n_i - 1) )`` over the groups that have at least 2 values."""
    known = [(len(g) - 1, variance(g)) for g in groups if len(g) > 1]
    if not known:
        raise ValueError("pooled_sd: no group has 2 values")
    return math.sqrt(math.fsum(n * v for n, v in known) / sum(n for n, _ in known))


def _welch(change: Sequence[float], baseline: Sequence[float]) -> tuple[float, float]:
    """Standard error and Welch-Satterthwaite degrees of freedom; infinite where no seed varies."""
    a, b = variance(change) / len(change), variance(baseline) / len(baseline)
    if a + b == 0:
        return 0.0, math.inf
    return math.sqrt(a + b), (a + b) ** 2 / (a**2 / (len(change) - 1) + b**2 / (len(baseline) - 1))


def welch(change: Sequence[float], baseline: Sequence[float], confidence: float = 0.95) -> Difference:
    """``mean(change) - mean(baseline)`` with Welch's interval and two-sided p.

    Raises:
        ValueError: a group of fewer than 2, or a value that is not finite (failed runs have no place in a mean).
    """
    _finite(change, baseline)
    from scipy import stats

    nats = mean(change) - mean(baseline)
    error, df = _welch(change, baseline)
    pooled = pooled_sd(change, baseline)
    n = (len(change), len(baseline))
    if error == 0:
        return Difference(nats, (nats, nats), 1.0 if nats == 0 else 0.0, df, 0.0, pooled, n, confidence)
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * error
    p = 2 * float(stats.t.sf(abs(nats) / error, df))
    return Difference(nats, (nats - half, nats + half), p, df, error, pooled, n, confidence)


def tost(change: Sequence[float], baseline: Sequence[float], margin: float) -> float:
    """p of "the difference is not inside ±margin": the larger of two one-sided Welch tests (Schuirmann 1987)."""
    if margin <= 0:
        raise ValueError(f"margin: not positive: {margin}")
    _finite(change, baseline)
    from scipy import stats

    nats = mean(change) - mean(baseline)
    error, df = _welch(change, baseline)
    if error == 0:
        return 0.0 if abs(nats) < margin else 1.0
    return max(float(stats.t.sf((nats + margin) / error, df)), float(stats.t.cdf((nats - margin) / error, df)))


@lru_cache(maxsize=256)
def mde(n: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest difference, in seed sd, that n against n seeds detect: two-sided t test, exact noncentral t.

    Solves ``P(|T'(2n-2, δ√(n/2))| > t(1-α/2)) = power`` for δ (Cohen 1988, section 2.3).
    """
    _at_least_two(n)
    from scipy import optimize, stats

    df = 2 * n - 2
    critical = stats.t.ppf(1 - alpha / 2, df)

    def short(delta: float) -> float:
        shift = delta * math.sqrt(n / 2)
        return float(stats.nct.sf(critical, df, shift) + stats.nct.cdf(-critical, df, shift)) - power

    high = 1.0
    while short(high) < 0:
        high *= 2
    return float(optimize.brentq(short, 0.0, high, xtol=1e-6))


def half_width(n: int, confidence: float = 0.95) -> float:
    """Expected half width of the interval of n against n seeds, in seed sd: ``t(2n-2) · √(2/n)``."""
    _at_least_two(n)
    from scipy import stats

    return float(stats.t.ppf((1 + confidence) / 2, 2 * n - 2)) * math.sqrt(2 / n)


def tost_power(n: int, margin_sd: float, alpha: float = 0.05) -> float:
    """How often n against n equal arms are found equivalent inside ±margin (in seed sd): exact, over s.

    ``P(|d̂| < Δ - t·s√(2/n))``, d̂ normal with sd ``√(2/n)``, ``(2n-2)·s²`` chi-square with 2n-2 degrees of freedom.
    """
    _at_least_two(n)
    import numpy as np
    from scipy import stats

    df, scale = 2 * n - 2, math.sqrt(2 / n)
    t = float(stats.t.ppf(1 - alpha, df))
    top = margin_sd / (t * scale)  # a larger s leaves no room inside the margin
    nodes, weights = np.polynomial.legendre.leggauss(200)
    s = (nodes + 1) * top / 2
    density = stats.chi2.pdf(df * s**2, df) * 2 * df * s
    inside = 2 * stats.norm.cdf((margin_sd - t * s * scale) / scale) - 1
    return float(np.sum(weights * density * inside) * top / 2)


@lru_cache(maxsize=256)
def equivalence_margin(n: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest margin, in seed sd, inside which n against n equal arms are found equivalent with this power."""
    from scipy import optimize

    high = 1.0
    while tost_power(n, high, alpha) < power:
        high *= 2
    return float(optimize.brentq(lambda m: tost_power(n, m, alpha) - power, 1e-6, high, xtol=1e-6))


def equivalence_seeds(margin_sd: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Seeds an arm that a margin (in seed sd) asks for: ``n = 2 (z(1-α) + z((1+power)/2))² / Δ²``.

    The normal approximation (Julious 2004, eq. 21): ±0.01 nat at a seed sd of 0.04 takes about 274.
    """
    from scipy import stats

    z = float(stats.norm.ppf(1 - alpha) + stats.norm.ppf((1 + power) / 2))
    return max(2, math.ceil(2 * (z / margin_sd) ** 2))


def permutation_p(change: Sequence[float], baseline: Sequence[float]) -> float | None:
    """Exact two-sided p of the difference of means over every relabelling (Fisher 1935, section 21).

    None where it is worth nothing (fewer than 4 a group) or more than 200,000 relabellings are needed.
    """
    n, m = len(change), len(baseline)
    if min(n, m) < MIN_PERMUTATION or math.comb(n + m, n) > MAX_PERMUTATIONS:
        return None
    import itertools

    import numpy as np

    pool = np.array([*change, *baseline], dtype=np.float64)
    chosen = np.array(list(itertools.combinations(range(n + m), n)))
    sums = pool[chosen].sum(axis=1)
    gaps = np.abs(sums / n - (pool.sum() - sums) / m)
    seen = abs(mean(change) - mean(baseline))
    return float(np.mean(gaps >= seen * (1 - 1e-9) - 1e-15))


def bca_interval(change: Sequence[float], baseline: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Bootstrap interval, bias-corrected and accelerated (Efron 1987); None under 8 a group or without spread."""
    if min(len(change), len(baseline)) < MIN_BOOTSTRAP or pooled_sd(change, baseline) == 0:
        return None
    import numpy as np
    from scipy import stats

    found = stats.bootstrap(
        (np.asarray(change), np.asarray(baseline)),
        lambda a, b, axis=-1: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        confidence_level=confidence,
        n_resamples=_RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r of values in pairs; None under 3 pairs or where one side does not vary."""
    if len(a) != len(b) or len(a) < 3:
        return None
    x, y = [v - mean(a) for v in a], [v - mean(b) for v in b]
    size = math.sqrt(math.fsum(v * v for v in x) * math.fsum(v * v for v in y))
    return math.fsum(p * q for p, q in zip(x, y, strict=True)) / size if size else None


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p of several comparisons with one baseline: step down, ``max_{j<=i} (k - j) p_(j)`` (Holm 1979)."""
    adjusted: dict[str, float] = {}
    running = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        running = max(running, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}


def _finite(*groups: Sequence[float]) -> None:
    for group in groups:
        if len(group) < 2:
            raise ValueError(f"a group of {len(group)}: a difference needs at least 2 seeds an arm")
        if not all(math.isfinite(v) for v in group):
            raise ValueError(f"a value that is not finite: {list(group)}")


def _at_least_two(n: int) -> None:
    if n < 2:
        raise ValueError(f"n: needs at least 2 seeds an arm, has {n}")
