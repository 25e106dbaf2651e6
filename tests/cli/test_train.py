"""assay train: what it shows, whom it begins from, what it writes on the way, and faults before the first update."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from assay.cli.app import app
from assay.cli.train_page import command, page_record
from assay.cli.train_view import State, View, clock_time
from tests.cli.test_runs import RUN, environment, place  # noqa: F401 - fixture

# ruff: noqa: F811 - fixtures of another file


class Ceiling:
    flops, name = 1e9, "a device, fp32 dense 0.001 TFLOP/s"


def row(step: int, **more: Any) -> dict[str, Any]:
    base = {"step": step, "loss": 4.0 - step / 10, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_s": 1000.0, "warnings": []}
    return {**base, **more}


def state(**more: Any) -> State:
    clock = iter(range(0, 100_000, 2))
    return State(20, 100.0, Ceiling(), clock=lambda: float(next(clock)), **more)  # type: ignore[arg-type]


def test_the_numbers_of_the_view() -> None:
    """Smoothed loss without the bias of its start, speed over the time spent, ETA at the pace so far, MFU by hand."""
    held = state()
    held.feed(row(1))
    assert held.loss == pytest.approx(3.9)
    held.feed(row(2, tokens_per_s=500.0, val_loss=3.5, val_bits_per_byte=5.05, ema_val_loss=3.6))
    weights = [0.05 * 0.95, 0.05]
    assert held.loss == pytest.approx((weights[0] * 3.9 + weights[1] * 3.8) / sum(weights))
    assert held.rate == pytest.approx(2 / (1 / 1000 + 1 / 500))
    assert held.eta == pytest.approx(18 * 2 / 2)  # 2 s for 2 updates when asked first
    said = dict(held.said())
    assert said["validation"] == "3.5000 (5.0500 bits a byte), running mean 3.6000 at 2"
    assert said["speed"] == f"{held.rate:,.0f} tokens/s, MFU {held.rate * 100 / 1e9:.1%} of {Ceiling.name}"
    assert "3.8000 now" in said["loss"]
    held.feed(row(3, loss=None, grad_norm=None, max_logit=[None, 12.0]))
    assert "nan now" in dict(held.said())["loss"] and "not finite" in dict(held.said())["rate"]
    held.feed(row(4))
    assert dict(held.said())["logits"] == "largest attention logit 12"  # the last that is known


def test_no_peak_is_said_so() -> None:
    assert State(5).mfu == "MFU: no peak known"
    assert [clock_time(s) for s in (5, 245, 3723, float("nan"))] == ["0:05", "4:05", "1:02:03", "-"]


def test_without_a_terminal_a_line_now_and_then() -> None:
    out = io.StringIO()
    with View(state(), Console(file=out, width=60), every=30.0) as view:
        for step in range(1, 21):
            view.feed(row(step, warnings=["step 7: loss spike: 9"] if step == 7 else []))
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("warning")] == ["warning: step 7: loss spike: 9"]
    shown = [line for line in lines if line.startswith("update")]
    assert shown[0].startswith("update 1/20  loss 3.9000  lr 1.00e-03  1,000 tok/s  MFU")
    assert shown[-1].startswith("update 20/20") and 2 <= len(shown) <= 5


def test_on_a_terminal_a_live_table() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with View(state(), console) as view:
        for step in range(1, 21):
            view.feed(row(step, warnings=[f"step {step}: said"], **({"val_loss": 2.5} if step == 9 else {})))
    text = out.getvalue()
    for part in ("update 20 of 20", "smoothed", "2.5000 at 9", "tokens/s, MFU", "warning: step 20: said", "ETA"):
        assert part in text
    assert "warning: step 16: said" not in text.rsplit("update 20 of 20", 1)[1]  # the last few


def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs the command in this process; gives its exit code and what it said on stderr."""
    for key, value in environment(place).items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(place)

    def call(*argv: str) -> tuple[int, str]:
        err = io.StringIO()
        monkeypatch.setattr(sys, "stderr", err)
        monkeypatch.setattr(sys, "argv", ["assay", *argv])
        try:
            app([*argv], prog_name="assay", standalone_mode=True)
        except SystemExit as end:
            return int(end.code or 0), err.getvalue()
        except typer.Exit as end:
            return end.exit_code, err.getvalue()
        return 0, err.getvalue()

    return call


