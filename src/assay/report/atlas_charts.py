"""The pictures of the atlas: what each year's models chose, and where their shapes lie.

Colour, shape and order mean the same everywhere; no two of them lean on red against green.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.report.charts import INK, INK_2, Chart, Spec, chart, log_ticks, tip, values
from assay.report.numbers import finite, listed
from assay.report.panels import Mark, Panel, compact
from assay.report.records import SHAPES, Record, record_of, text

GLU = {"silu": "SwiGLU", "gelu_tanh": "GeGLU", "gelu": "GeGLU", "relu": "ReGLU"}
OTHER = "other"
_MODELS = "models that year"
_SHORT_YEAR = '"\'" + slice(datum.label, 2)'


# --- what each year's models chose


def heat_chart(timeline: Record) -> Chart | None:
    """Every choice by year: the share of the year's models as depth of colour, written in the field."""
    columns = [str(c) for c in timeline.get("columns", ())]
    rows = [row for row in timeline.get("rows", ()) if isinstance(row, list) and len(row) == len(columns)]
    years = [row for row in rows if finite(record_of(row[0]).get("value")) is not None]
    choices = columns[2:]
    if not years or not choices:
        return None
    cells = _heat_cells(years, choices)
    names = [_MODELS, *_by_last_share(years, choices)]
    y_axis = {"labelColor": INK, "labelLimit": 130, "domain": False, "ticks": False, "grid": False}
    y = {"field": "choice", "type": "ordinal", "sort": names, "title": None, "axis": y_axis}
    x_axis = {"labelAngle": 0, "labelExpr": _SHORT_YEAR, "orient": "top", **y_axis}
    x = {"field": "year", "type": "ordinal", "title": None, "axis": x_axis}
    depths = {"domain": [0, 1], "range": [0.03, 0.62]}
    depth = {"field": "share", "type": "quantitative", "legend": None, "scale": depths}
    known = [cell for cell in cells if cell["share"] is not None]
    told = tip(("choice", "choice"), ("year", "year"), ("told", "share"))
    inks = [INK, INK_2]
    ink_scale: Spec = {"field": "ink", "type": "nominal", "scale": {"domain": inks, "range": inks}, "legend": None}
    layers: list[Spec] = [
        {
            "data": values(known),
            "mark": {"type": "rect", "fill": "var(--arm-1)", "stroke": "var(--ground)", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "fillOpacity": depth, "tooltip": told},
        },
        {
            "data": values(cells),
            "mark": {"type": "text", "fontSize": 11},
            "encoding": {"x": x, "y": y, "text": {"field": "said"}, "color": ink_scale, "tooltip": told},
        },
    ]
    label = f"Share of each year's models that make each of {len(choices)} choices; the table beneath has the numbers."
    title = "Share of a year's models that make the choice, in percent"
    return chart(layers, label, height=23 * len(names) + 24, title=title)


def _heat_cells(years: Sequence[Sequence[Record]], choices: Sequence[str]) -> list[Spec]:
    cells: list[Spec] = []
    for row in years:
        year, models = text(row[0], "text"), text(row[1], "text")
        cells.append(
            {"year": year, "choice": _MODELS, "share": None, "said": models, "told": models, "ink": INK_2}
        )  # fmt: skip
        for choice, cell in zip(choices, row[2:], strict=True):
            share = finite(cell.get("value"))
            said = "·" if share is None else f"{100 * share:.0f}"
            told = "not known" if share is None else text(cell, "text")
            ink = INK if share else INK_2
            cells.append({"year": year, "choice": choice, "share": share, "said": said, "told": told, "ink": ink})
    return cells


def _by_last_share(years: Sequence[Sequence[Record]], choices: Sequence[str]) -> list[str]:
    """What nearly everybody does first; by the last two years that say."""

    def share(index: int) -> float:
        found = [finite(row[index + 2].get("value")) for row in years]
        last = [value for value in found if value is not None][-2:]
        return sum(last) / len(last) if last else 0.0

    return sorted(choices, key=lambda choice: -share(choices.index(choice)))


def _ffn(model: Record) -> str | None:
    word = model.get("activation")
    if word is None:
        return None
    return GLU.get(word, f"gated {word}") if model.get("gated") else f"{str(word).removesuffix('_tanh')}, no gate"


def _norm(model: Record) -> str | None:
    word = model.get("norm_kind")
    return None if word is None else "RMSNorm" if word == "rmsnorm" else "LayerNorm"


def _kind(model: Record) -> str:
    kind = text(model, "kind")
    return "hybrid" if kind.startswith("hybrid") else {"moe": "experts"}.get(kind, kind)


_ATTENTION = {"mha": "multi-head", "gqa": "grouped-query", "mqa": "multi-query", "mqa-shared-kv": "multi-query"}
_POSITION = {"rope": "RoPE", "alibi": "ALiBi"}
AXES: tuple[tuple[str, Callable[[Record], Any]], ...] = (
    ("Kind of norm", _norm),
    ("Place of the norms", lambda m: m.get("norm_placement")),
    ("Feed-forward part", _ffn),
    ("Positions", lambda m: None if m.get("position") is None else _POSITION.get(m["position"], m["position"])),
    ("Attention", lambda m: _ATTENTION.get(text(m, "attention"), text(m, "attention").upper() or None)),
    ("Kind of model", _kind),
)


