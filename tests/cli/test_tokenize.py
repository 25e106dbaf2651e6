"""``assay tokenize``: from a text to a tokenizer, to tokens, to a run on them; and its faults."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from assay.cli.app import app
from tests.training.data.support import bins_of, json_lines, texts

RUN = """
recipe = "tiny.toml"
seq_len = 16
batch_size = 4
steps = 4
eval_every = 2
data = {corpus = [{corpus = "tokens", weight = 3}, {corpus = "more.jsonl"}], tokenizer = "tok.json", val_bytes = 400}
schedule = {kind = "cosine", lr = 3e-3}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenize")
    json_lines(folder / "a.jsonl", texts(60))
    json_lines(folder / "more.jsonl", texts(40, seed=1))
    (folder / "tiny.toml").write_text('extends = "tiny/base"\nvocab_size = 320\nn_layers = 1\n')
    (folder / "run.toml").write_text(RUN)
    (folder / "bad.txt").write_bytes(b"fine\nna\xefve\n")
    return folder


def assay(place: Path, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ASSAY_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "assay", *argv]
    out = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert out.returncode == code, out.stderr
    assert "Traceback" not in out.stderr
    return out


def as_json(place: Path, *argv: str) -> Any:
    return json.loads(assay(place, *argv, "--json").stdout)


