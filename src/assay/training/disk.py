"""Files that a kill or a full disk leaves whole or absent: written under another name, flushed, then renamed.

Every file operation is a call of :mod:`os`, so that a test can let each one fail in turn.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

PARTIAL = ".partial-"  # a name that nothing is read under
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write and flush a file that does not exist yet; returns the sha256 of what was meant to be written."""
    digest = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            digest.update(view)
            while len(view):
                view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    return digest.hexdigest()


def sha256_of(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Push a file, or a folder's names, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def discard(folder: Path) -> None:
    """Take a folder away: gone under its name at once, its files after that."""
    trash = folder.with_name(f"{PARTIAL}{folder.name}-{os.getpid()}-old")
    os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove what earlier tries left unfinished."""
    for litter in root.glob(f"{PARTIAL}*"):
        shutil.rmtree(litter, ignore_errors=True)


def said(error: OSError) -> str:
    """What went wrong, and what helps where the disk is full."""
    reason = error.strerror or str(error)
    return f"{reason}; make room" if error.errno in _FULL else reason
