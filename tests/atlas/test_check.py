"""Rules: data with sources and evidence; each can hold and fail; findings say value, band, peers and label."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from assay.atlas import SETTINGS, Finding, RuleError, check, measures, model, models, register_measure, rules
from assay.atlas.ruleset import shipped_rules
from assay.recipe import Recipe, load, preset_names
from tests.strategies import recipes

Settings = dict[str, Any]
BASE = "llama-3.1-8b"
FULL: Settings = {
    "lr": 3e-4, "warmup_steps": 2000, "steps": 1_000_000, "tokens": 15e12, "epochs": 1, "weight_decay": 0.1,
    "decay_roles": ["attn_in", "ffn_in"], "grad_clip": 1.0, "z_loss": 1e-5, "beta2": 0.95, "dtype": "bf16",
    "master_dtype": "fp32", "tp": 8, "language": "multilingual",
}  # fmt: skip

# rule -> what breaks it: (preset, overrides, run settings)
BREAKS: dict[str, tuple[str, list[str], Settings]] = {
    "ffn-ratio-gated": (BASE, ["block.ffn.d_ff=32768"], {}),
    "ffn-ratio-plain": ("gpt2", ["block.ffn.d_ff=768"], {}),
    "attention-width": (BASE, ["block.mixer.n_heads=128", "block.mixer.head_dim=128"], {}),
    "head-dim": (BASE, ["block.mixer.head_dim=112"], {}),
    "aspect-ratio": (BASE, ["n_layers=8"], {}),
    "alignment": (BASE, ["block.ffn.d_ff=14_300"], {}),
    "vocabulary-alignment": ("gpt2", [], {}),
    "layers-deep": (BASE, ["n_layers=4"], {}),
    "vocabulary-one-language": (BASE, [], {"language": "english"}),
    "vocabulary-many-languages": ("llama-2-7b", [], {"language": "multilingual"}),
    "untied-small": ("pythia-70m", [], {}),
    "tied-large": ("command-a", [], {}),
    "kv-heads": (BASE, ["block.mixer.n_kv_heads=2"], {}),
    "kv-group": ("palm-540b", [], {}),
    "kv-heads-shared": ("olmo-2-7b", [], {}),
    "kv-tensor-parallel": (BASE, [], {"tp": 16}),
    "tensor-parallel": (BASE, [], {"tp": 3}),
    "attention-scale": (BASE, ["block.mixer.scale=1.0"], {}),
    "logit-control": (BASE, [], {}),
    "logit-control-lr": ("gpt2", [], {"lr": 1e-2}),
    "logit-control-depth": ("llama-3.1-405b", [], {}),
    "logit-control-twice": ("qwen3-8b", ["block.mixer.soft_cap=50"], {}),
    "attention-soft-cap": ("gemma-2-9b", ["block.mixer.soft_cap=5"], {}),
    "head-soft-cap": ("gemma-2-9b", ["head.soft_cap=5"], {}),
    "qk-norm-over": ("olmo-2-7b", [], {}),
    "qk-norm-gain": ("qwen3-8b", ['block.mixer.qk_norm.norm.gain="none"'], {}),
    "window-ratio": ("mistral-7b", [], {}),
    "window-size": (BASE, ['block.mixer.span={kind="window",size=128}'], {}),
    "window-idle": ("mistral-7b", ["max_seq_len=4096"], {}),
    "window-last-layer": ("gemma3-4b", [], {}),
    "rope-theta": ("llama-2-7b", ["max_seq_len=131072"], {}),
    "position-kind": ("gpt2", [], {}),
    "norm-kind": ("gpt2", [], {}),
    "norm-placement": ("opt-350m", [], {}),
    "post-norm-depth": ("opt-350m", [], {}),
    "no-norm": ("tiny/no-norm", [], {}),
    "final-norm": (BASE, ['head.norm="none"'], {}),
    "norm-bias": ("gpt2", [], {}),
    "linear-bias": ("gpt2", [], {}),
    "block-form": ("gptj-6b", [], {}),
    "gated": ("gpt2", [], {}),
    "activation": ("gpt2", ['block.ffn.activation="elu"'], {}),
    "init-embedding": (BASE, [], {}),
    "init-depth": (BASE, [], {}),
    "init-gain": ("smollm2-135m", ['init.weights={kind="normal",std=0.001}'], {}),
    "init-dead": (BASE, ['init.ffn_in="zero"'], {}),
    "norm-eps": (BASE, ["block.residual.norm.eps=1e-8"], {}),
    "norm-eps-fp16": (BASE, ["block.residual.norm.eps=1e-8"], {"dtype": "fp16"}),
    "dtype": (BASE, [], {"dtype": "fp16"}),
    "master-weights": (BASE, [], {"master_dtype": "bf16"}),
    "dropout": ("opt-350m", [], {}),
    "dropout-one-epoch": (BASE, [], {"dropout": 0.1, "epochs": 1}),
    "warmup": (BASE, [], {"warmup_steps": 0, "steps": 10_000}),
    "learning-rate": (BASE, [], {"lr": 1e-2, "tokens": 15e12}),
    "tokens": (BASE, [], {"tokens": 1e9}),
    "weight-decay": (BASE, [], {"weight_decay": 0.0}),
    "decay-groups": (BASE, [], {"decay_roles": ["ffn_in", "norm_gain"]}),
    "gradient-clipping": (BASE, [], {"grad_clip": 10}),
    "beta2": (BASE, [], {"beta2": 0.999}),
    "z-loss": (BASE, [], {"z_loss": 0.1}),
    "z-loss-without-decay": (BASE, [], {"z_loss": 0.0, "weight_decay": 0.0}),
    "z-loss-depth": (BASE, [], {"z_loss": 0.0, "lr": 1e-2}),
}
# what satisfies the rules whose breaking case is not undone by the base with full settings
HOLDS: dict[str, tuple[str, list[str], Settings]] = {
    "ffn-ratio-plain": ("gpt2", [], {}),
    "vocabulary-one-language": ("llama-2-7b", [], {"language": "english"}),
    "tied-large": ("gemma-2b", [], {}),
    "logit-control": ("qwen3-8b", [], {}),
    "logit-control-lr": ("qwen3-8b", [], {"lr": 1e-2}),
    "logit-control-depth": ("qwen3-32b", [], {}),
    "attention-soft-cap": ("gemma-2-9b", [], {}),
    "head-soft-cap": ("gemma-2-9b", [], {}),
    "qk-norm-over": ("qwen3-8b", [], {}),
    "qk-norm-gain": ("qwen3-8b", [], {}),
    "window-ratio": ("gemma3-4b", [], {}),
    "window-size": ("gemma3-4b", [], {}),
    "window-idle": ("mistral-7b", [], {}),
    "window-last-layer": ("olmo-3-7b", [], {}),
    "post-norm-depth": ("transformer-2017", [], {}),
    "init-embedding": ("gemma3-4b", [], {}),
    "init-depth": ("gpt2", [], {}),
    "norm-eps-fp16": (BASE, [], {"dtype": "fp16"}),
    "z-loss-without-decay": (BASE, [], {"z_loss": 1e-4, "weight_decay": 0.0}),
    "z-loss-depth": (BASE, [], {"z_loss": 1e-4, "lr": 1e-2}),
}


def findings(rule: str, case: tuple[str, list[str], Settings]) -> list[Finding]:
    name, overrides, settings = case
    return list(check(load(name, overrides), settings, only=[rule]))


def test_every_rule_has_a_breaking_case() -> None:
    assert set(BREAKS) == {r.id for r in shipped_rules()}
    assert len(shipped_rules()) >= 25


@pytest.mark.parametrize("rule", BREAKS)
def test_a_rule_can_break(rule: str) -> None:
    assert any(f.severity != "ok" for f in findings(rule, BREAKS[rule]))


@pytest.mark.parametrize("rule", BREAKS)
def test_a_rule_can_hold(rule: str) -> None:
    found = findings(rule, HOLDS.get(rule, (BASE, [], FULL)))
    assert found
    assert all(f.severity == "ok" for f in found), [(f.text, f.band) for f in found]


def test_rules_have_sources_and_evidence() -> None:
    for rule in shipped_rules():
        assert rule.sources
        assert rule.why.endswith(".")
        assert rule.measure in measures()
        if rule.evidence.label == "swept":
            assert re.search(r"arXiv:\d{4}\.\d{5}|20\d\d|Guide", rule.evidence.study), rule.id
    labels = {rule.evidence.label for rule in shipped_rules()}
    assert labels == {"swept", "copied", "unchecked", "derived"}
    assert str(next(r for r in shipped_rules() if r.id == "norm-bias").evidence) == "copied: nobody re-checked"
    assert str(next(r for r in shipped_rules() if r.id == "final-norm").evidence) == "nobody checked"


def test_models_that_share_a_value() -> None:
    f = findings("ffn-ratio-gated", (BASE, [], {}))[0]
    assert f.value == 3.5
    assert set(f.peers) >= {"llama-2-70b", "mistral-7b", "llama-3.1-8b"}
    assert all(model(i).ffn_ratio == pytest.approx(3.5, rel=0.02) for i in f.peers)
    assert f.peers_text.startswith(f"{len(f.peers)} of {f.known}: ")
    assert findings("alignment", (BASE, [], {}))[0].peers_text == ""


def test_layers_are_told_apart() -> None:
    found = check(load("gemma3-4b"), only=["rope-theta"])
    assert {f.where for f in found} == {"local", "global"}
    odd = check(load("gemma3-4b", ["layers.local.ffn.d_ff=2560"]), only=["ffn-ratio-gated"])
    assert [(f.text, f.where, f.severity) for f in odd] == [("1", "local", "note"), ("4", "global", "ok")]


def test_severity_rises_beyond_the_limit() -> None:
    depth = lambda n: findings("post-norm-depth", ("transformer-2017", [f"n_layers={n}"], {}))[0].severity  # noqa: E731
    assert [depth(6), depth(20), depth(48)] == ["ok", "warning", "fault"]


def test_gravest_first_and_counted() -> None:
    found = check(load("tiny/no-norm"))
    order = ["fault", "warning", "note", "ok"]
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=order.index)
    assert found.worst == "fault"
    body = found.to_dict()
    assert sum(body["counts"].values()) == len(found)
    json.dumps(body, allow_nan=False)


def test_rules_that_need_a_run_are_listed_until_it_is_given() -> None:
    without = {s.rule: s.needs for s in check(load(BASE)).skipped}
    assert without["warmup"] == ("warmup_steps",)
    assert "dropout-one-epoch" in without
    assert check(load(BASE), FULL).skipped == ()
    assert {n for needs in without.values() for n in needs} <= set(SETTINGS)


def test_no_released_model_has_a_fault() -> None:
    for name in preset_names():
        if "/" not in name:
            assert check(load(name)).worst != "fault", name


@given(recipes())
def test_any_recipe_can_be_checked(recipe: Recipe) -> None:
    found = check(recipe, FULL)
    assert found.all
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_hundred_layers_are_quick() -> None:
    recipe = load("palm-540b")
    assert recipe.n_layers > 100
    start = time.process_time()
    check(recipe)
    assert time.process_time() - start < 0.4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"learning_rate": 1e-3}, "no such run setting: 'learning_rate'"),
        ({"lr": "1e-3"}, "lr: not a number"),
        ({"lr": -1.0}, "lr: not a number of at least 0"),
        ({"tp": 0}, "tp: not positive"),
        ({"language": "englsh"}, "language: 'englsh'; nearest: english"),
        ({"dtype": 16}, "dtype: not a text"),
        ({"decay_roles": "bias"}, "decay_roles: not a list"),
        ({"decay_roles": ["biases"]}, "no such role: biases"),
    ],
)
def test_bad_settings(settings: Settings, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        check(load("gpt2"), settings)


# --- rules of the user's own

OWN = """
off = ["qk-norm-over"]
[[rule]]
id = "our-heads"
title = "Heads of 64"
measure = "attention.head_dim"
band = {any_of = [64]}
severity = "warning"
evidence = {label = "unchecked"}
why = "Our kernel has no other."
sources = ["the kernel's README"]
[[rule]]
id = "position-kind"
title = "Learned positions, here"
measure = "position.kind"
band = {any_of = ["learned"]}
evidence = {label = "copied"}
why = "A study of them."
sources = ["our plan"]
"""


def test_a_user_adds_replaces_and_switches_off_rules(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(OWN, encoding="utf-8")
    found = {f.rule: f for f in check(load("olmo-2-7b"), extra=[path])}
    assert found["our-heads"].severity == "warning"
    assert found["position-kind"].band == "learned"
    assert "qk-norm-over" not in found
    assert len(rules([path])) == len(rules())
    assert "qk-norm-over" in {f.rule for f in check(load("olmo-2-7b"))}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("attention.head_dim", "attention.head_dims"), "no such measure: 'attention.head_dims'; nearest"),
        (('sources = ["the kernel\'s README"]', "sources = []"), "sources"),
        (("{any_of = [64]}", "{any_of = [64], low = 1}"), "one of the three"),
        (("{any_of = [64]}", "{low = 3, high = 2}"), "low 3 is above high 2"),
        (('{label = "unchecked"}', '{label = "proved"}'), "evidence.label"),
        (('{label = "unchecked"}', '{label = "swept"}'), "swept needs the study"),
        (("Heads of 64", 'Heads"\nwieght = "1'), "wieght"),
        (('off = ["qk-norm-over"]', 'off = ["qk-norm-ovr"]'), "nearest: qk-norm-over"),
        (('off = ["qk-norm-over"]', 'of = ["x"]'), "unknown key 'of'"),
        (('id = "position-kind"', 'id = "our-heads"'), "defined twice"),
        (("[[rule]]", "[[rule]"), "cannot be read"),
    ],
)
def test_a_faulty_rule_file_says_where(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(OWN.replace(*change), encoding="utf-8")
    with pytest.raises(RuleError, match=re.escape(says)) as caught:
        check(load("gpt2"), extra=[path])
    assert "ours.toml" in str(caught.value)


def test_a_missing_rule_file_and_an_unknown_rule(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read"):
        rules([tmp_path / "none.toml"])
    with pytest.raises(ValueError, match="nearest: norm-kind"):
        check(load("gpt2"), only=["norm-kinds"])


def test_a_measure_of_the_user(tmp_path: Path) -> None:
    from assay.atlas import Reading
    from assay.atlas.subject import _MEASURES

    register_measure("ours.rows", "rows", lambda s: [Reading(s.recipe.vocab_size)], lambda m: m.vocab_size)
    try:
        path = tmp_path / "ours.toml"
        path.write_text(OWN.replace("attention.head_dim", "ours.rows").replace("[64]", "[50_257]"), encoding="utf-8")
        found = {f.rule: f for f in check(load("gpt2"), extra=[path])}
        assert found["our-heads"].severity == "ok"
        assert "gpt2-xl" in found["our-heads"].peers
    finally:
        del _MEASURES["ours.rows"]


def test_measures_of_models_and_of_recipes_agree() -> None:
    """Where a model has a recipe, a measure reads the same from its facts as from the recipe."""
    from assay.atlas import Subject
    from assay.atlas.authoring import write_recipe

    skip = {"shape.params", "dropout.rate", "position.kind", "vocab.size", "embedding.share"}
    for model_id in ("llama-3.1-8b", "gpt2-xl", "qwen3-32b", "gemma2-9b", "olmo-2-7b", "falcon-40b", "granite-3.0-8b"):
        subject = Subject(write_recipe(model_id).recipe)
        for m in measures().values():
            if m.of_model is None or m.name in skip or m.name.startswith("run."):
                continue
            known = m.of_model(model(model_id))
            read = {r.value for r in m.read(subject)}
            if known is not None and read:
                assert any(v == known or (isinstance(v, float) and v == pytest.approx(known)) for v in read), (
                    model_id, m.name, known, read,
                )  # fmt: skip


def test_every_measure_says_what_it_is() -> None:
    for m in measures().values():
        assert m.about
        if m.of_model is not None:
            assert any(m.of_model(each) is not None for each in models()), m.name
