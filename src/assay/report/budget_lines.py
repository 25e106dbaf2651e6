"""Two more pictures of a budget: the cache by length, and tokens a parameter beside real models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.report.budget_charts import GIB, log_axis, told_apart
from assay.report.charts import INK_2, Spec, chart, tip, values
from assay.report.numbers import count, finite, size
from assay.report.panels import Mark, Panel, compact
from assay.report.records import SHAPES, Record, record_of, text

_COLORS = (1, 4, 2, 3, 5)


def cache_panel(cache_at: Any, batch: Any) -> Panel | None:
    """The cache by length, a line a kind of layer."""
    found = _cache_rows(cache_at if isinstance(cache_at, list | tuple) else ())
    kinds = list(dict.fromkeys(row["kind"] for row in found))[: len(_COLORS)]
    rows = [row for row in found if row["kind"] in kinds]
    if not rows:
        return None
    marks = [Mark(kind, _COLORS[i], SHAPES[i]) for i, kind in enumerate(kinds)]
    ends = [min(row["length"] for row in rows) / 1.1, max(row["length"] for row in rows) * 1.1]
    lengths = sorted({row["length"] for row in rows}, reverse=True)
    binary = "datum.value >= 1024 ? format(datum.value / 1024, '~r') + 'Ki' : datum.value"
    x = _log_x("length", ends, {"values": lengths[:: -(-len(lengths) // 6)], "labelExpr": binary})
    y = log_axis("bytes", [min(row["bytes"] for row in rows) / 1.3, max(row["bytes"] for row in rows) * 1.3])
    color, shape = told_apart("kind", marks, "color"), told_apart("kind", marks, "shape")
    told = tip(("kind", "layers"), ("length", "tokens"), ("told", "cache"))
    dot = {"type": "point", "filled": True, "size": 36, "opacity": 1}
    place = {"x": x, "y": y, "color": color}
    layers: list[Spec] = [
        {"data": values(rows), "mark": {"type": "line", "strokeWidth": 1.8}, "encoding": place},
        {"data": values(rows), "mark": dot, "encoding": {**place, "shape": shape, "tooltip": told}},
    ]
    label = f"Cache by length for {', '.join(kinds)}: from {rows[0]['told']} to {rows[-1]['told']}."
    title = f"GiB for {count(batch)} sequence{'s' if finite(batch) != 1 else ''}, by tokens"
    return Panel("Cache by length", chart(layers, label, height=210, title=title), marks)


def _cache_rows(cache_at: Sequence[Any]) -> list[Spec]:
    rows: list[Spec] = []
    for pair in cache_at:
        if isinstance(pair, list | tuple) and len(pair) == 2 and finite(pair[0]):
            for name, held in record_of(pair[1]).items():
                if n := finite(held):
                    rows.append({"length": pair[0], "bytes": n / GIB, "kind": name, "told": size(n)})
    return rows


def _log_x(name: str, ends: list[float], axis: Spec) -> Spec:
    scale = {"type": "log", "nice": False, "domain": ends}
    return {"field": name, "type": "quantitative", "scale": scale, "axis": axis | {"grid": False, "title": None}}


def tokens_panel(budget: Record, models: Sequence[Record]) -> Panel | None:
    """Tokens a parameter of real models; this recipe among them where tokens are given."""
    rows = [row for m in models if (row := _token_row(m)) is not None]
    scaling = record_of(budget.get("scaling"))
    mine, asked = finite(scaling.get("params")), finite(scaling.get("tokens_per_param"))
    if not rows or not mine:
        return None
    marks = [Mark("real model", 1, SHAPES[0])]
    if asked:
        marks.append(Mark("this run", 4, SHAPES[2]))
        said = {"name": text(budget, "name"), "kind": "this run", "told": f"{asked:,.0f}", "area": 160}
        rows.append({"x": mine, "y": asked, **said})
    xs, ys = [mine, *(row["x"] for row in rows)], [10.0, 40.0, *(row["y"] for row in rows)]
    sizes = {"format": "~s", "labelExpr": "replace(datum.label, 'G', 'B')", "tickCount": 5}
    x = _log_x("x", [min(xs) / 1.4, max(xs) * 1.4], sizes)
    y = log_axis("y", [min(ys) / 1.4, max(ys) * 1.5], "~s")
    dots = {
        "x": x,
        "y": y,
        "color": told_apart("kind", marks, "color"),
        "shape": told_apart("kind", marks, "shape"),
        "size": {"field": "area", "type": "quantitative", "scale": None, "legend": None},
        "tooltip": tip(("name", "model"), ("told", "tokens a parameter")),
    }
    layers = [*_marks_of(mine, x, y)]
    layers.append({"data": values(rows), "mark": {"type": "point", "filled": True, "opacity": 0.8}, "encoding": dots})
    label = f"Tokens a parameter of {len(rows)} models against their parameters; this recipe has {compact(mine)}."
    note = "Upright: this recipe. Released models train far past the optimum of training compute, to be cheap to serve."
    return Panel("Tokens a parameter", chart(layers, label, height=210, title="by parameters"), marks, note)


def _token_row(m: Record) -> Spec | None:
    n, tokens = finite(m.get("params")), finite(m.get("tokens"))
    if not n or not tokens:
        return None
    told = f"{tokens / n:,.0f}"
    return {"x": n, "y": tokens / n, "name": text(m, "name"), "kind": "real model", "told": told, "area": 46}


def _marks_of(mine: float, x: Spec, y: Spec) -> list[Spec]:
    """Chinchilla's line, and this recipe's upright one."""
    rule = {"type": "rule", "stroke": INK_2, "strokeDash": [4, 3]}
    words = {"type": "text", "align": "left", "baseline": "bottom", "x": 4, "dy": -2, "fill": INK_2}
    at = values([{"y": 20, "x": mine, "said": "20 (Chinchilla)"}])
    return [
        {"data": at, "mark": rule, "encoding": {"y": y}},
        {"data": at, "mark": words, "encoding": {"y": y, "text": {"field": "said"}}},
        {"data": at, "mark": {**rule, "stroke": "var(--arm-4)"}, "encoding": {"x": x}},
    ]
