"""Everything at once, resumed bit for bit; ends inside any file operation; full disks; starting over; what is kept."""

# ruff: noqa: F811 - fixtures of another file

from __future__ import annotations

import errno
import json
import os
import random
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.model import build, named_params
from assay.recipe import load
from assay.training import DiskError, RunConfig, RunError, SaveError, Start, load_checkpoint, load_record, train
from assay.training import checkpoint as ckpt
from assay.training.checkpoint import checkpoints, latest, step_of
from assay.training.keep import KeepLast, KeepNothing
from tests.training.data.support import bins_of, texts
from tests.training.test_checkpoint import failing
from tests.training.test_run import config_for, numbers, own_cache, text, weights  # noqa: F401 - fixtures

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"kind": "adamw", "lr_multipliers": {"embedding": 3.0}, "qk_clip": 0.05},
    "muon": {"kind": "muon", "neuron_beta": 0.95},
}


def everything(folder: Path, **changes: Any) -> RunConfig:
    """Dropout, a ramp, a mean, parts of a batch, isolated documents, telemetry, validation."""
    data = {"corpus": str(bins_of(folder / "bins", texts(80))), "val_bytes": 1024, "packing": "documents"}
    table = {
        "recipe": load("tiny/base", ["n_layers=2", "d_model=32", "block.ffn.dropout=0.2"]),
        "data": data,
        "seq_len": 24,
        "batch_size": 8,
        "accumulate": 2,
        "ramp": {"kind": "linear", "start": 2, "tokens": 480, "lr": "sqrt"},
        "ema": 0.8,
        "steps": 9,
        "schedule": {"kind": "wsd", "lr": 3e-3, "warmup": 2, "decay": 3},
        "telemetry_every": 2,
        "eval_every": 4,
        "z_loss": 1e-4,
    }
    return RunConfig.from_dict({**table, **changes})


def state(folder: Path) -> dict[str, Any]:
    """All that a run has at its newest checkpoint, bytes of every tensor file and the plain values."""
    newest, problems = latest(folder / "checkpoints")
    assert newest is not None and not problems
    plain = {k: v for k, v in load_checkpoint(newest).state.items() if k != "cpu_seconds"}
    return {"files": weights(folder), "state": plain, "numbers": numbers(folder)}


@pytest.mark.parametrize(
    ("name", "stops"),
    [("adamw", (1, 2, 3, 4, 5, 6, 7, 8)), ("adamw", (4,)), ("muon", (2, 7)), ("muon", (1, 5, 6, 8))],
    ids=str,
)
def test_everything_resumed_gives_the_same_bits(name: str, stops: tuple[int, ...], tmp_path: Path) -> None:
    config = everything(tmp_path, optimizer=OPTIMIZERS[name])
    train(config, tmp_path / "straight")
    for stop in stops:
        seen: list[int] = []
        record = train(
            config,
            tmp_path / "stopping",
            on_step=lambda row, seen=seen: seen.append(row["step"]),
            should_stop=lambda seen=seen, stop=stop: seen[-1] == stop,
        )
        assert record.status == "interrupted" and record.final["steps_done"] == stop
        torch.manual_seed(12345)  # whatever the process did meanwhile
    train(config, tmp_path / "stopping")
    assert state(tmp_path / "stopping") == state(tmp_path / "straight")


def test_half_way_the_state_is_that_of_an_uninterrupted_run(tmp_path: Path) -> None:
    """At every step: the checkpoint of a run stopped there after stops before is that of one that had none."""
    config = everything(tmp_path, keep={"kind": "last", "n": 99}, checkpoint_every=1)
    train(config, tmp_path / "straight")
    for _ in range(config.steps):
        train(config, tmp_path / "stopping", should_stop=lambda: True)
    for ours, theirs in zip(
        *(checkpoints(tmp_path / f / "checkpoints") for f in ("stopping", "straight")), strict=True
    ):
        assert ours.name == theirs.name
        for file in theirs.glob("*.safetensors"):
            assert (ours / file.name).read_bytes() == file.read_bytes(), (ours.name, file.name)


