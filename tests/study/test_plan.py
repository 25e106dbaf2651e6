"""What a plan may say, and what it is refused for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.study import PlanError, dry_run, load_plan, parse_plan, plan_names
from assay.study.design import Design
from assay.study.match import check, part_facts
from assay.study.methods import methods_of
from assay.training import Corpus, open_corpus

from .fakes import CURVE, LADDER, NULL_ARM, PLAN, plan_on, plan_table, write_corpus


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def corpus(text: Path) -> Corpus:
    return open_corpus(str(text), 4096)


def refused(table: dict[str, Any]) -> str:
    with pytest.raises(PlanError) as error:
        parse_plan(table)
    return str(error.value)


def refused_by_check(text: Path, corpus: Corpus, table: dict[str, Any]) -> str:
    with pytest.raises(PlanError) as error:
        check(Design(plan_on(text, table), corpus.sha256), corpus)
    return str(error.value)


def test_the_shipped_study_is_the_one_that_was_asked_for() -> None:
    assert "first-assay" in plan_names()
    plan = load_plan("first-assay")
    corpus = open_corpus()
    design = Design(plan, corpus.sha256, full=True)
    assert check(design, corpus) == []
    assert [part.kind_name for part in plan.parts] == ["lr_curve", "ladder", "comparison"]
    assert plan.data["val_bytes"] >= 64_000
    whole = plan.comparison
    assert whole is not None
    assert (len(whole.tuning_seeds), len(whole.reporting_seeds)) == (3, 5)
    curve = plan.parts[0]
    assert set(whole.lrs) == set(curve.lrs)  # type: ignore[attr-defined]
    params = {arm.name: part_facts(design, whole, arm).params for arm in whole.arms}
    assert len(params) == 5
    baseline = params[whole.baseline]
    assert all(abs(n - baseline) / baseline < 0.005 for n in params.values())
    for arm in curve.arms:
        recipe = design.recipe(curve, arm)
        assert (recipe.d_model, recipe.n_layers, recipe.layers[0].ffn.kind_name) == (64, 12, "mlp")
        assert str(recipe.init.of(recipe.init.roles[0].role)) == "kind='normal' std=1.0"
    wall = plan.parts[1]
    deep = design.recipe(wall, wall.arms[0], 8)
    assert deep.n_layers == 8
    assert {str(e.role): e.distribution.kind_name for e in deep.init.roles}["ffn_in"] == "fan_in"


def test_a_plan_file_is_read(tmp_path: Path) -> None:
    import tomli_w

    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(PLAN))
    assert load_plan(path) == parse_plan(PLAN)


def test_an_unknown_study_names_the_nearest() -> None:
    with pytest.raises(PlanError, match="nearest: first-assay"):
        load_plan("first-asay")
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan("nowhere.toml")


@pytest.mark.parametrize("kind", ["probe", "timing", "identity"])
def test_other_kinds_are_refused_clearly(kind: str) -> None:
    said = refused({**PLAN, "kind": kind})
    assert "cannot be run yet" in said
    assert "allowed: training" in said


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"lrs": [1e-3]}, "parts.0.lrs", "a grid of one"),
        ({"tuning_seeds": [0, 1]}, "parts.0.tuning_seeds", "3 seeds or more"),
        ({"reporting_seeds": [2, 10]}, "parts.0.reporting_seeds", "winner's luck"),
        ({"reporting_seeds": [10]}, "parts.0.reporting_seeds", "no spread"),
        ({"reporting_seeds": [10, 10, 11]}, "parts.0.reporting_seeds", "twice"),
        ({"lrs": [1e-3, 1e-3]}, "parts.0.lrs", "twice"),
        ({"lrs": [1e-3, -1.0]}, "parts.0.lrs", "greater than 0"),
        ({"lrs": ["1e-3", 1e-2]}, "parts.0.lrs", "valid number"),
        ({"baseline": "rely"}, "parts.0.baseline", "relu, glu"),
        ({"marign": 0.1}, "parts.0.marign", "nearest: margin"),
        ({"match": {"by": "parameter"}}, "parts.0.match.by", "'parameters' or 'flops'"),
        ({"kind": "comparision"}, "parts.0.kind", "nearest: comparison"),
        ({"run": {"seed": 3}}, "parts.0.run.seed", "the seeds of a part"),
        ({"arms": [PLAN["parts"][0]["arms"][0]] * 2}, "parts.0.arms.1.name", "an arm of this name"),
        ({"arms": PLAN["parts"][0]["arms"][:1]}, "parts.0.arms", "nothing to compare"),
        (
            {"arms": [*PLAN["parts"][0]["arms"], {"name": "n", "null_of": "rel"}]},
            "parts.0.arms.2.null_of",
            "no such arm",
        ),
        (
            {"arms": [*PLAN["parts"][0]["arms"], {"name": "n", "null_of": "relu"}]},
            "seed_offset",
            "repeats the same runs",
        ),
        ({"arms": [{"name": "relu", "overides": []}]}, "parts.0.arms.0.overides", "nearest: overrides"),
    ],
)
def test_faults_are_named_with_place_and_remedy(changes: dict[str, Any], place: str, words: str) -> None:
    said = refused(plan_table(**changes))
    assert place in said
    assert words in said


def test_a_null_arms_offset_may_not_carry_tuning_seeds_into_reporting() -> None:
    arms = [*PLAN["parts"][0]["arms"], {**NULL_ARM, "seed_offset": 10}]
    assert "winner's luck" in refused(plan_table(arms=arms))


def test_survivor_rates_lie_above_the_grid() -> None:
    assert "not above the grid" in refused(plan_table({**CURVE, "survivor_lrs": [5e-3]}))


def test_one_verdict_a_study() -> None:
    second = {**PLAN["parts"][0], "name": "again"}
    assert "one comparison a study" in refused(plan_table(second))


def test_several_faults_are_listed_together() -> None:
    table = plan_table()
    del table["question"]
    table["name"] = "Not a slug"
    said = refused(table)
    assert "2 problems" in said


def test_a_base_that_does_not_exist_names_the_nearest() -> None:
    assert "nearest: tiny/pre-ln" in refused({**PLAN, "base": "tiny/pre-lm"})


def test_a_base_may_be_a_table_that_extends(text: Path, corpus: Corpus) -> None:
    table = plan_table()
    table["base"] = {"extends": "tiny/pre-ln", "d_model": 32}
    design = Design(plan_on(text, table), corpus.sha256)
    part = design.plan.parts[0]
    assert design.recipe(part, part.arms[0]).d_model == 32


def test_a_sound_plan_passes(text: Path, corpus: Corpus) -> None:
    arms = [*PLAN["parts"][0]["arms"], NULL_ARM]
    assert check(Design(plan_on(text, plan_table(CURVE, LADDER, arms=arms)), corpus.sha256), corpus) == []


def changed_arm(**changes: Any) -> dict[str, Any]:
    relu, glu = PLAN["parts"][0]["arms"]
    return plan_table(arms=[relu, {**glu, **changes}])


def test_an_undeclared_difference_is_refused(text: Path, corpus: Corpus) -> None:
    more = changed_arm(overrides=[*PLAN["parts"][0]["arms"][1]["overrides"], "block.residual.norm=rmsnorm"])
    said = refused_by_check(text, corpus, more)
    assert "undeclared difference at layers.residual" in said
    assert "allowed: layers.ffn" in said


def test_a_declared_change_that_is_not_there_is_refused(text: Path, corpus: Corpus) -> None:
    said = refused_by_check(text, corpus, changed_arm(changes=["layers.ffn", "head.norm"]))
    assert "declared, but not different" in said
    assert "head.norm" in said


def test_arms_of_unlike_size_are_refused(text: Path, corpus: Corpus) -> None:
    wide = changed_arm(overrides=['block.ffn={kind = "glu", d_ff = 256, activation = "silu"}'])
    said = refused_by_check(text, corpus, wide)
    assert "parameters" in said
    assert "within 0.50% of relu's" in said
    wide["parts"][0]["match"] = {"by": "flops", "tolerance": 0.01}
    assert "flops" in refused_by_check(text, corpus, wide)
    wide["parts"][0]["match"] = {"by": "parameters", "tolerance": 0.5}
    assert check(Design(plan_on(text, wide), corpus.sha256), corpus) == []


def test_the_same_model_twice_is_refused(text: Path, corpus: Corpus) -> None:
    said = refused_by_check(text, corpus, changed_arm(overrides=[], changes=[]))
    assert "the same model as arm relu" in said
    unlike = [*PLAN["parts"][0]["arms"], {**NULL_ARM, "null_of": "glu"}]
    assert "not equal to the arm it repeats" in refused_by_check(text, corpus, plan_table(arms=unlike))


def test_an_axis_that_changes_nothing_is_refused(text: Path, corpus: Corpus) -> None:
    flat = {**LADDER, "axis": "notes", "values": ["a", "b"]}
    flat["overrides"] = ["n_layers=2"]
    assert "does not change arm post" in refused_by_check(text, corpus, plan_table(flat))


def test_faults_of_a_recipe_are_placed_in_the_plan(text: Path, corpus: Corpus) -> None:
    said = refused_by_check(text, corpus, changed_arm(overrides=["block.ffn.activaton=silu"]))
    assert "parts.glu.arms.glu" in said
    assert "nearest: activation" in said


def test_faults_of_run_settings_are_placed_in_the_plan(text: Path, corpus: Corpus) -> None:
    table = plan_table()
    table["run"]["batch_sise"] = 4
    assert "run.batch_sise" in refused_by_check(text, corpus, table)
    table = plan_table(run={"steps": 0})
    assert "parts.glu.run.steps" in refused_by_check(text, corpus, table)


def test_a_corpus_that_would_be_read_many_times_is_too_small(text: Path, corpus: Corpus) -> None:
    said = refused_by_check(text, corpus, plan_table(run={"steps": 5_000}))
    assert "data.corpus" in said
    assert "times the training split" in said


def test_too_little_text_for_the_validation_split_is_refused(text: Path) -> None:
    table = plan_table()
    table["data"]["val_bytes"] = 50_000
    with pytest.raises(PlanError, match=r"data: corpus(.|\n)*50,000 for validation"):
        dry_run(plan_on(text, table))


def test_a_margin_that_the_seeds_cannot_resolve_is_told(text: Path, corpus: Corpus) -> None:
    fine = plan_on(text, plan_table(margin=0.01))
    (warning,) = check(Design(fine, corpus.sha256), corpus)
    assert "27" in warning  # about 274 seeds at a seed sd of 0.04
    assert "cannot be 'equivalent'" in warning
    assert check(Design(plan_on(text, plan_table(margin=0.1)), corpus.sha256), corpus) == []


def test_few_reporting_seeds_screen(text: Path, corpus: Corpus) -> None:
    (warning,) = check(Design(plan_on(text, plan_table(reporting_seeds=[10, 11, 12])), corpus.sha256), corpus)
    assert "screen" in warning


def test_methods_tell_any_optimizer_and_schedule(text: Path, corpus: Corpus) -> None:
    """Words as well as numbers, and of an optimizer what is not as usual."""
    table = plan_table()
    table["run"]["schedule"] = {"kind": "wsd", "decay": 2, "shape": "1-sqrt"}
    table["run"]["optimizer"] = {"kind": "muon", "lr_multipliers": {"embedding": 10.0}}
    said = methods_of(Design(plan_on(text, table), corpus.sha256), corpus.describe())
    assert "wsd schedule (warmup 0, decay 2, floor 0, shape 1-sqrt)" in said
    assert "muon (weight_decay 0.1, lr_multipliers {'embedding': 10.0}, betas" in said