def year_panels(models: Iterable[Record]) -> list[Panel]:
    """For each axis of choice, the shares of the year's decoders as a stacked bar a year."""
    dated = [m for m in models if finite(m.get("year")) is not None and not text(m, "kind").startswith("encoder")]
    return [panel for title, read in AXES if (panel := _year_panel(title, read, dated)) is not None]


def _year_panel(title: str, read: Callable[[Record], Any], models: Sequence[Record]) -> Panel | None:
    found = [(int(m["year"]), str(read(m)), text(m, "id")) for m in models if read(m) is not None]
    if not found:
        return None
    counts = Counter(value for _, value, _ in found)
    top = [value for value, _ in counts.most_common(5)]
    names = top if len(counts) <= len(top) else [*top, OTHER]
    rows: list[Spec] = []
    years = sorted({year for year, _, _ in found})
    for year in years:
        then = [(value if value in top else OTHER, who) for when, value, who in found if when == year]
        low = 0.0
        for name in names:
            who = [w for value, w in then if value == name]
            high = low + len(who) / len(then)
            if who:
                told = f"{len(who)} of {len(then)}"
                place = {"year": str(year), "choice": name, "low": low, "high": high}
                rows.append(place | {"told": told, "who": _some(who)})
            low = high
    marks = [Mark(name, _index(i, name)) for i, name in enumerate(names)]
    scale = {"domain": [m.text for m in marks], "range": [m.color for m in marks]}
    axis = {"format": "%", "tickCount": 4, "title": None, "grid": False}
    y = {"field": "low", "type": "quantitative", "scale": {"domain": [0, 1]}, "axis": axis, "title": None}
    ages = {"labelAngle": 0, "labelExpr": _SHORT_YEAR, "grid": False}
    x = {"field": "year", "type": "ordinal", "title": None, "axis": ages, "scale": {"paddingInner": 0.12}}
    layer: Spec = {
        "data": values(rows),
        "mark": {"type": "bar", "stroke": "var(--ground)", "strokeWidth": 1},
        "encoding": {
            "x": x, "y": y, "y2": {"field": "high"}, "color": {"field": "choice", "type": "nominal", "scale": scale},
            "tooltip": tip(("year", "year"), ("choice", title.lower()), ("told", "models"), ("who", "which")),
        },
    }  # fmt: skip
    ends = [(name, counts[name]) for name in top[:3]]
    said = listed([f"{name} {n} of {len(found)}" for name, n in ends])
    label = f"{title} by year, {years[0]} to {years[-1]}, as shares of each year's models. Over all years: {said}."
    return Panel(title, chart([layer], label, height=170, title=""), marks)


def _index(i: int, name: str) -> int:
    """Blue, orange, green, pink, light blue; grey for the rest."""
    return 0 if name == OTHER else (1, 4, 2, 3, 5)[i]


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")


# --- shapes

KINDS = (Mark("dense", 1, SHAPES[0]), Mark("experts", 4, SHAPES[1]), Mark("hybrid", 2, SHAPES[2]))
GATES = (Mark("gated", 1, SHAPES[0]), Mark("no gate", 4, SHAPES[3]))
TIES = (Mark("tied", 1, SHAPES[0]), Mark("two tables", 4, SHAPES[1]), Mark("not known", 0, SHAPES[5]))


@dataclass(frozen=True)
class Scatter:
    """One picture of shapes: what stands on each axis, and what the dots are told apart by."""

    title: str
    measures: str
    read: Callable[[Record], Any]
    group: Callable[[Record], str]
    marks: tuple[Mark, ...]
    rule: str = ""  # the id of the rule whose band is drawn
    across: Callable[[Record], Any] | None = None  # x; the date where None
    lines: tuple[tuple[float, str], ...] = ()
    note: str = ""


def _ratio(key: str) -> Callable[[Record], Any]:
    return lambda m: record_of(m.get("ratios")).get(key)


def _dense_ffn(m: Record) -> Any:
    return None if text(m, "kind") not in ("dense", "hybrid-dense") else _ratio("ffn")(m)


def _tie(m: Record) -> str:
    return {True: "tied", False: "two tables"}.get(m.get("tied_embeddings"), "not known")  # type: ignore[arg-type]


SCATTERS = (
    Scatter(
        "Width against depth", "d_model / layers, by date", _ratio("aspect"), _kind, KINDS, "aspect-ratio",
        note="Band: what is usual. Kaplan et al. 2020 found a shallow minimum near 100.",
    ),
    Scatter(
        "Width of the feed-forward part", "d_ff / d_model per matrix, dense models, by date", _dense_ffn,
        lambda m: "gated" if m.get("gated") else "no gate", GATES, lines=((4.0, "4"), (8 / 3, "8/3")),
        note="8/3 gives a gated part (three matrices) the parameters of an ungated one at 4.",
    ),
    Scatter(
        "Vocabulary against size", "rows of the token table, by parameters", lambda m: m.get("vocab_size"), _tie, TIES,
        across=lambda m: record_of(m.get("params")).get("total"),
        note="Small models with large vocabularies tie their two tables.",
    ),
    Scatter(
        "Context as shipped", "tokens, by date", lambda m: m.get("context_length"), _kind, KINDS,
        note="What the released configuration allows, which pretraining seldom saw.",
    ),
)  # fmt: skip


