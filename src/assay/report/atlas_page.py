"""The atlas as one page: every model to filter, what converged and what diverged, the tables, the texts' errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.report.atlas_charts import heat_chart, scatter_panels, year_panels
from assay.report.atlas_models import COLUMNS, Sources, choices, model_data, model_ids, model_rows
from assay.report.charts import Chart, Figure
from assay.report.numbers import count, finite, listed
from assay.report.page import data_script, render, write_page
from assay.report.records import Record, jsonable, record_of, records, text, texts

# the tables by what they answer; a table that is named nowhere stands under the last
CHAPTERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "How many make each choice",
        ("timeline", "census-norm", "census-activation", "census-position", "census-attention", "census-head-dim",
         "census-kind", "census-vocabulary"),
    ),
    (
        "Who uses it",
        ("users-qk-norm", "users-z-loss", "users-soft-cap", "users-parallel", "users-windows", "users-nope",
         "users-bias"),
    ),
    (
        "Shapes and ratios",
        ("dense-shapes", "flagships", "ffn-ratio", "attention-ratio", "aspect-ratio", "vocabulary", "parameters",
         "active-parameters"),
    ),
    ("Training", ("decay-and-dropout", "regularisation", "z-loss")),
    (
        "What studies found",
        ("evidence", "data-movement", "narang-norms", "narang-activations", "shazeer-glu", "multi-query",
         "grouped-query"),
    ),
    ("Sources and recipes", ("disagreements", "recipes")),
)  # fmt: skip
_ELSEWHERE = ("models", "ratios", "corrections")  # they are sections of their own
_MANY = 12  # ids of a cell that stand open


@dataclass(frozen=True)
class TableCell:
    """One cell: its text or the models that it names, its sources by number, the number of its note."""

    text: str
    links: list[str]
    sources: str
    note: int
    sort: str  # a number to sort by, where it is one

    @property
    def many(self) -> bool:
        return len(self.links) > _MANY


@dataclass(frozen=True)
class TableView:
    """A table as the template draws it."""

    id: str
    title: str
    columns: list[tuple[str, bool]]  # the heading, and whether it is a column of numbers
    rows: list[list[TableCell]]
    notes: list[str]
    remarks: list[str]
    sources: list[str]


def atlas_page(record: Record) -> str:
    """The page of the atlas.

    ``record`` is plain: ``models`` (facts as published, ``ratios``, ``source``, ``disagreements``; ``facts`` are what
    a model opens to: ``[[title, "arch" | "count" | "training", [[name, text], ...]], ...]``), ``tables`` by name,
    ``rules``, ``texts``. Any field may be missing. The same record gives the same text.
    """
    return render(
        "atlas.html.j2",
        _context(record_of(jsonable(record))),
        scripts=("atlas.js",),
        styles=("panels.css", "atlas.css"),
    )


def write_atlas_page(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write the page of the atlas; whoever reads ``path`` sees the old file or the whole new one."""
    return write_page(path, atlas_page(record))


def _context(record: Record) -> dict[str, Any]:
    models, tables = records(record, "models"), record_of(record.get("tables"))
    sources, ids = Sources(), model_ids(models)
    timeline = record_of(tables.get("timeline"))
    heat = heat_chart(timeline)
    years = year_panels(models)
    scatters = scatter_panels(models, records(record, "rules"))
    charts: list[Chart] = [*([heat] if heat else []), *(panel.chart for panel in (*years, *scatters))]
    data = model_data(models, sources)
    chapters = _chapters(tables, ids, sources)
    return {
        "title": "Atlas of language models",
        "facts": _facts(models, tables),
        "story": _story(timeline),
        "heat": heat,
        "years": years,
        "scatters": scatters,
        "figures": [Figure("", [chart], "") for chart in charts],
        "columns": COLUMNS,
        "rows": model_rows(models),
        "choices": choices(models),
        "chapters": chapters,
        "corrections": _corrections(record_of(tables.get("corrections")), ids),
        "texts": sorted(record_of(record.get("texts")).items()),
        "data": data_script(data),
    }


def _facts(models: Sequence[Record], tables: Record) -> list[tuple[str, str]]:
    dates = sorted(year for m in models if (year := finite(m.get("year"))) is not None)
    exact = sum(text(record_of(m.get("params")), "precision") == "exact" for m in models)
    disputes = sum(len(texts(m, "disagreements")) for m in models)
    wrong = len(_rows(tables, "corrections"))
    found = [
        ("models", count(len(models))),
        ("years", f"{dates[0]:.0f} to {dates[-1]:.0f}" if dates else ""),
        ("families", count(len({text(m, "family") for m in models}))),
        ("exact parameter counts", count(exact)),
        ("with a recipe", count(sum(not texts(m, "recipe_reasons") for m in models))),
        ("disagreements of sources", count(disputes)),
        ("errors of texts put right", count(wrong)),
    ]
    return [(name, value) for name, value in found if value and models]


