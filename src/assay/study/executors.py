"""Where runs happen: in processes of one thread each, or in this one."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from assay.recipe.extension import carried
from assay.study.worker import DEFAULT_ENTRY

if TYPE_CHECKING:
    from assay.training.config import RunConfig

_TAIL = 20  # lines of a worker's standard error that are kept
_GRACE = 20.0  # seconds that a worker has to save its run when asked to stop


# glibc keeps freed pages instead of returning them to the system after every update; other allocators ignore this
_ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


@dataclass(frozen=True)
class Job:
    """A run to be done."""

    digest: str
    config: RunConfig
    folder: Path


@dataclass(frozen=True)
class News:
    """What became of a run. ``crashed``: the process died under it; ``failed``: training raised an error."""

    kind: Literal["step", "ended", "failed", "crashed"]
    digest: str
    step: int = 0
    loss: float | None = None
    status: str = ""
    error: str = ""


class Executor(Protocol):
    """Takes as many runs as it has ``free`` places; ``wait`` returns what has happened since."""

    @property
    def free(self) -> int: ...
    def submit(self, job: Job) -> None: ...
    def wait(self, timeout: float) -> list[News]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class InlineExecutor:
    """Runs in this process, one at a time: for tests, and for machines where a process is too much."""

    def __init__(self, train: Callable[..., Any]) -> None:
        self._train = train
        self._job: Job | None = None

    @property
    def free(self) -> int:
        return int(self._job is None)

    def submit(self, job: Job) -> None:
        self._job = job

    def wait(self, timeout: float) -> list[News]:
        job, self._job = self._job, None
        if job is None:
            return []
        try:
            record = self._train(job.config, job.folder)
        except Exception as error:
            return [News("failed", job.digest, error=f"{type(error).__name__}: {error}")]
        return [News("ended", job.digest, status=record.status)]

    def stop(self) -> None:
        self._job = None

    def close(self) -> None:
        self._job = None


class _Worker:
    """One process and the threads that read it."""

    def __init__(
        self, entry: str, threads: int, hold: Sequence[int], news: queue.Queue[tuple[_Worker, dict[str, Any]]]
    ) -> None:
        own = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", **_ALLOCATOR}
        path = os.pathsep.join(p for p in sys.path if p)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay.study.worker", entry],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, **own, "PYTHONPATH": path},
            pass_fds=hold,
        )
        self.job: Job | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._news = news
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self._errors.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._news.put((self, json.loads(line)))
            except ValueError:
                self.tail.append(line)
        self._errors.join(timeout=2)
        self._news.put((self, {"type": "gone"}))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.tail.extend(self.process.stderr)

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has died; the reader reports it
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def end(self, patience: float) -> None:
        """Wait for its end, and kill it where that does not come."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class PoolExecutor:
    """``workers`` processes, started when first needed, each reused for many runs.

    ``hold``: open files that live as long as any of them does (the study folder's lock).
    """

    def __init__(
        self, workers: int = 2, threads: int = 1, entry: str = DEFAULT_ENTRY, hold: Sequence[int] = ()
    ) -> None:
        self._entry, self._threads, self._size, self._hold = entry, threads, workers, tuple(hold)
        self._news: queue.Queue[tuple[_Worker, dict[str, Any]]] = queue.Queue()
        self._workers: list[_Worker] = []

    @property
    def free(self) -> int:
        return self._size - sum(worker.job is not None for worker in self._workers)

    @property
    def pids(self) -> Sequence[int]:
        return [worker.process.pid for worker in self._workers]

    def submit(self, job: Job) -> None:
        idle = next((worker for worker in self._workers if worker.job is None), None)
        if idle is None:
            idle = _Worker(self._entry, self._threads, self._hold, self._news)
            self._workers.append(idle)
        idle.job = job
        run = {"digest": job.digest, "config": job.config.to_dict(), "folder": str(job.folder)}
        idle.send(type="run", plugins=carried(), **run)

    def wait(self, timeout: float) -> list[News]:
        """News of at least one message, or none after ``timeout`` seconds."""
        out: list[News] = []
        try:
            pending = [self._news.get(timeout=timeout)]
        except queue.Empty:
            return out
        while not self._news.empty():
            pending.append(self._news.get_nowait())
        for worker, message in pending:
            found = self._told(worker, message)
            out += [found] if found is not None else []
        return out

    def _told(self, worker: _Worker, message: dict[str, Any]) -> News | None:
        kind = message["type"]
        if kind == "gone":
            job, worker.job = worker.job, None
            self._workers = [w for w in self._workers if w is not worker]
            worker.end(5.0)
            if job is None:
                return None
            code = worker.process.returncode
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            return News("crashed", job.digest, error=f"worker process ended ({how})\n{''.join(worker.tail)}".rstrip())
        if kind == "step":
            return News("step", message["digest"], step=int(message["step"] or 0), loss=message["loss"])
        if kind in ("ended", "failed"):
            worker.job = None
            if kind == "ended":
                return News("ended", message["digest"], status=message["status"])
            return News("failed", message["digest"], error=message["error"])
        return None

    def stop(self) -> None:
        """Ask every worker to save its run and go; those that take too long are killed."""
        for worker in self._workers:
            worker.send(type="stop")
        for worker in self._workers:
            worker.end(_GRACE if worker.job is not None else 2.0)
        self._workers = []

    def close(self) -> None:
        """End every worker now; a run in progress is as good as killed, and resumes."""
        for worker in self._workers:
            worker.process.kill()
            worker.end(5.0)
        self._workers = []
