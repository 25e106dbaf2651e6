"""Loss over a swept value, a learning rate or a depth: medians, every seed, failures, and who survived."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.report.charts import (
    FAIL,
    INK,
    Chart,
    Figure,
    Key,
    LossScale,
    Spec,
    arm_keys,
    chart,
    class_words,
    color_of,
    dash_of,
    entropy_layers,
    entropy_names,
    failure_keys,
    failure_layers,
    loss_scale,
    margin_of,
    shape_of,
    tip,
    values,
)
from assay.report.effects import row_names, rows_axis
from assay.report.numbers import count, finite, fixed, listed, rate, significant
from assay.report.records import (
    Arm,
    Median,
    Point,
    Record,
    arm_key,
    entropy_of,
    loss_unit,
    medians_of,
    points_of,
    records,
    text,
)
from assay.report.tables import sweep_table


@dataclass(frozen=True)
class Swept:
    """The swept axis: what it is called and how its values are written."""

    key: str
    title: str
    name: str
    log: bool
    write: Callable[[float], str]
    unit: str
    tick_format: str

    def say(self, *places: float) -> str:
        """Places as a sentence has them: ``6 and 8 layers``."""
        return f"{listed([self.write(place) for place in places])} {self.unit}".strip()


LEARNING_RATE = Swept("lr", "peak learning rate (log scale)", "learning rate", True, rate, "", ".3~e")


LADDERS = {
    "n_layers": ("number of layers", "layers"),
    "d_model": ("width, d_model", "channels"),
    "n_heads": ("number of heads", "heads"),
    "max_seq_len": ("context length, tokens", "tokens"),
}


@dataclass(frozen=True)
class Sweep:
    """Everything that one sweep's charts draw."""

    axis: Swept
    arms: list[Arm]
    points: list[Point]
    medians: list[Median]
    best: dict[str, float]
    scale: LossScale
    unit: str

    @property
    def places(self) -> list[float]:
        return sorted({point.x for point in self.points} | {each.x for each in self.medians})


def ladder_axis(name: str, places: Sequence[float]) -> Swept:
    """The axis of a ladder: linear, or logarithmic where the values span more than a factor of 20."""
    log = bool(places) and min(places) > 0 and max(places) / min(places) > 20
    title, unit = LADDERS.get(name, (name.replace("_", " ") or "value", ""))
    write = count if all(float(place).is_integer() for place in places) else significant
    shown = title + (" (log scale)" if log else "")
    return Swept("value", shown, title, log, write, unit, ",.6~g")


def sweep_of(result: Record, part: Record, styles: dict[str, Arm], *, points_key: str, axis: Swept | None) -> Sweep:
    """The sweep of a part: ``points_key`` names the arms' runs; without an axis it is a ladder."""
    key = axis.key if axis else "value"
    points, medians, best, arms = [], [], {}, []
    low = 0 if axis is LEARNING_RATE else float("-inf")  # a learning rate stands on a log scale
    for arm in records(part, "arms"):
        found = [point for point in points_of(arm, points_key, key) if point.x > low]
        curve = [each for each in medians_of(arm, found, key) if each.x > low]
        if found or curve:
            arms.append(styles[arm_key(arm)])
        points += found
        medians += curve
        if axis is LEARNING_RATE and (lr := finite(arm.get("best_lr"))) is not None:
            best[arm_key(arm)] = lr
    if axis is None:
        axis = ladder_axis(text(part, "axis"), [point.x for point in points])
    alive = [each.median for each in medians if each.median is not None and 2 * each.alive > each.n]
    arms.sort(key=lambda arm: arm.index)
    return Sweep(axis, arms, points, medians, best, loss_scale(points, entropy_of(result), alive), loss_unit(result))


def sweep_figure(sweep: Sweep, title: str) -> Figure | None:
    """The figure of a sweep, or None where no run is in it."""
    if not sweep.places:
        return None
    charts = [_losses(sweep), _survival(sweep)]
    legend = arm_keys(sweep.arms)
    if sweep.best:
        legend.append(Key("ring", "best learning rate of an arm"))
    failed = {point.klass for point in sweep.points if point.failed}
    legend += failure_keys(failed)
    note = "Lines join the medians over seeds; each mark is one seed, moved a little sideways to be seen."
    if any(p.loss is None or p.loss > sweep.scale.edge for p in sweep.points if p.failed):
        note += " Marks at the upper edge lie beyond the scale or have no loss."
    table = sweep_table(sweep.axis.name.capitalize(), sweep.axis.write, sweep.arms, sweep.points, sweep.unit)
    return Figure(title, charts, " ".join(_sentence(sweep, arm) for arm in sweep.arms), note, legend, table)


def _x(sweep: Sweep, field: str, *, axis: bool = True) -> Spec:
    places = sweep.places
    if sweep.axis.log:
        pad = max((places[-1] / places[0]) ** 0.06, 1.2)
        domain = [places[0] / pad, places[-1] * pad]
    else:
        room = max((places[-1] - places[0]) * 0.06, 0.5)
        domain = [places[0] - room, places[-1] + room]
    scale: Spec = {"type": "log" if sweep.axis.log else "linear", "domain": domain, "nice": False}
    scale |= {} if sweep.axis.log else {"zero": False}
    ticks: Spec | None = None
    if axis:
        ticks = {
            "title": sweep.axis.title,
            "values": places,
            "format": sweep.axis.tick_format,
            "grid": False,
            "labelOverlap": "greedy",
            "labelSeparation": 6,
        }
    return {"field": field, "type": "quantitative", "scale": scale, "axis": ticks}


