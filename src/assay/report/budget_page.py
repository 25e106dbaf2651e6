"""What a recipe costs, as one page: the roofline, memory, time, and every number with its convention."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.report.budget_charts import bars, memory_panel, roofline, share_panel, words
from assay.report.budget_lines import cache_panel, tokens_panel
from assay.report.charts import Figure
from assay.report.numbers import NONE, count, finite, scaled, significant, size
from assay.report.page import render, write_page
from assay.report.panels import Panel, compact
from assay.report.records import Record, jsonable, record_of, records, text

# title -> the place of its numbers in the record
TABLES: tuple[tuple[str, str], ...] = (
    ("Parameters", "params"),
    ("FLOPs", "flops"),
    ("Cache", "cache"),
    ("Memory: training, one device", "memory.train"),
    ("Memory: activations, one micro-batch", "memory.activations"),
    ("Memory: serving", "memory.inference"),
    ("Time: a training step", "time.train"),
    ("Time: a training run", "time.training"),
    ("Time: prefill", "time.prefill"),
    ("Time: a decoded token", "time.decode"),
    ("Time: measured", "time.measured"),
    ("Plan", "parallel.plan"),
    ("Plan: communication", "parallel.communication"),
    ("Tokens and parameters", "scaling"),
)
_SIGNS = {"error": "✕", "warning": "△", "note": "○"}


@dataclass(frozen=True)
class Line:
    """One number: what it is, as text, and by which convention."""

    name: str
    value: str
    convention: str


def budget_page(record: Record) -> str:
    """The page of a budget.

    ``record``: ``budget`` (as ``assay budget --json`` prints it); ``cache_at`` (``[[length, {layers: bytes}], ...]``),
    ``models`` (``id, name, params, tokens`` of real models) and ``command``, each where it is known. Any field may be
    missing. The same record gives the same text.
    """
    return render("budget.html.j2", _context(record_of(jsonable(record))), styles=("panels.css", "budget.css"))


def write_budget_page(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write the page of a budget; whoever reads ``path`` sees the old file or the whole new one."""
    return write_page(path, budget_page(record))


def _context(record: Record) -> dict[str, Any]:
    budget = record_of(record.get("budget"))
    roof = roofline(budget)
    params, flops = record_of(budget.get("params")), record_of(budget.get("flops"))
    by_op = {k: v for k, v in record_of(flops.get("by_op")).items() if not k.endswith("_square")}
    found = [
        memory_panel(budget),
        share_panel(budget),
        bars("Where the parameters are", "by component", record_of(params.get("by_component")), ""),
        bars("Where the FLOPs are", "forward, matrix products, legal pairs", by_op, "FLOP"),
        cache_panel(record.get("cache_at"), budget.get("batch")),
        tokens_panel(budget, records(record, "models")),
    ]
    panels = [panel for panel in found if panel is not None]
    shown: list[Panel] = [*([roof] if roof else []), *panels]
    conventions = record_of(budget.get("conventions"))
    return {
        "title": f"What {text(budget, 'name', 'a recipe')} costs",
        "setting": _setting(budget),
        "digest": text(budget, "digest"),
        "command": text(record, "command"),
        "tiles": _tiles(budget),
        "findings": [_finding(f) for f in records(budget, "findings")],
        "roof": roof,
        "shown": panels,
        "figures": [Figure("", [panel.chart], "") for panel in shown],
        "tables": [(t, lines) for t, place in TABLES if (lines := list(_lines(budget, place, conventions)))],
        "source": text(record_of(budget.get("hardware")), "source"),
    }


def _setting(budget: Record) -> str:
    batch, length = finite(budget.get("batch")), finite(budget.get("seq_len"))
    if batch is None or length is None:
        return ""
    parts = [f"{count(batch)} sequence{'s' if batch != 1 else ''} of {count(length)} tokens", text(budget, "dtype")]
    hardware = text(record_of(budget.get("hardware")), "name")
    devices = finite(record_of(budget.get("parallel")).get("devices"))
    if hardware:
        parts.append(f"{count(devices)} × {hardware}" if devices and devices > 1 else hardware)
    optimizer = text(record_of(record_of(budget.get("memory")).get("train")), "optimizer")
    return ", ".join(part for part in (*parts, optimizer) if part)


