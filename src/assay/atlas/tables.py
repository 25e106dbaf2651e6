"""Tables of the atlas by name: published ones, recovered with their sources, and those computed from the facts."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from assay.atlas.cells import DASH, Cell, Table, shown
from assay.atlas.facts import DATA, model, near
from assay.atlas.records import Model

Maker = Callable[[], Table]
_MAKERS: dict[str, Maker] = {}


def makes(name: str) -> Callable[[Maker], Maker]:
    """Register the function that computes a table."""

    def apply(maker: Maker) -> Maker:
        _MAKERS[name] = maker
        return maker

    return apply


def table(name: str) -> Table:
    """A table of the atlas.

    Raises:
        ValueError: no such table; names the nearest and the known.
    """
    published = _published()
    if name in published:
        return _read(published[name])
    makers = _makers()
    if name in makers:
        return makers[name]()
    known = table_names()
    raise ValueError(f"no such table: {name!r}{near(name, known)}; known: {', '.join(known)}")


def table_names() -> tuple[str, ...]:
    """Every table: computed from the facts, then published."""
    return (*_makers(), *_published())


def _makers() -> Mapping[str, Maker]:
    from assay.atlas import census, shapes_tables  # noqa: F401 - register their tables

    return _MAKERS


@cache
def _published() -> dict[str, dict[str, Any]]:
    raw = tomllib.loads((DATA / "tables.toml").read_text(encoding="utf-8"))
    return {entry["id"]: entry for entry in raw["table"]}


def _read(entry: Mapping[str, Any]) -> Table:
    notes = {(m["row"], m["column"]): m["note"] for m in entry.get("marks", ())}
    columns = tuple(entry["columns"])
    rows = []
    for raw in entry["rows"]:
        label = str(raw[0])
        rows.append(tuple(_cell(v, notes.get((label, c), "")) for v, c in zip(raw, columns, strict=True)))
    return Table(
        entry["id"], entry["title"], columns, tuple(rows), tuple(entry["sources"]), tuple(entry.get("notes", ()))
    )


def _cell(raw: Any, note: str) -> Cell:
    """A value as published, or ``=field:model`` of the atlas."""
    if not (isinstance(raw, str) and raw.startswith("=")):
        return Cell(raw, str(raw), note=note)
    path, _, model_id = raw[1:].partition(":")
    return fact_cell(model(model_id), path, note)


def fact(m: Model, path: str) -> Any:
    """A field of a model by its path (``training.z_loss``)."""
    value: Any = m
    for name in path.split("."):
        value = getattr(value, name)
    return value


def fact_cell(m: Model, path: str, note: str = "") -> Cell:
    """A field of a model with the sources it was read from."""
    value = fact(m, path)
    if path.startswith("training."):
        sources = m.source.training
    elif path.startswith("params."):
        sources = m.source.count
    else:
        sources = m.source.arch
    plain = value if isinstance(value, int | float | str | bool | None) else str(value)
    return Cell(plain, shown(value), sources, note)


def text_cell(text: str, sources: Iterable[str] = (), note: str = "", value: Any = None) -> Cell:
    return Cell(text if value is None else value, text or DASH, tuple(sources), note)