@pytest.mark.parametrize("trials", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_run_may_end_inside_any_file_operation(trials: int, text: Path, tmp_path: Path) -> None:
    """Of a checkpoint, its retention, the manifest, the record; also between a checkpoint and what follows."""
    config = config_for(text, steps=8, checkpoint_every=2, eval_every=3, keep={"kind": "last", "n": 1, "best": True})
    train(config, tmp_path / "first")  # which leaves the tokens of the corpus to all others
    with failing(-1, lambda name, args: None) as seen:
        train(config, tmp_path / "straight")
    rng = random.Random(trials)
    for trial, at in enumerate(rng.sample(range(len(seen)), trials)):
        folder = tmp_path / f"r{trial}"

        def end(name: str, args: tuple[Any, ...]) -> None:
            if name == "write":
                os.pwrite(args[0], bytes(args[1][: len(args[1]) // 2]), os.lseek(args[0], 0, os.SEEK_CUR))
            os._exit(9)

        child = os.fork()
        if child == 0:
            with failing(at, end):
                train(config, folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert not latest(folder / "checkpoints")[1]
        assert train(config, folder).status == "finished"
        assert numbers(folder) == numbers(tmp_path / "straight"), (at, seen[at])
        assert weights(folder) == weights(tmp_path / "straight")


@contextmanager
def full_at(patch: pytest.MonkeyPatch, steps: set[int]) -> Iterator[None]:
    """The disk is full whenever a checkpoint of these steps is written."""
    real = ckpt.disk.write_file

    def write(path: Path, chunks: Any) -> str:
        if any(f"step-{step:08d}" in str(path) for step in steps) and path.name.startswith("optimizer"):
            real(path, [next(iter(chunks))])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, chunks)

    with patch.context() as own:
        own.setattr(ckpt.disk, "write_file", write)
        yield


def test_a_full_disk_costs_a_checkpoint_not_the_run(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_for(text, steps=8, checkpoint_every=2, eval_every=0)
    train(config, tmp_path / "straight")
    told: list[list[str]] = []
    with full_at(monkeypatch, {4, 6}):
        record = train(config, tmp_path / "r", on_step=lambda row: told.append(row["warnings"]))
    assert [len(each) for each in told] == [0, 0, 0, 0, 1, 0, 1, 0]
    warnings = record.final.pop("warnings")
    assert [w for w in warnings if "No space left" in w and "goes on" in w] == warnings and len(warnings) == 2
    assert record.status == "finished" and record.final.keys() == numbers(tmp_path / "straight")[1].keys() | {"timing"}
    assert weights(tmp_path / "r") == weights(tmp_path / "straight")


def test_a_disk_that_is_full_at_the_end_keeps_the_last_good_state(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_for(text, steps=8, checkpoint_every=3, eval_every=0)
    train(config, tmp_path / "straight")
    with full_at(monkeypatch, {8}), pytest.raises(SaveError, match="step-00000008: not saved: No space left on device"):
        train(config, tmp_path / "r")
    found, problems = latest(tmp_path / "r" / "checkpoints")
    assert found is not None and step_of(found) == 6 and not problems
    assert train(config, tmp_path / "r").status == "finished"
    assert state(tmp_path / "r") == state(tmp_path / "straight")


@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json", "manifest.json"])
def test_rows_and_records_that_cannot_be_written(
    name: str,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row is cut in half by a full disk; the same call goes on and ends as if nothing had been."""
    config = config_for(text, steps=6, checkpoint_every=2, eval_every=0)
    train(config, tmp_path / "straight")
    real = Path.open
    opened = iter(range(100))

    def half(self: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        if name in self.name and mode in ("a", "w") and (name != "metrics.jsonl" or next(opened) == 4):
            if mode == "a":
                with real(self, mode) as f:
                    f.write('{"step": 4, "lo')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return real(self, mode, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", half)
        with pytest.raises(DiskError, match=f"{name}.*: cannot be written: No space left on device; make room"):
            train(config, tmp_path / "r")
    assert train(config, tmp_path / "r").status == "finished"
    assert state(tmp_path / "r") == state(tmp_path / "straight")


def test_a_file_that_may_grow_no_further_in_earnest(text: Path, tmp_path: Path) -> None:
    """The kernel refuses to write past 150 kB: checkpoints fail, the folder stays as it was and usable."""
    config = config_for(text, steps=6, eval_every=0)
    train(config, tmp_path / "straight")
    count = iter(range(9))
    train(config, tmp_path / "r", should_stop=lambda: next(count) >= 1)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            train(config, tmp_path / "r")
        except SaveError as error:
            os._exit(5 if "File too large; make room" in str(error) else 6)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    found, _ = latest(tmp_path / "r" / "checkpoints")
    assert found is not None and step_of(found) == 2
    train(config, tmp_path / "r")
    assert state(tmp_path / "r") == state(tmp_path / "straight")


def test_a_folder_that_may_not_be_written(text: Path) -> None:
    """As another user where this one may write anywhere."""
    with tempfile.TemporaryDirectory() as own:
        os.chmod(own, 0o555)
        config = config_for(text, steps=2)
        from assay.training import open_data

        corpus = open_data(config.data)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(65534)
            with pytest.raises(DiskError, match="Permission denied"):
                train(config, Path(own) / "r", corpus=corpus)
        finally:
            if root:
                os.seteuid(0)


def test_starting_over_leaves_nothing_of_before(text: Path, tmp_path: Path) -> None:
    """A restart that is stopped goes on from its own state, never from the one that was there."""
    config = config_for(text, steps=6, checkpoint_every=2, eval_every=0)
    train(config, tmp_path / "straight")
    train(config, tmp_path / "r")
    count = iter(range(9))
    again = train(config, tmp_path / "r", resume=False, should_stop=lambda: next(count) >= 0)
    assert again.status == "interrupted" and again.final["steps_done"] == 1
    assert [step_of(f) for f in checkpoints(tmp_path / "r" / "checkpoints")] == [1]
    train(config, tmp_path / "r")
    assert state(tmp_path / "r") == state(tmp_path / "straight")


def test_what_a_rule_keeps(text: Path, tmp_path: Path) -> None:
    steps = [2, 4, 5, 6, 8, 10]
    assert KeepNothing().kept(steps, 5) == {8, 10}
    assert KeepLast().kept(steps, 5) == {8, 10}
    assert KeepLast(n=1, best=True).kept(steps, 5) == {5, 10}
    assert KeepLast(n=3, every=4).kept(steps, 5) == {4, 6, 8, 10}
    same = [config_for(text, keep=keep).keep for keep in ("best_and_last", {"kind": "last", "best": True})]
    assert same[0] == same[1] == config_for(text).keep
    assert config_for(text, keep="last").keep == KeepLast() and config_for(text, keep="nothing").keep == KeepNothing()
    for wrong in ("first", {"kind": "last", "n": 0}, {"kind": "last", "evry": 3}, {"kind": "nothing", "n": 2}):
        with pytest.raises(RunError, match="keep"):
            config_for(text, keep=wrong)
    for keep, want in (
        ({"kind": "last", "n": 1, "every": 4}, [9, 8, 4]),
        ("nothing", []),
        ("last", [9, 8]),
    ):
        folder = tmp_path / str(len(want))
        train(config_for(text, steps=9, checkpoint_every=2, eval_every=0, keep=keep), folder)
        assert [step_of(f) for f in checkpoints(folder / "checkpoints")] == want


def test_weights_of_another_run_to_begin_from(text: Path, tmp_path: Path) -> None:
    first = config_for(text, steps=4, eval_every=0)
    train(first, tmp_path / "first")
    saved = load_checkpoint(checkpoints(tmp_path / "first" / "checkpoints")[0])
    start = Start(saved.weights, "first")
    config = config_for(text, steps=5, seed=3, eval_every=0, ema=0.9, checkpoint_every=2)
    straight = train(config, tmp_path / "straight", start=start)
    assert straight.digest != config.digest("x") and straight.config.init_from.sha256 == start.sha256
    assert straight.rows[0]["loss"] < train(config, tmp_path / "drawn").rows[0]["loss"] - 0.1
    for _ in range(4):
        train(config, tmp_path / "stopping", start=start, should_stop=lambda: True)
    train(config, tmp_path / "stopping", start=start)
    assert state(tmp_path / "stopping") == state(tmp_path / "straight")
    # identity: the bytes, not where they lay
    moved = Start(dict(reversed(saved.weights.items())), "elsewhere")
    assert moved.sha256 == start.sha256
    assert train(config, tmp_path / "straight", start=moved).digest == straight.digest
    name, value = next(iter(saved.weights.items()))
    other = Start({**saved.weights, name: value + 1}, "first")
    with pytest.raises(ValueError, match="holds another run"):
        train(config, tmp_path / "straight", start=other)
    with pytest.raises(RunError, match="its weights were not given"):
        train(config.changed(init_from=start.spec), tmp_path / "new")


def test_weights_that_do_not_fit_are_named(text: Path, tmp_path: Path) -> None:
    config = config_for(text)
    wide = Start.of(build(load("tiny/base", ["n_layers=3", "d_model=64"])), "wide")
    with pytest.raises(RunError, match=r"init_from\.") as caught:
        train(config, tmp_path / "r", start=wide)
    told = str(caught.value)
    assert "layers.2." in told and "the recipe has no such" in told and "more tensors differ" in told
    decoder = build(config.recipe)
    weights_ = {p.name: p.param.detach() for p in named_params(decoder)}
    name = "layers.0.mixer.q.weight"
    with pytest.raises(RunError, match=rf"init_from\.{name}: another shape in small"):
        train(config, tmp_path / "r", start=Start({**weights_, name: torch.zeros(1, 32)}, "small"))
    short = {k: v for k, v in weights_.items() if k != name}
    with pytest.raises(RunError, match=rf"init_from\.{name}: small does not have it"):
        train(config, tmp_path / "r", start=Start(short, "small"))
    assert not (tmp_path / "r" / "checkpoints").exists()


def test_every_checkpoint_damaged_begins_again_and_says_so(text: Path, tmp_path: Path) -> None:
    config = config_for(text, steps=6, checkpoint_every=2, eval_every=0)
    train(config, tmp_path / "straight")
    count = iter(range(9))
    train(config, tmp_path / "r", should_stop=lambda: next(count) >= 4)
    for folder in checkpoints(tmp_path / "r" / "checkpoints"):
        (folder / "model.safetensors").unlink()
    warnings = train(config, tmp_path / "r").final["warnings"]
    assert sum("model.safetensors: missing" in w for w in warnings) == 2 and "began again" in warnings[-1]
    assert weights(tmp_path / "r") == weights(tmp_path / "straight")
    assert json.loads((tmp_path / "r" / "record.json").read_text())["status"] == "finished"


def test_a_run_that_goes_on_has_no_record_of_where_it_was(tmp_path: Path) -> None:
    config = everything(tmp_path)
    train(config, tmp_path / "r", should_stop=lambda: True)
    seen: list[str] = []

    def on_step(row: dict[str, Any]) -> None:
        found = load_record(tmp_path / "r", unfinished=True)
        seen.append(found.status)
        assert found.final["steps_done"] == row["step"] and len(found.rows) == row["step"]

    assert train(config, tmp_path / "r", on_step=on_step).status == "finished"
    assert seen == ["unfinished"] * 8
