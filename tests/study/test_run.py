"""Whole studies on formulas: what is run, what is chosen, what is said, what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.study import Plan, StudyError, StudyEvent, StudyInterrupted, dry_run, load_result, run_study
from assay.study.executors import InlineExecutor, News
from assay.training import RunConfig, open_corpus

from .fakes import CURVE, LADDER, NULL_ARM, PLAN, is_glu, is_post, leave, noise, plan_on, plan_table, rate, studied
from .fakes import write_corpus as _write


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("corpus"))


def small(text: Path, *parts: dict[str, Any], **changes: Any) -> Plan:
    return plan_on(text, plan_table(*parts, **changes))


def glu_wins(config: RunConfig) -> float:
    return 2.3 - 0.2 * is_glu(config) + 20 * abs(rate(config) - 3e-3) + noise(config)


def test_a_planted_effect_is_found(text: Path, tmp_path: Path) -> None:
    result, done = studied(small(text), tmp_path / "out", glu_wins)
    assert result.verdict == "better"
    assert len(done) == len(set(done)) == 2 * 3 * 3 + 2 * 5
    record = result.to_dict()
    relu, glu = record["arms"]
    assert (relu["best_lr"], glu["best_lr"]) == (3e-3, 3e-3)
    assert glu["alive"] == [5, 5]
    assert record["effect"]["nats"] == pytest.approx(-0.2, abs=0.05)
    assert record["effect"]["interval"][1] < 0
    assert record["effect"]["n"] == [5, 5]
    assert -1 <= record["effect"]["seed_correlation"] <= 1
    assert record["parts"][0]["evaluation_stderr"] == 0.01
    assert len(result.answer) == 2
    assert "SwiGLU is better" in result.answer[0]
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert load_result(tmp_path / "out").to_dict() == record


def test_each_arm_tunes_its_own_rate_and_reports_on_fresh_seeds(text: Path, tmp_path: Path) -> None:
    def landscape(config: RunConfig) -> float:
        return 2.3 + 20 * abs(rate(config) - (1e-2 if is_glu(config) else 1e-3)) + noise(config, 0.001)

    record = studied(small(text), tmp_path / "out", landscape)[0].to_dict()
    relu, glu = record["arms"]
    assert (relu["best_lr"], relu["best_lr_on_edge"]) == (1e-3, True)
    assert (glu["best_lr"], glu["best_lr_on_edge"]) == (1e-2, True)
    assert any("edge of the grid" in warning for warning in record["warnings"])
    for arm in (relu, glu):
        tuned = {(p["lr"], p["seed"]) for p in arm["tuning"]}
        assert tuned == {(lr, seed) for lr in (1e-3, 3e-3, 1e-2) for seed in (0, 1, 2)}
        assert [row["seed"] for row in arm["reporting"]] == [10, 11, 12, 13, 14]
        stages = {run["digest"]: run["lr"] for run in record["runs"] if run["stage"] == "reporting"}
        assert all(stages[row["run"]] == arm["best_lr"] for row in arm["reporting"])


@pytest.mark.parametrize("spread", [0.02, 0.05])
def test_a_planted_null_is_undecided_or_equivalent(text: Path, tmp_path: Path, spread: float) -> None:
    """Two equal arms on different seeds; alone and beside a real change."""
    arms = [PLAN["parts"][0]["arms"][0], NULL_ARM]

    def landscape(config: RunConfig) -> float:
        return 2.3 + 20 * abs(rate(config) - 3e-3) + noise(config, spread)

    plain, _ = studied(small(text, arms=arms), tmp_path / "plain", landscape)
    assert plain.verdict == "undecided"
    seeds = [row["seed"] for row in plain.to_dict()["arms"][1]["reporting"]]
    assert seeds == [110, 111, 112, 113, 114]
    wide, _ = studied(small(text, arms=arms, margin=0.2), tmp_path / "wide", landscape)
    assert wide.verdict == "equivalent"
    fine, _ = studied(small(text, arms=arms, margin=0.01), tmp_path / "fine", landscape)
    assert fine.verdict == "undecided"
    assert any("cannot be 'equivalent'" in warning for warning in fine.to_dict()["warnings"])


def test_fresh_deaths_are_unstable(text: Path, tmp_path: Path) -> None:
    """Best of all with the tuning seeds, dead with two fresh ones: the story of post-LN at 5e-3."""

    def landscape(config: RunConfig) -> float:
        if is_glu(config) and config.seed in (11, 14):
            return 3.4
        return glu_wins(config)

    result, _ = studied(small(text), tmp_path / "out", landscape)
    assert result.verdict == "unstable"
    record = result.to_dict()
    assert record["effect"] is None
    assert record["arms"][1]["alive"] == [3, 5]
    assert record["arms"][1]["classes"]["dead"] == 2
    assert "3 of 5" in " ".join(result.answer)
    assert record["mde"]["seed_sd_is"] == "expected"


def test_an_arm_that_never_learns_reports_nothing(text: Path, tmp_path: Path) -> None:
    def landscape(config: RunConfig) -> float | None:
        return None if is_glu(config) else glu_wins(config)

    result, done = studied(small(text), tmp_path / "out", landscape)
    assert result.verdict == "unstable"
    assert len(done) == 18 + 5
    glu = result.to_dict()["arms"][1]
    assert (glu["best_lr"], glu["losses"], glu["alive"]) == (None, [], [0, 0])
    assert {p["class"] for p in glu["tuning"]} == {"nonfinite"}
    assert all(p["loss"] is None for p in glu["tuning"])
    assert any("never learned" in warning for warning in result.to_dict()["warnings"])


def post_breaks(config: RunConfig) -> float:
    if is_post(config) and rate(config) > 5e-3:
        return 3.4
    return 3.4 if is_post(config) and config.recipe.n_layers > 2 else 2.4 + noise(config)


def test_survivors_go_on_above_the_grid(text: Path, tmp_path: Path) -> None:
    record = studied(small(text, CURVE, LADDER), tmp_path / "out", post_breaks)[0].to_dict()
    curve, depth = record["parts"][1:]
    post, pre = curve["arms"]
    assert [rung["lr"] for rung in post["curve"]] == [1e-3, 1e-2]
    assert [rung["lr"] for rung in pre["curve"]] == [1e-3, 1e-2, 1e-1]
    assert post["lr_to_divergence"] == {
        "last_good": 1e-3,
        "first_bad": 1e-2,
        "text": "1e-3 to 1e-2",
        "words": "between 1e-3 and 1e-2",
    }
    assert pre["lr_to_divergence"]["text"] == "> 1e-1"
    assert [rung["alive"] for rung in post["curve"]] == [3, 0]
    classes = {(p["value"], arm["name"]): p["class"] for arm in depth["arms"] for p in arm["points"]}
    assert classes[2, "post"] == "alive"
    assert classes[3, "post"] == "dead"
    assert classes[3, "pre"] == "alive"
    assert any("fails from 3 on" in sentence for sentence in depth["sentences"])


def test_runs_that_parts_share_are_done_once(text: Path, tmp_path: Path) -> None:
    twin = {**CURVE, "name": "twin", "lrs": [1e-3, 2e-2], "survivor_lrs": []}
    result, done = studied(small(text, CURVE, twin), tmp_path / "out", post_breaks)
    assert len(done) == len(set(done))
    shared = [run for run in result.to_dict()["runs"] if {u["part"] for u in run["uses"]} == {"curve", "twin"}]
    assert {run["lr"] for run in shared} == {1e-3}
    assert len({run["digest"] for run in result.to_dict()["runs"]}) == len(result.to_dict()["runs"]) == len(done)


def test_the_record_has_what_a_page_needs(text: Path, tmp_path: Path) -> None:
    record = studied(small(text, CURVE, LADDER), tmp_path / "out", post_breaks)[0].to_dict()
    assert record["schema"] == 1
    assert set(record) == {
        *("schema", "study", "answer", "verdict", "arms", "effect", "mde", "parts", "runs", "corpus"),
        *("settings", "environment", "methods", "warnings"),
    }
    main = record["parts"][0]
    assert [dimension["dimension"] for dimension in main["card"]] == [
        *("quality", "memory", "compute", "bandwidth", "stability"),
    ]
    for dimension in main["card"]:
        for row in dimension["rows"]:
            assert {"measure", "unit", "baseline", "change", "ratio", "note"} <= set(row)
    assert main["matched"]["spread"] < 0.005
    run = record["runs"][0]
    assert run["train_curve"][-1][0] == run["steps"] == 6
    assert len(run["residual_rms"][0][1]) == 2
    assert "Welch" in record["methods"]
    assert record["corpus"]["unigram_entropy"] < 3.4
    assert record["environment"]["python"]
    assert str(tmp_path) not in json.dumps(record)
    assert str(text.parent) not in json.dumps(record)


def test_nothing_that_has_ended_is_done_again(text: Path, tmp_path: Path) -> None:
    first, _ = studied(small(text), tmp_path / "out", glu_wins)
    again, done = studied(small(text), tmp_path / "out", lambda _: pytest.fail("trained again"))
    assert done == []
    assert again.numbers() == first.numbers()
    assert again.to_dict()["study"]["plan_digest"] == first.to_dict()["study"]["plan_digest"]


def test_another_studys_runs_are_taken_over(text: Path, tmp_path: Path) -> None:
    studied(small(text), tmp_path / "first", glu_wins)
    wider = small(text, lrs=[1e-3, 3e-3, 1e-2, 3e-2])
    result, done = studied(wider, tmp_path / "second", glu_wins, reuse=[tmp_path / "first"])
    assert len(done) == 2 * 3
    alone, _ = studied(wider, tmp_path / "alone", glu_wins)
    assert result.numbers() == alone.numbers()


def test_the_order_in_which_runs_end_does_not_matter(text: Path, tmp_path: Path) -> None:
    plan = small(text, CURVE)
    straight, _ = studied(plan, tmp_path / "a", post_breaks)
    corpus = open_corpus(plan.data["corpus"], plan.data["val_bytes"])

    class Backwards(InlineExecutor):
        """Takes four runs and does the last first."""

        def __init__(self) -> None:
            super().__init__(lambda config, folder: leave(config, folder, corpus.sha256, post_breaks(config)))
            self._queue: list[Any] = []

        @property
        def free(self) -> int:
            return 4 - len(self._queue)

        def submit(self, job: Any) -> None:
            self._queue.append(job)

        def wait(self, timeout: float) -> list[News]:
            super().submit(self._queue.pop())
            return super().wait(timeout)

    other = run_study(plan, tmp_path / "b", executor=lambda _: Backwards())
    assert other.numbers() == straight.numbers()


def test_full_adds_arms_and_moves_no_verdict(text: Path, tmp_path: Path) -> None:
    arms = [*PLAN["parts"][0]["arms"], {**NULL_ARM, "runs": "full"}]
    short, done = studied(small(text, arms=arms), tmp_path / "out", glu_wins)
    whole, more = studied(small(text, arms=arms), tmp_path / "out", glu_wins, full=True)
    assert len(more) == 9 + 5
    assert not set(done) & set(more)
    assert [arm["name"] for arm in whole.to_dict()["arms"]] == ["relu", "glu", "null"]
    assert whole.to_dict()["effect"] == short.to_dict()["effect"]
    assert whole.to_dict()["arms"][2]["verdict"] == "undecided"


def test_events_tell_what_a_live_table_needs(text: Path, tmp_path: Path) -> None:
    told: list[StudyEvent] = []
    studied(small(text), tmp_path / "out", glu_wins, on_event=told.append)
    assert told[0].kind == "planned"
    assert (told[0].done, told[0].total) == (0, 28)
    finished = [event for event in told if event.kind == "finished"]
    assert [event.done for event in finished] == list(range(1, 29))
    assert finished[-1].alive == finished[-1].total == 28
    assert finished[-1].eta_s == 0
    assert finished[0].to_dict()["use"]["arm"] == "relu"


def test_ctrl_c_leaves_a_folder_that_goes_on(text: Path, tmp_path: Path) -> None:
    count = 0

    def interrupted(config: RunConfig) -> float:
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return glu_wins(config)

    with pytest.raises(StudyInterrupted) as stop:
        studied(small(text), tmp_path / "out", interrupted)
    assert (stop.value.done, stop.value.total) == (7, 28)
    with pytest.raises(StudyError, match="no finished study"):
        load_result(tmp_path / "out")
    resumed, done = studied(small(text), tmp_path / "out", glu_wins)
    assert len(done) == 28 - 7
    assert resumed.numbers() == studied(small(text), tmp_path / "whole", glu_wins)[0].numbers()


def test_a_run_that_fails_is_named(text: Path, tmp_path: Path) -> None:
    def broken(config: RunConfig) -> float:
        if is_glu(config):
            raise RuntimeError("no such kernel")
        return glu_wins(config)

    with pytest.raises(StudyError, match=r"glu/glu, lr 0.001, seed 0(.|\n)*no such kernel"):
        studied(small(text), tmp_path / "out", broken)


def test_another_studys_folder_is_refused(text: Path, tmp_path: Path) -> None:
    studied(small(text), tmp_path / "out", glu_wins)
    with pytest.raises(StudyError, match="another version of study 'tiny'"):
        studied(small(text, lrs=[1e-3, 3e-3]), tmp_path / "out", glu_wins)
    renamed = plan_table()
    renamed["name"] = "other"
    with pytest.raises(StudyError, match="belongs to study 'tiny'"):
        studied(plan_on(text, renamed), tmp_path / "out", glu_wins)
    reworded = plan_table()
    reworded["question"] = "The same, in other words?"
    assert studied(plan_on(text, reworded), tmp_path / "out", glu_wins)[1] == []


def test_another_corpus_is_refused(text: Path, tmp_path: Path) -> None:
    studied(small(text), tmp_path / "out", glu_wins)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text() + "\nmore\n")
    with pytest.raises(StudyError, match="another corpus"):
        studied(small(other), tmp_path / "out", glu_wins)


def test_a_strangers_folder_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StudyError, match=r"thesis\.tex"):
        studied(small(text), tmp_path, glu_wins)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    file = tmp_path / "thesis.tex"
    with pytest.raises(StudyError, match="not a folder"):
        studied(small(text), file, glu_wins)


@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json", "manifest.json"])
def test_a_damaged_file_is_named(text: Path, tmp_path: Path, name: str) -> None:
    _, done = studied(small(text), tmp_path / "out", glu_wins)
    path = tmp_path / "out" / "runs" / done[3] / name
    path.write_text("{broken\n" + path.read_text())
    with pytest.raises(StudyError) as error:
        studied(small(text), tmp_path / "out", glu_wins)
    assert done[3] in str(error.value)
    assert name.partition(".")[0] in str(error.value) or "no readable run" in str(error.value)


def test_a_folder_in_use_is_refused(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.study.folder._PATIENCE", 0.2)

    def nested(config: RunConfig) -> float:
        with pytest.raises(StudyError, match="another process is working"):
            studied(small(text), tmp_path / "out", glu_wins)
        raise KeyboardInterrupt

    with pytest.raises(StudyInterrupted):
        studied(small(text), tmp_path / "out", nested)


def test_a_dry_run_tells_the_price(text: Path) -> None:
    found = dry_run(small(text, CURVE, LADDER))
    shared = 2 * 3 + 1  # the pre arm of the curve and the ladder is the comparison's baseline
    assert found.runs == 2 * 9 + 2 * 5 + 2 * 2 * 3 + 2 * 3 - shared
    assert found.runs_at_most == found.runs + 2 * 3
    assert 0 < found.cpu_seconds < found.cpu_seconds_at_most
    assert found.mde is not None
    assert found.mde["sd"] == pytest.approx(2.02, abs=0.01)
    assert {(arm["part"], arm["arm"]) for arm in found.arms} >= {("glu", "relu"), ("depth", "pre")}
    assert json.dumps(found.to_dict())