def test_from_text_to_a_run(place: Path) -> None:
    trained = as_json(place, "tokenize", "train", "a.jsonl", "--vocab-size", "320", "-o", "tok.json")
    assert (trained["vocab_size"], trained["documents"]) == (320, 60)
    made = as_json(place, "tokenize", "a.jsonl", "tokens", "--tokenizer", "tok.json", "--shard-tokens", "1e3")
    assert made["tokenizer"]["sha256"] == trained["sha256"]
    assert made["bytes"] == trained["bytes"] and made["documents"] == 60 and made["shards"] > 1
    assert made["tokens"] < made["bytes"] == pytest.approx(made["bytes_per_token"] * made["tokens"])
    assert "tok (320)" in assay(place, "tokenize", "more.jsonl", "again", "--tokenizer", "tok.json").stdout

    run = as_json(place, "train", "run.toml")
    manifest = json.loads((place / "runs" / "run" / "manifest.json").read_text())
    assert manifest["corpus"]["tokenizer_sha256"] == trained["sha256"]
    assert manifest["corpus"]["name"] == "tokens 0.75 + more.jsonl 0.25"
    bits = run["final"]["val_bits_per_byte"]
    assert 0 < bits < run["final"]["val_loss"] / 0.69  # a token is more than a byte
    rows = [json.loads(line) for line in (place / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert set(rows[1]["val_loss_by_part"]) == {"tokens", "more.jsonl"}
    assert "bits a byte" in assay(place, "train", "run.toml").stdout

    (place / "web").mkdir()
    (place / "web" / "a.jsonl.gz").write_bytes(gzip.compress((place / "a.jsonl").read_bytes()))
    web = as_json(
        place, "tokenize", "web/**/*.jsonl.gz", "tokens-web", "--tokenizer", "tok.json", "--shard-tokens", "1e3"
    )
    assert web["sha256"] == made["sha256"]  # of the tokens, however the text was packed

    assert "exists and is not overwritten" in assay(place, "tokenize", "a.jsonl", "tokens", code=2).stderr
    shard = place / "tokens" / "tokens-00001.bin"
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    assert "tokens-00001.bin: not what was written" in assay(place, "train", "run.toml", "--out", "x", code=2).stderr
    assert not (place / "x").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("none.txt", "out"), "no such file or folder"),
        (("bad.txt", "out"), "bad.txt, line 2: not UTF-8"),
        (("a.jsonl", "out", "--field", "body"), "a.jsonl, line 1: has no field 'body'; found 'text'"),
        (("a.jsonl", "out", "--tokenizer", "none.json"), "none.json': cannot be read"),
        (("a.jsonl", "out", "--bos", "B"), "cannot be chosen"),
        (("a.jsonl",), "OUT is missing"),
        (("a.jsonl", "out", "--vocab-size", "300"), "only after `tokenize train`"),
        (("train", "a.jsonl"), "--vocab-size N and --out FILE are needed"),
        (("train", "a.jsonl", "--vocab-size", "100", "-o", "new.json"), "257 tokens already"),
        (("train", "a.jsonl", "--vocab-size", "300", "-o", "run.toml"), "not overwritten"),
        (("train", "a.jsonl", "--vocab-size", "300", "-o", "new.json", "--eos", "E"), "has no effect"),
        (("train", "a.jsonl", "--vocab-size", "300", "-o", "bad.txt/new.json"), "new.json: cannot be written"),
    ],
)
def test_a_fault_is_told_and_nothing_is_left(
    place: Path, argv: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = CliRunner().invoke(app, ["tokenize", *argv], prog_name="assay")
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert not (place / "out").exists() and not (place / "new.json").exists()
    assert not list(place.glob(".*"))


@pytest.fixture(scope="module")
def bins(place: Path) -> Path:
    for name in ("whole", "empty", "version", "flipped"):
        bins_of(place / name, texts(60), shard=2000)
    (place / "empty" / "tokens-00001.bin").write_bytes(b"")
    manifest = place / "version" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 9'))
    shard = place / "flipped" / "tokens-00002.bin"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    (place / "nan.jsonl").write_text('{"text": "fine"}\n{"text": NaN}\n')
    data = 'data = {corpus = "whole", val_bytes = 400}'
    lines = [data if line.startswith("data") else line for line in RUN.splitlines()]
    (place / "bytes.toml").write_text("\n".join(lines))
    return place


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ("data.corpus=gone", "corpus 'gone': cannot be read: no such file or folder"),
        ("data.corpus=empty", "tokens-00001.bin: empty"),
        ("data.corpus=version", "version 9; this assay reads version 1"),
        ("data.corpus=flipped", "tokens-00002.bin: not what was written"),
        ("data.corpus=nan.jsonl", "nan.jsonl, line 2: field 'text' holds nan, not text"),
        ("data.corpus=bad.txt", "bad.txt, line 2: not UTF-8"),
        ("recipe.vocab_size=200", "smaller than the tokenizer's 256 (bytes)"),
        ("data.tokenizer=none.json", "tokenizer 'none.json': cannot be read"),
        ("batch_size=100000", "one batch needs 1,600,001 tokens"),
        ("data.max_epochs=0.01", "at most 0.01"),
        ("data.val_bytes=10000000", "10,000,000 for validation"),
        ("data.packing=isolated", "documents, stream"),
    ],
)
def test_bad_data_is_named_before_the_first_update(
    bins: Path, sets: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bins)
    monkeypatch.setenv("ASSAY_CACHE", str(bins / "cache"))
    done = CliRunner().invoke(app, ["train", "bytes.toml", "--set", sets, "--out", "never"], prog_name="assay")
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert not (bins / "never").exists()


def test_a_run_keeps_its_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a run on a BPE can be read when the file that it named is gone."""
    from assay import RunConfig, load, train
    from assay.interop import open_folder

    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "words.txt").write_text("\n\n".join(f"the cat sat on mat {n} of {n * n}" for n in range(900)))
    tok = tmp_path / "tok.json"
    argv = ["tokenize", "train", str(tmp_path / "words.txt"), "--vocab-size", "280", "-o", str(tok)]
    assert CliRunner().invoke(app, argv).exit_code == 0
    table = {
        "recipe": load("tiny/base", ["vocab_size=280", "n_layers=1"]),
        "seq_len": 16,
        "batch_size": 2,
        "steps": 1,
        "data": {"corpus": str(tmp_path / "words.txt"), "tokenizer": str(tok), "val_bytes": 1024},
        "schedule": {"kind": "constant", "lr": 1e-3},
    }
    record = train(RunConfig.from_dict(table), tmp_path / "run")
    tok.unlink()
    told = json.loads((record.folder / "manifest.json").read_text())["corpus"]
    read = open_folder(record.folder).tokenizer()
    assert read.decode(read.encode("the cat")) == "the cat"
    assert told["eos"] in read.stop_ids
