"""The verbs that train: a small run and a small study from file to page, their faults, Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

RUN = """
recipe = "tiny/base"
seq_len = 32
batch_size = 4
steps = {steps}
eval_every = 2
telemetry_every = 2
data = {{corpus = "words.txt", val_bytes = 2048}}
schedule = {{kind = "cosine", lr = 3e-3}}
"""
STUDY = """
name = "small"
title = "A small study"
question = "Does the gate help?"
base = "tiny/base"
data = {corpus = "CORPUS", val_bytes = 2048}
[run]
seq_len = 16
batch_size = 4
schedule = {kind = "cosine"}
optimizer = {kind = "adamw"}
[numerics]
attention = "reference"
compile = false
threads = 1
[[parts]]
kind = "ladder"
name = "depth"
title = "Depth"
question = "How does depth do?"
run = {steps = 3}
axis = "n_layers"
values = [1, 2]
lr = 3e-3
seeds = [0]
[[parts.arms]]
name = "a"
label = "Arm A"
[[parts.arms]]
name = "b"
label = "Arm B"
changes = ["layers.ffn"]
overrides = ["block.ffn.activation=gelu"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(200)]
    (tmp_path / "words.txt").write_text("\n\n".join(" ".join(rng.choices(words, k=40)) for _ in range(300)))
    (tmp_path / "run.toml").write_text(RUN.format(steps=6))
    (tmp_path / "long.toml").write_text(RUN.format(steps=5000))
    (tmp_path / "small.toml").write_text(STUDY.replace("CORPUS", str(tmp_path / "words.txt")))
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "ASSAY_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}


def assay(place: Path, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "assay", *argv]
    out = subprocess.run(command, cwd=place, env=environment(place), capture_output=True, text=True, check=False)
    assert out.returncode == code, out.stderr
    return out


def as_json(place: Path, *argv: str) -> Any:
    return json.loads(assay(place, *argv, "--json").stdout)


def test_train_report_and_going_on(place: Path) -> None:
    first = as_json(place, "train", "run.toml")
    assert first["status"] == "finished"
    assert first["final"]["steps_done"] == 6
    page = (place / "runs" / "run" / "report.html").read_text()
    assert "<html" in page
    assert as_json(place, "train", "run.toml")["final"] == first["final"]  # not repeated
    assert Path(as_json(place, "report", "runs/run")["report"]).read_text() == page
    assert "validation loss" in assay(place, "train", "run.toml", "--out", "b", "--set", "steps=3").stdout
    rows = as_json(place, "train", "run.toml", "--groups")
    assert {row["group"] for row in rows} == {"decay", "no_decay"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_the_same_command_goes_on(place: Path, number: signal.Signals) -> None:
    """So does what a cluster sends before it takes the machine away."""
    command = [sys.executable, "-m", "assay", "train", "long.toml"]
    process = subprocess.Popen(command, cwd=place, env=environment(place), stderr=subprocess.DEVNULL)
    metrics = place / "runs" / "long" / "metrics.jsonl"
    deadline = time.time() + 120
    while time.time() < deadline and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 3):
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(60) == 130
    record = json.loads((place / "runs" / "long" / "record.json").read_text())
    assert record["status"] == "interrupted"
    assert list((place / "runs" / "long" / "checkpoints").glob("step-*"))


def test_a_study_from_plan_to_page(place: Path) -> None:
    dry = as_json(place, "study", "small.toml", "--dry-run")
    assert dry["runs"] == 4
    result = as_json(place, "study", "small.toml")
    assert result["study"]["complete"]
    assert len(result["runs"]) == 4
    folder = place / "studies" / "small"
    assert "Does the gate help?" in (folder / "report.html").read_text()
    text = assay(place, "study", "small.toml").stdout
    assert str(folder / "report.html") in text
    assay(place, "report", "studies/small", "--out", "page.html")
    assert (place / "page.html").stat().st_size > 500_000  # the charts' scripts are inside


def test_studies_that_come_with_assay() -> None:
    out = subprocess.run([sys.executable, "-m", "assay", "study", "--list", "--json"], capture_output=True, check=True)
    assert "first-assay" in [row["name"] for row in json.loads(out.stdout)]


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (("train", "none.toml"), ("none.toml", "cannot be read")),
        (("train", "run.toml", "--set", "stepz=3"), ("stepz", "steps")),
        (("train", "run.toml", "--set", "batch_size=9000"), ("batch_size", "one batch needs")),
        (("train", "run.toml", "--set", "data.corpus=gone.txt"), ("gone.txt", "cannot be read")),
        (("study", "frist-assay"), ("frist-assay", "first-assay")),
        (("study", "words.txt"), ("words.txt",)),
        (("report", "nowhere"), ("nowhere", "no such folder")),
        (("report", "."), ("holds no finished study",)),
    ],
)
def test_a_fault_is_told_on_one_screen(place: Path, argv: tuple[str, ...], parts: tuple[str, ...]) -> None:
    out = assay(place, *argv, code=2)
    assert len(out.stderr.splitlines()) < 25
    assert "Traceback" not in out.stderr
    for part in parts:
        assert part in out.stderr


def test_a_page_that_cannot_be_written_is_named(place: Path) -> None:
    assay(place, "train", "run.toml", "--out", "r")
    for out in ("none/page.html", "r", "words.txt/page.html"):
        told = assay(place, "report", "r", "--out", out, code=2).stderr
        assert f"{out}: cannot be written" in told and "Traceback" not in told
    (place / "r" / "report.html").unlink()
    (place / "r" / "report.html").mkdir()
    told = assay(place, "train", "run.toml", "--out", "r", code=2).stderr
    assert "report.html: cannot be written" in told and "Traceback" not in told


def test_a_run_of_a_part_of_ones_own_has_a_page(place: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    plugin = ("--plugin", str(examples / "average_mixer.py"))
    recipe = f'recipe="{examples / "average.toml"}"'
    assay(place, "train", "run.toml", "--set", recipe, "--set", "steps=1", "--out", "r", *plugin)
    assay(place, "report", "r", "--out", "page.html", *plugin)
    assert (place / "page.html").read_text() == (place / "r" / "report.html").read_text()
    assert "no such mixer kind" in assay(place, "report", "r", code=2).stderr


def test_another_studys_folder_and_a_damaged_run_are_refused(place: Path) -> None:
    assay(place, "study", "small.toml", "--out", "s")
    (place / "other.toml").write_text((place / "small.toml").read_text().replace("values = [1, 2]", "values = [1, 3]"))
    refused = assay(place, "study", "other.toml", "--out", "s", code=2).stderr
    assert "belongs to another version" in refused
    metrics = sorted((place / "s" / "runs").glob("*/metrics.jsonl"))[0]
    metrics.write_text("{damaged\n" + metrics.read_text())
    (place / "s" / "result.json").unlink()
    assert str(metrics.name) in assay(place, "study", "small.toml", "--out", "s", code=2).stderr
