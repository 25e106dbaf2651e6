"""What every chart shares: the look, the scales of the arms, the marks of failure, and the frame of a figure.

A chart is a Vega-Lite specification with its data inline. Its colours are CSS variables, so that one drawing serves the
light and the dark scheme and print. Text of a record goes into data and domains only, never into an expression.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.report.numbers import fixed
from assay.report.records import ALIVE, CLASS_WORDS, DEAD_MARGIN, FAILURES, Arm, Point
from assay.report.tables import Table

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
INK, INK_2, LINE, FAIL = "var(--ink)", "var(--ink-2)", "var(--line)", "var(--fail)"
MARGIN = 36  # pixels left of a plot whose rows have no names

# drawn in a box from -1 to 1, stroked
FAILURE_SHAPES = {
    "dead": "M-0.8,-0.8L0.8,0.8M-0.8,0.8L0.8,-0.8",
    "diverged": "M0,-0.9L0.9,0.7L-0.9,0.7Z",
    "nonfinite": "M-1,0L1,0M-0.5,-0.87L0.5,0.87M-0.5,0.87L0.5,-0.87",
}

CONFIG: Spec = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "padding": {"left": 2, "right": 10, "top": 4, "bottom": 2},
    "axis": {
        "domainColor": "var(--axis)",
        "gridColor": LINE,
        "gridOpacity": 0.7,
        "labelColor": INK_2,
        "labelFontSize": 11,
        "labelPadding": 5,
        "tickColor": "var(--axis)",
        "tickSize": 4,
        "titleColor": INK_2,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 7,
    },
    "legend": {"disable": True},
    "point": {"filled": True},
    "text": {"color": INK, "fontSize": 11},
}


@dataclass
class Chart:
    """A specification, what its axis measures, and in words what it shows (read out instead of it)."""

    spec: Spec
    label: str
    title: str
    id: str = ""

    @property
    def height(self) -> int:
        return int(self.spec["height"])


@dataclass(frozen=True)
class Key:
    """One entry of a figure's legend. ``kind``: arm, failure, or a word of the page's style sheet."""

    kind: str
    text: str
    index: int = 0
    path: str = ""


@dataclass
class Figure:
    """Charts under one title, with a sentence that says what they show and the numbers as a table."""

    title: str
    charts: list[Chart]
    summary: str
    note: str = ""
    legend: list[Key] = field(default_factory=list)
    table: Table | None = None
    layout: str = "stack"  # stack, pair (side by side where there is room)
    id: str = ""


@dataclass(frozen=True)
class LossScale:
    """The range of a loss axis: from under the best run to a ceiling; whatever lies above is drawn at ``edge``."""

    low: float
    high: float
    edge: float
    entropy: float | None  # H, where the chart reaches up to it

    def place(self, loss: float | None) -> float:
        """Where a loss is drawn: at the edge if it is above it, over the edge if there is none."""
        return (self.edge + self.high) / 2 if loss is None else min(loss, self.edge)

    @property
    def domain(self) -> list[float]:
        return [self.low, self.high]


def loss_scale(points: Sequence[Point], entropy: float | None, extra: Iterable[float] = ()) -> LossScale:
    """A loss axis for runs: H is on it if a run failed; runs far above H are drawn at the upper edge."""
    failed = any(point.failed for point in points)
    losses = [point.loss for point in points if point.loss is not None and not point.failed] + list(extra)
    if not losses:
        losses = [point.loss for point in points if point.loss is not None] or [entropy or 1.0]
        losses = losses if entropy is None else [min(*losses, entropy), entropy]
    low, high = min(losses), max(losses)
    shown = entropy if entropy is not None and (failed or high > entropy - DEAD_MARGIN) else None
    if shown is not None:
        low, high = min(low, shown), max(high, shown)
    elif failed:
        worst = [point.loss for point in points if point.failed and point.loss is not None]
        high = max(high, min(max(worst, default=high), high + 2 * max(high - low, 0.5)))
    span = max(high - low, 0.02)
    ceiling = high + span * (0.3 if failed else 0.1)
    return LossScale(low - 0.08 * span, ceiling, ceiling - 0.15 * span if failed else ceiling, shown)


def chart(
    layers: list[Spec],
    label: str,
    *,
    height: int,
    title: str,
    resolve: Spec | None = None,
) -> Chart:
    """A layered chart as wide as its place on the page."""
    spec: Spec = {
        "$schema": SCHEMA,
        "description": label,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        "layer": layers,
    }
    if resolve:
        spec["resolve"] = resolve
    return Chart(spec, label, title)


def margin_of(arms: Iterable[Arm]) -> int:
    """The pixels that the arms' names take left of a plot; charts above one another share their x axis by it."""
    return max(46, min(112, 16 + 6 * max((len(arm.label) for arm in arms), default=0)))


def values(rows: Iterable[Spec]) -> Spec:
    """Rows as inline data."""
    return {"values": list(rows)}


