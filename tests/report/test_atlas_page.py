"""The page of the atlas: whole, offline, inert, and the same facts as the atlas."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.atlas import corrections, models, table, table_names
from assay.cli.atlas import page_record
from assay.report import atlas_page, write_atlas_page
from assay.report.atlas_models import COLUMNS, FILTERS
from tests.report.test_page import Page

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


@cache
def record() -> dict[str, Any]:
    return page_record()


@cache
def text() -> str:
    return atlas_page(record())


@cache
def page() -> Page:
    return Page(text().replace("<hr>", "<hr/>"))


def data(found: Page) -> Any:
    (script,) = (body for attrs, body in found.scripts if attrs.get("id") == "atlas-data")
    return json.loads(script)


def small() -> dict[str, Any]:
    """Three models and two tables of the record, to be spoilt."""
    whole = record()
    keep = ("gpt2", "gemma2-9b", "qwen3.8-flash-next")
    return {
        "models": copy.deepcopy([m for m in whole["models"] if m["id"] in keep]),
        "tables": {name: copy.deepcopy(whole["tables"][name]) for name in ("timeline", "dense-shapes", "corrections")},
        "rules": whole["rules"],
        "texts": whole["texts"],
    }


def test_the_page_is_one_offline_file_of_less_than_four_megabytes() -> None:
    assert len(text().encode()) < 4_000_000
    for tag, attrs in page().tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "source"}
        assert not set(attrs) & {"src", "srcset", "action", "data", "poster"}
        assert attrs.get("href", "#").startswith("#")
        assert not any(key.startswith("on") for key in attrs)
    policy = next(attrs["content"] for attrs in page().all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; ")
    running = [body for attrs, body in page().scripts if "type" not in attrs]
    assert policy.count("'sha256-") == len(running) == 5
    assert "unsafe-eval" not in policy


def test_it_is_well_formed_and_every_link_leads_somewhere() -> None:
    ids = [attrs["id"] for _, attrs in page().tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"].removeprefix("#") for attrs in page().all("a")} <= set(ids)
    assert len(page().all("h1")) == len(page().all("main")) == 1


def test_every_model_is_a_row_with_its_facts_beside_it() -> None:
    rows = [attrs["id"].removeprefix("m-") for attrs in page().all("tr") if attrs.get("id", "").startswith("m-")]
    assert rows == [m.id for m in models()]
    found = data(page())
    assert list(found["models"]) == sorted(rows)
    assert [c["title"] for c in found["columns"]] == [c.title for c in COLUMNS]
    for m in models():
        mine = found["models"][m.id]
        assert [found["sources"][i] for i in mine["sources"]["arch"]] == list(m.source.arch)
        assert mine["disputes"] == list(m.disagreements)
        assert mine["facts"]
        assert mine["recipe"]


def test_a_value_that_sources_dispute_is_marked() -> None:
    found = data(page())["models"]
    titles = [c.title for c in COLUMNS]
    marked = {(i, titles[int(c)]) for i, m in found.items() for c in m["touched"]}
    assert {("gpt2", "parameters"), ("gpt2", "positions"), ("llama-2-7b", "context"), ("palm-540b", "head size"),
            ("gemma2-9b", "d_ff / d"), ("qwen1.5-1.8b", "tied"), ("t5-11b", "d / layers"), ("mt5-xxl", "vocabulary"),
            ("deepseek-v3", "tokens"), ("phi-3-mini", "FFN"), ("kimi-k2", "norm")} <= marked  # fmt: skip
    assert ("gemma2-9b", "parameters") not in marked
    assert text().count('class="disputed"') > 150


def test_every_table_and_correction_stands_on_it() -> None:
    shown = {attrs["id"].removeprefix("t-") for attrs in page().all("details") if "id" in attrs}
    assert shown == set(table_names()) - {"models", "ratios", "corrections"}
    for correction in corrections():
        assert " ".join(correction.is_.split()) in page().text
    for name in ("timeline", "dense-shapes", "narang-norms", "z-loss"):
        for row in table(name).rows:
            for cell in row:
                assert " ".join(cell.text.split()) in page().text
    assert "the course chapter says 15.6T, which is the 405B's" in page().text


def test_the_filters_offer_what_the_models_have() -> None:
    selects = [attrs["name"] for attrs in page().all("select")]
    assert selects == [name for name, _ in FILTERS if name != "year"] + ["since", "until"]
    values = {attrs["value"] for attrs in page().all("option") if attrs.get("value")}
    assert values >= {m.family for m in models()} | {m.kind for m in models()}
    assert "gqa (86)" in page().text


def test_the_charts_say_in_words_what_they_show() -> None:
    places = {attrs["id"]: attrs for attrs in page().all("div") if attrs.get("class") == "chart"}
    assert len(places) == 11
    assert set(places) == set(page().charts)
    for key, spec in page().charts.items():
        assert len(places[key]["aria-label"]) > 40
        assert all(set(layer["data"]) == {"values"} for layer in spec["layer"])
        assert '"url"' not in json.dumps(spec)
    heat = page().charts["chart-1-1"]["layer"][0]["data"]["values"]
    shares = {(c["year"], c["choice"]): c["share"] for c in heat}
    assert shares["2026", "RMSNorm"] == 1
    assert shares["2023", "parallel block"] == pytest.approx(0.4783)


def test_the_same_record_gives_the_same_page(tmp_path: Path) -> None:
    first = atlas_page(small())
    assert first == atlas_page(small())
    path = write_atlas_page(small(), tmp_path / "a.html")
    assert path.read_text(encoding="utf-8") == first
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]


def test_text_of_a_record_is_never_markup() -> None:
    found = small()
    gpt2 = next(m for m in found["models"] if m["id"] == "gpt2")
    gpt2 |= {"name": EVIL, "family": EVIL, "kind": EVIL, "activation": EVIL, "disagreements": [EVIL]}
    gpt2["facts"] = [[EVIL, "arch", [[EVIL, EVIL]]]]
    gpt2["source"]["arch"] = [EVIL]
    found["tables"]["dense-shapes"]["rows"][0][1] = {"value": EVIL, "text": EVIL, "note": EVIL, "sources": [EVIL]}
    spoilt = atlas_page(found)
    parsed = Page(spoilt)
    assert not parsed.all("img")
    assert len([1 for attrs, _ in parsed.scripts if "type" not in attrs]) == 5
    assert EVIL in parsed.text
    assert data(parsed)["models"]["gpt2"]["disputes"] == [EVIL]


def test_any_field_may_be_missing() -> None:
    for spoilt in ({}, {"models": []}, {"models": [{}]}, {"models": [{"id": "x"}], "tables": {"t": {}}}):
        assert Page(atlas_page(spoilt)).all("h1")
    whole = small()
    for key in list(whole["models"][0]):
        if key != "id":
            found = {**whole, "models": [{k: v for k, v in whole["models"][0].items() if k != key}]}
            assert "<h1>" in atlas_page(found)
    for key in ("columns", "rows", "notes", "title"):
        table_ = {k: v for k, v in whole["tables"]["timeline"].items() if k != key}
        assert "<h1>" in atlas_page({**whole, "tables": {"timeline": table_}})


def test_its_own_style_brings_nothing_from_outside() -> None:
    for style in page().styles:
        assert not re.search(r"url\(|@import", style)
