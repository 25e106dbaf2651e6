"""Tokens on disk: whole or not at all, gone on with after a kill, every damage named."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.data import CorpusError, open_bins, open_corpus, open_tokenizer, write_bins
from assay.training.data import bins as fmt
from assay.training.data.repeats import LONGEST, longest_repeats
from assay.training.data.sources import Source, open_source
from assay.training.data.tokenizer import FileTokenizer
from assay.training.data.write import _Shard
from tests.training.data.support import bins_of, bpe, flat, json_lines, texts, word_level

DOCUMENTS = [*texts(50), "", "  \n", texts(1)[0]]


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["bytes", "bpe", "spans"])
def test_what_is_written_is_the_documents(tmp_path: Path, kind: str) -> None:
    tokenizer: Any = open_tokenizer("bytes") if kind == "bytes" else bpe(tmp_path)
    if kind == "spans":
        table = {**json.loads(tokenizer.path.read_text()), "normalizer": {"type": "NFC"}}
        tokenizer.path.write_text(json.dumps(table))
        tokenizer = FileTokenizer(tokenizer.path, None, 0)
    bins = open_bins(bins_of(tmp_path / "out", DOCUMENTS, tokenizer, shard=700))
    kept = DOCUMENTS[:50]
    assert bins.counts["documents"] == 50
    assert (bins.counts["empty"], bins.counts["duplicates"]) == (2, 1)
    assert bins.counts["bytes"] == sum(len(text.encode()) for text in kept)
    assert bins.manifest["dtype"] == ("|u1" if kind == "bytes" else "<u2")
    assert len(bins.shards) > 3 or kind != "bytes"
    whole = np.concatenate(bins.shards)
    assert len(whole) == bins.counts["tokens"] == bins.starts[-1]
    assert np.array_equal(np.bincount(whole, minlength=tokenizer.vocab_size), bins.unigrams)
    for i, (text, each) in enumerate(zip(kept, tokenizer.encode(kept), strict=True)):
        assert flat(whole[bins.starts[i] : bins.starts[i + 1]]) == [*flat(each.ids), tokenizer.eos]
        assert bins.documents["bytes"][i] == len(text.encode())
        assert bins.documents["hash"][i] == int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        assert bins.starts[i] in bins.shard_starts or bins.starts[i] > 0
    lengths = np.concatenate(bins.spans) if bins.spans else np.asarray(bins.token_bytes)[whole]
    assert bool(bins.spans) == (kind == "spans")
    assert int(lengths.sum()) == bins.counts["bytes"]
    shards = np.searchsorted(bins.shard_starts, bins.starts[:-1], side="right")
    assert np.array_equal(shards, np.searchsorted(bins.shard_starts, bins.starts[1:] - 1, side="right"))  # none is cut


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path)
    bins = open_bins(bins_of(tmp_path / "out", DOCUMENTS, tokenizer))
    own = open_tokenizer(bins.folder)
    assert (own.sha256, own.eos, own.vocab_size) == (tokenizer.sha256, 0, 400)
    assert bins.tokenizer["sha256"] == tokenizer.sha256


def test_lengths_with_bos_and_eos(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(word_level(tmp_path / "w.json", bos="B"))
    bins = open_bins(bins_of(tmp_path / "out", ["abc", "de"], tokenizer))
    assert flat(bins.starts) == [0, 5, 9]
    assert flat(np.concatenate(bins.shards)) == [0, 3, 4, 5, 1, 0, 6, 7, 1]
    assert flat(np.concatenate(bins.spans)) == [0, 1, 1, 1, 0, 0, 1, 1, 0]


class Killed(Exception):
    pass


@dataclass(frozen=True)
class Fragile(Source):
    """Breaks after some documents."""

    after: int = 0

    def documents(self) -> Iterator[Any]:
        for i, document in enumerate(super().documents()):
            if i == self.after:
                raise Killed
            yield document


def fragile(source: Source, after: int) -> Fragile:
    return Fragile(source.name, source.kind, source.files, source.field, after)


@pytest.mark.parametrize("batch", [1, 300, 5000])
def test_cut_short_anywhere_and_gone_on_with(tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.training.data.write._BATCH", batch)
    source, tokenizer = open_source(str(json_lines(tmp_path / "a.jsonl", DOCUMENTS))), open_tokenizer("bytes")
    write_bins(source, tokenizer, tmp_path / "straight", shard_tokens=600)
    out, resumed = tmp_path / "out", 0
    for after in (3, 11, 12, 30, 52):
        with pytest.raises(Killed):
            write_bins(fragile(source, after), tokenizer, out, shard_tokens=600)
        assert not out.exists()
        if (tmp_path / ".out.partial" / "progress.json").exists():
            resumed += 1
            for name in ("tokens-00099.bin", ".manifest.json.1.partial"):  # what a kill may leave
                (tmp_path / ".out.partial" / name).write_bytes(b"cut sho")
    write_bins(source, tokenizer, out, shard_tokens=600)
    assert digest(out) == digest(tmp_path / "straight")
    assert resumed >= 2 or batch > 600
    assert not list(tmp_path.glob(".*"))


def test_other_texts_or_a_damaged_shard_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.training.data.write._BATCH", 1)
    tokenizer = open_tokenizer("bytes")
    sources = [
        open_source(str(json_lines(tmp_path / name, documents)))
        for name, documents in (("a.jsonl", DOCUMENTS), ("b.jsonl", texts(50, seed=9)))
    ]
    write_bins(sources[1], tokenizer, tmp_path / "straight", shard_tokens=600)
    partial = tmp_path / ".out.partial"
    for first in sources:
        with pytest.raises(Killed):
            write_bins(fragile(first, 30), tokenizer, tmp_path / "out", shard_tokens=600)
        if first is sources[1]:
            file = partial / "tokens-00000.bin"
            file.write_bytes(b"x" + file.read_bytes()[1:])
        kept = tmp_path / "kept"
        shutil.copytree(partial, kept)
        write_bins(sources[1], tokenizer, tmp_path / "out", shard_tokens=600)
        assert digest(tmp_path / "out") == digest(tmp_path / "straight")
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(kept)


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path) -> None:
    out = bins_of(tmp_path / "out", DOCUMENTS)
    with pytest.raises(CorpusError, match="exists and is not overwritten"):
        bins_of(out, DOCUMENTS)
    with pytest.raises(CorpusError, match="3 documents hold no text"):
        bins_of(tmp_path / "none", ["", " ", "\n"])
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": 3}\n')
    with pytest.raises(CorpusError, match="line 2"):
        write_bins(open_source(str(tmp_path / "bad.jsonl")), open_tokenizer("bytes"), tmp_path / "bad")
    assert not list(tmp_path.glob(".*")) and not (tmp_path / "bad").exists()


def test_a_full_disk_is_told_and_what_is_whole_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tokenizer = open_source(str(json_lines(tmp_path / "a.jsonl", DOCUMENTS))), open_tokenizer("bytes")
    write_bins(source, tokenizer, tmp_path / "straight", shard_tokens=600)
    real, calls = _Shard.add, iter(range(1000))

    def full(self: Any, *args: Any) -> None:
        if next(calls) == 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *args)

    monkeypatch.setattr(_Shard, "add", full)
    with pytest.raises(CorpusError, match=r"\.out\.partial: cannot be written: No space left on device"):
        write_bins(source, tokenizer, tmp_path / "out", shard_tokens=600)
    assert len(list((tmp_path / ".out.partial").glob("tokens-*"))) == 7
    write_bins(source, tokenizer, tmp_path / "out", shard_tokens=600)
    assert digest(tmp_path / "out") == digest(tmp_path / "straight")


def damage(folder: Path, name: str, change: Any) -> None:
    path = folder / name
    if callable(change):
        path.write_bytes(change(path.read_bytes()))
    else:
        table = json.loads(path.read_text())
        table.update(change)
        path.write_text(json.dumps(table))


def flip(raw: bytes) -> bytes:
    return raw[:-3] + bytes([raw[-3] ^ 4]) + raw[-2:]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("tokens-00001.bin", flip, r"tokens-00001\.bin: not what was written"),
        ("documents.bin", flip, r"documents\.bin: not what was written"),
        ("lengths.bin", flip, r"lengths\.bin: not what was written"),
        ("tokens-00001.bin", lambda raw: raw[:-1], r"tokens-00001\.bin: \d+ bytes; \d+ were written"),
        ("tokens-00000.bin", lambda raw: b"", r"tokens-00000\.bin: empty; \d+ bytes were written"),
        ("manifest.json", {"version": 2}, r"manifest\.json: version 2; this assay reads version 1: tokenize"),
        ("manifest.json", {"dtype": "<u2"}, r"manifest\.json: not what was written"),
        ("manifest.json", {"format": "other"}, r"manifest\.json: not a manifest of tokens"),
        ("manifest.json", lambda raw: raw[:40], r"manifest\.json: damaged"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, change: Any, said: str) -> None:
    folder = bins_of(tmp_path / "out", DOCUMENTS, shard=700)
    damage(folder, name, change)
    with pytest.raises(CorpusError, match=said):
        open_bins(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = bins_of(tmp_path / "out", DOCUMENTS, shard=700)
    (folder / "tokens-00002.bin").unlink()
    with pytest.raises(CorpusError, match=r"tokens-00002\.bin: cannot be read: No such file"):
        open_bins(folder)


def forged(folder: Path, **changes: Any) -> None:
    """A manifest by another hand, its digests right."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["shards"]:
        entry["bytes"] = (folder / entry["file"]).stat().st_size
        entry["sha256"] = fmt.sha256_of(folder / entry["file"])
    manifest.update(changes)
    manifest["sha256"] = fmt.identity_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    folder = bins_of(tmp_path / "b", texts(20))
    (folder / "manifest.json").unlink()
    with pytest.raises(CorpusError, match=r"manifest\.json: cannot be read: No such file"):
        open_corpus(str(folder), 100)