def test_samples_are_written_shown_and_cut_on_resume(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no number of the run is another for them."""
    assay_ = inside(place, monkeypatch)
    more = ("--set", "samples.every=2", "--set", 'samples.prompts=["abc <b>de", "f"]', "--set", "samples.tokens=5")
    code, told = assay_("train", "run.toml", "--out", "r", *more)
    assert code == 0, told
    rows = [json.loads(line) for line in (place / "r" / "samples.jsonl").read_text().splitlines()]
    assert [(s["step"], s["prompt"]) for s in rows] == [(n, p) for n in (2, 4, 6) for p in ("abc <b>de", "f")]
    assert all(1 <= len(s["text"].encode()) <= 15 for s in rows)
    page = (place / "r" / "report.html").read_text()
    assert "abc &lt;b&gt;de" in page and "Earlier ones" in page
    assert "assay train run.toml" in page.replace("</span> <span>", " ")
    assert assay_("train", "run.toml", "--out", "plain")[0] == 0
    files = [max((place / f / "checkpoints").glob("step-*")) / "model.safetensors" for f in ("r", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes()
    # the run goes on from an older checkpoint: later texts are written again, not twice
    for name in ("record.json", "checkpoints/step-00000006/rng.safetensors"):
        (place / "r" / name).unlink()
    assert assay_("train", "run.toml", "--out", "r", *more)[0] == 0
    again = [json.loads(line) for line in (place / "r" / "samples.jsonl").read_text().splitlines()]
    assert again == rows
    code, told = assay_("train", "run.toml", "--out", "long", *more[:2], "--set", f'samples.prompts=["{"a" * 5000}"]')
    assert code == 2 and "samples.prompts" in told and "the context holds" in told
    capsys.readouterr()


def test_a_default_prompt_is_the_start_of_the_validation_split(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(place, monkeypatch)("train", "run.toml", "--out", "r", "--set", "samples.every=6")[0] == 0
    (only,) = [json.loads(line) for line in (place / "r" / "samples.jsonl").read_text().splitlines()]
    from assay.training import open_data

    corpus = open_data(json_config(place / "r").data)
    assert only["prompt"].encode() == bytes(corpus.val[:32]).replace(b"\0", b"")
    capsys.readouterr()


def test_samples_of_a_run_on_a_bpe(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompt and text come back through the run's own tokenizer, a file's or a tokenized folder's."""
    from tests.training.data.support import bins_of, bpe, texts

    tokenizer = bpe(place, 300)
    bins_of(place / "bins", texts(80), tokenizer)
    (place / "more.toml").write_text('extends = "tiny/base"\nname = "more"\nvocab_size = 300\n')
    run = (
        RUN.format(steps=2).replace('"tiny/base"', '"more.toml"') + 'samples = {every = 2, prompts = ["a naïve 東"]}\n'
    )
    own = run.replace('"words.txt"', f'"words.txt", tokenizer = "{tokenizer.path}"')
    for name, text in (("file", own), ("folder", run.replace('"words.txt"', '"bins"'))):
        (place / f"{name}.toml").write_text(text)
        code, told = inside(place, monkeypatch)("train", f"{name}.toml")
        assert code == 0, told
        (only,) = [json.loads(line) for line in (place / "runs" / name / "samples.jsonl").read_text().splitlines()]
        assert only["prompt"] == "a naïve 東" and only["text"]
    capsys.readouterr()


def json_config(folder: Path) -> Any:
    from assay.training import load_record

    return load_record(folder).config


def test_a_run_begins_from_a_run_or_a_hugging_face_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assay_ = inside(place, monkeypatch)
    assert assay_("train", "run.toml", "--out", "first")[0] == 0
    code, told = assay_("train", "run.toml", "--init-from", "first", "--out", "second")
    assert code == 0, told
    first, second = (json.loads((place / f / "manifest.json").read_text()) for f in ("first", "second"))
    assert first["digest"] != second["digest"] and first["config"]["init_from"] == "none"
    assert second["config"]["init_from"]["source"] == "first"
    losses = [json.loads((place / f / "record.json").read_text())["final"]["initial_loss"] for f in ("first", "second")]
    assert losses[1] < losses[0]
    assert assay_("train", "run.toml", "--init-from", "first", "--out", "second")[0] == 0  # ended: not repeated
    code, told = assay_("train", "run.toml", "--out", "second")
    assert code == 2 and "holds another run" in told
    # of Hugging Face, by the same weights
    assert assay_("export", "first", "hf")[0] == 0
    code, told = assay_("train", "run.toml", "--init-from", "hf", "--out", "third")
    assert code == 0, told
    third = json.loads((place / "third" / "manifest.json").read_text())
    assert third["config"]["init_from"]["sha256"] == second["config"]["init_from"]["sha256"]
    assert third["digest"] == second["digest"]
    # what does not fit, and what is not there
    (place / "more.toml").write_text('extends = "tiny/base"\nname = "more"\nvocab_size = 300\n')
    (place / "other.toml").write_text(RUN.format(steps=6).replace('"tiny/base"', '"more.toml"'))
    code, told = assay_("train", "other.toml", "--init-from", "first", "--out", "x")
    assert code == 2 and "init_from.embedding.table: another shape in first" in told and "[300, 64]" in told
    assert not (place / "x").exists()
    code, told = assay_("train", "run.toml", "--init-from", "nowhere", "--out", "x")
    assert code == 2 and "nowhere" in told
    capsys.readouterr()


FAULTS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("train", "broken.toml"), ("broken.toml", "cannot be read", "line 2")),
    (("train", "binary.toml"), ("binary.toml", "cannot be read")),
    (("train", "."), (".", "cannot be read")),
    (("train", "run.toml", "--set", "recipe=tiny/bse"), ("tiny/base",)),
    (("train", "run.toml", "--set", "optimizer.betta1=0.9"), ("optimizer.betta1", "unknown key")),
    (("train", "run.toml", "--set", "optimizer.kind=adamw2"), ("optimizer.kind", "nearest: adamw")),
    (("train", "run.toml", "--set", "schedule.lr=-1.0"), ("schedule.lr",)),
    (("train", "run.toml", "--set", "schedule.lr=nan"), ("schedule.lr",)),
    (("train", "run.toml", "--set", "batch_size=9000"), ("batch_size", "one batch needs")),
    (("train", "run.toml", "--set", "seq_len=3000"), ("val_bytes", "no window of 3000")),
    (("train", "small-vocabulary.toml"), ("recipe.vocab_size", "smaller than the tokenizer's 256")),
    (("train", "run.toml", "--set", "data.tokenizer=none.json"), ("none.json",)),
    (("train", "run.toml", "--set", "keep={kind='last', n=0}"), ("keep.n",)),
    (("train", "run.toml", "--set", "keep=first"), ("keep", "nothing")),
    (("train", "run.toml", "--set", "samples.evry=3"), ("samples.evry", "nearest: every")),
    (("train", "run.toml", "--set", 'samples.prompts=["a"]'), ("samples.every", "prompts have no effect")),
    (("train", "run.toml", "--log", "tensorbord"), ("log",)),
    (("train", "run.toml", "--set", "numerics.device=cuda"), ("numerics.device", "no CUDA device")),
    (("train", "run.toml", "--set", "numerics.device=gpu"), ("numerics.device", "nothing can be computed there")),
    (("train", "run.toml", "--set", "numerics.device=meta"), ("numerics.device", "nothing can be computed there")),
    (("train", "run.toml", "--set", f"seed={1 << 63}"), ("seed", "less than 9223372036854775808")),
    (("train", "run.toml", "--out", "words.txt/run"), ("words.txt", "Not a directory")),
    (("train", "run.toml", "--set", "accumulate=3"), ("accumulate", "does not divide")),
    (("train", "run.toml", "--set", "data.val_bytes=100000000"), ("for validation",)),
    (("train", "empty.toml"), ("empty.txt",)),
]


