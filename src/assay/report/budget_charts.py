"""The pictures of a budget: the roofline, what memory holds, where parameters and FLOPs are, the cache by length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.report.charts import FAIL, INK, INK_2, Spec, chart, log_ticks, tip, values
from assay.report.numbers import NONE, finite, scaled, significant, size
from assay.report.panels import Mark, Panel, compact
from assay.report.records import SHAPES, Record, record_of, records, text

MODES = (Mark("train", 1, SHAPES[0]), Mark("prefill", 2, SHAPES[2]), Mark("decode", 4, SHAPES[1]))
GROUPS = (Mark("contraction", 1), Mark("normalization", 4), Mark("elementwise", 2))
GIB = 2**30
_APART = 2.5  # how far, as a ratio, two named dots are apart


def words(name: str) -> str:
    """``attention_core`` as a reader wants it."""
    return name.replace("_", " ")


def told_apart(name: str, marks: Sequence[Mark], by: str) -> Spec:
    """A channel that tells marks apart: ``by`` their color or their shape."""
    scale = {"domain": [mark.text for mark in marks], "range": [getattr(mark, by) for mark in marks]}
    return {"field": name, "type": "nominal", "scale": scale, "legend": None}


def rows_axis(name: str, names: Sequence[str], **axis: Any) -> Spec:
    """A y axis of names, in their order."""
    look = {"labelColor": INK, "domain": False, "ticks": False, "labelLimit": 150, **axis}
    return {"field": name, "type": "nominal", "sort": list(names), "title": None, "axis": look}


# --- the roofline


def roofline(budget: Record) -> Panel | None:
    """Every operation class where its intensity meets the device's roof; without a device, its intensity alone."""
    dots = [dot for mark in MODES for dot in _dots(budget, mark.text)]
    if not dots:
        return None
    used = [mark for mark in MODES if any(dot["mode"] == mark.text for dot in dots)]
    hardware = record_of(budget.get("hardware"))
    peak, rate = finite(hardware.get("peak_flops_per_s")), finite(hardware.get("bytes_per_s"))
    if not peak or not rate:
        return _intensities(dots, used)
    vector = finite(hardware.get("vector_flops_per_s")) or peak
    for dot in dots:
        roof = peak if dot["group"] == "contraction" else vector
        dot["y"] = min(roof, dot["x"] * rate)
        dot["rate"] = scaled(dot["y"], "FLOP/s")
    low, high = min(dot["x"] for dot in dots) / 2, max(*(dot["x"] for dot in dots), 4 * peak / rate) * 1.3
    x = log_axis("x", [low, high])
    y = log_axis("y", [low * rate / 1.2, peak * 1.6], "~s")
    roof_rows = [{"x": at, "y": min(peak, at * rate)} for at in (low, peak / rate, high)]
    words_at = {"x": x, "y": y, "text": {"field": "op"}}
    above = {"align": "right", "baseline": "bottom", "dx": -8, "dy": -5}
    below = {"align": "center", "baseline": "top", "dy": 14}
    line = {"type": "line", "stroke": INK_2, "strokeWidth": 1.5}
    ridge = f"{peak / rate:.0f} FLOPs a byte"
    layers: list[Spec] = [
        {"data": values(roof_rows), "mark": line, "encoding": {"x": x, "y": y}},
        _dot_layer(dots, used, x, y),
        {"data": values(_heaviest(dots, "decode")), "mark": _label(**above), "encoding": words_at},
        {"data": values(_heaviest(dots, "train")), "mark": _label(**below), "encoding": words_at},
    ]  # fmt: skip
    name = text(hardware, "name")
    label = f"Roofline of {name}: {len(dots)} operation classes by FLOPs a byte; compute limits them above {ridge}."
    title = f"FLOP/s that {name} can reach, by FLOPs a byte; dots by their share of the mode's time"
    note = (
        f"Left of {ridge} bandwidth limits, right of it compute. Each class as one fused kernel; elementwise work "
        "stays under the device's vector rate."
    )
    return Panel("Roofline", chart(layers, label, height=330, title=title), used, note)


