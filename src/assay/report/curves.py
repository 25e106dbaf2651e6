"""Curves over training steps and over layers, of a comparison's seeds or of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.report.charts import (
    MARGIN,
    Chart,
    Figure,
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
    log_ticks,
    loss_scale,
    shape_of,
    tip,
    values,
)
from assay.report.effects import arms_of
from assay.report.numbers import count, finite, fixed, listed, median, significant
from assay.report.records import (
    Arm,
    Point,
    Record,
    arm_key,
    class_of,
    entropy_of,
    layered,
    loss_unit,
    reporting_runs,
    series,
    text,
)
from assay.report.tables import ends_table, layers_table

MOST_POINTS = 160  # of one drawn curve
Pairs = list[tuple[float, float]]


@dataclass(frozen=True)
class Trace:
    """One seed's curve."""

    arm: Arm
    run: str
    seed: str
    klass: str
    loss: float | None
    train: Pairs
    val: Pairs


def smoothed(pairs: Pairs) -> Pairs:
    """A centred running mean over a fortieth of the curve (5 values at least), and every value of a short one."""
    reach = max(len(pairs) // 80, 2)
    if len(pairs) < 20:
        return pairs
    found = []
    for index, (step, _) in enumerate(pairs):
        span = min(reach, index, len(pairs) - 1 - index)
        window = [value for _, value in pairs[index - span : index + span + 1]]
        found.append((step, sum(window) / len(window)))
    return found


def thinned(pairs: Pairs, most: int = MOST_POINTS) -> Pairs:
    """At most ``most`` values of a curve, evenly chosen, the first and the last among them."""
    if len(pairs) <= most:
        return pairs
    return [pairs[round(index * (len(pairs) - 1) / (most - 1))] for index in range(most)]


def steps_axis(last: float) -> Spec:
    """Training steps from 0."""
    axis = {"title": "training step", "tickCount": 6, "grid": False, "format": ",d"}
    return {"field": "x", "type": "quantitative", "scale": {"domain": [0, last], "nice": False}, "axis": axis}


def loss_figure(result: Record, part: Record, styles: dict[str, Arm]) -> Figure | None:
    """Validation and smoothed training loss of every reporting seed; None where no run has a curve."""
    traces = [
        Trace(styles[arm_key(arm)], text(run, "digest"), text(run, "seed"), class_of(run), finite(run.get("loss")),
              series(run, "train_curve"), series(run, "val_curve"))
        for arm, run in reporting_runs(result, part)
    ]  # fmt: skip
    traces = [trace for trace in traces if trace.train or trace.val]
    if not traces:
        return None
    arms = sorted({trace.arm for trace in traces}, key=lambda arm: arm.index)
    late = [value for trace in traces for value in _second_half(trace) if trace.klass == "alive"]
    points = [Point(t.arm.name, 0.0, t.seed, t.loss, t.klass, t.run) for t in traces]
    scale = loss_scale(points, entropy_of(result), late)
    unit = loss_unit(result)
    charts = []
    if any(len(trace.val) > 1 for trace in traces):
        charts.append(_loss_chart(traces, arms, scale, unit, "Validation loss", lambda trace: trace.val))
    if any(trace.train for trace in traces):
        words = "Training loss, smoothed"
        charts.append(_loss_chart(traces, arms, scale, unit, words, lambda trace: smoothed(trace.train)))
    if not charts:
        return None
    failed = [trace.klass for trace in traces if trace.klass != "alive"]
    note = (
        f"One line a seed; the mark at its end is its final validation loss. The scale ends at {fixed(scale.high, 2)}."
    )
    legend = [*arm_keys(arms), *failure_keys(failed)]
    rows = [(t.arm.label, t.seed, t.val or t.train, fixed(t.loss), class_words(t.klass)) for t in traces]
    summary = _loss_summary(traces, arms)
    return Figure("Loss over training", charts, summary, note, legend, ends_table(rows, unit), layout="pair")


def _second_half(trace: Trace) -> list[float]:
    curve = trace.val or trace.train
    return [value for step, value in curve if step >= curve[-1][0] / 2] if curve else []


def _loss_summary(traces: Sequence[Trace], arms: Sequence[Arm]) -> str:
    said = []
    for arm in arms:
        mine = [trace for trace in traces if trace.arm is arm]
        ends = [trace.loss for trace in mine if trace.klass == "alive" and trace.loss is not None]
        words = f"{arm.label}: {len(ends)} of {len(mine)} seeds learn"
        said.append(words + (f", ending between {fixed(min(ends))} and {fixed(max(ends))}." if ends else "."))
    return " ".join(said)


def _loss_chart(
    traces: Sequence[Trace],
    arms: Sequence[Arm],
    scale: LossScale,
    unit: str,
    title: str,
    curve: Callable[[Trace], Pairs],
) -> Chart:
    last = max(pair[0] for trace in traces for pair in [*trace.train, *trace.val])
    x = steps_axis(last)
    y: Spec = {"field": "y", "type": "quantitative", "title": None}
    y["axis"] = {"minExtent": MARGIN, "maxExtent": MARGIN, "tickCount": 6, "format": ".2f"}
    y["scale"] = {"domain": scale.domain, "nice": False, "zero": False}
    lines, ends = [], []
    for number, trace in enumerate(traces):
        shared = {"arm": trace.arm.name, "label": trace.arm.label, "seed": trace.seed}
        lines += [{"arm": trace.arm.name, "run": number, "x": step, "y": loss} for step, loss in thinned(curve(trace))]
        stop = max(pair[0] for pair in [*trace.train, *trace.val])
        row = {**shared, "x": stop, "y": scale.place(trace.loss), "loss": fixed(trace.loss), "class": trace.klass}
        ends.append({**row, "ended": class_words(trace.klass)})
    colors = color_of(arms)
    line = {"type": "line", "strokeWidth": 1.4, "opacity": 0.8, "clip": True}
    place = {"x": x, "y": y, "color": colors, "strokeDash": dash_of(arms), "detail": {"field": "run"}}
    tooltip = tip(("label", "arm"), ("seed", "seed"), ("loss", f"final, {unit}"), ("ended", "run"))
    dot = {"type": "point", "filled": True, "size": 44, "opacity": 0.9}
    end = {"x": x, "y": y, "color": colors, "shape": shape_of(arms), "tooltip": tooltip}
    layers = [*entropy_layers(scale), {"data": values(lines), "mark": line, "encoding": place}]
    layers.append({"data": values(e for e in ends if e["class"] == "alive"), "mark": dot, "encoding": end})
    layers += failure_layers([e for e in ends if e["class"] != "alive"], x, y, arms, tooltip)
    layers += entropy_names(scale)
    resolve = {"scale": {"shape": "independent", "color": "independent", "strokeDash": "independent"}}
    label = f"{title} over training steps, one line a seed. {_loss_summary(traces, arms)}"
    return chart(layers, label, height=240, title=f"{title}, {unit}", resolve=resolve)


Stages = dict[str, list[tuple[Arm, str, list[float | None]]]]  # stage -> (arm, run, a value per layer)


def layers_figure(result: Record, part: Record, styles: dict[str, Arm]) -> Figure | None:
    """Residual RMS by layer early and at the end, and the largest attention logit; None where nothing was recorded."""
    found = reporting_runs(result, part)
    arms = [arm for arm in arms_of(part, styles) if arm.name in {arm_key(record) for record, _ in found}]
    runs = [(styles[arm_key(arm)], text(run, "digest"), run) for arm, run in found]
    rms = stages_of(runs, "residual_rms")
    logits = stages_of(runs, "max_logit")
    charts = layer_charts(arms, rms, "Residual RMS")
    charts += layer_charts(arms, dict(list(logits.items())[-1:]), "Largest attention logit")
    if not charts:
        return None
    note = "Thin lines are seeds, thick lines their medians."
    table = layers_table(_median_columns(arms, rms, "residual RMS") + _median_columns(arms, logits, "attention logit"))
    summary = _rms_summary(arms, rms) or "The largest attention logit of each layer, at the end of training."
    return Figure("Inside the network, by layer", charts, summary, note, arm_keys(arms), table, layout="pair")


def stages_of(runs: Sequence[tuple[Arm, str, Record]], key: str) -> Stages:
    """The first recorded step and the last one, by name."""
    early: list[tuple[Arm, str, list[float | None]]] = []
    late: list[tuple[Arm, str, list[float | None]]] = []
    steps: list[tuple[float, float]] = []
    for arm, run, record in runs:
        rows = [row for row in layered(record, key) if any(value is not None for value in row[1])]
        if not rows:
            continue
        early.append((arm, run, rows[0][1]))
        late.append((arm, run, rows[-1][1]))
        steps.append((rows[0][0], rows[-1][0]))
    if not steps:
        return {}
    end = f"at the end, step {count(max(step for _, step in steps))}"
    first = min(step for step, _ in steps)
    begin = f"early, step {count(first)}" if first > 0 else "before training"
    return {end: late} if all(a == b for a, b in steps) else {begin: early, end: late}


def layer_charts(arms: Sequence[Arm], stages: Stages, title: str) -> list[Chart]:
    """One chart a stage, on one shared scale."""
    every = [value for rows in stages.values() for row in rows for value in row[2] if value is not None and value > 0]
    if not every:
        return []
    low, high = min(every), max(every)
    log = high / low > 12
    domain = [low / 1.3, high * 1.3] if log else [0, high * 1.08]
    return [_layer_chart(arms, stage, rows, title, domain, log) for stage, rows in stages.items()]


def _layer_chart(
    arms: Sequence[Arm],
    stage: str,
    rows: Sequence[tuple[Arm, str, list[float | None]]],
    title: str,
    domain: list[float],
    log: bool,
) -> Chart:
    depth = max(len(row[2]) for row in rows)
    x: Spec = {"field": "x", "type": "quantitative", "scale": {"domain": [0.5, depth + 0.5], "nice": False}}
    ticks = list(range(1, depth + 1)) if depth <= 16 else [1, *range(depth // 8, depth + 1, max(depth // 8, 1))]
    x["axis"] = {"title": "layer", "values": ticks, "format": "d", "grid": False, "labelOverlap": "greedy"}
    y: Spec = {"field": "y", "type": "quantitative", "title": None}
    y["scale"] = {"domain": domain, "type": "log" if log else "linear", "nice": False}
    y["axis"] = {
        "minExtent": MARGIN,
        "maxExtent": MARGIN,
        "format": "~s" if domain[1] >= 1e4 else "~g",
        "labelOverlap": True,
    }
    y["axis"] |= {"values": log_ticks(*domain)} if log else {"tickCount": 5}
    thin = [
        {"arm": arm.name, "run": run, "x": layer + 1, "y": value}
        for arm, run, layers in rows
        for layer, value in enumerate(layers)
        if value is not None and (value > 0 or not log)
    ]
    thick, said = [], []
    for arm in arms:
        middle = _medians([row[2] for row in rows if row[0] is arm])
        thick += [
            {"arm": arm.name, "x": layer + 1, "y": value, "label": arm.label, "text": significant(value)}
            for layer, value in enumerate(middle)
            if value is not None and (value > 0 or not log)
        ]
        if middle:
            said.append(
                f"{arm.label}: {significant(middle[0])} in layer 1, {significant(middle[-1])} in layer {len(middle)}."
            )
    colors, dashes = color_of(arms), dash_of(arms)
    thin_line = {"type": "line", "strokeWidth": 1, "opacity": 0.3}
    line = {"type": "line", "strokeWidth": 2.2}
    dot = {"type": "point", "filled": True, "size": 40, "opacity": 1}
    tooltip = tip(("label", "arm"), ("x", "layer"), ("text", title))
    layers = [
        {"data": values(thin), "mark": thin_line,
         "encoding": {"x": x, "y": y, "color": colors, "detail": {"field": "run"}}},
        {"data": values(thick), "mark": line, "encoding": {"x": x, "y": y, "color": colors, "strokeDash": dashes}},
        {"data": values(thick), "mark": dot,
         "encoding": {"x": x, "y": y, "color": colors, "shape": shape_of(arms), "tooltip": tooltip}},
    ]  # fmt: skip
    words = f"{title}, {stage}" + (" (log scale)" if log else "")
    return chart(layers, f"{words}, by layer. {' '.join(said)}", height=200, title=words)


def _medians(rows: Sequence[list[float | None]]) -> list[float | None]:
    depth = max((len(row) for row in rows), default=0)
    columns = [[row[layer] for row in rows if layer < len(row)] for layer in range(depth)]
    return [median([value for value in column if value is not None]) for column in columns]


def _median_columns(arms: Sequence[Arm], stages: Stages, name: str) -> list[tuple[str, list[float | None]]]:
    return [
        (f"{arm.label}: {name} {stage}", _medians([row[2] for row in rows if row[0] is arm]))
        for stage, rows in stages.items()
        for arm in arms
        if any(row[0] is arm for row in rows)
    ]


def _rms_summary(arms: Sequence[Arm], stages: Stages) -> str:
    if not stages:
        return ""
    stage, rows = list(stages.items())[-1]
    said = []
    for arm in arms:
        middle = _medians([row[2] for row in rows if row[0] is arm])
        if len(middle) > 1:
            ends = f"{significant(middle[0])} in layer 1 to {significant(middle[-1])} in layer {len(middle)}"
            said.append(f"{arm.label} goes from {ends}")
    return f"The residual stream's RMS {stage}: {listed(said)}." if said else ""


def line_chart(
    pairs: Pairs, title: str, *, log: bool = False, dots: Pairs | None = None, faint: Pairs | None = None
) -> Chart:
    """One quantity of one run over its steps."""
    every = [value for _, value in [*pairs, *(dots or ()), *(faint or ())]]
    last = max(step for step, _ in [*pairs, *(dots or ())])
    log = log and min(every) > 0 and max(every) / min(every) > 8
    x = steps_axis(last)
    y: Spec = {"field": "y", "type": "quantitative", "title": None}
    y["scale"] = {"type": "log"} if log else {"type": "linear", "zero": False}
    most = max(map(abs, every))
    y["axis"] = {"minExtent": MARGIN + 6, "maxExtent": MARGIN + 6, "tickCount": 5, "labelOverlap": True}
    y["axis"] |= {"format": ".3~s" if most >= 1e6 else ".2~e" if 0 < most < 0.01 else "~g" if log else ",f"}
    y["axis"] |= {"values": log_ticks(min(every), max(every))} if log else {}
    layers: list[Spec] = []
    for data, width, opacity in ((faint, 1, 0.35), (pairs, 2, 1)):
        if data:
            mark = {"type": "line", "strokeWidth": width, "opacity": opacity, "color": "var(--arm-1)"}
            rows = ({"x": step, "y": value} for step, value in thinned(data, 400))
            layers.append({"data": values(rows), "mark": mark, "encoding": {"x": x, "y": y}})
    if dots:
        mark = {"type": "point", "filled": True, "size": 52, "color": "var(--arm-0)", "opacity": 1}
        found = ({"x": step, "y": value, "text": fixed(value)} for step, value in dots)
        tooltip = tip(("x", "step"), ("text", "validation loss"))
        layers.append({"data": values(found), "mark": mark, "encoding": {"x": x, "y": y, "tooltip": tooltip}})
    last_value = (pairs or dots or [(0.0, 0.0)])[-1][1]
    words = f"{title}{' (log scale)' if log else ''}"
    label = f"{words} over training steps: from {significant(every[0])} to {significant(last_value)}."
    return chart(layers, label, height=190, title=words)
