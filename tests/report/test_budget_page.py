"""The page of a budget: the numbers of the budget, inert, offline, with or without a device."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay import budget, load
from assay.report import budget_page, write_budget_page
from tests.report.test_page import Page

EVIL = '</script><img src=x onerror="alert(2)">'


@cache
def record(name: str = "gemma3-4b", device: str | None = "h100") -> dict[str, Any]:
    more = {"hardware": device, "parallel": "tp=2,dp=2", "tokens": 4e12} if device else {}
    found = budget(load(name), 16, 1024, **more).to_dict()
    return {
        "budget": json.loads(json.dumps(found)),
        "cache_at": [[128, {"local": 1000, "global": 500}], [4096, {"local": 8000, "global": 16000}]],
        "models": [{"id": "a", "name": "A", "params": 7e9, "tokens": 2e12}, {"id": "b", "name": "B", "params": 1e9}],
        "command": "assay budget gemma3-4b",
    }


@cache
def page(device: str | None = "h100") -> Page:
    return Page(budget_page(record(device=device)))


@pytest.mark.parametrize("device", ["h100", None])
def test_it_is_one_offline_file(device: str | None) -> None:
    found = page(device)
    for tag, attrs in found.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert not set(attrs) & {"src", "srcset", "action", "poster"}
        assert attrs.get("href", "#").startswith("#")
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    places = {attrs["id"]: attrs for attrs in found.all("div") if attrs.get("class") == "chart"}
    assert set(places) == set(found.charts)
    assert len(places) == 7
    assert all(len(attrs["aria-label"]) > 30 for attrs in places.values())


def test_it_says_what_the_budget_says() -> None:
    found = record()["budget"]
    for part in (
        "What gemma3-4b costs", "16 sequences of 1,024 tokens, bf16, 4 × h100-sxm",
        f"{found['params']['total']:,}", f"{found['flops']['train_per_token']:,}",
        f"{found['cache']['bytes']:,} bytes", f"{found['memory']['train']['peak_bytes']:,} bytes",
        found["conventions"]["flops.train_per_token"], found["hardware"]["source"],
    ):  # fmt: skip
        assert part in page().text
    for finding in found["findings"]:
        assert " ".join(finding["message"].split()) in page().text
        assert " ".join(finding["fix"].split()) in page().text


def test_the_roofline_is_the_devices() -> None:
    found = record()["budget"]
    roof, dots = (layer["data"]["values"] for layer in page().charts["chart-1-1"]["layer"][:2])
    peak, rate = found["hardware"]["peak_flops_per_s"], found["hardware"]["bytes_per_s"]
    assert roof[1] == {"x": pytest.approx(peak / rate, rel=1e-5), "y": pytest.approx(peak)}
    for dot in dots:
        assert dot["y"] <= min(peak, dot["x"] * rate) * 1.0001
    by_op = {(d["mode"], d["op"]): d["x"] for d in dots}
    for mode in ("train", "prefill", "decode"):
        for row in found["intensity"][mode]["by_op"]:
            if row["intensity"]:
                assert by_op[mode, row["op"].replace("_", " ")] == pytest.approx(row["intensity"], rel=1e-5)


def test_without_a_device_there_is_no_time_but_all_else() -> None:
    text = page(None).text
    assert "Arithmetic intensity" in text
    assert "Roofline" not in text
    assert "--hardware" in text
    assert "Time:" not in text


def test_memory_adds_up_to_the_ledger() -> None:
    held = record()["budget"]["memory"]["train"]
    (chart,) = (c for c in page().charts.values() if c["description"].startswith("Memory of one device"))
    bars = [row for row in chart["layer"][0]["data"]["values"] if row["row"] == "training"]
    assert bars[-1]["high"] * 2**30 == pytest.approx(held["total_bytes"], rel=1e-4)
    has = record()["budget"]["hardware"]["memory_bytes"]
    assert chart["layer"][1]["data"]["values"] == [{"at": pytest.approx(has / 2**30, rel=1e-4)}]


def test_the_same_record_gives_the_same_page(tmp_path: Path) -> None:
    path = write_budget_page(record(), tmp_path / "b.html")
    assert path.read_text(encoding="utf-8") == budget_page(record())
    assert [p.name for p in tmp_path.iterdir()] == ["b.html"]


def test_text_of_a_record_is_never_markup() -> None:
    found = copy.deepcopy(record())
    found["budget"]["name"] = found["command"] = EVIL
    found["budget"]["hardware"]["name"] = EVIL
    found["budget"]["params"]["by_component"] = {EVIL: 3}
    found["budget"]["findings"] = [{"severity": EVIL, "place": EVIL, "message": EVIL, "fix": EVIL}]
    found["models"][0]["name"] = EVIL
    parsed = Page(budget_page(found))
    assert not parsed.all("img")
    assert EVIL in parsed.text


def test_any_field_may_be_missing() -> None:
    whole = record()
    for spoilt in ({}, {"budget": {}}, {"budget": {"name": "x"}}, {**whole, "cache_at": [None, [1], ["a", {}]]}):
        assert Page(budget_page(spoilt)).all("h1")
    for key in whole["budget"]:
        assert "<h1>" in budget_page({**whole, "budget": {k: v for k, v in whole["budget"].items() if k != key}})