def _rows(tables: Record, name: str) -> list[Any]:
    """The rows of a table of the record."""
    rows = record_of(tables.get(name)).get("rows")
    return list(rows) if isinstance(rows, list) else []


def _story(timeline: Record) -> list[tuple[str, str]]:
    """What converged, what is open, what rose and what was left: by the years with ten models or more."""
    columns = texts(timeline, "columns")
    rows = [row for row in timeline.get("rows", ()) if isinstance(row, list) and len(row) == len(columns) > 2]
    years = [row for row in rows if finite(record_of(row[0]).get("value")) is not None]
    full = [row for row in years if (finite(row[1].get("value")) or 0) >= 10]
    if len(full) < 2:
        return []
    first, last = full[0], full[-1]
    then, now = text(first[0], "text"), text(last[0], "text")
    common, open_, rose, left = [], [], [], []
    for name, old, new in zip(columns[2:], first[2:], last[2:], strict=True):
        before, after = finite(old.get("value")), finite(new.get("value"))
        if after is None:
            continue
        if after >= 0.8:
            common.append(f"{name} {after:.0%}")
        elif after >= 0.15:
            open_.append(f"{name} {after:.0%}")
        if before is not None and after - before >= 0.3:
            rose.append(f"{name} {before:.0%} to {after:.0%}")
        if before is not None and before - after >= 0.2:
            left.append(f"{name} {before:.0%} to {after:.0%}")
    found = [
        (f"Converged by {now}", common),
        (f"Open in {now}", open_),
        (f"Risen since {then}", rose),
        (f"Fallen since {then}", left),
    ]
    return [(title, listed(words)) for title, words in found if words]


def _chapters(tables: Record, ids: frozenset[str], sources: Sources) -> list[tuple[str, list[TableView]]]:
    named = {name for _, names in CHAPTERS for name in names} | set(_ELSEWHERE)
    rest = tuple(name for name in tables if name not in named)
    chapters = [(title, names if i < len(CHAPTERS) - 1 else names + rest) for i, (title, names) in enumerate(CHAPTERS)]
    out = []
    for title, names in chapters:
        views = [_view(record_of(tables[name]), ids, sources) for name in names if name in tables]
        if views:
            out.append((title, views))
    return out


def _view(table: Record, ids: frozenset[str], sources: Sources) -> TableView:
    rows = [row for row in table.get("rows", ()) if isinstance(row, list)]
    notes = list(dict.fromkeys(text(record_of(c), "note") for row in rows for c in row if text(record_of(c), "note")))
    names = texts(table, "columns")
    cells = [[_cell(record_of(c), notes, ids, sources) for c in row] for row in rows]
    width = max([len(names), *map(len, cells)])
    return TableView(
        id=text(table, "id"),
        title=text(table, "title", text(table, "id")),
        columns=[(names[i] if i < len(names) else "", _numbers(cells, i)) for i in range(width)],
        rows=cells,
        notes=notes,
        remarks=texts(table, "notes"),
        sources=texts(table, "sources"),
    )


def _numbers(rows: list[list[TableCell]], column: int) -> bool:
    """Whether a column is one of numbers: nothing else in it but words for nothing."""
    found = [row[column] for row in rows if column < len(row)]
    return any(c.sort for c in found) and all(c.sort or c.text in ("–", "none", "na") for c in found)


def _cell(cell: Record, notes: list[str], ids: frozenset[str], sources: Sources) -> TableCell:
    value, words = cell.get("value"), text(cell, "text", "–")
    note = text(cell, "note")
    return TableCell(
        text=words,
        links=_links(value, words, ids),
        sources=" ".join(map(str, sources.numbers(texts(cell, "sources")))),
        note=notes.index(note) + 1 if note else 0,
        sort=repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else "",
    )


def _links(value: Any, words: str, ids: frozenset[str]) -> list[str]:
    """The models that a cell names, where it names nothing else."""
    found = [str(v) for v in value] if isinstance(value, list) else words.split(", ")
    return found if found and all(name in ids for name in found) else []


def _corrections(table: Record, ids: frozenset[str]) -> list[dict[str, Any]]:
    keys = ("where", "says", "is", "source", "models")
    found = []
    for row in table.get("rows", ()):
        if isinstance(row, list) and len(row) == len(keys):
            cells = {key: text(record_of(cell), "text") for key, cell in zip(keys, row, strict=True)}
            found.append({**cells, "links": _links(None, cells["models"], ids)})
    return found
