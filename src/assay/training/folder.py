"""A run's folder: manifest, recipe, metrics, record. Every file appears whole; metrics grow a line at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.training.disk import flush


class FolderError(ValueError):
    """A run folder that cannot be used: names the file and what is wrong."""


class DiskError(FolderError):
    """A run folder that could not be written: what is in it is as it was, and the same call goes on from there."""


def write_json(path: Path, value: Any) -> None:
    """Write beside, flush, rename. Values that are not finite become null."""
    write_json_exactly(path, finite(value))


def write_json_exactly(path: Path, value: Any) -> None:
    """The same of a value that JSON can hold; raises ValueError for a NaN or an infinity."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as f:
            json.dump(value, f, indent=1, allow_nan=False)
            f.flush()
            os.fsync(f.fileno())
        partial.replace(path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """The value with every NaN and infinity as None, which JSON can hold."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time in a run folder; raises FolderError when another holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderError(f"{folder}: another process is training in this folder") from None
        yield


class Metrics:
    """metrics.jsonl: a row an update."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []

    def resume(self, step: int) -> None:
        """Keep the rows up to ``step``; later ones belong to updates that will be done again."""
        self.rows = [row for row in read_metrics(self.path) if row["step"] <= step] if self.path.exists() else []
        if [row["step"] for row in self.rows] != list(range(1, step + 1)):
            raise FolderError(f"{self.path}: rows do not reach the checkpoint's step {step} one by one")
        _rewrite(self.path, self.rows)

    def add(self, row: dict[str, Any]) -> None:
        row = finite(row)
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")

    def flush(self) -> None:
        """Push rows to the disk, before a checkpoint that relies on them."""
        if self.path.exists():
            with self.path.open("rb+") as f:
                os.fsync(f.fileno())


def _rewrite(path: Path, rows: list[dict[str, Any]]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
            f.flush()
            os.fsync(f.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def cut_lines(path: Path, step: int) -> None:
    """Keep the rows up to ``step`` of a file that has some."""
    if path.exists():
        _rewrite(path, [row for row in read_metrics(path) if row["step"] <= step])


def add_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows."""
    with path.open("a", encoding="utf-8") as f:
        f.writelines(json.dumps(finite(row)) + "\n" for row in rows)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file. A last line cut short by a kill is dropped; other damage is an error."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FolderError(f"{path}: cannot be read: {error.strerror or error}") from None
    rows = []
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("not a row with a step")
        except ValueError as error:
            if n == len(lines):  # no newline after it: the write was cut short
                break
            raise FolderError(f"{path}: line {n} is damaged: {error}") from None
        rows.append(row)
    return rows
