"""What a corpus is named by, and the documents it stands for."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.training.data import readers, texts
from assay.training.data.errors import CorpusError
from assay.training.data.readers import Document
from assay.training.data.spec import EMBEDDED


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again, always in the same order.

    Attributes:
        kind: ``stdlib``, ``embedded``, ``file``, ``folder``, ``pattern`` or ``dataset``.
        field: which field of a record is its text.
    """

    name: str
    kind: str
    files: tuple[Path, ...]
    field: str = "text"

    def documents(self) -> Iterator[Document]:
        """Every document, in order; a part of a file is in memory at a time. Raises CorpusError."""
        if self.kind == "embedded":
            for i, text in enumerate(texts.embedded_documents(self.name), 1):
                yield Document(text, f"{self.name}, document {i}")
        else:
            for path in self.files:
                if self.kind == "stdlib":
                    yield Document(texts.source_text(path), str(path))
                elif self.kind == "dataset":
                    yield from readers.arrow_stream(path, self.field)
                else:
                    yield from readers.read(path, self.field, alone=self.kind == "file")

    @property
    def size(self) -> int:
        """Bytes of the files as they lie on disk."""
        return sum(path.stat().st_size for path in self.files)

    @cached_property
    def sha256(self) -> str:
        """Of what the files hold and which field is read, not of where they lie."""
        out = hashlib.sha256(f"{self.kind}/{self.field}".encode())
        for path in self.files:
            try:
                with path.open("rb") as f:
                    out.update(path.suffix.encode() + hashlib.file_digest(f, "sha256").digest())
            except OSError as error:
                raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from None
        return out.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Plain facts for a manifest."""
        return {"name": self.name, "kind": self.kind, "files": len(self.files), "sha256": self.sha256}


def open_source(name: str, field: str = "text", extensions: tuple[str, ...] = ()) -> Source:
    """The source that a name, a path or a pattern stands for.

    Args:
        field: of JSON lines, Parquet and datasets.
        extensions: which files of a folder are read, all as text but JSON lines and Parquet; by default the known ones.

    Raises:
        CorpusError: nothing there, or no file to read in it.
    """
    if name in EMBEDDED:
        source = Source(name, "stdlib", texts.stdlib_files()) if name == "stdlib" else _embedded(name)
    elif any(sign in name for sign in "*?[") and not Path(name).exists():
        found = sorted(Path(p) for p in glob.glob(name, recursive=True, include_hidden=False))
        source = Source(name, "pattern", tuple(p for p in found if p.is_file()), field)
    elif Path(name).is_dir():
        source = _folder(Path(name), field, extensions)
    else:
        source = Source(Path(name).name, "file", (Path(name),), field)
        if not Path(name).is_file():
            known = ", ".join(EMBEDDED)
            raise CorpusError(f"corpus {name!r}: cannot be read: no such file or folder; or say one of {known}")
    if not source.files:
        wanted = ", ".join(extensions) or ".txt, .md, .rst, .py, .jsonl or .parquet"
        raise CorpusError(f"corpus {name!r}: no {wanted} files there")
    records = source.kind == "dataset" or any(readers.kind_of(p) != "text" for p in source.files)
    if field != "text" and not records:
        raise CorpusError(f"corpus {name!r}: plain text has no field {field!r}")
    return source


def _embedded(name: str) -> Source:
    return Source(name, "embedded", (texts.embedded_file(name),))


def _folder(path: Path, field: str, extensions: tuple[str, ...]) -> Source:
    if (path / "dataset_dict.json").exists():
        splits = ", ".join(str(each) for each in sorted(path.iterdir()) if each.is_dir())
        raise CorpusError(f"{path}: holds several splits; name one: {splits}")
    if (path / "state.json").exists() and (path / "dataset_info.json").exists():
        return Source(path.absolute().name, "dataset", readers.dataset_files(path), field)
    endings = tuple(ext if ext.startswith(".") else f".{ext}" for ext in extensions)
    files = tuple(
        p
        for p in sorted(path.rglob("*"))
        if p.is_file()
        and (p.name.lower().endswith(endings) if endings else readers.is_known(p))
        and not any(part.startswith(".") for part in p.relative_to(path).parts)
    )
    return Source(path.absolute().name, "folder", files, field)
