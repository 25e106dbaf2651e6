"""The comparison itself: every seed, the difference with its interval, and the time of a step."""

from __future__ import annotations

from collections.abc import Sequence

from assay.report.charts import (
    INK,
    INK_2,
    Chart,
    Figure,
    Key,
    Spec,
    arm_keys,
    chart,
    class_words,
    color_of,
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
from assay.report.numbers import NONE, count, finite, fixed, interval, listed, of, p_value, pair_of, significant
from assay.report.records import (
    Arm,
    Point,
    Record,
    arm_key,
    baseline_of,
    change_of,
    class_of,
    entropy_of,
    loss_unit,
    record_of,
    records,
    text,
)
from assay.report.tables import seeds_table

ROW = 48  # pixels of an arm's row


def arms_of(part: Record, styles: dict[str, Arm]) -> list[Arm]:
    """The part's arms, the baseline first."""
    return sorted((styles[arm_key(arm)] for arm in records(part, "arms")), key=lambda arm: arm.index)


def rows_axis(arms: Sequence[Arm]) -> Spec:
    """One row an arm; its name is drawn by ``row_names``."""
    axis: Spec = {"labels": False, "ticks": False, "domain": False, "grid": False, "title": None}
    axis |= {"minExtent": margin_of(arms), "maxExtent": margin_of(arms)}
    scale = {"domain": [len(arms) - 0.5, -0.5], "nice": False, "zero": False}
    return {"field": "row", "type": "quantitative", "scale": scale, "title": None, "axis": axis}


def row_of(arms: Sequence[Arm], name: str) -> int:
    """The row of an arm, from 0 at the top."""
    return [arm.name for arm in arms].index(name)


def row_names(arms: Sequence[Arm]) -> Spec:
    """The arms' names left of their rows, in their colours."""
    mark = {"type": "text", "align": "right", "baseline": "middle", "dx": -8, "fontSize": 11}
    mark["limit"] = margin_of(arms) - 8
    rows = [{"arm": arm.name, "row": row, "text": arm.label} for row, arm in enumerate(arms)]
    place = {"x": {"value": 0}, "y": rows_axis(arms), "text": {"field": "text"}, "color": color_of(arms)}
    return {"data": values(rows), "mark": mark, "encoding": place}


def seeds_figure(result: Record, part: Record, styles: dict[str, Arm]) -> Figure | None:
    """Reporting seeds beside the difference of the means; None where nothing was reported."""
    arms, unit = arms_of(part, styles), loss_unit(result)
    points = [
        Point(arm_key(arm), 0.0, text(each, "seed"), finite(each.get("loss")), class_of(each), text(each, "run"))
        for arm in records(part, "arms")
        for each in records(arm, "reporting")
    ]
    charts = [_seeds(part, arms, points, entropy_of(result), unit)] if points else []
    strip = difference_chart(part, styles, unit)
    charts += [strip] if strip else []
    if not charts:
        return None
    legend = [*arm_keys(arms), Key("mean", "mean ± one seed standard deviation of the seeds alive")]
    legend += failure_keys(point.klass for point in points if point.failed)
    summary = " ".join(_arm_sentence(arm, styles, unit) for arm in records(part, "arms"))
    table = seeds_table(arms, records(part, "arms"), unit)
    return Figure("Every reporting seed, and the difference", charts, summary, "", legend, table, layout="pair")


def _arm_sentence(arm: Record, styles: dict[str, Arm], unit: str) -> str:
    label, alive = styles[arm_key(arm)].label, of(arm.get("alive"))
    mean = finite(arm.get("mean"))
    if mean is None:
        return f"{label} has no mean" + (f" ({alive} seeds alive)." if alive != NONE else ".")
    spread = finite(arm.get("sd"))
    said = f"{label}: mean {fixed(mean)}" + (f" ± {fixed(spread)}" if spread is not None else "") + f" {unit}"
    return said + (f", {alive} seeds alive." if alive != NONE else ".")


def _seeds(part: Record, arms: list[Arm], points: list[Point], entropy: float | None, unit: str) -> Chart:
    scale = loss_scale(points, entropy)
    labels = {arm.name: arm.label for arm in arms}
    axis = {"format": ".2f", "tickCount": 6, "title": None, "grid": True}
    x: Spec = {"field": "x", "type": "quantitative", "axis": axis, "title": None}
    x["scale"] = {"domain": scale.domain, "nice": False, "zero": False}
    rows = [
        {
            "arm": point.arm,
            "row": row_of(arms, point.arm) + (0.0, -0.2, 0.2)[index % 3],
            "label": labels[point.arm],
            "x": scale.place(point.loss),
            "seed": point.seed,
            "loss": fixed(point.loss),
            "class": point.klass,
            "ended": class_words(point.klass),
        }
        for index, point in enumerate(points)
    ]
    means = []
    for arm in records(part, "arms"):
        mean, spread = finite(arm.get("mean")), finite(arm.get("sd")) or 0.0
        if mean is not None:
            row = {"arm": arm_key(arm), "row": row_of(arms, arm_key(arm))}
            means.append({**row, "x": mean, "lo": mean - spread, "hi": mean + spread})
    y, colors = rows_axis(arms), color_of(arms)
    tooltip = tip(("label", "arm"), ("seed", "seed"), ("loss", unit), ("ended", "run"))
    layers = [*entropy_layers(scale, "x"), row_names(arms)]
    bar = {"type": "rule", "strokeWidth": 26, "opacity": 0.2}
    layers.append(
        {
            "data": values(means),
            "mark": bar,
            "encoding": {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}, "y": y, "color": colors},
        }
    )
    tick = {"type": "tick", "orient": "vertical", "thickness": 2.5, "size": 32, "opacity": 1}
    layers.append({"data": values(means), "mark": tick, "encoding": {"x": x, "y": y, "color": colors}})
    dot = {"type": "point", "filled": True, "size": 44, "opacity": 0.85}
    alive = [row for row in rows if row["class"] == "alive"]
    place = {"x": x, "y": y, "color": colors, "shape": shape_of(arms), "tooltip": tooltip}
    layers.append({"data": values(alive), "mark": dot, "encoding": place})
    layers += failure_layers([row for row in rows if row["class"] != "alive"], x, y, arms, tooltip)
    layers += entropy_names(scale, "x")
    said = "; ".join(
        f"{labels[arm.name]}: "
        + ", ".join(f"{fixed(p.loss)} {class_words(p.klass)}" for p in points if p.arm == arm.name)
        for arm in arms
    )
    resolve = {"scale": {"shape": "independent", "color": "independent"}}
    return chart(
        layers, f"Validation loss of every reporting seed. {said}.", height=ROW * len(arms),
        title=f"Validation loss, {unit}", resolve=resolve,
    )  # fmt: skip


