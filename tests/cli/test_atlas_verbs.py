"""The verbs of the atlas and the wider budget: what each prints, writes and refuses."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import assay as public
from assay import load
from assay.atlas import expressible, model, model_dict, models, recipe_for, table_names
from assay.cli.check import settings_of
from assay.cli.common import quantity
from assay.recipe import preset_names, resolve
from assay.training import RunConfig
from tests.cli.support import assay, fault, printed, read

PAGES = (
    ("atlas", "--family", "gemma"),
    ("atlas", "gemma2-9b"),
    ("atlas", "deepseek-v3"),
    ("atlas", "--table", "timeline"),
    ("atlas", "--table", "flagships"),
    ("atlas", "--table", "users-windows"),
    ("check", "gpt2-xl", "--lr", "1e-2"),
    ("design", "--params", "1.3e9", "-n", "2"),
    ("scale", "gemma3-4b", "--ladder", "5M,20M"),
    ("budget", "gemma3-4b", "--seq-len", "4096", "--batch", "16", "--hardware", "h100", "--parallel", "tp=2,dp=2",
     "--tokens", "4T"),
)  # fmt: skip


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("argv", PAGES, ids=" ".join)
def test_pages_fit_the_terminal(argv: tuple[str, ...], columns: int) -> None:
    for line in printed(*argv, columns=columns).splitlines():
        assert len(line) <= columns, line


def test_numbers_as_people_write_them() -> None:
    assert [quantity(t) for t in ("1.3e9", "1.3B", "500M", "15T", "128k", "1_000", "7", "2G")] == [
        1.3e9, 1.3e9, 5e8, 1.5e13, 128e3, 1e3, 7.0, 2e9,
    ]  # fmt: skip
    for bad in ("B", "1.3X", "", "nan", "1e999"):
        assert "number" in fault("design", "--params", bad)


# atlas


def test_the_list_has_every_model_and_filters() -> None:
    assert [row["id"] for row in read("atlas")] == [m.id for m in models()]
    rows = read("atlas", "--kind", "moe", "--kind", "hybrid-moe", "--since", "2025", "--max-params", "200B")
    assert rows
    assert all(row["year"] >= 2025 and row["params"]["total"] <= 200e9 for row in rows)
    tied = read("atlas", "--where", "tied=yes", "--where", "org=Google")
    assert {row["id"] for row in tied} >= {"gemma2-9b"}
    text = printed("atlas", "--family", "olmo", columns=140)
    assert re.search(r"olmo-2-7b +2025-01 +7B +32 +4096 .*RMS reordered +rope +SwiGLU +32/32", text)
    assert "no model" in printed("atlas", "--family", "gemma", "--until", "2018")


def test_a_model_has_its_facts_sources_and_disagreements() -> None:
    text = printed("atlas", "gemma2-9b")
    flat = " ".join(text.split())
    for part in (
        "9.24 B (9,241,705,984)", "from the fields, the same", "sqrt_d_model", "1 : 1",
        "keras-team/keras-hub@71453d08f", "query pre-attention scalar: MaxText 224", "assay show gemma-2-9b",
    ):  # fmt: skip
        assert part in flat
    assert read("atlas", "gemma-2-9b") == {
        **json.loads(json.dumps(model_dict(model("gemma2-9b")))),
        "recipe_reasons": [],
    }


def test_a_recipe_is_printed_or_its_absence_explained() -> None:
    text = printed("atlas", "qwen3-14b", "--recipe")
    assert resolve(tomllib.loads(text), "x").digest == resolve(recipe_for("qwen3-14b"), "x").digest
    assert text.count("# assumed: ") == len(read("atlas", "qwen3-14b", "--recipe")["assumed"]) > 0
    without = next(name for name, reasons in expressible().items() if reasons)
    assert f"no recipe for {without}" in fault("atlas", without, "--recipe")
    assert "cannot express it" in printed("atlas", without)


def test_tables_by_name() -> None:
    lines = printed("atlas", "--tables", columns=80).splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == list(table_names())
    assert max(map(len, lines)) <= 80
    assert "100%" in printed("atlas", "--table", "timeline")
    found = read("atlas", "--table", "dense-shapes")
    assert found["rows"][-1][8]["note"].startswith("the course chapter says 15.6T")
    assert "[1] the course chapter says" in printed("atlas", "--table", "dense-shapes")
    assert "nearest: timeline" in fault("atlas", "--table", "timelin")


def test_the_page_is_written(tmp_path: Path) -> None:
    path = tmp_path / "atlas.html"
    assert read("atlas", "--html", str(path)) == {"page": str(path)}
    assert 500_000 < path.stat().st_size < 4_000_000
    assert "cannot be written" in fault("atlas", "--html", str(tmp_path / "no" / "atlas.html"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("gemma2-9",), "nearest: gemma2-9b"),
        (("--family", "gema"), "nearest: gemma"),
        (("--norm", "batchnorm"), "known: "),
        (("--where", "colour=red"), "no such filter"),
        (("--where", "tied"), "not KEY=VALUE"),
        (("gpt2", "--family", "gpt"), "exclude"),
        (("--table", "timeline", "--html", "x.html"), "exclude"),
        (("--recipe",), "needs a MODEL"),
    ],
)
def test_atlas_says_what_is_wrong(argv: tuple[str, ...], said: str) -> None:
    assert said in fault("atlas", *argv)


# check


def test_a_finding_has_value_band_models_severity_and_evidence() -> None:
    found = read("check", "gpt2-xl", "--lr", "1e-2", "--run", "dtype=bf16")
    by_rule = {f["rule"]: f for f in found["findings"]}
    high = by_rule["logit-control-lr"]
    assert (high["severity"], high["value"], high["evidence"]["label"]) == ("warning", "none", "swept")
    assert high["evidence"]["study"]
    assert "gpt2" in high["peers"]
    text = " ".join(printed("check", "gpt2-xl", "--lr", "1e-2").split())
    for part in ("warning: A high learning rate", "105 of 145", "swept: Wortsman", "copied: nobody re-checked"):
        assert part in text
    assert "rules wait for a setting of the run" in text


def test_a_run_file_gives_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'recipe = "tiny/base"\nseq_len = 64\nbatch_size = 4\nsteps = 100\n'
        '[schedule]\nkind = "cosine"\nlr = 1e-3\nwarmup = 5\n',
        encoding="utf-8",
    )
    settings = settings_of(RunConfig.load(file))
    assert settings["tokens"] == 25_600
    assert (settings["lr"], settings["warmup_steps"], settings["beta2"]) == (1e-3, 5, 0.95)
    before = {s["rule"] for s in read("check", "tiny/base")["skipped"]}
    after = {s["rule"] for s in read("check", "tiny/base", "--run", str(file))["skipped"]}
    assert {"warmup", "learning-rate", "tokens", "weight-decay", "decay-groups"} <= before - after


def test_rules_of_ones_own_and_strict(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[rule]]\nid = "narrow"\ntitle = "Width"\nmeasure = "shape.aspect"\nband = {low = 1000}\nseverity = "fault"\n'
        'evidence = {label = "unchecked"}\nwhy = "mine"\nsources = ["me"]\n',
        encoding="utf-8",
    )
    argv = ("check", "llama-3.1-8b", "--rules", str(file), "--only", "narrow")
    assert "1 fault" in printed(*argv)
    assert assay(*argv, "--strict").exit_code == 1
    assert assay("check", "llama-3.1-8b", "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("nollama",), "no such recipe"),
        (("gpt2", "--run", "warmup=1"), "no such run setting"),
        (("gpt2", "--run", "lr=fast"), "not a number"),
        (("gpt2", "--run", "fast"), "neither KEY=VALUE nor"),
        (("gpt2", "--run", "none.toml"), "cannot be read"),
        (("gpt2", "--only", "head-dims"), "nearest: head-dim"),
        (("gpt2", "--rules", "none.toml"), "cannot be read"),
    ],
)
def test_check_says_what_is_wrong(argv: tuple[str, ...], said: str) -> None:
    assert said in fault("check", *argv)


# design, scale, new


def test_designs_are_ranked_and_written(tmp_path: Path) -> None:
    argv = ("design", "--params", "125M", "--vocab", "32768", "-n", "2")
    rows = read(*argv, "--out", str(tmp_path / "shapes"))
    assert [row["score"] for row in rows] == sorted(row["score"] for row in rows)
    for row in rows:
        assert abs(row["params"]["total"] / 125e6 - 1) < 0.1
        assert load(row["file"]).digest == row["findings"]["digest"]
    assert "exists and is not overwritten" in fault(*argv, "--out", str(tmp_path / "shapes"))
    text = printed(*argv)
    assert all(part in text for part in (rows[0]["name"], "why", "near", "rules"))


def test_a_design_is_held_against_a_device(tmp_path: Path) -> None:
    text = printed("design", "--params", "7B", "--hardware", "h100", "--devices", "64", "-n", "1")
    assert "64 x h100-sxm" in text
    assert "known: " in fault("design", "--params", "7B", "--hardware", "abacus")
    file = tmp_path / "box.toml"
    file.write_text("memory_gb = 8\nbandwidth_gb_s = 100\npeak_tflops = {bf16 = 10}\n", encoding="utf-8")
    (found,) = read("design", "--params", "7B", "--hardware", str(file), "-n", "1")
    assert found["estimate"]["fits_training"] is False


@pytest.mark.parametrize(
    "argv",
    [
        ("--params", "0"),
        ("--params", "-5"),
        ("--params", "10"),
        ("--params", "1B", "--tp", "7"),
        ("--params", "1B", "-n", "0"),
        ("--params", "1B", "--context", "-1"),
        ("--params", "1B", "--count", "all"),
    ],
    ids=" ".join,
)
def test_design_says_what_is_wrong(argv: tuple[str, ...]) -> None:
    assert fault("design", *argv).startswith("error: ")


def test_a_proxy_keeps_the_choices(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    found = read("scale", "gemma3-4b", "--params", "20e6", "--out", str(file))
    assert abs(found["got"] / 20e6 - 1) < 0.1
    small = load(file)
    assert small.digest == resolve(found["recipe"], "x").digest
    assert {layer.name for layer in small.layers} == {"local", "global"}
    assert "34 layers of 2560 -> " in printed("scale", "gemma3-4b", "--params", "20M")


def test_a_ladder_goes_into_a_folder(tmp_path: Path) -> None:
    argv = ("scale", "llama-3.1-8b", "--ladder", "20M,5M", "--vocab", "256", "--context", "1024", "--out")
    rows = read(*argv, str(tmp_path))
    assert [row["asked"] for row in rows] == [5_000_000, 20_000_000]
    assert sorted(Path(row["file"]) for row in rows) == sorted(tmp_path.glob("*.toml"))
    assert "give a folder" in fault(*argv, str(tmp_path / "x.toml"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("gpt2",), "one of the two"),
        (("gpt2", "--params", "1M", "--ladder", "1M"), "one of the two"),
        (("gpt2", "--ladder", "1M,1e6"), "stands twice"),
        (("gpt2", "--ladder", "1M,x"), "not a number"),
        (("gpt2", "--params", "3"), "nearest"),
    ],
)
def test_scale_says_what_is_wrong(argv: tuple[str, ...], said: str) -> None:
    assert said in fault("scale", *argv)


def test_new_writes_a_recipe_and_a_run_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = printed("new", "mine", "--params", "30e6")
    recipe, run = load("mine.toml"), RunConfig.load("mine.run.toml")
    assert recipe.name == "mine"
    assert recipe.vocab_size == 256
    assert run.recipe.digest == recipe.digest
    assert abs(public.budget(recipe).params.total / 30e6 - 1) < 0.1
    commands = [line.strip() for line in text.partition("Next")[2].splitlines() if line.strip()]
    assert [c.split()[1] for c in commands] == ["show", "budget", "check", "train"]
    for command in commands[:3]:
        assert printed(*shlex.split(command)[1:])
    before = Path("mine.run.toml").read_bytes()
    assert "mine.toml: exists" in fault("new", "mine")
    Path("mine.toml").unlink()
    assert "mine.run.toml: exists" in fault("new", "mine")
    assert not Path("mine.toml").exists()
    assert Path("mine.run.toml").read_bytes() == before
    assert read("new", "other", "--out", "deep/er.toml")["run_file"] == "deep/er.run.toml"
    assert RunConfig.load("deep/er.run.toml").recipe.name == "other"


def test_new_refuses_a_name_that_is_a_place() -> None:
    assert "--out" in fault("new", "../mine")
    assert ".toml" in fault("new", "mine", "--out", "mine.json")


# budget


def test_a_budget_on_a_device(tmp_path: Path) -> None:
    argv = ("budget", "llama-3.1-8b", "--seq-len", "8192", "--batch", "8", "--hardware", "h100", "--parallel", "tp=8")
    found = read(*argv, "--tokens", "15T", "--optimizer", "adamw", "--recompute", "full")
    direct = public.budget(
        load("llama-3.1-8b"), 8, 8192, hardware="h100", parallel="tp=8", tokens=15e12, optimizer="adamw",
        recompute="full",
    )  # fmt: skip
    assert found == json.loads(json.dumps(direct.to_dict()))
    text = printed(*argv, "--tokens", "15T")
    for part in ("Memory of one device", "Time at least, on h100-sxm", "Plan: 8 devices", "Chinchilla", "FLOPs a byte"):
        assert part in text
    page = tmp_path / "b.html"
    assert read(*argv, "--html", str(page))["page"] == str(page)
    assert "Roofline" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--hardware", "abacus"), "known: "),
        (("--hardware", "none.toml"), "cannot be read"),
        (("--parallel", "tp=3", "--batch", "3"), "does not"),
        (("--parallel", "xp=3"), "xp"),
        (("--optimizer", "adamm"), "adam"),
        (("--mfu", "0.4"), "no effect"),
        (("--batch", "0"), "positive"),
        (("--seq-len", "-1"), "positive"),
        (("--recompute", "some"), "known: "),
    ],
)
def test_budget_says_what_is_wrong(argv: tuple[str, ...], said: str) -> None:
    assert said in fault("budget", "llama-3.1-8b", *argv)


# all of them


def test_none_of_them_loads_torch(tmp_path: Path) -> None:
    page, shapes = tmp_path / "b.html", tmp_path / "shapes"
    lines = (
        ["atlas", "gpt2"], ["check", "gpt2", "--lr", "1e-3"],
        ["design", "--params", "1e8", "-n", "1", "--out", str(shapes)], ["scale", "gpt2", "--params", "1e6"],
        ["new", "mine", "--out", str(tmp_path / "mine.toml")], ["budget", "gpt2", "--html", str(page)],
        ["check", str(tmp_path / "mine.toml"), "--run", str(tmp_path / "mine.run.toml")],
    )  # fmt: skip
    body = f"""
import sys
from assay.cli.app import app
for argv in {lines!r}:
    try:
        app(argv, prog_name="assay")
    except SystemExit as stop:
        assert not stop.code, (argv, stop.code)
print("loaded:", *({{"torch", "transformers", "scipy"}} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].split() == ["loaded:"]


def test_every_small_preset_can_be_checked() -> None:
    for name in preset_names():
        if name.startswith("tiny/"):
            assert public.check(load(name)).all
