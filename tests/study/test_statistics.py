"""The statistics against scipy, printed tables, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as strategy
from scipy import stats

from assay.study import statistics as st

RELU = [2.110, 2.093, 2.133]
SWIGLU = [2.029, 2.018, 2.011]


@pytest.mark.parametrize(("n", "sd"), [(2, 5.65), (3, 3.07), (4, 2.38), (5, 2.02), (8, 1.51), (10, 1.32), (16, 1.02)])
def test_the_smallest_visible_effect(n: int, sd: float) -> None:
    assert st.mde(n) == pytest.approx(sd, abs=0.005)


@pytest.mark.parametrize(("n", "sd"), [(3, 2.27), (5, 1.46), (8, 1.07)])
def test_half_width_of_an_interval(n: int, sd: float) -> None:
    assert st.half_width(n) == pytest.approx(sd, abs=0.005)


def test_power_at_the_smallest_visible_effect_by_simulation() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(20_000, 5)) + st.mde(5), rng.normal(size=(20_000, 5))
    assert np.mean(stats.ttest_ind(a, b, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


def test_a_measured_pair_of_arms() -> None:
    found = st.welch(SWIGLU, RELU)
    theirs = stats.ttest_ind(SWIGLU, RELU, equal_var=False)
    assert found.nats == pytest.approx(-0.0927, abs=1e-4)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-12)
    assert found.p == pytest.approx(0.007, abs=5e-4)
    assert found.df == pytest.approx(theirs.df, rel=1e-12)
    assert found.interval == pytest.approx((-0.135, -0.050), abs=5e-4)
    assert found.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-12)


values = strategy.lists(strategy.floats(-10, 10).map(lambda x: round(x, 6)), min_size=2, max_size=9)


@given(values, values)
def test_welch_is_scipys(a: list[float], b: list[float]) -> None:
    found = st.welch(a, b)
    if found.standard_error < 1e-9:
        assert not found.sd > 1e-6
        return
    theirs = stats.ttest_ind(a, b, equal_var=False)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    mirrored = st.welch(b, a)
    assert mirrored.interval == pytest.approx((-found.interval[1], -found.interval[0]), rel=1e-9, abs=1e-9)


def test_hedges_g_is_the_exact_correction() -> None:
    found = st.welch(SWIGLU, RELU)
    assert found.in_sd is not None
    assert found.hedges_g is not None
    m = 4
    exact = math.gamma(m / 2) / (math.sqrt(m / 2) * math.gamma((m - 1) / 2))
    assert found.hedges_g == pytest.approx(found.in_sd * exact, rel=1e-12)
    assert exact == pytest.approx(1 - 3 / (4 * m - 1), abs=0.01)  # the usual approximation


def test_seeds_that_do_not_vary() -> None:
    same = st.welch([2.0, 2.0], [2.0, 2.0])
    assert (same.p, same.in_sd, same.hedges_g, same.interval) == (1.0, None, None, (0.0, 0.0))
    assert st.welch([1.0, 1.0], [2.0, 2.0]).p == 0.0


@pytest.mark.parametrize("bad", [[1.0], [], [1.0, math.nan], [1.0, math.inf]])
def test_what_has_no_mean_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError):
        st.welch(bad, [1.0, 2.0])
    with pytest.raises(ValueError):
        st.tost([1.0, 2.0], bad, 0.1)


def test_coverage_of_the_interval_by_simulation() -> None:
    """Welch's interval holds the true difference in 95 of 100 studies, at unequal spreads too."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2_000):
        low, high = st.welch(rng.normal(0.3, 1.0, 5), rng.normal(0.0, 3.0, 5)).interval  # type: ignore[arg-type]
        hits += low <= 0.3 <= high
    assert hits / 2_000 == pytest.approx(0.95, abs=0.015)


def test_two_one_sided_tests_are_the_interval_inside_the_margin() -> None:
    """p < alpha exactly where the 1 - 2 alpha interval lies inside the margin."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        a, b = list(rng.normal(0, 0.02, 5)), list(rng.normal(0, 0.02, 5))
        low, high = st.welch(a, b, confidence=0.90).interval
        for margin in (0.01, 0.03, 0.06):
            assert (st.tost(a, b, margin) < 0.05) == (-margin < low and high < margin)


def test_false_equivalence_is_rare() -> None:
    """Arms exactly a margin apart are called equivalent in at most alpha of the studies."""
    rng = np.random.default_rng(3)
    called = [st.tost(list(rng.normal(2.0, 1, 5)), list(rng.normal(0, 1, 5)), 2.0) < 0.05 for _ in range(2_000)]
    assert np.mean(called) <= 0.06


def test_equivalence_power_by_simulation() -> None:
    rng = np.random.default_rng(4)
    margin = st.equivalence_margin(5)
    found = [st.tost(list(rng.normal(size=5)), list(rng.normal(size=5)), margin) < 0.05 for _ in range(4_000)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)  # the plan is for pooled spread, the test is Welch's


def test_seeds_that_a_margin_takes() -> None:
    assert st.equivalence_seeds(0.01 / 0.04) in (274, 275)
    assert st.equivalence_seeds(0.01 / 0.015) == 39
    assert st.equivalence_margin(274) == pytest.approx(0.25, abs=0.002)


def test_exact_permutation_test() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    assert st.permutation_p(a, b) == pytest.approx(2 / 70)
    theirs = stats.permutation_test(
        (a, b), lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis), vectorized=True, n_resamples=np.inf
    )
    assert st.permutation_p(a, b) == pytest.approx(theirs.pvalue)
    assert st.permutation_p(a[:3], b[:3]) is None  # cannot go below 0.1: worth nothing
    assert st.permutation_p(list(range(20)), list(range(20))) is None


def test_bootstrap_only_where_there_is_something_to_resample() -> None:
    rng = np.random.default_rng(5)
    a, b = list(rng.normal(2.19, 0.042, 8)), list(rng.normal(2.30, 0.036, 8))
    assert st.bca_interval(a[:7], b) is None
    found = st.bca_interval(a, b)
    assert found is not None
    assert found == st.bca_interval(a, b)  # the same on every rerun
    assert found == pytest.approx(st.welch(a, b).interval, abs=0.03)


def test_holm_steps_down() -> None:
    assert st.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert st.holm({"only": 0.04}) == {"only": 0.04}
    assert st.holm({}) == {}
    assert max(st.holm({"a": 0.9, "b": 0.8}).values()) == 1.0


def test_correlation_of_seeds() -> None:
    a, b = [2.1, 2.3, 2.2, 2.6], [1.9, 2.2, 2.0, 2.1]
    assert st.correlation(a, b) == pytest.approx(stats.pearsonr(a, b).statistic)
    assert st.correlation(a[:2], b[:2]) is None
    assert st.correlation([1.0, 1.0, 1.0], b[:3]) is None


def test_pooled_spread_weighs_by_freedom() -> None:
    a, b = [1.0, 2.0, 3.0], [1.0, 5.0]
    assert st.pooled_sd(a, b) == pytest.approx(math.sqrt((2 * 1.0 + 1 * 8.0) / 3))
    assert st.pooled_sd(a, [7.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError):
        st.pooled_sd([1.0], [2.0])