def difference_chart(part: Record, styles: dict[str, Arm], unit: str) -> Chart | None:
    """The difference with its interval, zero, and the band that the study could not resolve; None without an effect."""
    effect, mde = record_of(part.get("effect")), record_of(part.get("mde"))
    nats, bounds, band = finite(effect.get("nats")), pair_of(effect.get("interval")), finite(mde.get("nats"))
    if nats is None:
        return None
    reach = [0.0, nats, *(bounds or ()), *([-band, band] if band else [])]
    span = max(max(reach) - min(reach), 1e-3)
    low, high = min(min(reach) - 0.12 * span, -0.3 * span), max(max(reach) + 0.12 * span, 0.3 * span)
    written = f"datum.value === 0 ? '0' : format(datum.value, '+.{2 if span > 0.05 else 3}f')"
    axis = {"labelExpr": written, "tickCount": 5, "title": None, "grid": True}
    scale = {"domain": [low, high], "nice": False, "zero": False}
    x: Spec = {"field": "x", "type": "quantitative", "scale": scale, "axis": axis, "title": None}
    change = styles.get(change_of(part) or "")
    baseline = styles.get(baseline_of(part))
    names = (change.label if change else "change", baseline.label if baseline else "baseline")
    color = change.color if change else INK
    middle: Spec = {"y": {"value": 50}}
    layers: list[Spec] = []
    if band:
        ends = {"lo": -band, "hi": band}
        fill = {"type": "rect", "fill": "var(--band)"}
        layers.append(
            {"data": values([ends]), "mark": fill, "encoding": {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}}}
        )
    zero = {"type": "rule", "stroke": INK_2, "strokeWidth": 1.5}
    layers.append({"data": values([{"x": 0}]), "mark": zero, "encoding": {"x": x}})
    if bounds:
        line = {"type": "rule", "stroke": color, "strokeWidth": 3}
        row = {"lo": bounds[0], "hi": bounds[1]}
        span = {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}, **middle}
        layers.append({"data": values([row]), "mark": line, "encoding": span})
        cap = {"type": "tick", "color": color, "thickness": 3, "size": 14, "opacity": 1, "orient": "vertical"}
        layers.append({"data": values({"x": end} for end in bounds), "mark": cap, "encoding": {"x": x, **middle}})
    shown: Spec = {"x": nats, "d": fixed(nats, signed=True), "ci": interval(effect.get("interval"))}
    point = {"type": "point", "filled": True, "shape": "diamond", "size": 130, "fill": color, "opacity": 1}
    tooltip = tip(("d", f"difference, {unit}"), ("ci", "interval"))
    layers.append({"data": values([shown]), "mark": point, "encoding": {"x": x, **middle, "tooltip": tooltip}})
    value = {"type": "text", "dy": -15, "fontSize": 12, "fontWeight": 600, "fill": INK}
    layers.append({"data": values([shown]), "mark": value, "encoding": {"x": x, **middle, "text": {"field": "d"}}})
    layers += _sides(x)
    label = f"{names[0]} minus {names[1]}: {difference_words(part, unit)}"
    return chart(layers, label, height=76, title=f"{names[0]} − {names[1]}, {unit}")


