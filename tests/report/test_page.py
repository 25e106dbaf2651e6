"""The pages: well-formed, offline, inert whatever a record says, the same for the same record, and whole on disk."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import random
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.report import page as page_module
from assay.report import run_page, study_page, write_run_page, write_study_page
from tests.report import fixtures, run_fixture

ASSETS = Path(page_module.__file__).parent / "assets"
VOID = {"meta", "br", "img", "link", "input", "hr", "path", "circle"}
PAGES: dict[str, Callable[[], str]] = {
    "study": lambda: study_page(fixtures.study_record()),
    "one_arm_failure": lambda: study_page(fixtures.one_arm_failure()),
    "glu": lambda: study_page(fixtures.glu_study()),
    "empty_study": lambda: study_page({}),
    "run": lambda: run_page(run_fixture.run_record()),
    "empty_run": lambda: run_page({}),
}
_made: dict[str, str] = {}


def made(name: str) -> str:
    if name not in _made:
        _made[name] = PAGES[name]()
    return _made[name]


class Page(HTMLParser):
    """What a page is made of; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        assert len(found) == len(attrs), f"<{tag}> repeats an attribute"
        self.tags.append((tag, found))
        if tag == "script":
            self.scripts.append((found, ""))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> out of place"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self._open and self._open[-1] == "style":
            self.styles.append(data)
        else:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def charts(self) -> dict[str, Any]:
        return {attrs["data-chart"]: json.loads(text) for attrs, text in self.scripts if "data-chart" in attrs}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed(name: str) -> None:
    page = Page(made(name))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("title")) == 1
    targets = {attrs["href"].removeprefix("#") for attrs in page.all("a")}
    assert targets <= set(ids)
    assert page.all("html")[0]["lang"] == "en"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_nothing_of_the_network(name: str) -> None:
    page = Page(made(name))
    for tag, attrs in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "audio", "video", "source"}
        assert not set(attrs) & {"src", "srcset", "action", "data", "poster", "background", "ping"}
        assert attrs.get("href", "#").startswith("#")
        assert not any(key.startswith("on") for key in attrs)
    assert not any("url(" in style or "@import" in style for style in page.styles)
    assert "http" not in page.text
    policy = next(attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy
    for _, script in page.scripts:
        assert "sourceMappingURL" not in script


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_lets_exactly_the_scripts_of_the_page_run(name: str) -> None:
    page = Page(made(name))
    policy = next(attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs)
    running = [text for attrs, text in page.scripts if "type" not in attrs]
    digests = [f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in running]
    assert policy.partition("script-src ")[2].split() == digests
    assert len(running) == len(page_module.SCRIPTS)
    assert {attrs["type"] for attrs, _ in page.scripts if "type" in attrs} == {"application/json"}


@pytest.mark.parametrize("name", PAGES)
def test_every_chart_has_its_place_its_words_and_its_data_inline(name: str) -> None:
    page = Page(made(name))
    places = {attrs["id"]: attrs for attrs in page.all("div") if attrs.get("class") == "chart"}
    assert set(places) == set(page.charts)
    for key, spec in page.charts.items():
        assert spec["width"] == "container"
        assert len(places[key]["aria-label"]) > 20
        assert places[key]["role"] == "img"
        for layer in spec["layer"]:
            assert set(layer["data"]) == {"values"}
        assert not re.search(r'"(href|url)"', json.dumps(spec))


def test_the_study_page_says_what_the_record_says() -> None:
    record = fixtures.study_record()
    text = Page(made("study")).text
    for words in [record["study"]["title"], record["study"]["question"], *record["answer"], "unstable"]:
        assert words in text
    assert all(part["title"] in text for part in record["parts"])
    assert record["study"]["command"] in text
    assert record["corpus"]["sha256"] in text
    assert text.index(record["answer"][0]) < text.index(record["parts"][0]["title"])
    for words in (
        "H = 3.245",
        "5e-3 to 7e-3",
        "3 of 5",
        "Welch interval",
        "bits per byte",
        "optimizer.betas",
        "p = 0.002",
    ):
        assert words in made("study"), words
    page = Page(made("study"))
    assert len(page.charts) == 15
    runs = next(index for index, (tag, attrs) in enumerate(page.tags) if tag == "table" and "data-sortable" in attrs)
    rows = [tag for tag, _ in page.tags[runs:]]
    assert rows[: rows.index("footer")].count("tr") >= len(record["runs"])


def test_an_arm_that_never_learned_is_told_and_drawn() -> None:
    text = Page(made("one_arm_failure")).text
    assert "Not complete." in text
    assert "post-LN never learned" in text
    assert "No difference could be computed" in text
    assert "post-LN has no mean (0 of 5 seeds alive)." in text
    assert not re.search(r"\b(nan|NaN|None|inf|null)\b", text)


def test_the_unit_of_the_loss_goes_by_the_tokenizer() -> None:
    assert "nats per byte" in Page(made("glu")).text
    record = fixtures.glu_study()
    record["corpus"]["tokenizer"] = "bpe-4096"
    text = Page(study_page(record)).text
    assert "nats per token" in text
    assert "nats per byte, " not in text


def test_a_difference_that_is_not_one_of_the_means_is_warned_of() -> None:
    record = fixtures.glu_study()
    assert "Read with care" not in Page(made("glu")).text
    record["parts"][0]["effect"]["nats"] *= -1
    assert "The effect is not the difference of the arms' means" in Page(study_page(record)).text


EVIL = "</script><script>alert(1)</script><!--\u2028'\"><img src=x onerror=alert(2)>&lt;"


def poisoned(value: Any, text: str = EVIL) -> Any:
    """Every text and every key that a record is free to choose, replaced."""
    if isinstance(value, dict):
        kept = {"kind", "dimension", "class", "name", "arm", "run", "digest", "baseline", "part", "tokenizer", "axis"}
        return {
            key: each if key in kept and isinstance(each, str) else poisoned(each, text) for key, each in value.items()
        }
    if isinstance(value, list):
        return [poisoned(each, text) for each in value]
    return text if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ["study", "run"])
