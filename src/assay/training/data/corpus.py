"""A corpus: one folder of tokens or a mixture of several, split into training and validation, and what identifies it.

The default is the Python standard library's own sources, found on the machine that runs: it is always there, and its
size differs by build, so it is identified by its digest, never by a number.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.data.bins import VERSION, Bins, is_bins, open_bins
from assay.training.data.errors import CorpusError
from assay.training.data.order import apportion, n_windows, portions_of, window_starts
from assay.training.data.sources import Source, open_source
from assay.training.data.spec import BytesSplit, DataConfig, DocumentsSplit, RepeatedNgrams
from assay.training.data.stream import Stream
from assay.training.data.tokenizer import Tokenizer, open_tokenizer
from assay.training.data.write import SHARD, OnProgress, write_locked, writing

_APART = 0x9E3779B1  # between the seeds of a mixture's parts

Tokens = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Held:
    """A validation split in memory.

    Attributes:
        stream: its tokens, documents in the order of their digests.
        bytes: bytes of text that each token stands for; 0 for BOS and EOS.
        special: whether a token is BOS or EOS.
        size: bytes of text, and one for each document's end.
    """

    stream: Stream
    bytes: Indices
    special: NDArray[np.bool_]
    size: int

    @property
    def tokens(self) -> Tokens:
        return self.stream.arrays[0]


@dataclass(frozen=True)
class Member:
    """One corpus of a mixture.

    Attributes:
        kept: the documents of the training split, (n,).
        filtered: how many documents the filter left out.
        train_bytes: of text, and one for each document's end.
    """

    name: str
    bins: Bins
    kept: Indices
    held: Held
    filtered: int
    train_bytes: int

    @cached_property
    def train(self) -> Stream:
        """The training split."""
        return Stream.chosen(self.bins, self._inside)

    @property
    def _inside(self) -> NDArray[np.bool_]:
        inside = np.zeros(len(self.bins.documents), dtype=bool)
        inside[self.kept] = True
        return inside

    @cached_property
    def log_unigram(self) -> NDArray[np.float64]:
        """Log-probability of each id in the training split, one added to each count; (V,)."""
        counts = self.bins.unigrams
        if int(counts.sum()) < 2 * self.train.size:  # the less is read
            counts = counts - Stream.chosen(self.bins, ~self._inside).counts(len(counts))
        else:
            counts = self.train.counts(len(counts))
        found: NDArray[np.float64] = np.log((counts + 1.0) / (counts.sum() + len(counts)))
        return found


@dataclass(frozen=True)
class Corpus:
    """A tokenized corpus.

    Attributes:
        sha256: of the tokens of both splits and their boundary; part of every run's identity.
        quotas: the parts' shares of the windows, as whole numbers.
        tokenizer: its name; ``bytes`` for a token a byte.
    """

    name: str
    parts: tuple[Member, ...]
    quotas: tuple[int, ...]
    sha256: str
    vocab_size: int
    tokenizer: str
    tokenizer_sha256: str

    @property
    def train_tokens(self) -> int:
        return sum(part.train.size for part in self.parts)

    @property
    def val_tokens(self) -> int:
        return sum(part.held.stream.size for part in self.parts)

    @property
    def train_bytes(self) -> int:
        """Bytes of text, and one for the end of each document."""
        return sum(part.train_bytes for part in self.parts)

    @property
    def val_bytes(self) -> int:
        """As ``train_bytes``."""
        return sum(part.held.size for part in self.parts)

    @property
    def documents(self) -> int:
        return sum(len(part.bins.documents) - part.filtered for part in self.parts)

    @property
    def val(self) -> Tokens:
        """The validation tokens of all parts."""
        return np.concatenate([part.held.tokens for part in self.parts])

    @cached_property
    def pattern(self) -> Indices:
        """Which part each sample of a period is of."""
        return apportion(self.quotas)

    def place(self, samples: Indices, seq_len: int, seed: int) -> tuple[Indices, Indices]:
        """The part of each global sample, and where in its training split the window starts; both (k,).

        A pure function of (seed, sample): each part is read once an epoch of its own, in an order of its own.
        """
        parts, own = portions_of(samples, self.pattern, self.quotas)
        starts = np.empty_like(own)
        for p in np.unique(parts).tolist():
            chosen = parts == p
            starts[chosen] = window_starts(own[chosen], self.parts[p].train.size, seq_len, seed + p * _APART)
        return parts, starts

    def epochs(self, samples: int, seq_len: int) -> list[float]:
        """How often so many samples read each part."""
        period = sum(self.quotas)
        return [
            samples * quota / period / max(n_windows(part.train.size, seq_len), 1)
            for part, quota in zip(self.parts, self.quotas, strict=True)
        ]

    @cached_property
    def unigram_entropy(self) -> float:
        """Nats a token that the training split's unigram distribution (add-one) costs on the validation split.

        A model at this loss has learned token frequencies and nothing else. A mixture's distribution is that of its
        parts, weighted as their windows are.
        """
        period = sum(self.quotas)
        p = np.zeros(self.vocab_size)
        for part, quota in zip(self.parts, self.quotas, strict=True):
            p += np.exp(part.log_unigram) * (quota / period)
        seen = np.bincount(self.val, minlength=self.vocab_size)
        return float(-(seen * np.log(p)).sum() / seen.sum())

    @property
    def tokenizer_file(self) -> Path | None:
        """The ``tokenizer.json`` that cut it; None for bytes."""
        path = self.parts[0].bins.folder / "tokenizer.json"
        return path if path.is_file() else None

    def describe(self) -> dict[str, Any]:
        """Plain facts for a manifest or a report; ``bos``, ``eos``: ids before and after each document, or None."""
        facts = {
            "name": self.name,
            "files": self.documents,
            "bytes": self.train_bytes + self.val_bytes,
            "train_bytes": self.train_bytes,
            "val_bytes": self.val_bytes,
            "train_tokens": self.train_tokens,
            "val_tokens": self.val_tokens,
            "sha256": self.sha256,
            "tokenizer": self.tokenizer,
            "tokenizer_sha256": self.tokenizer_sha256,
            **{end: self.parts[0].bins.tokenizer[end] for end in ("bos", "eos")},
            "vocab_size": self.vocab_size,
            "unigram_entropy": self.unigram_entropy,
        }
        if len(self.parts) > 1:
            period = sum(self.quotas)
            facts["parts"] = {p.name: q / period for p, q in zip(self.parts, self.quotas, strict=True)}
        return facts


def open_corpus(source: str = "stdlib", val_bytes: int = 65_536, cache: Path | None = None) -> Corpus:
    """:func:`open_data` for one source at byte level."""
    return open_data(DataConfig(corpus=source, val_bytes=val_bytes), cache)


def open_data(config: DataConfig, cache: Path | None = None, on_progress: OnProgress | None = None) -> Corpus:
    """The corpus that a run's ``data`` section names, tokenized once and memory-mapped after.

    Args:
        cache: folder for the tokens of texts; ``$ASSAY_CACHE``, else the user's cache folder.
        on_progress: told documents and bytes, while texts are tokenized.

    Raises:
        CorpusError: nothing there, a damaged file, another tokenizer than asked for, or too little text for the
            validation split and as much again to train on.
    """
    cache = cache or cache_folder()
    tokenizer = None if config.tokenizer == "auto" else open_tokenizer(config.tokenizer)
    period, parts = sum(config.quotas), []
    names = _names([portion.corpus for portion in config.portions])
    for name, portion, quota in zip(names, config.portions, config.quotas, strict=True):
        bins = _opened(portion.corpus, config.field, tokenizer, cache, on_progress)
        parts.append(_split(name, bins, config, -(-config.val_bytes * quota // period)))
    _same_tokenizer(parts)
    first = parts[0].bins.tokenizer
    identity = {
        "parts": [part.bins.sha256 for part in parts],
        "val_bytes": config.val_bytes,
        "split": config.split.model_dump(mode="json"),
        "filter": config.filter.model_dump(mode="json"),
        "quotas": list(config.quotas),
    }
    weights = [f"{part.name} {quota / period:.3g}" for part, quota in zip(parts, config.quotas, strict=True)]
    return Corpus(
        name=parts[0].name if len(parts) == 1 else " + ".join(weights),
        parts=tuple(parts),
        quotas=config.quotas,
        sha256=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        vocab_size=first["vocab_size"],
        tokenizer=first["name"],
        tokenizer_sha256=first["sha256"],
    )


def cache_folder() -> Path:
    """Where tokenized corpora are kept."""
    base = os.environ.get("ASSAY_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "assay"
    )
    return Path(base) / "corpora"


def _names(corpora: Sequence[str]) -> list[str]:
    """A short name for each: the end of its path, as long as it takes to tell it from the others."""
    words = [Path(corpus).absolute().parts if os.path.exists(corpus) else (corpus,) for corpus in corpora]
    out = []
    for i, own in enumerate(words):
        others = words[:i] + words[i + 1 :]
        lengths = (n for n in range(1, len(own) + 1) if all(other[-n:] != own[-n:] for other in others))
        n = next(lengths, 0)
        out.append(str(Path(*own[-n:])) if n else corpora[i])
    return out


def _opened(
    name: str, record_field: str, tokenizer: Tokenizer | None, cache: Path, on_progress: OnProgress | None
) -> Bins:
    """A folder of tokens, or a text tokenized into the cache."""
    stamps = cache / "checked"
    if is_bins(Path(name)):
        if record_field != "text":
            raise CorpusError(f"corpus {name!r}: is tokenized already; its text has no field {record_field!r}")
        bins = open_bins(Path(name), stamps)
        if tokenizer is not None and tokenizer.sha256 != bins.tokenizer["sha256"]:
            raise CorpusError(
                f"corpus {name!r}: holds tokens of {bins.tokenizer['name']} ({bins.tokenizer['sha256'][:12]}), not of "
                f"{tokenizer.name} ({tokenizer.sha256[:12]}): tokenize the texts again, or leave tokenizer out"
            )
        return bins
    source = open_source(name, record_field)
    return _cached(source, tokenizer or open_tokenizer("bytes"), cache, stamps, on_progress)


def _cached(source: Source, tokenizer: Tokenizer, cache: Path, stamps: Path, on_progress: OnProgress | None) -> Bins:
    """A text's tokens in the cache, written where they are missing or damaged; one process writes, others wait."""
    body = (VERSION, source.sha256, tokenizer.sha256, tokenizer.bos, tokenizer.eos)
    folder = cache / hashlib.sha256(repr(body).encode()).hexdigest()[:32]
    try:
        return open_bins(folder, stamps)
    except CorpusError:
        with writing(folder, wait=True):
            try:
                return open_bins(folder, stamps)  # another process may have written it meanwhile
            except CorpusError:
                shutil.rmtree(folder, ignore_errors=True)
                write_locked(source, tokenizer, folder, SHARD, on_progress)
    return open_bins(folder, stamps)


