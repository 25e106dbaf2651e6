"""Documents to tokens on disk, whole or not at all; what was cut short goes on at its last whole shard."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from assay.training.data import bins as fmt
from assay.training.data.bins import RECORD, SPAN, Array, dtype_for, flush, sha256_of
from assay.training.data.errors import CorpusError
from assay.training.data.readers import Document
from assay.training.data.repeats import longest_repeats
from assay.training.data.sources import Source
from assay.training.data.tokenizer import Encoded, Tokenizer
from assay.training.environment import version
from assay.training.folder import write_json

SHARD = 1 << 26  # tokens after which a shard ends, at the end of a document
PROGRESS = "progress.json"
_BATCH = 1 << 21  # characters that are tokenized together

OnProgress = Callable[[int, int], None]


@dataclass
class Counts:
    """What has been read: documents kept, their tokens and bytes of text; documents left out."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    empty: int = 0
    duplicates: int = 0


@dataclass
class _State:
    """What a folder in the making holds: whole shards, and the documents read for them."""

    identity: str
    shards: list[dict[str, Any]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    read: int = 0  # documents of the source, left out or not
    seen: str = ""  # digest of their digests: whether it is still the same source


def write_bins(
    source: Source,
    tokenizer: Tokenizer,
    out: Path,
    *,
    shard_tokens: int = SHARD,
    on_progress: OnProgress | None = None,
) -> None:
    """Tokenize a source into the folder ``out``, which appears when it is whole.

    Exact duplicates (after the first) and blank documents are left out. Each document is BOS, its tokens, EOS, as far
    as the tokenizer has them. Memory holds a batch of text and 8 bytes and a set's entry for each document.

    Args:
        on_progress: told documents read and bytes of text read.

    Raises:
        CorpusError: ``out`` exists, another process is writing it, or the source cannot be read.
    """
    with writing(out, wait=False):
        if out.exists():
            raise CorpusError(f"{out}: exists and is not overwritten; remove it or choose another folder")
        write_locked(source, tokenizer, out, shard_tokens, on_progress)


@contextmanager
def writing(out: Path, wait: bool) -> Iterator[None]:
    """One process at a time writes ``out``; others wait, or are refused."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = out.with_name(f".{out.name}.lock").open("w")
    except OSError as error:
        raise CorpusError(f"{out}: cannot be written: {error.strerror or error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise CorpusError(f"{out}: another process is writing it") from None
        try:
            yield
        finally:
            if not wait:  # nobody waits for this one
                Path(lock.name).unlink(missing_ok=True)


def write_locked(
    source: Source, tokenizer: Tokenizer, out: Path, shard_tokens: int, on_progress: OnProgress | None
) -> None:
    """:func:`write_bins` for who holds the lock."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        _Writer(source, tokenizer, partial, shard_tokens, on_progress).run()
        partial.rename(out)
        flush(out.parent)
    except OSError as error:
        raise CorpusError(f"{partial}: cannot be written: {error.strerror or error}") from None
    finally:
        if not (partial / PROGRESS).exists():  # nothing to go on from
            shutil.rmtree(partial, ignore_errors=True)


class _Writer:
    def __init__(
        self,
        source: Source,
        tokenizer: Tokenizer,
        folder: Path,
        shard_tokens: int,
        on_progress: OnProgress | None,
    ) -> None:
        self.source, self.tokenizer, self.folder = source, tokenizer, folder
        self.shard_tokens, self.on_progress = shard_tokens, on_progress
        self.dtype = dtype_for(tokenizer.vocab_size)
        self.head = np.array([i for i in (tokenizer.bos,) if i is not None], dtype=np.int64)
        self.tail = np.array([i for i in (tokenizer.eos,) if i is not None], dtype=np.int64)
        ends = (tokenizer.bos, tokenizer.eos, shard_tokens, fmt.VERSION)
        self.state = _State(hashlib.sha256(repr((source.sha256, tokenizer.sha256, ends)).encode()).hexdigest())
        self.unique: set[int] = set()
        self.running, self.text_bytes = hashlib.sha256(), 0
        self.records: list[Array] = []
        self.unigrams = np.zeros(tokenizer.vocab_size, dtype=np.int64)

    def run(self) -> None:
        documents = self.source.documents()
        before = self._before()
        if before is not None and self._caught_up(documents, before):
            self._take_over(before)
        else:  # nothing to go on from, or the texts are others than they were
            if before is not None:
                documents = self.source.documents()
            self.unique.clear()
            self.running, self.text_bytes = hashlib.sha256(), 0
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        shard = self._shard()
        try:
            for batch in _batches(self._new(documents), min(_BATCH, self.shard_tokens)):
                self._add(shard, batch)
                if shard.tokens >= self.shard_tokens:
                    self._close(shard)
                    shard = self._shard()
            if shard.tokens:
                self._close(shard)
        finally:
            shard.drop()
        if not self.state.counts.tokens:
            raise CorpusError(f"corpus {self.source.name!r}: {self.state.read} documents hold no text")
        self._finish()

    def _shard(self) -> _Shard:
        return _Shard(self.folder, len(self.state.shards), self.dtype, self._spans)

    @property
    def _spans(self) -> bool:
        return self.tokenizer.token_bytes is None

    def _before(self) -> _State | None:
        """What an earlier try left that can be gone on from."""
        try:
            table = json.loads((self.folder / PROGRESS).read_text(encoding="utf-8"))
            state = _State(**{**table, "counts": Counts(**table["counts"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        sound = state.identity == self.state.identity and all(
            Path(entry["file"]).name == entry["file"]  # never out of the folder
            and (file := self.folder / entry["file"]).is_file()
            and sha256_of(file) == entry["sha256"]
            for shard in state.shards
            for entry in _files_of(shard)
        )
        return state if sound and state.shards else None

    def _take_over(self, before: _State) -> None:
        self.state = before
        whole = {entry["file"] for shard in before.shards for entry in _files_of(shard)}
        for file in self.folder.iterdir():
            if file.name not in whole and file.name != PROGRESS:
                file.unlink()
        for shard in before.shards:
            self.records.append(np.fromfile(self.folder / shard["documents"]["file"], dtype=RECORD))
            tokens = np.fromfile(self.folder / shard["file"], dtype=self.dtype)
            self.unigrams += np.bincount(tokens, minlength=len(self.unigrams))

    def _caught_up(self, documents: Iterator[Document], before: _State) -> bool:
        """Read past what is done; True where it is what it was."""
        for document in islice(documents, before.read):
            self._digest(document)
        return self.running.hexdigest() == before.seen

    def _new(self, documents: Iterator[Document]) -> Iterator[tuple[Document, int]]:
        """Documents that are neither blank nor there already, with their hash."""
        for document in documents:
            value, fresh = self._digest(document)
            blank = not document.text.strip()
            counts = self.state.counts
            self.state.read += 1
            counts.empty += blank
            counts.duplicates += not fresh and not blank
            if fresh and not blank:
                yield document, value

    def _digest(self, document: Document) -> tuple[int, bool]:
        """The first 64 bits of the text's sha256, and whether they are new."""
        raw = document.text.encode()
        digest = hashlib.sha256(raw).digest()
        self.running.update(digest)
        self.text_bytes += len(raw)
        value = int.from_bytes(digest[:8], "big")
        fresh = value not in self.unique
        self.unique.add(value)
        return value, fresh

    def _add(self, shard: _Shard, batch: Sequence[tuple[Document, int]]) -> None:
        encoded = self.tokenizer.encode([document.text for document, _ in batch])
        sizes = [len(document.text.encode()) for document, _ in batch]
        for (document, _), size, each in zip(batch, sizes, encoded, strict=True):
            self._check(document, size, each)
        ids = [np.concatenate((self.head, each.ids, self.tail)) for each in encoded]
        starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        flat = np.concatenate(ids)
        records = np.zeros(len(batch), dtype=RECORD)
        records["start"] = starts[:-1] + self.state.counts.tokens
        records["bytes"] = sizes
        records["hash"] = np.array([value for _, value in batch], dtype=np.uint64)
        records["repeats"] = longest_repeats(flat.astype(self.dtype), starts)
        none = np.zeros(len(self.head), dtype=np.int64), np.zeros(len(self.tail), dtype=np.int64)
        spans = [np.concatenate((none[0], e.spans, none[1])) for e in encoded if e.spans is not None]
        shard.add(flat, np.concatenate(spans) if spans else None, records)
        self.unigrams += np.bincount(flat, minlength=len(self.unigrams))
        counts = self.state.counts
        counts.documents += len(batch)
        counts.tokens += len(flat)
        counts.bytes += sum(sizes)
        if self.on_progress is not None:
            self.on_progress(self.state.read, self.text_bytes)

    def _check(self, document: Document, size: int, encoded: Encoded) -> None:
        """Every byte of text is some token's: what bits per byte rest on."""
        lengths = self.tokenizer.token_bytes
        if lengths is None:
            assert encoded.spans is not None
            found = int(encoded.spans.sum())
        elif self.tokenizer.file is None:
            found = len(encoded.ids)
        else:
            found = int(lengths[encoded.ids].sum())
        if found != size:
            raise CorpusError(f"{document.place}: {size:,} bytes of text, and its tokens stand for {found:,}")

    def _close(self, shard: _Shard) -> None:
        self.state.shards.append(shard.close())
        self.records.append(shard.records())
        self.state.seen = self.running.hexdigest()
        write_json(self.folder / PROGRESS, asdict(self.state))

    def _finish(self) -> None:
        tokenizer, state, folder = self.tokenizer, self.state, self.folder
        np.concatenate(self.records).tofile(folder / fmt.DOCUMENTS)
        self.unigrams.astype("<u8").tofile(folder / fmt.UNIGRAMS)
        index = [fmt.DOCUMENTS, fmt.UNIGRAMS]
        if tokenizer.token_bytes is not None:
            tokenizer.token_bytes.astype(SPAN).tofile(folder / fmt.LENGTHS)
            index.append(fmt.LENGTHS)
        if tokenizer.file is not None:
            (folder / "tokenizer.json").write_bytes(tokenizer.file.read_bytes())
            index.append("tokenizer.json")
        spans = [shard["spans"] for shard in state.shards if "spans" in shard]
        shards = [{k: shard[k] for k in ("file", "bytes", "tokens", "sha256")} for shard in state.shards]
        manifest: dict[str, Any] = {
            "format": fmt.FORMAT,
            "version": fmt.VERSION,
            "tokenizer": {
                "name": tokenizer.name,
                "sha256": tokenizer.sha256,
                "vocab_size": tokenizer.vocab_size,
                "bos": tokenizer.bos,
                "eos": tokenizer.eos,
            },
            "dtype": self.dtype.str,
            "counts": asdict(state.counts),
            "shards": shards,
            "index": [*(_entry(folder / name) for name in index), *spans],
            "source": self.source.describe(),
            "made_by": f"assay {version()}",
        }
        manifest["sha256"] = fmt.identity_of(manifest)
        for shard in state.shards:
            (folder / shard["documents"]["file"]).unlink()
        for file in folder.iterdir():
            flush(file)
        write_json(folder / fmt.MANIFEST, manifest)
        (folder / PROGRESS).unlink(missing_ok=True)


class _Shard:
    """A shard in the making: ids, spans where they are kept, and the records of its documents."""

    def __init__(self, folder: Path, number: int, dtype: np.dtype[Any], spans: bool) -> None:
        names = {"tokens": dtype, "documents": RECORD, **({"spans": SPAN} if spans else {})}
        self._dtypes = names
        self._files = {name: folder / f"{name}-{number:05d}.bin" for name in names}
        self._open = {name: path.open("wb") for name, path in self._files.items()}
        self.tokens = 0

    def add(self, ids: Array, spans: Array | None, records: Array) -> None:
        for name, values in (("tokens", ids), ("spans", spans), ("documents", records)):
            if name in self._open and values is not None:
                self._open[name].write(values.astype(self._dtypes[name], copy=False).tobytes())
        self.tokens += len(ids)

    def close(self) -> dict[str, Any]:
        for file in self._open.values():
            file.close()
        for path in self._files.values():
            flush(path)
        entries = {name: _entry(path) for name, path in self._files.items()}
        tokens = entries.pop("tokens")
        return {**tokens, "tokens": self.tokens, **entries}

    def records(self) -> Array:
        return np.fromfile(self._files["documents"], dtype=RECORD)

    def drop(self) -> None:
        """Remove it, unless it was closed."""
        for name, file in self._open.items():
            if not file.closed:
                file.close()
                self._files[name].unlink()


def _files_of(shard: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a shard's own files."""
    return [shard, shard["documents"], *([shard["spans"]] if "spans" in shard else [])]


def _entry(file: Path) -> dict[str, Any]:
    return {"file": file.name, "bytes": file.stat().st_size, "sha256": sha256_of(file)}


def _batches(documents: Iterator[tuple[Document, int]], most: int) -> Iterator[list[tuple[Document, int]]]:
    """Documents of ``most`` characters together, or a little more."""
    batch: list[tuple[Document, int]] = []
    size = 0
    for document, value in documents:
        batch.append((document, value))
        size += len(document.text)
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
