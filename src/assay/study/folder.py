"""A study's output folder: the plan it belongs to, one folder a run by digest, the result. Written atomically."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.study.errors import StudyError, fault
from assay.study.outcome import Outcome, outcome_of
from assay.training.folder import write_json_exactly

if TYPE_CHECKING:
    from assay.study.design import Design
    from assay.training.record import RunRecord

PLAN = "plan.json"
RESULT = "result.json"
RUNS = "runs"
_LOCK = ".lock"
_RECORD = "record.json"  # of a run that has ended or was interrupted
_PATIENCE = 15.0  # seconds for the workers of a killed study to notice and go

Load = Callable[[Path], "RunRecord"]


_WORDS = {"title", "question", "notes", "label"}  # decide nothing
_MODELS = {"base", "recipe", "overrides"}  # stand in the digest as the models that they make


def plan_digest(design: Design) -> str:
    """sha256 of the plan and of every model in it; ``full`` runs more of the same plan and is no part of it."""
    plan = design.plan
    body: dict[str, Any] = _pruned(plan.model_dump(mode="json"))
    # the folder keeps the corpus's own digest, in which the tokenizer is
    body["data"] = {k: v for k, v in plan.data.items() if k not in ("corpus", "tokenizer")}
    body["models"] = [
        design.recipe(part, arm, value).digest
        for part in plan.parts
        for arm in part.arms
        for value in getattr(part, "values", (None,))
    ]
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _pruned(v) for k, v in value.items() if k not in _WORDS | _MODELS}
    return [_pruned(v) for v in value] if isinstance(value, list) else value


class StudyFolder:
    """An output folder that is this study's. Use :meth:`opened`."""

    def __init__(self, root: Path, digest: str, lock: int, load: Load, reuse: Sequence[Path] = ()) -> None:
        self.root, self.digest, self.lock = root, digest, lock
        self._load, self._reuse = load, tuple(reuse)

    @classmethod
    @contextmanager
    def opened(cls, root: Path, design: Design, load: Load, reuse: Sequence[Path] = ()) -> Iterator[StudyFolder]:
        """Claim a new folder or return to one; held by this process and its workers until all are gone.

        Raises:
            StudyError: the folder belongs to another study or corpus, or another process is working in it.
        """
        _must_be_ours(root, design)  # before anything is written
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _acquire(lock, root)
            digest = plan_digest(design)
            dump = design.plan.model_dump(mode="json")
            write_json_exactly(root / PLAN, {"digest": digest, "corpus_sha256": design.corpus_sha256, "plan": dump})
            yield cls(root, digest, lock, load, reuse)
        finally:
            os.close(lock)

    def run(self, digest: str) -> Path:
        """The folder of a run."""
        return self.root / RUNS / digest

    def outcome(self, digest: str, unigram_entropy: float) -> Outcome | None:
        """What an ended run left; None where there is none yet.

        Raises:
            StudyError: a damaged record or metrics file, or another run's folder.
        """
        folder = self.run(digest)
        if not (folder / _RECORD).exists() and not self._taken_over(digest):
            return None
        try:
            record = self._load(folder)
        except (ValueError, KeyError, TypeError, OSError) as error:
            hint = f"remove {folder} to do that run again"
            raise StudyError(
                [fault(f"{RUNS}/{digest[:12]}", f"damaged: {error}", allowed=hint)], str(self.root)
            ) from None
        if record.digest != digest:
            message = "the record of another run"
            raise StudyError([fault(str(folder), message, record.digest[:12], digest[:12])], str(self.root))
        return None if record.status == "interrupted" else outcome_of(record, unigram_entropy)

    def _taken_over(self, digest: str) -> bool:
        """Copy the run from another study that has it; the copy appears whole, a half-done run here gives way."""
        for other in self._reuse:
            source = other / RUNS / digest
            if not (source / _RECORD).exists():
                continue
            partial = self.root / RUNS / f".{digest}.{os.getpid()}.partial"
            try:
                shutil.copytree(source, partial)
                shutil.rmtree(self.run(digest), ignore_errors=True)
                partial.rename(self.run(digest))
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            return True
        return False


def _must_be_ours(root: Path, design: Design) -> None:
    where = str(root)
    if root.exists() and not root.is_dir():
        raise StudyError([fault("out", "not a folder", where, "a new or empty folder")], where)
    path = root / PLAN
    if not path.exists():
        found = [p.name for p in root.iterdir()] if root.exists() else []
        strangers = sorted(name for name in found if name != RUNS and not name.startswith("."))
        if strangers:
            message = "a folder that is not a study's"
            raise StudyError(
                [fault("out", message, strangers[:5], "a new or empty folder, or this study's own")], where
            )
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        digest, corpus, name = held["digest"], held["corpus_sha256"], held["plan"]["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError([fault(str(path), f"damaged: {error}", allowed="another folder")], where) from None
    if digest != plan_digest(design):
        what = f"study {name!r}" if name != design.plan.name else f"another version of study {name!r}"
        message = f"the folder belongs to {what}"
        raise StudyError([fault("out", message, digest[:12], f"{plan_digest(design)[:12]}, or another folder")], where)
    if corpus != design.corpus_sha256:
        message = "the folder holds this study on another corpus"
        allowed = f"{design.corpus_sha256[:12]}, or another folder"
        raise StudyError([fault("out", message, corpus[:12], allowed)], where)


def _acquire(lock: int, root: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > until:
                message = "another process is working in this folder"
                raise StudyError(
                    [fault("out", message, str(root), "wait for it, or another folder")], str(root)
                ) from None
            time.sleep(0.1)