def _tiles(budget: Record) -> list[tuple[str, str, str]]:
    params, flops = record_of(budget.get("params")), record_of(budget.get("flops"))
    memory, time = record_of(budget.get("memory")), record_of(budget.get("time"))
    total = finite(params.get("total"))
    train, decode = record_of(time.get("train")), record_of(time.get("decode"))
    days = finite(record_of(time.get("training")).get("days_at_peak"))
    limits = {mode: f"at least; limited by {text(each, 'bound')}" for mode, each in (("t", train), ("d", decode))}
    found = [
        ("parameters", compact(total), count(total)),
        ("training, a token", scaled(flops.get("train_per_token"), "FLOP"), "forward and backward"),
        ("cache, a token", size(record_of(budget.get("cache")).get("bytes_per_token")), "of one sequence"),
        ("training, peak", size(record_of(memory.get("train")).get("peak_bytes")), "on one device"),
        ("a training step", _seconds(train.get("seconds")), limits["t"]),
        ("a decoded token", _seconds(decode.get("seconds")), limits["d"]),
        ("the whole training", f"{significant(days)} days" if days is not None else NONE, "at the devices' peak"),
    ]
    return [tile for tile in found if tile[1] != NONE]


def _finding(finding: Record) -> dict[str, str]:
    severity = text(finding, "severity", "note")
    keys = {key: text(finding, key) for key in ("place", "message", "fix")}
    return {"severity": severity, "sign": _SIGNS.get(severity, "○"), **keys}


def _lines(budget: Record, place: str, conventions: Record) -> Iterator[Line]:
    at: Any = budget
    for key in place.split("."):
        at = record_of(record_of(at).get(key))
    for key, value in at.items():
        path = f"{place}.{key}"
        if isinstance(value, dict):
            for inner, number in value.items():
                if not isinstance(number, dict | list):
                    shown = _said(f"{path}.{inner}", number)
                    yield Line(f"{words(key)}: {words(inner)}", shown, text(conventions, f"{path}.{inner}"))
        elif not isinstance(value, list):
            yield Line(words(key), _said(path, value), text(conventions, path))


def _said(path: str, value: Any) -> str:
    """A number with the unit that its place and name tell."""
    number, name = finite(value), path.rpartition(".")[2]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if number is None:
        return NONE if value is None else str(value)
    if "bytes_per_param" in path or "bytes_per_hidden" in path:
        return f"{number:g} bytes"
    if "bytes" in path and not name.startswith(("stage", "layers")):
        return f"{size(number)} ({count(number)} bytes)" if number >= 1024 else size(number)
    if name == "seconds" or (name.endswith("_s") and not name.endswith("per_s")) or "seconds" in path:
        return _seconds(number)
    if "flops" in path:
        return f"{scaled(number, 'FLOP')} ({count(number)})" if number < 1e18 else scaled(number, "FLOP")
    if number >= 1e15:
        return compact(number)
    if number >= 1e15:
        return compact(number)
    if isinstance(value, int) or number >= 1e6:
        return f"{compact(number)} ({count(number)})" if number >= 10_000 else count(number)
    return significant(number)


def _seconds(value: Any) -> str:
    """``2.05 s``, ``3.55 ms``, ``12.1 days``."""
    number = finite(value)
    if number is None:
        return NONE
    if number >= 2 * 86_400:
        return f"{significant(number / 86_400)} days"
    if number >= 7200:
        return f"{significant(number / 3600)} hours"
    return f"{significant(number)} s" if number >= 1 or number == 0 else f"{significant(number * 1e3)} ms"