def _dodged(sweep: Sweep, point: Point) -> float:
    """The place of a run, a little to the side by arm and seed, so that runs do not hide one another."""
    places, x = sweep.places, point.x
    mates = [each for each in sweep.points if each.arm == point.arm and each.x == x]
    within = (mates.index(point) - (len(mates) - 1) / 2) / max(len(mates) - 1, 2)
    between = [each.name for each in sweep.arms].index(point.arm) - (len(sweep.arms) - 1) / 2
    room = 0.052 / max(len(sweep.arms), 2)
    offset = room * (between + within / 2)
    if sweep.axis.log:
        return x * math.exp(offset * max(math.log(places[-1] / places[0]), math.log(4)))
    return x + offset * max(places[-1] - places[0], 1)


def _rows(sweep: Sweep) -> list[Spec]:
    by_name = {arm.name: arm for arm in sweep.arms}
    return [
        {
            "arm": point.arm,
            "label": by_name[point.arm].label,
            "x": _dodged(sweep, point),
            "y": sweep.scale.place(point.loss),
            "at": sweep.axis.write(point.x),
            "seed": point.seed,
            "loss": fixed(point.loss),
            "class": point.klass,
            "ended": class_words(point.klass),
        }
        for point in sweep.points
    ]


def _losses(sweep: Sweep) -> Chart:
    scale, name = sweep.scale, sweep.axis.name
    y: Spec = {"field": "y", "type": "quantitative", "title": None}
    y |= {"scale": {"domain": scale.domain, "nice": False, "zero": False, "clamp": True}}
    margin = margin_of(sweep.arms)
    y |= {"axis": {"minExtent": margin, "maxExtent": margin, "tickCount": 6, "format": ".2f", "title": None}}
    x, rows, lines, rings = _x(sweep, "x"), _rows(sweep), [], []
    for each in sweep.medians:
        row = {"arm": each.arm, "x": each.x, "y": scale.place(each.median)}
        lines.append(row)
        if each.x == sweep.best.get(each.arm):
            rings.append(row)
    colors, tooltip = color_of(sweep.arms), tip(("label", "arm"), ("at", name), ("seed", "seed"), ("loss", sweep.unit))
    tooltip += tip(("ended", "run"))
    layers = entropy_layers(scale)
    layers.append(
        {
            "data": values(lines),
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": colors, "strokeDash": dash_of(sweep.arms)},
        }
    )
    if rings:
        ring = {"type": "point", "filled": False, "shape": "circle", "size": 340, "strokeWidth": 1.6, "opacity": 1}
        layers.append({"data": values(rings), "mark": ring, "encoding": {"x": x, "y": y, "color": colors}})
    layers.append(
        {
            "data": values(row for row in rows if row["class"] == "alive"),
            "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.85},
            "encoding": {"x": x, "y": y, "color": colors, "shape": shape_of(sweep.arms), "tooltip": tooltip},
        }
    )
    layers += failure_layers([row for row in rows if row["class"] != "alive"], x, y, sweep.arms, tooltip)
    layers += entropy_names(scale)
    label = f"Validation loss over {name}. " + " ".join(_sentence(sweep, arm) for arm in sweep.arms)
    return chart(layers, label, height=280, title=f"Validation loss, {sweep.unit}", resolve=_apart())


def _apart() -> Spec:
    return {"scale": {"shape": "independent", "color": "independent", "strokeDash": "independent"}}


def _survival(sweep: Sweep) -> Chart:
    labels = {arm.name: arm.label for arm in sweep.arms}
    order = [arm.name for arm in sweep.arms]
    rows = [
        {
            "arm": each.arm,
            "row": order.index(each.arm),
            "x": each.x,
            "text": f"{each.alive}/{each.n}",
            "lost": each.alive < each.n,
        }
        for each in sweep.medians
    ]
    y = rows_axis(sweep.arms)
    text_mark = {"type": "text", "baseline": "middle", "fontSize": 11}
    lost: Spec = {"condition": {"test": "datum.lost", "value": FAIL}, "value": INK}
    layers: list[Spec] = [
        row_names(sweep.arms),
        {
            "data": values(rows),
            "mark": text_mark,
            "encoding": {"x": _x(sweep, "x", axis=False), "y": y, "text": {"field": "text"}, "color": lost},
        },
    ]
    words = "; ".join(
        f"{labels[name]}: "
        + ", ".join(f"{e.alive} of {e.n} at {sweep.axis.write(e.x)}" for e in sweep.medians if e.arm == name)
        for name in order
    )
    return chart(
        layers, f"Seeds alive. {words}.", height=18 * len(order), title="Seeds alive, of those run", resolve=_apart()
    )


def _sentence(sweep: Sweep, arm: Arm) -> str:
    """What an arm's curve shows."""
    curve = [each for each in sweep.medians if each.arm == arm.name]
    living = [each for each in curve if each.median is not None and 2 * each.alive > each.n]
    if not living:
        return f"{arm.label} never learned: most of its seeds failed at every {sweep.axis.name}."
    best = min(living, key=lambda each: each.median or math.inf)
    said = [f"{arm.label} is lowest at {sweep.axis.say(best.x)} (median {fixed(best.median)} {sweep.unit})"]
    if all(each.alive == each.n for each in curve):
        return f"{said[0]} and no seed fails."
    said += [
        f"{each.alive} of {each.n} seeds live at {sweep.axis.say(each.x)}" for each in curve if 0 < each.alive < each.n
    ]
    if lost := [each.x for each in curve if not each.alive]:
        said.append(f"none lives at {sweep.axis.say(*lost)}")
    return "; ".join(said) + "."
