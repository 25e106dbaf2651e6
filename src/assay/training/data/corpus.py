"""Text as tokens on disk: a memory-mapped training split, a fixed validation split, and what identifies them.

The default corpus is the Python standard library's own sources, found on the machine that runs: it is always there, and
its size differs by build, so it is identified by its digest, never by a number.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEPARATOR = b"\x00"  # between documents; absent from text
_SKIPPED = {"site-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data", "lib2to3"}
_FORMAT = 1

Tokens = NDArray[np.uint8]


class CorpusError(ValueError):
    """A corpus that cannot be used: names the source, the size found and what is needed."""


@dataclass(frozen=True)
class Corpus:
    """A tokenised corpus.

    Attributes:
        train, val: token ids, one a byte; documents end with the separator.
        sha256: of both splits and their boundary; part of every run's identity.
    """

    name: str
    train: Tokens
    val: Tokens
    sha256: str
    files: int
    vocab_size: int = 256
    tokenizer: str = "bytes"

    @property
    def train_bytes(self) -> int:
        return int(self.train.size)

    @property
    def val_bytes(self) -> int:
        return int(self.val.size)

    @cached_property
    def unigram_entropy(self) -> float:
        """Nats a token that the training split's unigram distribution (add-one) costs on the validation split.

        A model at this loss has learned token frequencies and nothing else.
        """
        counts = np.bincount(self.train, minlength=self.vocab_size).astype(np.float64) + 1.0
        log_p = np.log(counts / counts.sum())
        seen = np.bincount(self.val, minlength=self.vocab_size)
        return float(-(seen * log_p).sum() / seen.sum())

    def describe(self) -> dict[str, Any]:
        """Plain facts for a manifest or a report."""
        return {
            "name": self.name,
            "files": self.files,
            "bytes": self.train_bytes + self.val_bytes,
            "train_bytes": self.train_bytes,
            "val_bytes": self.val_bytes,
            "sha256": self.sha256,
            "tokenizer": self.tokenizer,
            "unigram_entropy": self.unigram_entropy,
        }


def open_corpus(source: str = "stdlib", val_bytes: int = 65_536, cache: Path | None = None) -> Corpus:
    """A corpus by source, tokenised once and memory-mapped after.

    Args:
        source: ``stdlib``, or the path of a UTF-8 text file or of a folder of them.
        val_bytes: size of the validation split; whole documents are set aside until it is reached, in the order of
            their digests, so that it does not depend on file order.
        cache: folder for the tokens; ``$ASSAY_CACHE``, else the user's cache folder.

    Raises:
        CorpusError: nothing there, or too little text for the validation split and as much again to train on.
    """
    documents = _stdlib() if source == "stdlib" else _documents(Path(source))
    total = sum(len(d) + 1 for d in documents)
    if total < 2 * val_bytes:
        raise CorpusError(
            f"corpus {source!r}: {total:,} bytes in {len(documents)} documents; {val_bytes:,} for validation and at "
            f"least as much for training are needed"
        )
    key = hashlib.sha256(f"{_FORMAT}/{val_bytes}".encode())
    for document in documents:
        key.update(hashlib.sha256(document).digest())
    folder = (cache or cache_folder()) / key.hexdigest()[:32]
    if not _complete(folder):
        _write(folder, documents, val_bytes)
    manifest = json.loads((folder / "manifest.json").read_text())
    name = source if source == "stdlib" else Path(source).name
    train, val = (np.memmap(folder / f"{split}.bin", dtype=np.uint8, mode="r") for split in ("train", "val"))
    return Corpus(name, train, val, manifest["sha256"], manifest["files"])


def cache_folder() -> Path:
    """Where tokenised corpora are kept."""
    base = os.environ.get("ASSAY_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "assay"
    )
    return Path(base) / "corpora"


def _stdlib() -> list[bytes]:
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("lib-"))
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    return _unique(path.read_bytes() for path in found)


def _documents(path: Path) -> list[bytes]:
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in (".txt", ".md", ".py", ".rst"))
        if not files:
            raise CorpusError(f"corpus {str(path)!r}: no .txt, .md, .rst or .py files in this folder")
        return _unique(p.read_bytes() for p in files)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"corpus {str(path)!r}: cannot be read: {error.strerror or error}; or say stdlib") from None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"corpus {str(path)!r}: not UTF-8 text: byte {error.start} is {error.reason}") from None
    # one file is cut at blank lines into pieces of about 4 KB, so that the validation split is spread over it
    pieces, current = [], b""
    for paragraph in data.split(b"\n\n"):
        current += paragraph + b"\n\n"
        if len(current) >= 4096:
            pieces.append(current)
            current = b""
    return [*pieces, current] if current.strip() else pieces


def _unique(blobs: Any) -> list[bytes]:
    seen: dict[bytes, bytes] = {}
    for blob in blobs:
        if blob.strip():
            seen.setdefault(hashlib.sha256(blob).digest(), blob.replace(SEPARATOR, b" "))
    return list(seen.values())


def _write(folder: Path, documents: list[bytes], val_bytes: int) -> None:
    by_digest = sorted(range(len(documents)), key=lambda i: hashlib.sha256(documents[i]).digest())
    held, size = set(), 0
    for i in by_digest:
        if size >= val_bytes:
            break
        held.add(i)
        size += len(documents[i]) + 1
    splits = {
        "train": b"".join(d + SEPARATOR for i, d in enumerate(documents) if i not in held),
        # spread over the held documents, cut at the size asked for
        "val": b"".join(documents[i] + SEPARATOR for i in by_digest if i in held)[: max(val_bytes, 1)],
    }
    sha = hashlib.sha256()
    for name in ("train", "val"):
        sha.update(len(splits[name]).to_bytes(8, "little") + splits[name])
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        for name, data in splits.items():
            (partial / f"{name}.bin").write_bytes(data)
        sizes = {name: len(data) for name, data in splits.items()}
        manifest = {"sha256": sha.hexdigest(), "files": len(documents), "tokenizer": "bytes", "sizes": sizes}
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1))
        if folder.exists() and not _complete(folder):
            shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError:
        if not _complete(folder):  # another process may have written the same corpus meanwhile
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _complete(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / "manifest.json").read_text())["sizes"]
        return all((folder / f"{name}.bin").stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def bits_per_byte(nats: float) -> float:
    """Nats a byte as bits a byte."""
    return nats / math.log(2)