def _split(name: str, bins: Bins, config: DataConfig, val_bytes: int) -> Member:
    """The filter, then the split: which documents are trained on, and the tokens that are held out."""
    documents = bins.documents
    keep = np.ones(len(documents), dtype=bool)
    if isinstance(config.filter, RepeatedNgrams):
        keep = documents["repeats"] < config.filter.repeats
    hashes, sizes = np.asarray(documents["hash"]), documents["bytes"].astype(np.int64) + 1
    chosen = np.flatnonzero(keep)
    total = int(sizes[chosen].sum())
    if total < 2 * val_bytes:
        raise CorpusError(
            f"corpus {name!r}: {total:,} bytes in {chosen.size:,} documents; {val_bytes:,} for validation and at "
            f"least as much for training are needed"
        )
    by_hash = chosen[np.argsort(hashes[chosen], kind="stable")]
    running = np.cumsum(sizes[by_hash])
    if isinstance(config.split, DocumentsSplit):
        bound = math.ldexp(config.split.share, 64)
        out = int(np.searchsorted(hashes[by_hash].astype(np.float64), bound, side="left"))
        found = int(running[out - 1]) if out else 0
        if found < val_bytes or out == chosen.size:
            raise CorpusError(
                f"corpus {name!r}: a share of {config.split.share:g} holds out {found:,} bytes of {total:,} in {out:,} "
                f"documents, and val_bytes asks for {val_bytes:,}: another share, or fewer val_bytes"
            )
    else:
        assert isinstance(config.split, BytesSplit)
        out = int(np.searchsorted(running, val_bytes)) + 1
        if out == chosen.size:
            raise CorpusError(
                f"corpus {name!r}: {val_bytes:,} bytes for validation take all {out:,} of its documents, which are "
                f"held out whole: fewer val_bytes, or shorter documents (a text file alone is cut into some)"
            )
    seen = by_hash[: int(np.searchsorted(running, val_bytes)) + 1]
    train = np.sort(by_hash[out:])
    return Member(name, bins, train, _held(bins, seen, val_bytes), int((~keep).sum()), int(sizes[train].sum()))


