"""Texts that are always there: the standard library's own sources, and two that come with the package."""

from __future__ import annotations

import lzma
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = {"site-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data", "lib2to3"}
_FOLDER = Path(__file__).parent / "embedded"
_BETWEEN = "\f\n"  # documents of an embedded text


def stdlib_files() -> tuple[Path, ...]:
    """The sources of the Python standard library on this machine; they differ by build."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("lib-"))
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    return tuple(found)


def source_text(path: Path) -> str:
    """A Python source; the few that are not UTF-8 are read as Latin-1."""
    raw = path.read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def embedded_file(name: str) -> Path:
    """Where ``english`` or ``chinese`` lies."""
    return _FOLDER / f"{name}.txt.xz"


def embedded_documents(name: str) -> Iterator[str]:
    """The documents of ``english`` (chapters) or ``chinese`` (about 4 KB each)."""
    with lzma.open(embedded_file(name), "rt", encoding="utf-8", newline="") as f:
        yield from f.read().split(_BETWEEN)
