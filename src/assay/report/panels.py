"""A chart under its title with a legend of its own, and the short numbers beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.report.charts import Chart
from assay.report.numbers import finite


@dataclass(frozen=True)
class Mark:
    """One entry of a legend: a colour, and the shape of its dots (empty: an area)."""

    text: str
    index: int
    shape: str = ""

    @property
    def color(self) -> str:
        return f"var(--arm-{self.index})"


@dataclass
class Panel:
    """A chart under its title, with its legend and a remark."""

    title: str
    chart: Chart
    legend: list[Mark] = field(default_factory=list)
    note: str = ""


def compact(value: Any) -> str:
    """``8.03B``, ``128K``: three digits, decimal; a dash for nothing."""
    number = finite(value)
    if number is None:
        return "–"
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(number) >= factor * 0.9995:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.3g}"
