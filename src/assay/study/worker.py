"""A training process of a study: runs come in and news goes out as JSON lines; it dies with the study that started it.

Started as ``python -m assay.study.worker``; torch is imported once and the process reused for many runs. What the
training prints goes to standard error, never between the messages. When standard input closes, the study is gone, and
so is the worker, at once: a run in progress is as good as killed, and resumes.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import IO, Any

DEFAULT_ENTRY = "assay.training:train"
_QUIET = 0.2  # seconds between two step messages of a run
_GONE = 3


class _Out:
    """The message stream: standard output, moved out of the reach of prints."""

    def __init__(self) -> None:
        self._stream: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._lock:
            self._stream.write(json.dumps(message) + "\n")
            self._stream.flush()


def _listen(jobs: queue.Queue[dict[str, Any]], stop: threading.Event) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "stop":
            stop.set()
        jobs.put(message)
    os._exit(_GONE)


def main(entry: str = DEFAULT_ENTRY) -> None:
    """Serve runs until told to stop or left alone. ``entry`` is ``module:function``, called as ``train`` is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the study decides what follows
    out = _Out()
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(jobs, stop), daemon=True).start()
    module, _, name = entry.partition(":")
    train = getattr(import_module(module), name)
    corpora: dict[str, Any] = {}
    out.send(type="ready")
    while not stop.is_set():
        job = jobs.get()
        if job["type"] == "run":
            _serve(train, job, out, stop, corpora)


def _serve(train: Any, job: dict[str, Any], out: _Out, stop: threading.Event, corpora: dict[str, Any]) -> None:
    from assay.recipe.extension import load_carried
    from assay.training.config import RunConfig
    from assay.training.data import open_corpus

    digest, last = job["digest"], [0.0]

    def on_step(row: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - last[0] >= _QUIET:
            last[0] = now
            out.send(type="step", digest=digest, step=row.get("step"), loss=row.get("loss"))

    try:
        load_carried(job.get("plugins", ()))
        config = RunConfig.from_dict(job["config"])
        key = config.data.model_dump_json()
        if key not in corpora:
            corpora[key] = open_corpus(config.data.corpus, config.data.val_bytes)
        record = train(config, Path(job["folder"]), corpus=corpora[key], on_step=on_step, should_stop=stop.is_set)
    except Exception as error:  # whatever it is belongs to this run, and the study says so
        text = "".join(traceback.format_exception(error)[-3:])
        out.send(type="failed", digest=digest, error=f"{type(error).__name__}: {error}", traceback=text)
    else:
        out.send(type="ended", digest=digest, status=record.status)


if __name__ == "__main__":
    main(*sys.argv[1:2])
    sys.stderr.flush()
    os._exit(0)  # the listener still waits on standard input, and would hold up an orderly end
