"""The atlas's facts: complete, typed, quick to read, clean of traces, filtered by what is asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest

from assay.atlas import TEXTS, UnknownModel, corrections, model, models
from assay.atlas.facts import DATA, FILTERS
from assay.atlas.records import Model
from assay.atlas.tables import fact

NUMBERS = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "vocab_size")


def test_every_model_is_there_once_with_its_sources() -> None:
    found = models()
    assert len(found) == 154
    assert len({m.id for m in found}) == 154
    for m in found:
        assert m.source.arch or m.kind == "hybrid-moe", m.id
        assert all(s.strip() for s in m.source.all), m.id


def test_fields_have_the_types_that_the_record_names() -> None:
    for m in models():
        for name in NUMBERS:
            value = getattr(m, name)
            assert value is None or (type(value) is int and value > 0), (m.id, name)
        for name in ("gated", "norm_final", "norm_bias", "norm_zero_centred", "tied_embeddings"):
            assert getattr(m, name) in (True, False, None), (m.id, name)
        assert m.params.precision in ("exact", "rounded", "computed", None)
        assert m.norm_placement in ("pre", "post", "sandwich", "reordered", "deepnorm-post", None)
        assert m.position in (
            "rope", "learned", "sinusoidal", "alibi", "none", "t5_relative", "transformer-xl relative", None,
        ), m.id  # fmt: skip
        assert m.year is None or 2017 <= m.year <= 2026
        assert isinstance(m.rope_theta, int | float | None) or m.rope_theta in ("na", "none"), m.id


def test_a_record_cannot_be_changed() -> None:
    m = model("llama-7b")
    with pytest.raises(AttributeError):
        m.d_model = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        model("mixtral-8x7b").moe["experts"] = 1  # type: ignore[index]


def test_the_data_holds_facts_only() -> None:
    for path in DATA.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(^|[\s\"'(])/[a-z]+/", text), path.name  # no path of a machine
    raw = json.loads((DATA / "models.json").read_text(encoding="utf-8"))
    used = {i for m in raw["models"] for found in m["source"].values() for i in found}
    assert used == set(range(len(raw["sources"])))


def test_reading_the_whole_atlas_is_quick_and_brings_no_torch() -> None:
    code = (
        "import time, sys; t = time.process_time(); import assay.atlas as a; a.models();"
        "print(time.process_time() - t, 'torch' in sys.modules, 'yaml' in sys.modules)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert min(float(r.stdout.split()[0]) for r in runs) < 1.0
    assert all(r.stdout.split()[1:] == ["False", "False"] for r in runs)


def test_filters() -> None:
    assert {m.family for m in models(family="qwen", kind="dense")} == {"qwen"}
    assert {m.year for m in models(since=2025, until=2025)} == {2025}
    assert all(m.params.total and 1e9 <= m.params.total <= 1e10 for m in models(min_params=1e9, max_params=1e10))
    assert {m.position for m in models(position=["alibi", "learned"])} == {"alibi", "learned"}
    assert "mistral-7b" in [m.id for m in models(window=True)]
    assert not set(models(qk_norm=True)) & set(models(qk_norm=False))
    assert len(models(moe=True)) == 37
    assert models() == models()
    for name, read in FILTERS.items():
        value = next(v for v in map(read, models()) if v is not None)
        assert all(read(m) == value for m in models(**{name: value}))


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"fmily": "qwen"}, "no such filter: 'fmily'; nearest: family"),
        ({"activation": "swiglu"}, "no model has 'swiglu'"),
        ({"since": "2024"}, "since: not a number"),
        ({"max_params": True}, "max_params: not a number"),
    ],
)
def test_bad_filters_say_what_is_known(where: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        models(**where)


def test_a_model_is_found_by_its_id_or_its_recipe_and_a_slip_is_named() -> None:
    assert model("gpt-j-6b") is model("gptj-6b")
    with pytest.raises(UnknownModel, match=r"nearest: llama-3\.1-8b"):
        model("llama-3.1-8bb")


@pytest.mark.parametrize("line", [f for c in corrections() for f in c.facts])
def test_a_correction_is_what_the_facts_say(line: str) -> None:
    path, _, rest = line.partition(":")
    model_id, _, wanted = rest.partition(" = ")
    value = fact(model(model_id), path)
    if isinstance(value, float):
        assert value == pytest.approx(float(wanted), rel=1e-4), line
    else:
        assert str(value) == wanted, line


def test_corrections_name_texts_and_models_that_exist() -> None:
    assert len(corrections()) >= 20
    for c in corrections():
        assert c.text in TEXTS
        assert all(isinstance(model(i), Model) for i in c.models)
        assert c.says
        assert c.is_
        assert c.source


def test_known_disagreements_are_kept() -> None:
    assert any("32768" in d for d in model("mistral-7b").disagreements)
    assert any("gelu_fast" in d for d in model("gpt-neox-20b").disagreements)
    assert sum(bool(m.disagreements) for m in models()) >= 60


def test_ratios() -> None:
    assert model("t5-11b").aspect_ratio == pytest.approx(42.667, abs=1e-3)
    assert model("gemma2-27b").ffn_ratio == 8
    assert model("palm-540b").attention_ratio == pytest.approx(2 / 3)
    assert model("llama-2-70b").kv_group == 8
    assert model("deepseek-v3").kv_group is None


def test_reading_again_is_free() -> None:
    models()
    start = time.process_time()
    for _ in range(100):
        models()
    assert time.process_time() - start < 0.05
