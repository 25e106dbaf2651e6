"""A table as data: cells with their sources and notes, and rows of text for a terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

DASH = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """One value, as printed; ``note`` says where sources disagree or a text is wrong."""

    value: Any
    text: str
    sources: tuple[str, ...] = ()
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"value": self.value, "text": self.text}
        if self.sources:
            out["sources"] = list(self.sources)
        if self.note:
            out["note"] = self.note
        return out


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; ``sources`` hold for every cell that names none of its own."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def texts(self) -> list[list[str]]:
        """The rows as text; a noted cell ends in its mark, explained by :meth:`footnotes`."""
        marks = {note: f"[{i}]" for i, note in enumerate(self.footnotes(), 1)}
        return [[f"{c.text} {marks[c.note]}" if c.note else c.text for c in row] for row in self.rows]

    def footnotes(self) -> list[str]:
        """The notes of cells, each once, in the order of their marks."""
        return list(dict.fromkeys(c.note for row in self.rows for c in row if c.note))

    def sources_of(self, cell: Cell) -> tuple[str, ...]:
        """Where a cell comes from."""
        return cell.sources or self.sources

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and texts."""
        return {
            "id": self.id,
            "title": self.title,
            "columns": list(self.columns),
            "rows": [[c.to_dict() for c in row] for row in self.rows],
            "sources": list(self.sources),
            "notes": list(self.notes),
        }


def shown(value: Any) -> str:
    """A value as a table prints it: a dash for what is not known, ratios with three digits."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, tuple | list):
        return ", ".join(shown(v) for v in value) or "none"
    return str(value)


def _float(value: float) -> str:
    if math.isinf(value):
        return "∞"
    if value and abs(value) < 1e-2:
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def compact(n: int | float | None) -> str:
    """``8.03B``, ``36T``, ``128K``: a count in three digits, decimal."""
    if n is None:
        return DASH
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(n) >= size * 0.9995:
            return f"{n / size:.3g}{unit}"
    return f"{n:g}"


def whole(value: Any, name: str) -> int:
    """A positive whole number (``1.3e9`` too).

    Raises:
        ValueError: it is not one; names the argument.
    """
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 1
    if not good or value != int(value):
        raise ValueError(f"{name}: not a positive whole number: {value!r}")
    return int(value)