def test_whatever_a_record_says_stays_text(kind: str) -> None:
    if kind == "study":
        record = poisoned(fixtures.study_record())
        record["settings"][EVIL] = {EVIL: EVIL}
        record["parts"][2]["arms"][1].update(name=EVIL, label=EVIL)
        record["parts"][2]["card"][0]["dimension"] = EVIL
        record["parts"][1]["axis"] = EVIL
        for run in record["runs"][:3]:
            run.update({"class": EVIL, "digest": EVIL, "arm": EVIL})
        text, clean = study_page(record), made("study")
    else:
        text, clean = run_page(poisoned(run_fixture.run_record())), made("run")
    page = Page(text)
    assert "alert(1)" in page.text
    assert not page.all("img")
    running = [script for attrs, script in page.scripts if "type" not in attrs]
    assert running == [script for attrs, script in Page(clean).scripts if "type" not in attrs]
    assert not any("<" in script for attrs, script in page.scripts if "type" in attrs)
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)


def test_a_runs_page_says_what_the_record_has() -> None:
    page = Page(made("run"))
    for words in (
        "finished",
        "2.440",
        "41%",
        "3.540",
        "loss spike",
        "muon decay",
        "attn_in, ffn_in",
        "196,864",
        "one that is fast",
        "stdlib",
        "def f(",
        "return 240",
        "Earlier ones",
        "'a=b c'",
        "nats per byte",
    ):
        assert words in page.text, words
    for title in ("Loss", "Validation", "Over training", "Samples", "Repeat it", "Optimizer groups"):
        assert title in page.text
    cut = run_page({"run": {"status": "interrupted", "steps_done": 7, "steps": 20, "loss": 2.0}})
    assert "interrupted after 7 of 20 updates" in Page(cut).text


