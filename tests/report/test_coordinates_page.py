"""The page of a coordinate check: every number of the record, whole or damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from assay.report import coordinates_page, write_coordinates_page


def check(kind: str, growth: float, steps: int = 5, widths: tuple[int, ...] = (32, 64, 128)) -> dict[str, Any]:
    rows = [
        {
            "width": w,
            "params": 1000 * w,
            "logits": [0.01 * (s + 1) * (w / 32) ** growth for s in range(steps)],
            "residual": [0.1 * (layer + 1) * (w / 32) ** growth for layer in range(3)],
            "logits_sd": 0.001,
        }
        for w in widths
    ]
    ratio = (widths[-1] / widths[0]) ** growth
    return {"parametrization": kind, "base_width": 32, "lr": 0.003, "seeds": 2, "rows": rows, "ratio": ratio}


def record(*checks: dict[str, Any]) -> dict[str, Any]:
    return {"recipe": "tiny/base", "checks": list(checks), "command": "assay coord-check tiny/base --html c.html"}


def charts(page: str) -> list[Any]:
    return [
        json.loads(t) for t in re.findall(r'<script type="application/json" data-chart="[^"]*">(.*?)</script>', page)
    ]


def points(spec: Any) -> list[dict[str, Any]]:
    return list(spec["layer"][-1]["data"]["values"])


def test_every_number_is_drawn() -> None:
    page = coordinates_page(record(check("mup", 0.0), check("standard", 1.0)))
    assert "Does tiny/base learn alike at every width?" in page
    assert "5 updates at learning rate 0.003, 2 seeds a width" in page
    drawn = charts(page)
    assert len(drawn) == 4  # logits and stream of each
    mup, standard, mup_stream, standard_stream = drawn
    assert {(p["x"], p["kind"]): p["y"] for p in points(standard)} == pytest.approx(
        {(w, f"update {s}"): 0.01 * s * w / 32 for w in (32, 64, 128) for s in range(1, 6)}
    )
    assert {(p["x"], p["kind"]): p["y"] for p in points(mup_stream)} == pytest.approx(
        {(layer, f"width {w}"): 0.1 * (layer + 1) for w in (32, 64, 128) for layer in range(3)}
    )
    for a, b in ((mup, standard), (mup_stream, standard_stream)):  # one axis for what is compared
        assert a["layer"][0]["encoding"]["y"]["scale"] == b["layer"][0]["encoding"]["y"]["scale"]
    assert re.search(r"<b>4\.00</b>", page)
    assert page == coordinates_page(record(check("mup", 0.0), check("standard", 1.0)))


def test_many_updates_and_widths_are_thinned_to_the_last() -> None:
    drawn = charts(coordinates_page(record(check("mup", 0.1, 23, tuple(2**i for i in range(5, 12))))))
    kinds = [list(dict.fromkeys(p["kind"] for p in points(spec))) for spec in drawn]
    assert all(len(found) <= 5 for found in kinds)
    assert kinds[0][-1] == "update 23"
    assert kinds[1][-1] == "width 2,048"


def test_a_damaged_record_is_a_page_all_the_same() -> None:
    broken = check("mup", 0.0)
    broken["rows"][1]["logits"] = [0.01, float("nan"), 0.02]
    broken["rows"][2] = {"width": None}
    assert len(charts(coordinates_page(record(broken)))) == 2
    for damaged in ({}, {"checks": None}, {"checks": [{}]}, record({"rows": [{}]}), {"recipe": "<script>x"}):
        assert "<script>x" not in coordinates_page(damaged)


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_coordinates_page(record(check("mup", 0.0)), tmp_path / "c.html")
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    with pytest.raises(OSError, match="none"):
        write_coordinates_page(record(check("mup", 0.0)), tmp_path / "none" / "c.html")
    assert [p.name for p in tmp_path.iterdir()] == ["c.html"]
