"""Runs: resume bit for bit, folders that refuse what is not theirs, failures seen, groups that cover everything."""

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
import torch

from assay.model import IGNORED, build, named_params
from assay.recipe import load
from assay.training import (
    Corpus,
    CorpusError,
    FolderError,
    RunConfig,
    RunError,
    accumulate_gradients,
    decay_groups,
    load_checkpoint,
    load_record,
    open_corpus,
    read_metrics,
    train,
)
from assay.training.checkpoint import latest

TIMING = ("tokens_per_s", "step_ms")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(200)]
    path = folder / "words.txt"
    path.write_text("\n\n".join(" ".join(rng.choices(words, k=40)) for _ in range(400)))
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def config_for(text: Path, **changes: Any) -> RunConfig:
    recipe = load("tiny/base", ["n_layers=2", "d_model=32", "block.ffn.dropout=0.1"])
    table: dict[str, Any] = {
        "recipe": recipe,
        "data": {"corpus": str(text), "val_bytes": 4096},
        "seq_len": 32,
        "batch_size": 8,
        "steps": 12,
        "schedule": {"kind": "cosine", "lr": 3e-3, "warmup": 2},
        "telemetry_every": 4,
        "eval_every": 5,
        "z_loss": 1e-4,
    }
    return RunConfig.from_dict({**table, **changes})