def test_text_of_a_record_never_becomes_an_expression() -> None:
    record = poisoned(fixtures.study_record(), "'+alert(1)+'")

    def expressions(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [each for key, each in value.items() if key in ("expr", "labelExpr", "test", "calculate", "filter")]
            return [str(each) for each in own] + [found for each in value.values() for found in expressions(each)]
        return [found for each in value for found in expressions(each)] if isinstance(value, list) else []

    found = expressions(Page(study_page(record)).charts)
    assert found
    assert not any("alert" in each for each in found)


@pytest.mark.parametrize("name", ["study", "run", "one_arm_failure"])
def test_the_same_record_gives_the_same_bytes(name: str) -> None:
    assert PAGES[name]() == made(name)


def test_the_record_is_left_as_it_was() -> None:
    record = fixtures.study_record()
    before = copy.deepcopy(record)
    study_page(record)
    assert record == before


def small_study() -> dict[str, Any]:
    record = fixtures.study_record()
    record["runs"] = record["runs"][-4:]
    for run in record["runs"]:
        run.update(train_curve=run["train_curve"][:5], val_curve=run["val_curve"][-3:])
    for part in record["parts"]:
        for arm in part["arms"]:
            for key in ("points", "tuning"):
                if key in arm:
                    arm[key] = arm[key][::4]
    record["arms"] = []
    return record


SMALL = small_study()
RUN = run_fixture.run_record()


def mutated(value: Any, draw: random.Random) -> Any:
    """A record in which a tenth of the fields is gone, null, NaN or of another kind."""
    if draw.random() < 0.06:
        return draw.choice([None, math.nan, math.inf, "", "text", 0, -1.5, [], {}, [None], [[1]], True])
    if isinstance(value, dict):
        return {key: mutated(each, draw) for key, each in value.items() if draw.random() > 0.04}
    if isinstance(value, list):
        return [mutated(each, draw) for each in value if draw.random() > 0.04]
    return value


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_a_record_with_holes_still_makes_a_page(seed: int) -> None:
    draw = random.Random(seed)
    for page in (study_page(mutated(SMALL, draw)), run_page(mutated(RUN, draw))):
        Page(re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))


@pytest.mark.parametrize("kind", ["lr_curve", "ladder", "comparison", "another", None])
def test_an_empty_part_is_a_heading(kind: str | None) -> None:
    part = {"name": "empty", "title": "Nothing ran", "kind": kind, "arms": []}
    assert "Nothing ran" in Page(study_page({"parts": [part]})).text


@pytest.mark.parametrize("verdict", ["better", "worse", "equivalent", "undecided", "unstable", "another"])
def test_every_verdict_has_its_word(verdict: str) -> None:
    page = Page(study_page({"verdict": verdict}))
    expected = "other" if verdict == "another" else verdict
    assert {"class": f"verdict {expected}"} in page.all("p")
    assert verdict in page.text


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.html"
    assert write_study_page(fixtures.glu_study(), path) == path
    assert path.read_text(encoding="utf-8") == made("glu")
    write_run_page(run_fixture.run_record(), str(path))
    assert path.read_bytes() == made("run").encode()
    assert list(tmp_path.iterdir()) == [path]

    def fails(self: Path, target: Path) -> Path:
        raise OSError("no room")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="no room"):
        write_study_page({}, path)
    assert path.read_bytes() == made("run").encode()
    assert list(tmp_path.iterdir()) == [path]


def test_the_libraries_are_the_ones_of_the_notice_and_small() -> None:
    notice = (ASSETS / "NOTICE").read_text(encoding="utf-8")
    scripts = sorted(ASSETS.glob("*.min.js"))
    assert len(scripts) == 3
    for script in scripts:
        assert f"{hashlib.sha256(script.read_bytes()).hexdigest()}  {script.name}" in notice
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < 1_000_000
    assert "Redistribution and use in source and binary forms" in made("empty_study")
    assert len(made("study")) < 1_300_000
