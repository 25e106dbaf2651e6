"""Checkpoints under every fault: a kill at any moment, any file operation that fails, any byte that changes.

What is read back is whole and of one save: weights, optimizer, generator, mean and step agree.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from assay.model import Decoder, build, named_params
from assay.recipe import load
from assay.training import CheckpointError, load_checkpoint
from assay.training.checkpoint import (
    INDEX,
    SaveError,
    checkpoints,
    latest,
    problem_with,
    retain,
    save_checkpoint,
    step_of,
)
from assay.training.keep import KeepLast
from assay.training.tensors import safetensors_of

OPERATIONS = ("open", "write", "fsync", "close", "mkdir", "rename")
FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "ema.safetensors", INDEX)


class Subject:
    """A model and an optimizer whose every number is the step."""

    def __init__(self) -> None:
        self.decoder: Decoder = build(load("tiny/base", ["n_layers=1", "d_model=16", "block.mixer.n_heads=2"]))
        self.optimizer = torch.optim.AdamW(self.decoder.parameters(), lr=1e-3)
        for p in self.decoder.parameters():
            self.optimizer.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p)}

    def save(self, root: Path, step: int) -> Path:
        torch.manual_seed(step)
        with torch.no_grad():
            for p in self.decoder.parameters():
                p.fill_(step)
                self.optimizer.state[p]["exp_avg"].fill_(step)
                self.optimizer.state[p]["step"].fill_(step)
        ema = {p.name: p.param.detach().clone() for p in named_params(self.decoder)}
        return save_checkpoint(root, step, self.decoder, self.optimizer, {"n": step}, ema)

    def save_and_tidy(self, root: Path, step: int) -> None:
        self.save(root, step)
        retain(root, KeepLast(n=2, every=7), 3, step)


def of_one_save(folder: Path) -> int:
    """The step that every part of a checkpoint is of."""
    found = load_checkpoint(folder)
    torch.manual_seed(found.step)
    assert torch.equal(found.rng["cpu"], torch.get_rng_state())
    assert found.state == {"n": found.step} and step_of(folder) == found.step
    for tensors in (found.weights, found.optimizer, found.ema):
        assert tensors and all(bool((t == found.step).all()) for t in tensors.values())
    return found.step


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject()


@contextmanager
def forked(work: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A child that does ``work`` with the write end of a pipe; gives its id and the read end. It is reaped."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            work(write)
        finally:
            os._exit(7)
    os.close(write)
    try:
        yield child, read
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def failing(at: int, how: Callable[[str, tuple[Any, ...]], None]) -> Iterator[list[str]]:
    """Every file operation is counted; that number ``at`` meets ``how`` instead. Gives the names of all."""
    seen: list[str] = []

    def around(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            seen.append(name)
            if len(seen) - 1 == at:
                how(name, args)
            return real(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, around(name, getattr(os, name)))
        yield seen


def raising(code: int, *, half: bool = False) -> Callable[[str, tuple[Any, ...]], None]:
    def how(name: str, args: tuple[Any, ...]) -> None:
        if half and name == "write":
            os.pwrite(args[0], bytes(args[1][: len(args[1]) // 2]), os.lseek(args[0], 0, os.SEEK_CUR))
        if name != "close":  # a failed close would leave the test's own process with the file
            raise OSError(code, os.strerror(code))

    return how


def operations_of_a_save(subject: Subject, root: Path) -> list[str]:
    with failing(-1, raising(0)) as seen:
        subject.save_and_tidy(root, 3)
    return seen


def test_every_file_operation_may_fail(subject: Subject, tmp_path: Path) -> None:
    """A full disk at each in turn: an error that says so, the save before as it was, no litter; the next is whole."""
    subject.save(tmp_path / "a", 1)
    subject.save(tmp_path / "a", 2)
    shutil.copytree(tmp_path / "a", tmp_path / "count")
    operations = operations_of_a_save(subject, tmp_path / "count")
    assert operations.count("fsync") == len(FILES) + 2  # every file, its folder, the folder around it
    assert operations.count("rename") == 2  # into its place, and step 1 out of the way
    n_refused = 0
    for at, name in enumerate(operations):
        root, refused, told = tmp_path / f"b{at}", False, ""
        shutil.copytree(tmp_path / "a", root)
        code = errno.EROFS if at % 3 == 0 else errno.ENOSPC
        with failing(at, raising(code, half=True)) as seen:
            try:
                subject.save_and_tidy(root, 3)
            except SaveError as error:
                told, refused = str(error), True
        assert seen[at] == name
        if refused:
            n_refused += 1
            assert os.strerror(code) in told and "step-00000003" in told
        found, problems = latest(root)
        assert found is not None and not problems
        assert of_one_save(found) == (2 if refused and at <= operations.index("rename") else 3)
        assert not refused or not list(root.glob(".partial-*"))
        subject.save_and_tidy(root, 4)
        assert not list(root.glob(".partial-*"))
        assert {of_one_save(folder) for folder in checkpoints(root)} <= {2, 3, 4}
    assert n_refused >= 4 * len(FILES)


def test_a_process_may_end_at_every_file_operation(subject: Subject, tmp_path: Path) -> None:
    """It ends before each operation in turn, or half way through a write: what is left is step 2 or step 3, whole."""
    subject.save(tmp_path / "a", 1)
    subject.save(tmp_path / "a", 2)
    shutil.copytree(tmp_path / "a", tmp_path / "count")
    n = len(operations_of_a_save(subject, tmp_path / "count"))
    ends = set()
    for at in range(n):
        root = tmp_path / f"b{at}"
        shutil.copytree(tmp_path / "a", root)

        def end(name: str, args: tuple[Any, ...]) -> None:
            if name == "write":
                os.pwrite(args[0], bytes(args[1][: len(args[1]) // 2]), os.lseek(args[0], 0, os.SEEK_CUR))
            os._exit(9)

        child = os.fork()
        if child == 0:
            with failing(at, end):
                subject.save_and_tidy(root, 3)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        found, problems = latest(root)
        assert found is not None and not problems
        ends.add(of_one_save(found))
        assert all(problem_with(folder) is None for folder in checkpoints(root))
        subject.save_and_tidy(root, 4)
        assert not list(root.glob(".partial-*"))
        assert of_one_save(checkpoints(root)[0]) == 4
    assert ends == {2, 3}


def kill_while_saving(subject: Subject, root: Path, seconds: float) -> tuple[int, bool]:
    """A child saves again and again; it is killed. Gives the step that is left, and whether a save was under way."""

    def work(pipe: int) -> None:
        first = step_of(checkpoints(root)[0]) + 1 if root.exists() and checkpoints(root) else 1
        for step in range(first, first + 100_000):
            subject.save_and_tidy(root, step)
            os.write(pipe, step.to_bytes(8, "little"))

    with forked(work) as (child, pipe):
        told = int.from_bytes(os.read(pipe, 8), "little")  # it is at work
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        while chunk := os.read(pipe, 8 * 512):
            told = int.from_bytes(chunk[-8:], "little")
    inside = any(root.glob(".partial-*"))
    found, problems = latest(root)
    assert found is not None and not problems
    step = of_one_save(found)
    assert step in (told, told + 1), "a save that was told of is lost"
    assert all(of_one_save(folder) == step_of(folder) for folder in checkpoints(root))
    return step, inside


@pytest.mark.parametrize("trials", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments_of_saving(trials: int, subject: Subject, tmp_path: Path) -> None:
    rng = random.Random(trials)
    inside = 0
    for _ in range(trials):
        _, during = kill_while_saving(subject, tmp_path / "r", rng.uniform(0.0, 0.03))
        inside += during
        subject.save_and_tidy(tmp_path / "r", step_of(checkpoints(tmp_path / "r")[0]) + 1)
        assert not list((tmp_path / "r").glob(".partial-*"))
    assert trials < 50 or inside > trials // 4


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_anywhere_is_named(name: str, subject: Subject, tmp_path: Path) -> None:
    """Every second byte of the index, and bytes of every other file; the save before is used instead."""
    subject.save(tmp_path, 1)
    folder = subject.save(tmp_path, 2)
    whole = (folder / name).read_bytes()
    rng = random.Random(0)
    places = range(0, len(whole), 2) if name == INDEX else [0, 9, len(whole) - 1, *rng.sample(range(len(whole)), 5)]
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(bytes(data))
        assert str(folder / name) in str(problem_with(folder))
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_checkpoint(folder)
    found, problems = latest(tmp_path)
    assert found is not None and of_one_save(found) == 1 and len(problems) == 1
    for change in (lambda f: f.write_bytes(whole[:-1]), lambda f: f.write_bytes(b""), lambda f: f.unlink()):
        change(folder / name)
        assert str(folder / name) in str(problem_with(folder))


def test_a_checkpoint_under_another_name_or_without_a_part_is_refused(subject: Subject, tmp_path: Path) -> None:
    folder = subject.save(tmp_path, 2)
    folder.rename(tmp_path / "step-00000009")
    assert "not of this folder" in str(problem_with(tmp_path / "step-00000009"))


def test_damage_newer_than_the_good_one_never_pushes_it_out(subject: Subject, tmp_path: Path) -> None:
    for step in (4, 6, 8):
        subject.save(tmp_path, step)
    for step in (6, 8):
        (tmp_path / f"step-{step:08d}" / "rng.safetensors").unlink()
    found, problems = latest(tmp_path)
    assert found is not None and of_one_save(found) == 4 and len(problems) == 2
    subject.save_and_tidy(tmp_path, 5)
    assert [of_one_save(folder) for folder in checkpoints(tmp_path)] == [5, 4]


def test_safetensors_written_here_are_read_there(tmp_path: Path) -> None:
    """Every dtype, no elements, no dimensions, other strides: as the library reads them."""
    given = {
        "a": torch.randn(3, 4).t(),
        "b": torch.randn(5, dtype=torch.float64),
        "c": torch.randn(2, 2).bfloat16(),
        "d": torch.randn(3).half(),
        "e": torch.tensor(7),
        "f": torch.zeros(0, 4),
        "g": torch.tensor([True, False]),
        "h": torch.arange(5, dtype=torch.uint8)[::2],
        "i": torch.arange(3, dtype=torch.int16),
        "ü": torch.randn(2).to(torch.float8_e4m3fn),
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"".join(bytes(chunk) for chunk in safetensors_of(given)))
    found = load_file(path)
    assert found.keys() == given.keys()
    for name, t in given.items():
        assert found[name].dtype == t.dtype and found[name].shape == t.shape
        assert torch.equal(found[name].double(), t.double())