def color_of(arms: Iterable[Arm]) -> Spec:
    """The colour channel of marks that belong to an arm."""
    arms = list(arms)
    scale = {"domain": [arm.name for arm in arms], "range": [arm.color for arm in arms]}
    return {"field": "arm", "type": "nominal", "scale": scale, "legend": None}


def shape_of(arms: Iterable[Arm]) -> Spec:
    """The shape channel of marks that belong to an arm."""
    arms = list(arms)
    scale = {"domain": [arm.name for arm in arms], "range": [arm.shape for arm in arms]}
    return {"field": "arm", "type": "nominal", "scale": scale, "legend": None}


def dash_of(arms: Iterable[Arm]) -> Spec:
    """The dash channel of lines that belong to an arm."""
    arms = list(arms)
    scale = {"domain": [arm.name for arm in arms], "range": [arm.dash for arm in arms]}
    return {"field": "arm", "type": "nominal", "scale": scale, "legend": None}


def failure_shape() -> Spec:
    """The shape channel of failed runs."""
    scale = {"domain": list(FAILURE_SHAPES), "range": list(FAILURE_SHAPES.values())}
    return {"field": "class", "type": "nominal", "scale": scale, "legend": None}


def failure_layers(rows: list[Spec], x: Spec, y: Spec, arms: Iterable[Arm], tooltip: list[Spec]) -> list[Spec]:
    """Failed runs: a mark by class in the colour of failure, on a halo in the colour of the arm."""
    if not rows:
        return []
    halo = {"type": "point", "filled": False, "size": 90, "strokeWidth": 5, "opacity": 0.3}
    mark = {"type": "point", "filled": False, "size": 90, "strokeWidth": 1.8, "opacity": 1, "stroke": FAIL}
    shape = failure_shape()
    return [
        {"data": values(rows), "mark": halo, "encoding": {"x": x, "y": y, "shape": shape, "color": color_of(arms)}},
        {"data": values(rows), "mark": mark, "encoding": {"x": x, "y": y, "shape": shape, "tooltip": tooltip}},
    ]


def _entropy_axis(scale: LossScale, field_name: str) -> Spec:
    axis = {"domain": scale.domain, "nice": False, "zero": False}
    return {"field": field_name, "type": "quantitative", "scale": axis, "title": None}


def entropy_layers(scale: LossScale, channel: str = "y") -> list[Spec]:
    """The zone in which a run has learned nothing, and the line at H; they go under everything else."""
    if scale.entropy is None:
        return []
    row = values([{"from": scale.entropy - DEAD_MARGIN, "to": scale.high, "h": scale.entropy}])
    zone = {channel: _entropy_axis(scale, "from"), f"{channel}2": {"field": "to"}}
    rule = {"type": "rule", "stroke": FAIL, "strokeWidth": 1, "strokeDash": [4, 3]}
    return [
        {"data": row, "mark": {"type": "rect", "fill": "var(--zone)"}, "encoding": zone},
        {"data": row, "mark": rule, "encoding": {channel: _entropy_axis(scale, "h")}},
    ]


def entropy_names(scale: LossScale, channel: str = "y") -> list[Spec]:
    """The name of the line at H, on a halo; it goes over everything else."""
    if scale.entropy is None:
        return []
    mark: Spec = {"type": "text", "fontSize": 11}
    if channel == "y":
        mark |= {"align": "left", "baseline": "bottom", "dy": -4, "x": 5}
        said = f"H = {fixed(scale.entropy)}, unigram entropy"
    else:
        mark |= {"align": "left", "baseline": "top", "dx": 4, "y": 2}
        said = f"H = {fixed(scale.entropy)}"
    row = values([{"text": said, "h": scale.entropy}])
    place = {channel: _entropy_axis(scale, "h"), "text": {"field": "text"}}
    halo = {"stroke": "var(--halo)", "strokeWidth": 5, "strokeJoin": "round", "opacity": 1}
    return [
        {"data": row, "mark": {**mark, **halo}, "encoding": place},
        {"data": row, "mark": {**mark, "fill": FAIL}, "encoding": place},
    ]


def arm_keys(arms: Iterable[Arm]) -> list[Key]:
    """The legend's entries for arms."""
    return [Key("arm", arm.label, arm.index % 6) for arm in arms]


def failure_keys(classes: Iterable[str]) -> list[Key]:
    """The legend's entries for the ways to fail that a figure shows."""
    found = set(classes)
    words = {
        "dead": f"dead: at or above H − {DEAD_MARGIN}",
        "diverged": "diverged: above its initial loss, or a spike that stayed",
        "nonfinite": "non-finite: no loss at all",
    }
    return [Key("failure", words[each], path=FAILURE_SHAPES[each]) for each in FAILURES if each in found]


def class_words(klass: str) -> str:
    """How a run ended, for a reader."""
    return CLASS_WORDS.get(klass, klass or ALIVE)


def tip(*fields: tuple[str, str]) -> list[Spec]:
    """A tooltip of (field, title)."""
    return [{"field": name, "title": title, "type": "nominal"} for name, title in fields]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... inside a range; powers of ten only where it spans more than three of them."""
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