@pytest.mark.parametrize(("argv", "parts"), FAULTS, ids=[" ".join(a[1:]) for a, _ in FAULTS])
def test_bad_input_is_told_before_the_first_update(
    argv: tuple[str, ...], parts: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if "numerics.device=cuda" in argv and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    run = RUN.format(steps=6)
    (place / "broken.toml").write_text("recipe = [\nsteps 3")
    (place / "binary.toml").write_bytes(b"\xff\xfe\x00recipe")
    (place / "empty.txt").write_text("")
    (place / "empty.toml").write_text(run.replace("words.txt", "empty.txt"))
    (place / "few.toml").write_text('extends = "tiny/base"\nname = "few"\nvocab_size = 100\n')
    (place / "small-vocabulary.toml").write_text(run.replace('"tiny/base"', '"few.toml"'))
    code, told = inside(place, monkeypatch)(*argv)
    assert code == 2, told
    assert "Traceback" not in told and len(told.splitlines()) < 25
    for part in parts:
        assert part in told
    assert not (place / "runs").exists()  # nothing was begun


def test_a_full_disk_is_exit_code_1_and_the_same_command_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets no file grow past 100 kB: the last checkpoint cannot be written."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command_ = [sys.executable, "-m", "assay", "train", "run.toml"]
    out = subprocess.run(
        command_, cwd=place, env=environment(place), capture_output=True, text=True, preexec_fn=small, check=False
    )
    assert out.returncode == 1, out.stderr
    assert "step-00000006: not saved: File too large; make room" in out.stderr and "Traceback" not in out.stderr
    assert inside(place, monkeypatch)("train", "run.toml")[0] == 0
    assert json.loads((place / "runs" / "run" / "record.json").read_text())["status"] == "finished"


def test_a_run_that_goes_on_or_was_killed_has_a_page_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assay_ = inside(place, monkeypatch)
    assert assay_("train", "run.toml", "--out", "r")[0] == 0
    from assay.training import load_record

    whole = load_record(place / "r").final
    (place / "r" / "record.json").unlink()
    with pytest.raises(ValueError, match="no readable run here"):
        load_record(place / "r")
    found = load_record(place / "r", unfinished=True)
    assert found.status == "unfinished" and found.rows[-1]["step"] == 6
    same = {k for k in whole if k not in ("groups", "timing")}
    assert {k: found.final[k] for k in same} == {k: whole[k] for k in same}
    with (place / "r" / "metrics.jsonl").open("a") as f:
        f.write('{"step": 7, "lo')
    assert assay_("report", "r", "--out", "page.html")[0] == 0
    assert "unfinished after 6 of 6 updates" in (place / "page.html").read_text()
    (place / "r" / "metrics.jsonl").write_text("")
    assert assay_("report", "r", "--out", "page.html")[0] == 0  # not an update yet


def test_the_command_of_a_page() -> None:
    assert command(["__main__.py", "train", "a b.toml"]) == ["assay", "train", "'a b.toml'"]
    assert command(["mine.py", "x"]) == command([]) == []


def test_new_and_train_is_one_path(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`assay new NAME` and the command it prints: a model of that size learns on the default corpus."""
    assay_ = inside(place, monkeypatch)
    assert assay_("new", "mine", "--params", "100e3", "--context", "64", "--json")[0] == 0
    argv = json.loads(capsys.readouterr().out)["next"][-1].split()
    assert argv == ["assay", "train", "mine.run.toml"]
    short = ("--set", "steps=8", "--set", "schedule.warmup=2", "--set", "eval_every=4", "--set", "batch_size=4")
    code, told = assay_(*argv[1:], *short, "--json")
    assert code == 0, told
    final = json.loads(capsys.readouterr().out)["final"]
    assert final["val_loss"] < final["initial_loss"] and 50e3 < final["params"] < 200e3
    assert (place / "runs" / "mine.run" / "report.html").is_file()
    (only,) = [json.loads(line) for line in (place / "runs" / "mine.run" / "samples.jsonl").read_text().splitlines()]
    assert only["prompt"] == "def main(" and only["step"] == 8


def test_a_page_says_everything(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assay_ = inside(place, monkeypatch)
    assert assay_("train", "run.toml", "--set", "ema=0.9", "--out", "r")[0] == 0
    from assay.training import load_record

    found = page_record(load_record(place / "r"))
    assert found["run"]["ema_curve"] and found["run"]["bits_curve"] and found["run"]["groups"]
    assert {"torch", "python", "processor", "git"} <= found["environment"].keys() and "argv" not in found["environment"]
    page = (place / "r" / "report.html").read_text()
    for words in (
        "Optimizer groups",
        "Repeat it",
        "bits a byte",
        "running mean",
        "Residual RMS",
        "Environment",
        "Corpus",
    ):
        assert words in page
    assert os.path.getsize(place / "r" / "report.html") > 500_000
