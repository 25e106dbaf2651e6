"""The selection rule, LR-to-divergence and LR sensitivity, on the tables that were measured."""

from __future__ import annotations

import pytest

from assay.study.failure import classify
from assay.study.learning_rate import Point, breaking, ladder_of, rate_text, select, sensitivity

H = 3.245
L0 = 5.55


def points(table: dict[float, list[float]], h: float = H) -> list[Point]:
    """Synthetic runs with these final losses."""
    return [
        Point(lr, seed, loss, classify(finite=True, val_loss=loss, initial_loss=L0, unigram_entropy=h), L0)
        for lr, losses in table.items()
        for seed, loss in enumerate(losses)
    ]


POST = {3e-3: [2.423, 2.446, 2.420], 1e-2: [3.248, 3.231, 3.255]}
PRE = {3e-3: [2.462, 2.519, 2.476], 1e-2: [2.513, 2.548, 2.510]}
# after review: at 5e-3 better in some seeds, dead in others
FINE = {3e-3: [2.38, 2.38, 2.38], 5e-3: [2.23, 3.20, 2.18], 7e-3: [3.21, 3.22, 3.24]}
LUCKY = {3e-3: [2.38, 2.38, 2.38], 5e-3: [2.23, 2.18, 2.23], 7e-3: [3.21, 3.22, 3.24]}


def test_a_mixed_rate_cannot_be_selected() -> None:
    assert select(points(FINE)).selectable == (3e-3,)
    assert select(points(FINE)).lr == 3e-3


def test_a_rate_below_the_cliff_cannot_be_selected_even_if_all_its_seeds_live() -> None:
    """Three lucky tuning seeds at 5e-3: the next rate is dead, so it is not used."""
    chosen = select(points(LUCKY))
    assert chosen.selectable == (3e-3,)
    assert chosen.lr == 3e-3


def test_two_seeds_are_not_enough() -> None:
    assert select(points({lr: losses[:2] for lr, losses in PRE.items()})).lr is None


def test_the_top_rate_is_selectable_and_on_the_edge() -> None:
    top = select(points({1e-3: [2.6] * 3, 3e-3: [2.5] * 3, 1e-2: [2.4] * 3}))
    assert (top.lr, top.on_edge) == (1e-2, True)
    inner = select(points({1e-3: [2.6] * 3, 3e-3: [2.4] * 3, 1e-2: [2.5] * 3}))
    assert (inner.lr, inner.on_edge) == (3e-3, False)
    assert select(points({1e-3: [2.3] * 3, 3e-3: [2.4] * 3, 1e-2: [2.5] * 3})).on_edge


def test_nothing_is_selectable_where_nothing_lives() -> None:
    dead = points({1e-3: [3.24] * 3, 3e-3: [3.25] * 3})
    assert select(dead) == type(select(dead))(None, (), False)
    assert breaking(dead).text == "no rate of the grid learns"


def test_a_minority_of_failures_above_does_not_forbid() -> None:
    assert select(points({3e-3: [2.4] * 3, 5e-3: [2.3, 2.3, 3.2], 1e-2: [3.25] * 3})).lr == 3e-3


def test_lr_to_divergence_is_an_interval() -> None:
    post = breaking(points(POST))
    assert (post.last_good, post.first_bad, post.text) == (3e-3, 1e-2, "3e-3 to 1e-2")
    pre = breaking(points(PRE))
    assert (pre.last_good, pre.first_bad, pre.text) == (1e-2, None, "> 1e-2")
    assert breaking(points(FINE)).text == "5e-3 to 7e-3"  # one of three at 5e-3 fails: not most


def test_it_is_searched_upward_from_the_best_rate() -> None:
    undertrained = points({1e-4: [3.25] * 3, 1e-3: [2.6] * 3, 1e-2: [2.4] * 3, 1e-1: [3.3] * 3})
    assert breaking(undertrained).text == "1e-2 to 1e-1"


def test_a_run_without_a_number_is_the_worst_of_all() -> None:
    mixed = [Point(1e-3, s, 2.5, "alive", L0) for s in range(3)]
    mixed += [Point(1e-2, s, None, "nonfinite", L0) for s in range(3)]
    assert breaking(mixed).text == "1e-3 to 1e-2"
    assert ladder_of(mixed)[1].median == float("inf")
    assert ladder_of(mixed)[1].capped == L0
    assert sensitivity(mixed, H).value == pytest.approx((L0 - 2.5) / 2)


QK_OFF = {3e-3: [2.275], 1e-2: [2.256], 3e-2: [2.417], 1e-1: [2.721], 3e-1: [2.903]}
QK_ON = {3e-3: [2.317], 1e-2: [2.278], 3e-2: [2.246], 1e-1: [2.349], 3e-1: [2.360]}


def test_lr_sensitivity_is_wortsmans() -> None:
    off, on = sensitivity(points(QK_OFF), H), sensitivity(points(QK_ON), H)
    assert off.value == pytest.approx(0.258, abs=5e-4)
    assert on.value == pytest.approx(0.064, abs=5e-4)
    assert (off.l_star, off.best) == (2.256, 1e-2)
    assert not off.never_learned
    assert off.high_side == pytest.approx(((2.417 + 2.721 + 2.903 + 2.256) / 4) - 2.256)


def test_a_net_that_never_learns_has_no_sensitivity_and_says_so() -> None:
    dead = sensitivity(points({3e-4: [3.30], 1e-3: [3.248], 3e-3: [3.24], 1e-2: [3.24]}), H)
    assert dead.value is not None
    assert dead.value < 0.02
    assert dead.never_learned


def test_losses_above_the_start_count_as_the_start() -> None:
    wild = [Point(1e-3, 0, 2.5, "alive", L0), Point(1e-2, 0, 900.0, "diverged", L0)]
    assert sensitivity(wild, H).value == pytest.approx((L0 - 2.5) / 2)


@pytest.mark.parametrize(
    ("lr", "text"), [(3e-3, "3e-3"), (1e-1, "1e-1"), (1.5e-4, "1.5e-4"), (1.0, "1"), (5e-3, "5e-3")]
)
def test_rates_are_written_short(lr: float, text: str) -> None:
    assert rate_text(lr) == text