def _sides(x: Spec) -> list[Spec]:
    """Which way is better, on either side of zero."""
    mark = {"type": "text", "baseline": "top", "fontSize": 11, "fill": INK_2, "y": 3}
    sides = (("◂ better", {"align": "right", "dx": -7}), ("worse ▸", {"align": "left", "dx": 7}))
    return [
        {"data": values([{"x": 0, "t": words}]), "mark": {**mark, **side}, "encoding": {"x": x, "text": {"field": "t"}}}
        for words, side in sides
    ]


def effect_facts(part: Record, unit: str) -> list[str]:
    """The effect in numbers, with everything needed to weigh it, one clause an entry."""
    effect, mde = record_of(part.get("effect")), record_of(part.get("mde"))
    found = []
    if (nats := finite(effect.get("nats"))) is None:
        found.append("no difference could be computed")
    else:
        bits = finite(effect.get("bits_per_byte"))
        beside = f" ({fixed(bits, signed=True)} bits per byte)" if bits is not None else ""
        found.append(f"difference {fixed(nats, signed=True)} {unit}{beside}")
    confidence = finite(effect.get("confidence"))
    percent = f"{confidence * 100:g}% " if confidence else ""
    if pair_of(effect.get("interval")):
        found.append(f"{percent}Welch interval {interval(effect.get('interval'))}")
    if finite(effect.get("sd")) is not None:
        found.append(f"{fixed(effect.get('sd'), 1, signed=True)} pooled seed sd")
    if finite(effect.get("hedges_g")) is not None:
        found.append(f"Hedges g\N{NO-BREAK SPACE}{fixed(effect.get('hedges_g'), 1, signed=True)}")
    if finite(effect.get("p")) is not None:
        found.append(p_value(effect.get("p")))
    sizes = effect.get("n")
    if isinstance(sizes, list | tuple) and sizes:
        found.append(f"n = {listed([str(each) for each in sizes])} seeds")
    if finite(mde.get("nats")) is not None:
        found.append(_resolution(mde, unit))
    return found


def _resolution(mde: Record, unit: str) -> str:
    seeds, power, alpha = count(mde.get("n")), finite(mde.get("power")), finite(mde.get("alpha"))
    given = [f"{seeds} seeds an arm"] if seeds != NONE else []
    given += [f"power {power:g}"] if power is not None else []
    given += [f"α\N{NO-BREAK SPACE}{alpha:g}"] if alpha is not None else []
    said = f"smallest effect the plan could see ±{fixed(mde.get('nats'))} {unit}"
    return said + (f" ({', '.join(given)})" if given else "")


def difference_words(part: Record, unit: str) -> str:
    """``effect_facts`` as one sentence."""
    said = "; ".join(effect_facts(part, unit))
    return f"{said[:1].upper()}{said[1:]}."


def step_time_figure(part: Record, styles: dict[str, Arm]) -> Figure | None:
    """The time of a training step an arm, with its quartiles; None where none was measured."""
    rows, said = [], []
    for arm in records(part, "arms"):
        times = record_of(arm.get("step_ms"))
        middle = finite(times.get("median"))
        if middle is None:
            continue
        low, high = finite(times.get("q25")), finite(times.get("q75"))
        low, high = middle if low is None else low, middle if high is None else high
        words = f"{significant(middle)} ms"
        rows.append({"arm": arm_key(arm), "x": middle, "lo": low, "hi": high, "text": words})
        said.append(
            f"{styles[arm_key(arm)].label}: median {words}, quartiles {significant(low)} and {significant(high)} ms."
        )
    if not rows:
        return None
    arms = [arm for arm in arms_of(part, styles) if arm.name in {str(row["arm"]) for row in rows}]
    scale = {"domain": [0, max(float(str(row["hi"])) for row in rows) * 1.18], "nice": False}
    x: Spec = {"field": "x", "type": "quantitative", "scale": scale}
    x["axis"] = {"title": None, "tickCount": 5}
    y, colors = rows_axis(arms), color_of(arms)
    rows = [{**row, "row": row_of(arms, str(row["arm"])), "from": 0} for row in rows]
    start = {"x": {**x, "field": "from"}, "x2": {"field": "x"}, "y": y, "color": colors}
    bar = {"type": "rule", "strokeWidth": 12, "opacity": 0.28}
    tick = {"type": "tick", "orient": "vertical", "thickness": 2.5, "size": 20, "opacity": 1}
    span = {"type": "rule", "strokeWidth": 4}
    word = {"type": "text", "align": "left", "dx": 8, "baseline": "middle", "fill": INK}
    layers = [
        row_names(arms),
        {"data": values(rows), "mark": bar, "encoding": start},
        {"data": values(rows), "mark": span,
         "encoding": {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}, "y": y, "color": colors}},
        {"data": values(rows), "mark": tick, "encoding": {"x": x, "y": y, "color": colors}},
        {"data": values(rows), "mark": word,
         "encoding": {"x": {**x, "field": "hi"}, "y": y, "text": {"field": "text"}}},
    ]  # fmt: skip
    drawn = chart(layers, "Time of a training step. " + " ".join(said), height=30 * len(arms), title="Step time, ms")
    return Figure("Step time", [drawn], " ".join(said), "The tick is the median, the thick line the quartiles.")
