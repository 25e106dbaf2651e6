"""Tokens on disk: memory-mapped shards, an index of documents, and a manifest that identifies them.

A folder holds ``manifest.json``, ``tokens-<n>.bin`` (little-endian unsigned, the narrowest that holds the vocabulary),
``documents.bin`` (a record a document), ``unigrams.bin`` (how often each id occurs), the ``tokenizer.json`` unless the
tokens are bytes, and how many bytes of text a token stands for: ``lengths.bin`` by id, or ``spans-<n>.bin`` by place
where an id alone does not tell.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.data.errors import CorpusError
from assay.training.folder import write_json

FORMAT = "assay-bins"
VERSION = 1
MANIFEST = "manifest.json"
DOCUMENTS = "documents.bin"
UNIGRAMS = "unigrams.bin"
LENGTHS = "lengths.bin"
SPAN = np.dtype("<u4")
RECORD = np.dtype([("start", "<u8"), ("bytes", "<u8"), ("hash", "<u8"), ("repeats", "<u4")])
SMALL = 1 << 28  # bytes that are checked whenever they are opened; larger folders when a file has changed

_CHUNK = 1 << 24

Array = NDArray[Any]
OnCheck = Callable[[int, int], None]


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest unsigned type for ids below ``vocab_size``."""
    return np.dtype("u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


def sha256_of(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def identity_of(manifest: dict[str, Any]) -> str:
    """sha256 of what the manifest says of the tokens: not of where they came from or lie."""
    kept = {key: manifest[key] for key in ("format", "version", "tokenizer", "dtype", "counts", "shards", "index")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_bins(path: Path) -> bool:
    """Whether a folder is one that ``assay tokenize`` wrote, sound or not."""
    try:
        table = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return any(path.glob("tokens-*.bin"))
    return isinstance(table, dict) and table.get("format") == FORMAT


@dataclass(frozen=True)
class Bins:
    """A folder of tokens, checked and mapped.

    Attributes:
        shards: token ids; documents never cross from one to the next.
        spans: bytes of text a token, beside each shard; empty where ``token_bytes`` has them by id.
    """

    folder: Path
    manifest: dict[str, Any]
    shards: tuple[Array, ...]
    spans: tuple[Array, ...]
    documents: Array
    unigrams: NDArray[np.int64]
    token_bytes: NDArray[np.int64] | None

    @property
    def sha256(self) -> str:
        return str(self.manifest["sha256"])

    @property
    def tokenizer(self) -> dict[str, Any]:
        """``name``, ``sha256``, ``vocab_size``, ``bos``, ``eos``."""
        table: dict[str, Any] = self.manifest["tokenizer"]
        return table

    @property
    def counts(self) -> dict[str, int]:
        """``documents``, ``tokens``, ``bytes`` of text, and what was left out: ``empty``, ``duplicates``."""
        table: dict[str, int] = self.manifest["counts"]
        return table

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first token of each document, counted over all shards, and the end of the last; (n + 1,)."""
        return np.append(self.documents["start"], self.counts["tokens"]).astype(np.int64)

    @cached_property
    def shard_starts(self) -> NDArray[np.int64]:
        """The first token of each shard, and the end of the last."""
        return np.cumsum([0, *(len(shard) for shard in self.shards)], dtype=np.int64)

    @property
    def specials(self) -> tuple[int, ...]:
        """Ids that stand for no text: BOS and EOS."""
        return tuple(self.tokenizer[key] for key in ("bos", "eos") if self.tokenizer[key] is not None)


def open_bins(folder: Path, stamps: Path | None = None, on_check: OnCheck | None = None) -> Bins:
    """A folder of tokens, every file of it checked against the manifest.

    Args:
        stamps: folder that remembers which large files have been checked; they are read again when they change.
        on_check: told bytes checked and bytes in all.

    Raises:
        CorpusError: naming the file that is missing, empty, changed, or holds an id beyond the vocabulary.
    """
    manifest = _manifest(folder)
    dtype = np.dtype(manifest["dtype"])
    files = _files(folder, manifest)
    for file, entry in files:
        _sized(file, entry)
    _verify(folder, manifest, files, stamps, on_check)
    named = {file.name: np.memmap(file, dtype=_dtype(file, dtype), mode="r") for file, _ in files if _is_array(file)}
    shards = [entry["file"] for entry in manifest["shards"]]
    return Bins(
        folder,
        manifest,
        shards=tuple(named[name] for name in shards),
        spans=tuple(named[_span_name(name)] for name in shards if _span_name(name) in named),
        documents=named[DOCUMENTS],
        unigrams=np.asarray(named[UNIGRAMS]).astype(np.int64),
        token_bytes=np.asarray(named[LENGTHS]).astype(np.int64) if LENGTHS in named else None,
    )


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CorpusError(f"{path}: damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CorpusError(f"{path}: not a manifest of tokens ({FORMAT})")
    if manifest.get("version") != VERSION:
        found = manifest.get("version")
        raise CorpusError(f"{path}: version {found!r}; this assay reads version {VERSION}: tokenize the texts again")
    try:
        sound = identity_of(manifest) == manifest["sha256"]
        empty = manifest["counts"]["tokens"] == 0
    except (KeyError, TypeError) as error:
        raise CorpusError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    if not sound:
        raise CorpusError(f"{path}: not what was written (its digest differs)")
    if empty:
        raise CorpusError(f"{folder}: holds no tokens")
    return manifest


def _span_name(shard: str) -> str:
    return shard.replace("tokens-", "spans-")


def _dtype(file: Path, tokens: np.dtype[Any]) -> Any:
    if file.name == DOCUMENTS:
        return RECORD
    if file.name.startswith("spans-") or file.name == LENGTHS:
        return SPAN
    return np.dtype("<u8") if file.name == UNIGRAMS else tokens


def _is_array(file: Path) -> bool:
    return file.suffix == ".bin"


def _files(folder: Path, manifest: dict[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """Every file of the folder with its entry; a name in a manifest never leads out of it."""
    return [(folder / Path(entry["file"]).name, entry) for entry in (*manifest["shards"], *manifest["index"])]


def _sized(file: Path, entry: dict[str, Any]) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise CorpusError(f"{file}: cannot be read: {error.strerror or error}") from None
    if size == 0:
        raise CorpusError(f"{file}: empty; {entry['bytes']:,} bytes were written")
    if size != entry["bytes"]:
        raise CorpusError(f"{file}: {size:,} bytes; {entry['bytes']:,} were written")


def _verify(
    folder: Path,
    manifest: dict[str, Any],
    files: list[tuple[Path, dict[str, Any]]],
    stamps: Path | None,
    on_check: OnCheck | None,
) -> None:
    """Compare digests and the largest id; what is large and unchanged since it was last checked is passed over."""
    total = sum(entry["bytes"] for _, entry in files)
    stamp = None
    if stamps is not None and total > SMALL:
        stamp = stamps / f"{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:32]}.json"
    known = _known(stamp)
    seen = {file.name: f"{entry['sha256']} {(s := file.stat()).st_size} {s.st_mtime_ns}" for file, entry in files}
    done = 0
    for file, entry in files:
        if known.get(file.name) != seen[file.name]:
            if sha256_of(file) != entry["sha256"]:
                raise CorpusError(f"{file}: not what was written (its digest differs)")
            if file.name.startswith("tokens-"):
                _in_range(file, manifest)
        done += entry["bytes"]
        if on_check is not None:
            on_check(done, total)
    if stamp is not None and known != seen:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        write_json(stamp, seen)


def _in_range(file: Path, manifest: dict[str, Any]) -> None:
    tokens, vocab = np.memmap(file, dtype=manifest["dtype"], mode="r"), manifest["tokenizer"]["vocab_size"]
    if int(tokens.max()) >= vocab:
        at = int(np.argmax(tokens >= vocab))
        name = manifest["tokenizer"]["name"]
        raise CorpusError(f"{file}: holds {tokens[at]} at place {at}; ids of {name} are below {vocab}")


def _known(stamp: Path | None) -> dict[str, str]:
    if stamp is None:
        return {}
    try:
        table: dict[str, str] = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return table


def flush(path: Path) -> None:
    """Push a file or folder to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