def numbers(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Everything a run says, less what depends on the machine's mood."""
    rows = [{k: v for k, v in row.items() if k not in TIMING} for row in read_metrics(folder / "metrics.jsonl")]
    final = {k: v for k, v in load_record(folder).final.items() if k != "timing"}
    return rows, final


def weights(folder: Path) -> dict[str, bytes]:
    newest = max((folder / "checkpoints").glob("step-*"))
    return {f.name: f.read_bytes() for f in sorted(newest.glob("*.safetensors"))}


def test_stopped_at_every_step_and_resumed_gives_the_same_bits(text: Path, tmp_path: Path) -> None:
    config = config_for(text)
    train(config, tmp_path / "straight")
    folder = tmp_path / "stopping"
    for _ in range(config.steps - 1):
        assert train(config, folder, should_stop=lambda: True).status == "interrupted"
    assert train(config, folder).status == "finished"
    assert numbers(folder) == numbers(tmp_path / "straight")
    assert weights(folder) == weights(tmp_path / "straight")


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_resume_needs_no_state_of_the_data(text: Path, tmp_path: Path, packing: str) -> None:
    """Two sources, tokens of a BPE, documents isolated: bit for bit after a stop at every step."""
    from tests.training.data.support import bins_of, bpe, texts

    tokenizer = bpe(tmp_path, 300, text.read_text().split("\n\n"))
    portions = [{"corpus": str(text), "weight": 2}, {"corpus": str(bins_of(tmp_path / "b", texts(80), tokenizer))}]
    data = {"corpus": portions, "tokenizer": str(tokenizer.path), "val_bytes": 2048, "packing": packing}
    config = config_for(
        text, recipe=load("tiny/base", ["n_layers=1", "vocab_size=300"]), data=data, steps=6, accumulate=2
    )
    train(config, tmp_path / "straight")
    for _ in range(config.steps - 1):
        assert train(config, tmp_path / "stopping", should_stop=lambda: True).status == "interrupted"
    assert train(config, tmp_path / "stopping").status == "finished"
    assert numbers(tmp_path / "stopping") == numbers(tmp_path / "straight")
    assert weights(tmp_path / "stopping") == weights(tmp_path / "straight")
    final = load_record(tmp_path / "straight").final
    assert 0 < final["val_bits_per_byte"] < final["val_loss"]


def _wait_for_more(folder: Path, checkpoints: int) -> None:
    """Until a child has saved so often, or half a minute: kills follow what was done, on any machine."""
    seen: set[str] = set()
    first, deadline = True, time.monotonic() + 30
    while time.monotonic() < deadline:
        names = {path.name for path in (folder / "checkpoints").glob("step-*")}
        checkpoints -= 0 if first else len(names - seen)
        seen, first = seen | names, False
        if checkpoints <= 0 or (folder / "record.json").exists():
            return
        time.sleep(0.002)


@pytest.mark.parametrize("trials", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_resumed(trials: int, text: Path, tmp_path: Path) -> None:
    """Children train on where the one before was killed; the last goes to the end."""
    config = config_for(text, steps=40 if trials < 50 else 300, checkpoint_every=2, eval_every=7, ema=0.9)
    train(config, tmp_path / "straight")
    folder = tmp_path / "killed"
    rng = random.Random(trials)
    reached = set()
    for _ in range(trials):
        child = os.fork()
        if child == 0:
            train(config, folder)
            os._exit(0)
        _wait_for_more(folder, rng.randint(1, 3))
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break  # it was done before
        found, problems = latest(folder / "checkpoints")
        assert not problems
        reached.add(0 if found is None else load_checkpoint(found).step)
    assert train(config, folder).status == "finished"
    assert numbers(folder) == numbers(tmp_path / "straight")
    assert weights(folder) == weights(tmp_path / "straight")
    assert not list((folder / "checkpoints").glob(".partial-*"))
    assert len(reached) > 2


def test_a_flipped_byte_is_named_and_the_checkpoint_before_it_is_used(text: Path, tmp_path: Path) -> None:
    config = config_for(text, checkpoint_every=2, keep="best_and_last", eval_every=4)
    count = iter(range(100))
    train(config, tmp_path / "r", should_stop=lambda: next(count) >= 7)
    folders = sorted((tmp_path / "r" / "checkpoints").glob("step-*"))
    assert [f.name[-2:] for f in folders] == ["06", "08"]
    file = folders[-1] / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    record = train(config, tmp_path / "r")
    assert record.status == "finished"
    assert any("model.safetensors" in w for w in record.final["warnings"])
    train(config, tmp_path / "straight")
    rows, final = numbers(tmp_path / "r")
    final.pop("warnings")
    assert (rows, final) == numbers(tmp_path / "straight")


def test_a_finished_run_is_not_repeated_and_another_run_is_refused(text: Path, tmp_path: Path) -> None:
    config = config_for(text, steps=3)
    first = train(config, tmp_path / "r")
    before = (tmp_path / "r" / "record.json").stat().st_mtime_ns
    assert train(config, tmp_path / "r").final == first.final
    assert (tmp_path / "r" / "record.json").stat().st_mtime_ns == before
    with pytest.raises(FolderError, match="holds another run"):
        train(config_for(text, steps=3, seed=1), tmp_path / "r")


def test_damaged_metrics_are_an_error_with_file_and_line(text: Path, tmp_path: Path) -> None:
    config = config_for(text, steps=6)
    count = iter(range(100))
    train(config, tmp_path / "r", should_stop=lambda: next(count) >= 3)
    metrics = tmp_path / "r" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([lines[0], "{broken", *lines[2:]]) + "\n")
    with pytest.raises(FolderError, match=r"metrics\.jsonl: line 2"):
        train(config, tmp_path / "r")


def test_a_loss_that_is_not_finite_ends_the_run(text: Path, tmp_path: Path) -> None:
    recipe = load("tiny/no-norm", ["n_layers=6", "init.weights={kind='normal', std=30.0}", "block.ffn.bias='none'"])
    record = train(config_for(text, recipe=recipe, clip="none"), tmp_path / "r")
    assert record.status == "nonfinite"
    assert record.final["val_loss"] is None
    assert json.loads((tmp_path / "r" / "record.json").read_text())["status"] == "nonfinite"


def test_digest_is_of_what_decides_the_numbers(text: Path) -> None:
    config = config_for(text)
    same = [config.changed(keep="last"), config.changed(checkpoint_every=5), RunConfig.from_dict(config.to_dict())]
    assert {c.digest("x") for c in same} == {config.digest("x")}
    other = [
        config.changed(seed=1),
        config.changed(data_seed=1),
        config.changed(z_loss=0.0),
        config.changed(precision="bf16"),
        config_for(text, schedule={"kind": "cosine", "lr": 2e-3, "warmup": 2}),
        config_for(text, optimizer={"kind": "adamw", "weight_decay": 0.0}),
        config_for(text, numerics={"threads": 2}),
        config_for(text, recipe="tiny/base"),
    ]
    assert len({c.digest("x") for c in other} | {config.digest("x"), config.digest("y")}) == len(other) + 2


def test_bf16_keeps_float32_masters(text: Path, tmp_path: Path) -> None:
    record = train(config_for(text, precision="bf16", steps=4), tmp_path / "r")
    assert record.status == "finished"
    from safetensors.torch import load_file

    saved = load_file(max((tmp_path / "r" / "checkpoints").glob("step-*")) / "model.safetensors")
    assert {t.dtype for t in saved.values()} == {torch.float32}


def test_groups_cover_every_parameter_once_and_decay_only_matrices() -> None:
    recipe = load("gpt2", ["n_layers=2", "d_model=64", "block.mixer.n_heads=4", "vocab_size=64", "max_seq_len=16"])
    decoder = build(recipe)
    decay, rest = decay_groups(decoder, 0.1)
    assert {p.name for p in decay.params} == {
        n for n, p in decoder.named_parameters() if "layers" in n and p.dim() == 2
    }
    assert {p.name.split(".")[-1] for p in rest.params} == {"gain", "bias", "table"}
    # one update with zero gradients: decayed tensors shrink by lr · decay, the others keep every bit
    optimizer = torch.optim.AdamW([g.for_torch() for g in (decay, rest)], lr=0.1, fused=True)
    before = {p.name: p.param.detach().clone() for p in named_params(decoder)}
    for p in decoder.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for group, factor in ((decay, 0.99), (rest, 1.0)):
        for p in group.params:
            torch.testing.assert_close(p.param, before[p.name] * factor, rtol=1e-6, atol=0)


@pytest.mark.parametrize("z_loss", [0.0, 1e-3])
def test_accumulation_is_by_token_count(z_loss: float) -> None:
    """Micro-batches of 10, 100 and 0 targets: one gradient, that of the whole batch."""
    recipe = load("tiny/base", ["n_layers=2"])
    ids = torch.randint(0, 256, (6, 20), generator=torch.Generator().manual_seed(0))
    targets = ids.roll(-1, 1)
    targets[0, :] = IGNORED
    targets[1, 10:] = IGNORED
    targets[4:] = IGNORED
    splits = {
        "whole": [(ids, targets)],
        "unequal": [(ids[:2], targets[:2]), (ids[2:4], targets[2:4]), (ids[4:], targets[4:])],
    }
    grads, losses = {}, {}
    for name, micro in splits.items():
        decoder = build(recipe, dtype=torch.float64)
        losses[name] = accumulate_gradients(decoder, micro, z_loss=z_loss)
        grads[name] = {p.name: p.param.grad for p in named_params(decoder)}
    assert losses["whole"].count == losses["unequal"].count == 50
    torch.testing.assert_close(losses["whole"].nats, losses["unequal"].nats, rtol=1e-6, atol=0)
    for name, grad in grads["whole"].items():
        torch.testing.assert_close(grads["unequal"][name], grad, rtol=1e-9, atol=1e-15)


def test_all_targets_ignored_is_zero_not_nan() -> None:
    decoder = build(load("tiny/base", ["n_layers=1"]))
    ids = torch.zeros(2, 8, dtype=torch.long)
    loss = accumulate_gradients(decoder, [(ids, torch.full_like(ids, IGNORED))], z_loss=1e-3)
    assert float(loss.nats) == 0.0 and loss.count == 0
    assert all(p.grad is None or not p.grad.isnan().any() for p in decoder.parameters())


def test_bad_input_is_named_before_the_first_update(text: Path, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 9, "accumulate": 2}, "accumulate"),
        ({"schedule": {"kind": "cosine", "lr": 1e-3, "warmup": 13}}, "schedule"),
        ({"schedule": {"kind": "cosin", "lr": 1e-3}}, "cosine"),
        ({"schedule": {"kind": "cosine", "lr": "1e-3"}}, "schedule.lr"),
        ({"weight_decy": 0.1}, "weight_decy"),
        ({"optimizer": {"kind": "adamw", "beta": [0.9, 0.95]}}, "betas"),
        ({"recipe": "tiny/bse"}, "tiny/base"),
        ({"steps": 0}, "steps"),
        ({"numerics": {"attention": "flash3"}}, "numerics.attention"),
    ]
    for changes, word in cases:
        with pytest.raises(ValueError, match=word.replace(".", r"\.")):
            config_for(text, **changes)
    with pytest.raises(RunError, match="one batch needs"):
        train(config_for(text, batch_size=8000, accumulate=1), tmp_path / "a")
    with pytest.raises(RunError, match="vocab_size"):
        train(config_for(text, recipe=load("tiny/base", ["vocab_size=100"])), tmp_path / "b")
    capped = load("tiny/base", ["block.mixer.soft_cap=5.0"])
    with pytest.raises(RunError, match="refuses"):
        train(config_for(text, recipe=capped, numerics={"attention": "sdpa"}), tmp_path / "c")
    with pytest.raises(CorpusError, match="for validation"):
        open_corpus(str(text), val_bytes=10**9)
    with pytest.raises(CorpusError, match="cannot be read"):
        open_corpus(str(tmp_path / "nothing.txt"))


def test_two_processes_cannot_share_a_folder(text: Path, tmp_path: Path) -> None:
    from assay.training.folder import locked

    code = "import sys, pathlib\nfrom assay.training.folder import locked\nwith locked(pathlib.Path(sys.argv[1])): pass"
    with locked(tmp_path / "r"):
        child = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "r")], capture_output=True, text=True, check=False
        )
    assert child.returncode != 0
    assert "another process" in child.stderr


def test_stdlib_corpus_is_found_hashed_and_split(tmp_path: Path) -> None:
    corpus: Corpus = open_corpus("stdlib", 65_536, cache=tmp_path)
    again = open_corpus("stdlib", 65_536, cache=tmp_path)
    assert corpus.sha256 == again.sha256 and corpus.val_bytes == 65_536 and corpus.train_bytes > 4_000_000
    assert 2.8 < corpus.unigram_entropy < 3.6
    assert len(bytes(corpus.val).split(b"\0")) >= 2