def scatter_panels(models: Iterable[Record], rules: Iterable[Record]) -> list[Panel]:
    """Where the shapes of real models lie, a dot a model."""
    found, bands = list(models), {text(rule, "id"): record_of(rule.get("band")) for rule in rules}
    return [panel for spec in SCATTERS if (panel := _scatter(spec, found, bands.get(spec.rule, {}))) is not None]


def _scatter(spec: Scatter, models: Sequence[Record], band: Mapping[str, Any]) -> Panel | None:
    rows = [row for m in models if (row := _dot(spec, m)) is not None]
    if not rows:
        return None
    used = [mark for mark in spec.marks if any(row["group"] == mark.text for row in rows)]
    x, y = _axes(spec, rows)
    names = [mark.text for mark in used]
    group = {"field": "group", "type": "nominal", "legend": None}
    dots: Spec = {
        "data": values(rows),
        "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.8, "cursor": "pointer"},
        "encoding": {
            "x": x,
            "y": y,
            "color": group | {"scale": {"domain": names, "range": [mark.color for mark in used]}},
            "shape": group | {"scale": {"domain": names, "range": [mark.shape for mark in used]}},
            "tooltip": tip(("name", "model"), ("shown", spec.title.lower()), ("size", "parameters"), ("date", "date")),
        },
    }
    layers = [*_band_layers(band, y), *_line_layers(spec.lines, y), dots]
    ends = f"from {compact(min(row['y'] for row in rows))} to {compact(max(row['y'] for row in rows))}"
    label = f"{spec.title}: {spec.measures}; {len(rows)} models, {ends}. A dot opens its model."
    return Panel(spec.title, chart(layers, label, height=230, title=spec.measures), used, spec.note)


def _dot(spec: Scatter, m: Record) -> Spec | None:
    x, y = _when(m) if spec.across is None else finite(spec.across(m)), finite(spec.read(m))
    group = spec.group(m)
    if x is None or y is None or y <= 0 or x <= 0 or group not in {mark.text for mark in spec.marks}:
        return None
    return {
        "x": x,
        "y": y,
        "group": group,
        "id": text(m, "id"),
        "name": text(m, "name"),
        "shown": f"{y:,.0f}" if y >= 1000 else f"{y:.3g}",
        "date": text(m, "date"),
        "size": compact(record_of(m.get("params")).get("total")),
    }


def _axes(spec: Scatter, rows: Sequence[Spec]) -> tuple[Spec, Spec]:
    low, high = min(row["y"] for row in rows), max(row["y"] for row in rows)
    ends = [low / 1.15, high * 1.15]
    amounts: Spec = {"title": None, "values": log_ticks(*ends)} | ({"format": "~s"} if high >= 1000 else {})
    log = {"type": "log", "nice": False, "domain": ends}
    y = {"field": "y", "type": "quantitative", "scale": log, "axis": amounts, "title": None}
    if spec.across is None:
        axis: Spec = {"format": "d", "tickMinStep": 1}
        scale: Spec = {"zero": False, "nice": False, "padding": 8}
    else:
        axis = {"format": "~s", "labelExpr": "replace(datum.label, 'G', 'B')", "tickCount": 5}
        scale = {"type": "log", "nice": False, "padding": 8}
    place = {"scale": scale, "axis": axis | {"grid": False, "title": None}, "title": None}
    return {"field": "x", "type": "quantitative", **place}, y


def _band_layers(band: Mapping[str, Any], y: Spec) -> list[Spec]:
    low, high = finite(band.get("low")), finite(band.get("high"))
    if low is None or high is None:
        return []
    place = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    mark = {"type": "rect", "fill": "var(--band)", "clip": True}
    return [{"data": values([{"low": low, "high": high}]), "mark": mark, "encoding": place}]


def _line_layers(lines: Iterable[tuple[float, str]], y: Spec) -> list[Spec]:
    rows = [{"at": at, "said": said} for at, said in lines]
    if not rows:
        return []
    place = {"y": {**y, "field": "at"}}
    words = {"type": "text", "align": "left", "baseline": "bottom", "x": 3, "dy": -2, "fill": INK_2}
    return [
        {"data": values(rows), "mark": {"type": "rule", "stroke": INK_2, "strokeDash": [4, 3]}, "encoding": place},
        {"data": values(rows), "mark": words, "encoding": {**place, "text": {"field": "said"}}},
    ]


def _when(model: Record) -> float | None:
    """A date as years with a fraction; the middle of a year whose month is not known."""
    year, _, month = text(model, "date").partition("-")
    if not year.isdigit():
        return None
    return int(year) + ((int(month[:2]) - 0.5) / 12 if month[:2].isdigit() else 0.5)
