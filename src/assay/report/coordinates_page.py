"""A coordinate check as one page: how far the logits move at each width, update by update, and the stream by depth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.report.budget_charts import log_axis, told_apart
from assay.report.charts import Figure, Spec, chart, tip, values
from assay.report.numbers import count, finite, significant
from assay.report.page import render, write_page
from assay.report.panels import Mark, Panel, compact
from assay.report.records import SHAPES, Record, jsonable, record_of, records, text
from assay.report.tables import Cell, Table, head, num

_COLORS = (1, 4, 2, 3, 5)


def coordinates_page(record: Record) -> str:
    """The page of a check: ``recipe``, ``checks`` as ``assay coord-check --json`` prints them, and ``command``."""
    return render("coordinates.html.j2", _context(record_of(jsonable(record))), styles=("panels.css",))


def write_coordinates_page(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write that page; whoever reads ``path`` sees the old file or the whole new one."""
    return write_page(path, coordinates_page(record))


_NAMES = {"standard": "Standard parametrisation", "mup": "muP", "completep": "CompleteP"}


def _context(record: Record) -> dict[str, Any]:
    checks = [check for check in records(record, "checks") if records(check, "rows")]
    logits = [panel for check in checks if (panel := _logits_panel(check, _range(checks, "logits")))]
    streams = [panel for check in checks if (panel := _stream_panel(check, _range(checks, "residual")))]
    recipe = text(record, "recipe", "a recipe")
    return {
        "title": f"Does {recipe} learn alike at every width?",
        "setting": _setting(checks),
        "tiles": [(_name(check), significant(check.get("ratio")), _base(check)) for check in checks],
        "rows": [("The logits, by width", logits), ("The residual stream, by depth", streams)],
        "figures": [Figure("", [panel.chart], "") for panel in (*logits, *streams)],
        "table": _table(checks),
        "command": text(record, "command"),
    }


def _name(check: Record) -> str:
    kind = text(check, "parametrization")
    return _NAMES.get(kind, kind)


def _base(check: Record) -> str:
    widths = [count(row.get("width")) for row in records(check, "rows")]
    ends = f"width {widths[-1]} over width {widths[0]}"
    return ends if text(check, "parametrization") == "standard" else f"{ends}; base {count(check.get('base_width'))}"


def _setting(checks: Sequence[Record]) -> str:
    if not checks:
        return ""
    steps = len(_numbers(records(checks[0], "rows")[0], "logits"))
    seeds = finite(checks[0].get("seeds")) or 1
    lr, plural = finite(checks[0].get("lr")), "s" if seeds != 1 else ""
    at = "" if lr is None else f" at learning rate {lr:g}"
    return f"{steps} updates{at}, {count(seeds)} seed{plural} a width"


def _numbers(row: Record, key: str) -> list[float]:
    """The positive numbers of a list, up to the first that is none: a run that was lost has no later ones."""
    out: list[float] = []
    found = row.get(key)
    for value in found if isinstance(found, list | tuple) else ():
        number = finite(value)
        if number is None or number <= 0:
            break
        out.append(number)
    return out


def _range(checks: Sequence[Record], key: str) -> list[float]:
    """One axis for all of a row of charts."""
    found = [n for check in checks for row in records(check, "rows") for n in _numbers(row, key)]
    return [min(found) / 1.3, max(found) * 1.3] if found else [0.1, 1.0]


def _some(items: Sequence[int]) -> list[int]:
    """At most as many as there are colours, the last among them."""
    step = max(1, -(-len(items) // len(_COLORS)))
    return list(items[::-1][::step][::-1])


def _logits_panel(check: Record, ends: list[float]) -> Panel | None:
    rows = records(check, "rows")
    steps = _some(range(1, 1 + max(len(_numbers(row, "logits")) for row in rows)))
    marks = [Mark(f"update {step}", _COLORS[i], SHAPES[i]) for i, step in enumerate(steps)]
    data: list[Spec] = []
    for row in rows:
        moved, width = _numbers(row, "logits"), finite(row.get("width"))
        data += [
            {"x": width, "y": moved[step - 1], "kind": f"update {step}", "told": significant(moved[step - 1])}
            for step in steps
            if width and len(moved) >= step
        ]
    if not data:
        return None
    widths = sorted({row["x"] for row in data})
    scale = {"type": "log", "nice": False, "domain": [widths[0] / 1.1, widths[-1] * 1.1]}
    axis = {"values": widths, "grid": False, "format": "d", "title": None}
    x = {"field": "x", "type": "quantitative", "scale": scale, "axis": axis}
    label = f"{_name(check)}: the logits' change by width, {significant(check.get('ratio'))} from end to end."
    told = tip(("kind", "after"), ("x", "width"), ("told", "change"))
    return _panel(_name(check), data, marks, x, ends, told, label, "RMS change of the logits, by d_model")


def _stream_panel(check: Record, ends: list[float]) -> Panel | None:
    rows = [row for row in records(check, "rows") if finite(row.get("width"))]
    rows = [rows[i] for i in _some(range(len(rows)))]
    marks = [Mark(f"width {count(row.get('width'))}", _COLORS[i], SHAPES[i]) for i, row in enumerate(rows)]
    data: list[Spec] = []
    for mark, row in zip(marks, rows, strict=True):
        moved = enumerate(_numbers(row, "residual"))
        data += [{"x": layer, "y": n, "kind": mark.text, "told": significant(n)} for layer, n in moved]
    if not data:
        return None
    layers = sorted({row["x"] for row in data})
    axis = {"values": layers[:: -(-len(layers) // 12)], "grid": False, "format": "d", "title": None}
    scale = {"domain": [-0.3, layers[-1] + 0.3], "nice": False, "zero": False}
    x = {"field": "x", "type": "quantitative", "scale": scale, "axis": axis}
    label = f"{_name(check)}: the stream's change after each layer, a line a width."
    told = tip(("kind", "width"), ("x", "layer"), ("told", "change"))
    return _panel(_name(check), data, marks, x, ends, told, label, "RMS change of the stream after each layer")


def _panel(
    name: str,
    data: list[Spec],
    marks: list[Mark],
    x: Spec,
    ends: list[float],
    told: list[Spec],
    label: str,
    measures: str,
) -> Panel:
    place = {"x": x, "y": log_axis("y", ends, "~g"), "color": told_apart("kind", marks, "color")}
    dot = {"type": "point", "filled": True, "size": 40, "opacity": 1}
    shaped = {**place, "shape": told_apart("kind", marks, "shape"), "tooltip": told}
    layers: list[Spec] = [
        {"data": values(data), "mark": {"type": "line", "strokeWidth": 1.8}, "encoding": place},
        {"data": values(data), "mark": dot, "encoding": shaped},
    ]
    return Panel(name, chart(layers, label, height=230, title=measures), marks)


def _table(checks: Sequence[Record]) -> Table:
    columns = [Cell(name) for name in ("parametrisation", "width", "parameters", "logits", "sd", "stream")]
    rows = []
    for check in checks:
        for row in records(check, "rows"):
            logits, stream = _numbers(row, "logits"), _numbers(row, "residual")
            ends = (logits[-1] if logits else None, row.get("logits_sd"), stream[-1] if stream else None)
            width, params = row.get("width"), row.get("params")
            cells = [head(_name(check)), num(count(width), width), num(compact(params), params)]
            rows.append([*cells, *(num(significant(n), n) for n in ends)])
    return Table(columns, rows, sortable=True)
