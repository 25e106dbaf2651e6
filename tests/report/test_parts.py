"""Numbers, tables and charts, piece by piece."""

from __future__ import annotations

import math
from typing import Any

import pytest

from assay.report import numbers
from assay.report.charts import log_ticks, loss_scale
from assay.report.curves import line_chart, smoothed, thinned
from assay.report.page import data_script, unbroken
from assay.report.records import Point, baseline_of, change_of, medians_of, ordered_arms, points_of
from assay.report.sweeps import LEARNING_RATE, ladder_axis, sweep_figure, sweep_of
from assay.report.tables import card_groups, flat, runs_table, settings_table
from tests.report import fixtures


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.fixed(2.4234), "2.423"),
        (numbers.fixed(-0.0561, signed=True), "−0.056"),
        (numbers.fixed(0.0561, signed=True), "+0.056"),
        (numbers.fixed(-0.0001, signed=True), "0.000"),
        (numbers.fixed(math.nan), "–"),
        (numbers.rate(0.003), "3e-3"),
        (numbers.rate(0.015), "1.5e-2"),
        (numbers.rate(1.0), "1e0"),
        (numbers.significant(78.125), "78.1"),
        (numbers.significant(0.2581), "0.258"),
        (numbers.significant(12345.6), "12,346"),
        (numbers.count(655872), "655,872"),
        (numbers.count(True), "–"),
        (numbers.size(2_621_440), "2.50 MiB"),
        (numbers.size(512), "512 B"),
        (numbers.scaled(4_102_400, "FLOPs"), "4.10 MFLOPs"),
        (numbers.ratio(1), "×1"),
        (numbers.ratio(1.0002), "×1.0002"),
        (numbers.ratio(0.983), "×0.983"),
        (numbers.ratio(2.5), "×2.50"),
        (numbers.p_value(0.0072), "p = 0.007"),
        (numbers.p_value(1e-9), "p < 0.001"),
        (numbers.interval([0.15, -0.05]), "−0.050 to +0.150"),
        (numbers.interval([0.15, math.nan]), "–"),
        (numbers.of([3, 5]), "3 of 5"),
        (numbers.plain(1e-8), "1e-8"),
        (numbers.plain([0.9, 0.95]), "0.9, 0.95"),
        (numbers.plain(False), "no"),
        (numbers.listed(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_are_written_with_few_digits(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (6144, "bytes/token", ("6.00 KiB", "per token")),
        (4.1024e6, "FLOPs/token", ("4.10 MFLOPs", "per token")),
        (2.226, "nats per byte", ("2.226", "nats per byte")),
        (78.1, "ms", ("78.1", "ms")),
        (617_984, "", ("617,984", "")),
        ("> 3e-2", "", ("> 3e-2", "")),
        (None, "ms", ("–", "")),
    ],
)
def test_a_quantity_keeps_its_unit(value: Any, unit: str, expected: tuple[str, str]) -> None:
    assert numbers.quantity(value, unit) == expected


def test_an_infinite_loss_counts_as_the_worst_in_a_median() -> None:
    assert numbers.median([2.0, math.inf, 2.2]) == 2.2
    assert numbers.median([2.0, math.inf, math.inf]) is None
    assert numbers.median([]) is None


def test_a_dead_run_brings_h_onto_the_scale_and_a_far_one_stays_on_the_chart() -> None:
    alive = [Point("a", 1e-3, str(seed), 2.4 + seed / 100, "alive", "") for seed in range(3)]
    calm = loss_scale(alive, 3.245)
    assert calm.entropy is None
    assert calm.high < 2.6
    scale = loss_scale(
        [*alive, Point("a", 1e-2, "0", 3.25, "dead", ""), Point("a", 3e-2, "0", 9e9, "diverged", "")], 3.245
    )
    assert scale.entropy == 3.245
    assert scale.low < 2.4
    assert 3.25 < scale.place(9e9) < scale.place(None) < scale.high < 4
    assert scale.place(3.25) == 3.25
    lonely = loss_scale([Point("a", 1e-3, "0", None, "nonfinite", "")], None)
    assert lonely.low < lonely.place(None) < lonely.high


def test_a_sweep_counts_its_medians_where_the_record_has_none() -> None:
    points = [{"value": 6, "seed": seed, "loss": loss} for seed, loss in enumerate([2.5, 2.6, None])]
    arm = {"name": "a", "points": points}
    found = points_of(arm, "points", "value")
    assert [point.klass for point in found] == ["alive", "alive", "nonfinite"]
    (median,) = medians_of(arm, found, "value")
    assert (median.median, median.alive, median.n) == (2.6, 2, 3)


def test_a_sweep_tells_who_lives_where() -> None:
    result = fixtures.study_record()
    styles = ordered_arms(result)
    sweep = sweep_of(result, result["parts"][0], styles, points_key="points", axis=LEARNING_RATE)
    figure = sweep_figure(sweep, "LR")
    assert figure is not None
    assert "none lives at 5e-3, 7e-3, 1e-2 and 3e-2" in figure.summary or "seeds live at" in figure.summary
    assert "pre-LN is lowest at" in figure.summary
    assert "no seed fails" in figure.summary
    assert {key.text.split(":")[0] for key in figure.legend if key.kind == "failure"} == {
        "dead",
        "diverged",
        "non-finite",
    }
    survival = figure.charts[1]
    assert "0 of 3 at 3e-2" in survival.label
    ladder = sweep_of(result, result["parts"][1], styles, points_key="points", axis=None)
    shown = sweep_figure(ladder, "depth")
    assert shown is not None
    assert "none lives at 6 and 8 layers" in shown.summary
    assert ladder_axis("d_model", [32, 1024]).log
    assert not ladder_axis("n_layers", [2, 16]).log


def test_the_baseline_stands_first_whatever_the_order_of_the_arms() -> None:
    part: dict[str, Any] = {"kind": "comparison", "baseline": "b", "arms": [{"name": "a"}, {"name": "b"}]}
    assert (baseline_of(part), change_of(part)) == ("b", "a")
    assert list(ordered_arms({"parts": [{"kind": "ladder", "arms": [{"name": "c"}]}, part]})) == ["b", "a", "c"]


def test_the_card_keeps_the_order_of_the_five_dimensions() -> None:
    part = {"card": list(reversed(fixtures.card()))}
    groups = card_groups(part)
    assert [group.dimension for group in groups] == ["quality", "memory", "compute", "bandwidth", "stability"]
    seeds = next(row for row in groups[-1].rows if row.measure == "seeds alive")
    assert (seeds.baseline, seeds.change) == ("3 of 5", "5 of 5")


def test_a_run_sorts_by_number_and_leaves_out_what_no_run_has() -> None:
    table = runs_table(
        {"runs": [{"digest": "a", "lr": 3e-3, "loss": 2.5, "class": "alive"}, {"digest": "b", "lr": 1e-2}]}
    )
    assert table is not None
    assert [column.text for column in table.columns] == ["peak LR", "loss", "outcome", "run"]
    assert table.rows[0][0].sort == "0.003"
    assert table.rows[1][2].kind == "nonfinite"
    assert runs_table({}) is None


def test_settings_are_flattened_with_dots() -> None:
    nested = {"a": {"b": 1, "c": {"d": [1, 2]}}, "e": [{"f": True}, 3], "g": {}, "h": None}
    assert flat(nested) == [
        ("a.b", "1"),
        ("a.c.d", "1, 2"),
        ("e[0].f", "yes"),
        ("e[1]", "3"),
        ("g", "none"),
        ("h", "–"),
    ]
    assert settings_table(None) is None


def test_smoothing_keeps_steps_and_ends() -> None:
    noisy = [(float(step), 5.0 - step / 50 + (-1) ** step * 0.1) for step in range(200)]
    smooth = smoothed(noisy)
    assert [step for step, _ in smooth] == [step for step, _ in noisy]
    assert max(abs(value - (5.0 - step / 50)) for step, value in smooth[5:-5]) < 0.05
    few = thinned(noisy, 50)
    assert (len(few), few[0], few[-1]) == (50, noisy[0], noisy[-1])


@pytest.mark.parametrize(("value", "form"), [(0.0, ",f"), (3e-4, ".2~e"), (5.0, ",f"), (2e7, ".3~s")])
def test_an_axis_is_written_as_its_numbers_are(value: float, form: str) -> None:
    """All zeros are no small numbers."""
    (layer,) = line_chart([(1.0, 0.0), (2.0, value)], "Heads clipped").spec["layer"]
    assert layer["encoding"]["y"]["axis"]["format"] == form


def test_log_ticks() -> None:
    assert log_ticks(0.8, 55) == [1, 2, 5, 10, 20, 50]
    assert log_ticks(1e-4, 1e2) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100])


def test_data_for_a_script_cannot_end_it() -> None:
    text = str(data_script({"a": "</script><!-- & \u2028", "b": math.nan, "c": 0.123456789}))
    assert not set("<>&\u2028") & set(text)
    assert '"b":null' in text
    assert '"c":0.123457' in text


def test_short_hyphenated_words_stay_whole_and_escaped() -> None:
    assert str(unbroken("at 5e-3 <b>")) == 'at <span class="nb">5e-3</span> &lt;b&gt;'
    assert str(unbroken("x<y-z>")) == '<span class="nb">x&lt;y-z&gt;</span>'