def _dots(budget: Record, mode: str) -> list[Spec]:
    rows = records(record_of(record_of(budget.get("intensity")).get(mode)), "by_op")
    total = sum(finite(row.get("seconds")) or 0.0 for row in rows)
    found = []
    for row in rows:
        x = finite(row.get("intensity"))
        if not x or x <= 0:
            continue
        weight = (finite(row.get("seconds")) or 0.0) / total if total else finite(row.get("bytes_share")) or 0.0
        flops, moved = (finite(row.get(key)) or 0.0 for key in ("flops_share", "bytes_share"))
        told = {"flops": f"{flops:.1%}", "moved": f"{moved:.1%}", "time": f"{weight:.1%}" if total else NONE}
        names = {"op": words(text(row, "op")), "group": text(row, "group"), "bound": text(row, "bound")}
        found.append({"x": x, "mode": mode, "weight": weight, "shown": significant(x), **names, **told})
    return found


def _heaviest(dots: Iterable[Spec], mode: str) -> list[Spec]:
    """The operations that take most of a mode's time; no second one that its name would touch."""
    mine = sorted((d for d in dots if d["mode"] == mode), key=lambda d: -float(d["weight"]))
    far = [d for d in mine[1:2] if not 1 / _APART < d["x"] / mine[0]["x"] < _APART]
    return mine[:1] + far


def _label(**place: Any) -> Spec:
    return {"type": "text", "fill": INK, "fontSize": 11, **place}


def log_axis(name: str, ends: list[float], form: str = "") -> Spec:
    axis: Spec = {"values": log_ticks(*ends), "title": None} | ({"format": form} if form else {})
    scale = {"type": "log", "nice": False, "domain": ends}
    return {"field": name, "type": "quantitative", "scale": scale, "axis": axis, "title": None}


def _dot_layer(dots: Sequence[Spec], used: Sequence[Mark], x: Spec, y: Spec) -> Spec:
    weights = {"domain": [0, 1], "range": [30, 900]}
    told = tip(
        ("op", "operation"), ("mode", "mode"), ("shown", "FLOPs a byte"), ("flops", "of the FLOPs"),
        ("moved", "of the bytes"), ("time", "of the time"), ("bound", "limited by"),
    )  # fmt: skip
    return {
        "data": values(dots),
        "mark": {"type": "point", "filled": True, "opacity": 0.8},
        "encoding": {
            "x": x,
            "y": y,
            "color": told_apart("mode", used, "color"),
            "shape": told_apart("mode", used, "shape"),
            "size": {"field": "weight", "type": "quantitative", "legend": None, "scale": weights},
            "tooltip": told,
        },
    }  # fmt: skip


def _intensities(dots: Sequence[Spec], used: list[Mark]) -> Panel:
    ops = list(dict.fromkeys(dot["op"] for dot in dots))
    low, high = min(dot["x"] for dot in dots) / 1.5, max(dot["x"] for dot in dots) * 1.5
    y = rows_axis("op", ops, grid=True)
    label = f"FLOPs a byte of {len(ops)} operation classes in {', '.join(mark.text for mark in used)}."
    layer = _dot_layer(dots, used, log_axis("x", [low, high]), y)
    note = "Name a device with --hardware to see what limits each: its roofline, and lower bounds of time."
    return Panel(
        "Arithmetic intensity", chart([layer], label, height=26 * len(ops) + 40, title="FLOPs a byte"), used, note
    )


# --- parts of a whole


def bars(title: str, measures: str, parts: Mapping[str, Any], unit: str) -> Panel | None:
    """A bar a part, with its number and its share."""
    found = [(words(name), n) for name, value in parts.items() if (n := finite(value)) is not None and n > 0]
    total = sum(n for _, n in found)
    if not found:
        return None
    rows: list[Spec] = [{"name": name, "n": n, "said": f"{_short(n, unit)}  {n / total:.1%}"} for name, n in found]
    names = [row["name"] for row in rows]
    top = max(n for _, n in found)
    x = {"field": "n", "type": "quantitative", "axis": None, "scale": {"domain": [0, top * 1.75]}, "title": None}
    y = rows_axis("name", names)
    said = {"type": "text", "align": "left", "dx": 5, "fill": INK, "fontSize": 11}
    layers: list[Spec] = [
        {"data": values(rows), "mark": {"type": "bar", "fill": "var(--arm-1)"}, "encoding": {"x": x, "y": y}},
        {"data": values(rows), "mark": said, "encoding": {"x": x, "y": y, "text": {"field": "said"}}},
    ]
    label = f"{title}: " + ", ".join(f"{row['name']} {row['said']}" for row in rows) + "."
    return Panel(title, chart(layers, label, height=24 * len(rows) + 10, title=measures))