def _held(bins: Bins, documents: Sequence[int] | Indices, val_bytes: int) -> Held:
    """These documents' tokens, cut where they stand for ``val_bytes`` bytes (a document's end counts as one)."""
    tokens, lengths, starts, done = [], [], [], 0
    for i in np.asarray(documents).tolist():
        start, end = int(bins.starts[i]), int(bins.starts[i + 1])
        shard = int(np.searchsorted(bins.shard_starts, start, side="right")) - 1
        at = slice(start - int(bins.shard_starts[shard]), end - int(bins.shard_starts[shard]))
        ids = np.asarray(bins.shards[shard][at])
        spans = bins.spans[shard][at].astype(np.int64) if bins.spans else None
        tokens.append(ids)
        lengths.append(spans if spans is not None else np.asarray(bins.token_bytes)[ids])
        starts.append(done)
        done += len(ids)
    flat, size = np.concatenate(tokens), np.concatenate(lengths)
    counted = size.copy()
    counted[np.array([*starts[1:], done]) - 1] += 1
    running = np.cumsum(counted)
    cut = min(int(np.searchsorted(running, val_bytes)) + 1, done)
    special = np.isin(flat[:cut], bins.specials)
    stream = Stream.of(flat[:cut], np.array([s for s in starts if s < cut], dtype=np.int64))
    return Held(stream, size[:cut], special, int(running[cut - 1]))


def _same_tokenizer(parts: Sequence[Member]) -> None:
    first = parts[0].bins.tokenizer
    for part in parts[1:]:
        other = part.bins.tokenizer
        if any(other[key] != first[key] for key in ("sha256", "bos", "eos")):
            raise CorpusError(
                f"corpus {part.name!r}: holds tokens of {other['name']}, and {parts[0].name!r} of {first['name']}: one "
                f"tokenizer for all; name it as data.tokenizer"
            )


def bits_per_byte(nats: float) -> float:
    """Nats a byte as bits a byte."""
    return nats / math.log(2)