def test_a_token_beyond_the_vocabulary_is_named(tmp_path: Path) -> None:
    folder = bins_of(tmp_path / "out", DOCUMENTS, bpe(tmp_path))
    tokens = np.fromfile(folder / "tokens-00000.bin", dtype="<u2")
    tokens[17] = 400
    tokens.tofile(folder / "tokens-00000.bin")
    forged(folder)
    with pytest.raises(
        CorpusError, match=r"tokens-00000\.bin: holds 400 at place 17; ids of tok \(400\) are below 400"
    ):
        open_bins(folder)


def test_a_manifest_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    folder = bins_of(tmp_path / "out", DOCUMENTS)
    shutil.copy(folder / "tokens-00000.bin", tmp_path / "tokens-00000.bin")
    manifest = json.loads((folder / "manifest.json").read_text())
    shards = [{**manifest["shards"][0], "file": "../tokens-00000.bin"}]
    (folder / "tokens-00000.bin").unlink()
    manifest["shards"] = shards
    manifest["sha256"] = fmt.identity_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match=r"out/tokens-00000\.bin: cannot be read"):
        open_bins(folder)


def test_large_folders_are_checked_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "SMALL", 0)
    checked: list[str] = []
    real = fmt.sha256_of
    monkeypatch.setattr(fmt, "sha256_of", lambda file: checked.append(file.name) or real(file))
    folder, stamps = bins_of(tmp_path / "out", DOCUMENTS, shard=700), tmp_path / "stamps"
    open_bins(folder, stamps)
    first = len(checked)
    open_bins(folder, stamps)
    assert first > 3 and len(checked) == first
    damage(folder, "tokens-00001.bin", flip)
    with pytest.raises(CorpusError, match=r"tokens-00001\.bin"):
        open_bins(folder, stamps)


def repeats_slowly(ids: list[int]) -> int:
    best = 1
    for n in range(1, LONGEST + 1):
        for start in range(len(ids)):
            copies = 1
            while ids[start + copies * n : start + (copies + 1) * n] == ids[start : start + n] != []:
                if len(ids[start + copies * n : start + (copies + 1) * n]) < n:
                    break
                copies += 1
            best = max(best, copies)
    return best


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=6))
def test_repeats_against_the_definition(documents: list[list[int]]) -> None:
    ids = np.array([each for document in documents for each in document], dtype=np.uint8)
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    assert flat(longest_repeats(ids, starts)) == [repeats_slowly(document) for document in documents]