def _short(n: float, unit: str) -> str:
    return size(n) if unit == "bytes" else scaled(n, unit) if unit else compact(n)


def _stack(rows: list[Spec], marks: Sequence[Mark], axis: Spec, limit: float | None = None) -> list[Spec]:
    """Stacked bars: rows of row, part, low, high, told."""
    x: Spec = {"field": "low", "type": "quantitative", "axis": axis | {"title": None}, "title": None}
    x["scale"] = {"nice": False}
    y = rows_axis("row", list(dict.fromkeys(row["row"] for row in rows)))
    color, told = told_apart("part", marks, "color"), tip(("row", "of"), ("part", "part"), ("told", "amount"))
    layers: list[Spec] = [
        {
            "data": values(rows),
            "mark": {"type": "bar", "stroke": "var(--ground)", "strokeWidth": 1, "height": 22},
            "encoding": {"x": x, "x2": {"field": "high"}, "y": y, "color": color, "tooltip": told},
        }
    ]
    if limit:
        rule = {"type": "rule", "stroke": FAIL, "strokeWidth": 2, "strokeDash": [5, 3]}
        layers.append({"data": values([{"at": limit}]), "mark": rule, "encoding": {"x": {**x, "field": "at"}}})
    return layers


def _stacked(row: str, parts: Sequence[tuple[str, float]], say: Any) -> list[Spec]:
    low, out = 0.0, []
    for name, n in parts:
        out.append({"row": row, "part": name, "low": low, "high": low + n, "told": say(n)})
        low += n
    return out


# what is held: its keys in the ledgers, and its colour
_HELD = (
    (Mark("weights", 1), ("weights_bytes", "gathered_bytes")),
    (Mark("gradients", 5), ("gradients_bytes",)),
    (Mark("master copy", 2), ("master_bytes",)),
    (Mark("optimizer", 3), ("optimizer_bytes",)),
    (Mark("activations", 4), ("activations_bytes", "prefill_working_bytes")),
    (Mark("cache", 0), ("cache_bytes",)),
)


def memory_panel(budget: Record) -> Panel | None:
    """What one device holds in training and in serving, against what it has."""
    memory, hardware = record_of(budget.get("memory")), record_of(budget.get("hardware"))
    rows: list[Spec] = []
    for row, holder in (("training", "train"), ("serving", "inference")):
        held = record_of(memory.get(holder))
        sums = [(mark.text, sum(finite(held.get(key)) or 0.0 for key in keys) / GIB) for mark, keys in _HELD]
        rows += _stacked(row, [(name, n) for name, n in sums if n], lambda n: f"{n:,.2f} GiB")
    if not rows:
        return None
    marks = [mark for mark, _ in _HELD if any(row["part"] == mark.text for row in rows)]
    has = finite(hardware.get("memory_bytes"))
    layers = _stack(rows, marks, {"tickCount": 6}, None if has is None else has / GIB)
    label = "Memory of one device: " + "; ".join(f"{r['row']} {r['part']} {r['told']}" for r in rows) + "."
    note = "Name a device with --hardware to see what it has."
    if has:
        note = f"Dashed: the {has / GIB:.1f} GiB of {text(hardware, 'name')}."
    return Panel("Memory of one device", chart(layers, label, height=112, title="GiB"), marks, note)


def share_panel(budget: Record) -> Panel | None:
    """By group: what the FLOPs are spent on, and what the bytes."""
    rows: list[Spec] = []
    for mark in MODES:
        groups = record_of(record_of(record_of(budget.get("intensity")).get(mark.text)).get("by_group"))
        for key, name in (("flops_share", "FLOPs"), ("bytes_share", "bytes")):
            parts = [(g.text, finite(record_of(groups.get(g.text)).get(key)) or 0.0) for g in GROUPS]
            if any(n for _, n in parts):
                rows += _stacked(f"{mark.text}, {name}", parts, lambda n: f"{n:.2%}")
    if not rows:
        return None
    layers = _stack(rows, GROUPS, {"format": "%", "tickCount": 5})
    label = "Shares of FLOPs and of bytes: " + "; ".join(f"{r['row']}: {r['part']} {r['told']}" for r in rows) + "."
    note = "Norms and elementwise work are next to no FLOPs and much of the traffic (Ivanov et al. 2020)."
    drawn = chart(layers, label, height=30 * len({row["row"] for row in rows}) + 30, title="share of the mode")
    return Panel("FLOPs against bytes", drawn, list(GROUPS), note)
