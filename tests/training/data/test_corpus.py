"""Splits, filters, mixtures, identity: which documents a run sees, and how that is known again."""

from __future__ import annotations

import hashlib
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.recipe import load
from assay.training import RunConfig, RunError, check_fits
from assay.training.data import Corpus, CorpusError, DataConfig, open_corpus, open_data, open_tokenizer
from tests.training.data.support import bins_of, bpe, flat, json_lines, texts

DOCUMENTS = texts(80)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))


def data(corpus: Any, **more: Any) -> Corpus:
    return open_data(DataConfig.model_validate({"corpus": corpus, "val_bytes": 900, **more}))


def by_digest(documents: list[str]) -> list[str]:
    return sorted(documents, key=lambda text: hashlib.sha256(text.encode()).digest())


def train_text(corpus: Corpus) -> list[str]:
    """Training documents of a byte corpus."""
    stream = corpus.parts[0].train
    raw = bytes(stream.windows(np.array([0]), stream.size)[0])
    return raw.decode().split("\0")[:-1]


def test_bytes_split_by_definition(tmp_path: Path) -> None:
    corpus = data(str(bins_of(tmp_path / "b", DOCUMENTS, shard=700)))
    held = "".join(text + "\0" for text in by_digest(DOCUMENTS)).encode()[:900]
    assert bytes(corpus.val) == held
    assert corpus.val_bytes == corpus.val_tokens == 900
    n = held.count(b"\0") + 1  # the last one is cut
    assert train_text(corpus) == [text for text in DOCUMENTS if text not in by_digest(DOCUMENTS)[:n]]
    assert corpus.train_bytes == sum(len(text.encode()) + 1 for text in train_text(corpus)) == corpus.train_tokens


def test_a_document_is_held_out_whole(tmp_path: Path) -> None:
    """So one is not enough, however long; a text file alone is cut."""
    long = "\n\n".join(DOCUMENTS * 9)
    with pytest.raises(CorpusError, match="900 bytes for validation take all 1 of its documents"):
        data(str(json_lines(tmp_path / "a.jsonl", [long])))
    assert data(str(json_lines(tmp_path / "b.jsonl", [long, long[:-1]]))).documents == 2
    (tmp_path / "c.txt").write_text(long)
    assert data(str(tmp_path / "c.txt")).documents > 2


def test_documents_split_is_each_documents_own(tmp_path: Path) -> None:
    """A document is held out or not whatever stands beside it: in half the corpus, in the whole, in another order."""
    split = {"kind": "documents", "share": 0.3}

    def is_held(text: str) -> bool:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") < 0.3 * 2**64

    for name, documents in (("whole", DOCUMENTS), ("half", DOCUMENTS[::2]), ("turned", DOCUMENTS[::-1])):
        corpus = data(str(bins_of(tmp_path / name, documents)), split=split, val_bytes=700)
        assert train_text(corpus) == [text for text in documents if not is_held(text)]
        held = "".join(text + "\0" for text in by_digest(documents) if is_held(text)).encode()
        assert bytes(corpus.val) == held[:700]
    assert 10 < sum(map(is_held, DOCUMENTS)) < 40
    with pytest.raises(CorpusError, match=r"a share of 0\.01 holds out .* val_bytes asks for 900"):
        data(str(tmp_path / "whole"), split={"kind": "documents", "share": 0.01})


def test_validation_bytes_of_any_tokenizer(tmp_path: Path) -> None:
    """The same held text, to within a token, whatever it is made of."""
    tokenizer = bpe(tmp_path)
    corpus = data(str(json_lines(tmp_path / "a.jsonl", DOCUMENTS)), tokenizer=str(tokenizer.path))
    held = "".join(text + "\0" for text in by_digest(DOCUMENTS)).encode()[:900]
    assert 900 <= corpus.val_bytes < 920
    (part,) = corpus.parts
    at = np.cumsum(part.held.bytes + part.held.special)
    assert at[-1] == corpus.val_bytes and (at[:-1] < 900).all()
    from tokenizers import Tokenizer

    text = "\0".join(
        Tokenizer.from_file(str(tokenizer.path)).decode(piece, skip_special_tokens=False)
        for piece in pieces(flat(corpus.val), 0)
    )
    assert text.encode()[:890] == held[:890]


def pieces(ids: list[int], end: int) -> list[list[int]]:
    out: list[list[int]] = [[]]
    for each in ids:
        out.append([]) if each == end else out[-1].append(each)
    return out


def test_text_and_its_tokens_are_one_corpus(tmp_path: Path) -> None:
    """Tokenized into the cache or by hand: the same digest, wherever they lie."""
    tokenizer = bpe(tmp_path)
    text = data(str(json_lines(tmp_path / "a.jsonl", DOCUMENTS)), tokenizer=str(tokenizer.path))
    folder = bins_of(tmp_path / "b", DOCUMENTS, tokenizer)
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    assert {data(str(place)).sha256 for place in (folder, moved)} == {text.sha256}
    assert data(str(folder), tokenizer=str(tokenizer.path)).sha256 == text.sha256
    with pytest.raises(CorpusError, match=r"holds tokens of tok \(400\) .* not of bytes"):
        data(str(folder), tokenizer="bytes")
    with pytest.raises(CorpusError, match="is tokenized already"):
        data(str(folder), field="body")


def test_digest_is_of_what_decides_the_batches(tmp_path: Path) -> None:
    place = str(bins_of(tmp_path / "b", DOCUMENTS))
    other = str(bins_of(tmp_path / "c", DOCUMENTS[:-1]))
    two = [{"corpus": place, "weight": 2}, {"corpus": other}]
    recipe = load("tiny/base")

    def digest(corpus: Any, **more: Any) -> str:
        config = RunConfig.from_dict(
            {
                "recipe": recipe,
                "seq_len": 8,
                "batch_size": 1,
                "steps": 1,
                "schedule": {"kind": "constant", "lr": 1e-3},
                "data": {"corpus": corpus, "val_bytes": 900, **more},
            }
        )
        return config.digest(open_data(config.data).sha256)

    seen = [
        digest(place),
        digest(place, packing="documents"),
        digest(place, val_bytes=901),
        digest(place, split={"kind": "documents", "share": 0.3}),
        digest(place, filter={"kind": "repeated_ngrams", "repeats": 9}),
        digest(other),
        digest(two),
        digest([two[1], two[0]]),
        digest([{**two[0], "weight": 3}, two[1]]),
        digest(str(json_lines(tmp_path / "a.jsonl", DOCUMENTS)), tokenizer=str(bpe(tmp_path).path)),
    ]
    assert len(set(seen)) == len(seen)
    assert digest([{**two[0], "weight": 1.0}, {**two[1], "weight": 0.5}]) == digest(two)
    assert digest(place, max_epochs=5.0) == seen[0]


def test_repeating_documents_are_left_out(tmp_path: Path) -> None:
    bad = ["fine, then " + "ab c" * 12, "x" * 50, "y" * 11]
    documents = [*DOCUMENTS[:40], *bad, *DOCUMENTS[40:]]
    place = str(bins_of(tmp_path / "b", documents, shard=700))
    split = {"kind": "documents", "share": 0.3}
    for repeats, left_out in ((12, bad[:2]), (13, bad[1:2]), (51, [])):
        corpus = data(place, split=split, filter={"kind": "repeated_ngrams", "repeats": repeats}, val_bytes=500)
        clean = data(
            str(bins_of(tmp_path / f"{repeats}", [d for d in documents if d not in left_out])),
            split=split,
            val_bytes=500,
        )
        assert train_text(corpus) == train_text(clean)
        assert bytes(corpus.val) == bytes(clean.val)
        assert corpus.parts[0].filtered == len(left_out)


def unigram_slowly(corpora: list[tuple[float, list[int]]], val: list[int], vocab: int) -> float:
    total = sum(weight for weight, _ in corpora)
    p = [
        sum(weight / total * (train.count(v) + 1) / (len(train) + vocab) for weight, train in corpora)
        for v in range(vocab)
    ]
    return -sum(math.log(p[v]) for v in val) / len(val)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_unigram_entropy_against_the_definition(tmp_path: Path, share: float) -> None:
    tokenizer = bpe(tmp_path)
    split = {"kind": "documents", "share": share}
    places = [str(bins_of(tmp_path / f"{seed}", texts(40, seed), tokenizer, shard=700)) for seed in (1, 2)]
    one = data(places[0], split=split, val_bytes=300)
    trains = [
        flat(data(p, split=split, val_bytes=300).parts[0].train.windows(np.array([0]), t)[0])
        for p in places
        for t in [data(p, split=split, val_bytes=300).train_tokens]
    ]
    want = unigram_slowly([(1, trains[0])], flat(one.val), 400)
    assert one.unigram_entropy == pytest.approx(want, rel=1e-12)
    two = data([{"corpus": places[0], "weight": 3}, {"corpus": places[1]}], split=split, val_bytes=400)
    want = unigram_slowly([(3, trains[0]), (1, trains[1])], flat(two.val), 400)
    assert two.unigram_entropy == pytest.approx(want, rel=1e-12)
    assert two.name == "1 0.75 + 2 0.25" and two.describe()["parts"] == {"1": 0.75, "2": 0.25}


def test_a_mixture_needs_one_tokenizer(tmp_path: Path) -> None:
    portions = [
        {"corpus": str(bins_of(tmp_path / "a", DOCUMENTS))},
        {"corpus": str(bins_of(tmp_path / "b", DOCUMENTS, bpe(tmp_path)))},
    ]
    with pytest.raises(CorpusError, match=r"'b': holds tokens of tok \(400\), and 'a' of bytes: one tokenizer"):
        data(portions)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"corpus": [{"corpus": "a"}, {"corpus": "a"}]}, "a portion of this corpus exists"),
        ({"corpus": [{"corpus": "a", "weight": 0.123457}, {"corpus": "b", "weight": 0.7}]}, "weights repeat after"),
        ({"corpus": [{"corpus": "a", "weight": 0}]}, "greater than 0"),
        ({"corpus": []}, "at least 1 item"),
        ({"packing": "isolated"}, "no such data_packing kind"),
        ({"split": {"kind": "documents", "share": 1.0}}, "less than 1"),
        ({"split": {"kind": "bytes", "share": 0.1}}, "unknown key"),
        ({"filter": {"kind": "repeated_ngrams", "repeats": 1}}, "greater than or equal to 2"),
        ({"max_epochs": "all"}, "max_epochs"),
        ({"val_byte": 3}, "nearest: val_bytes"),
    ],
)
def test_bad_settings_are_named(table: dict[str, Any], said: str) -> None:
    run = {
        "recipe": "tiny/base",
        "seq_len": 8,
        "batch_size": 1,
        "steps": 1,
        "schedule": {"kind": "constant", "lr": 1e-3},
    }
    with pytest.raises(RunError, match=said):
        RunConfig.from_dict({**run, "data": table})


def test_what_does_not_fit_is_told_before_the_first_update(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path)
    place = str(bins_of(tmp_path / "b", DOCUMENTS, tokenizer))

    def problems(corpus: Any, **run: Any) -> str:
        more = run.pop("data", {})
        table = {"seq_len": 8, "batch_size": 2, "steps": 5, "schedule": {"kind": "constant", "lr": 1e-3}, **run}
        table["data"] = {"corpus": corpus, "val_bytes": 900, **more}
        config = RunConfig.from_dict({"recipe": load("tiny/base", ["vocab_size=400"]), **table})
        with pytest.raises(RunError) as caught:
            check_fits(config, open_data(config.data))
        return str(caught.value)

    assert "smaller than the tokenizer's 400 (tok (400))" in problems(place, recipe=load("tiny/base"))
    assert "one batch needs 80,001 tokens, the training split has" in problems(place, batch_size=10_000)
    assert "the run reads b 2." in problems(place, steps=1000, data={"max_epochs": 1.0})
    two = [{"corpus": place, "weight": 99}, {"corpus": str(bins_of(tmp_path / "c", DOCUMENTS[:20], tokenizer))}]
    assert "the validation split of c has" in problems(two, seq_len=40)


def test_a_text_changes_and_its_tokens_with_it(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.write_text("\n\n".join(DOCUMENTS))
    first = open_corpus(str(place), 900)
    assert open_corpus(str(place), 900).sha256 == first.sha256
    place.write_text("\n\n".join(DOCUMENTS[::-1]))
    assert open_corpus(str(place), 900).sha256 != first.sha256


def test_a_damaged_cache_is_written_again(tmp_path: Path) -> None:
    place = str(json_lines(tmp_path / "a.jsonl", DOCUMENTS))
    first = open_corpus(place, 900)
    (shard,) = (tmp_path / "cache").rglob("tokens-00000.bin")
    for damaged in (b"", shard.read_bytes()[:-1] + b"x"):
        shard.write_bytes(damaged)
        assert open_corpus(place, 900).sha256 == first.sha256


def test_several_processes_may_tokenize_one_text(tmp_path: Path) -> None:
    """All wait for the first and get the same; here as threads, whose locks are as separate."""
    place, found = str(json_lines(tmp_path / "a.jsonl", DOCUMENTS)), []
    threads = [threading.Thread(target=lambda: found.append(open_corpus(place, 900).sha256)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert not list((tmp_path / "cache").rglob("*.partial"))


@pytest.mark.parametrize("name", ["english", "chinese"])
def test_embedded_corpora_train(name: str) -> None:
    corpus = open_corpus(name)
    assert corpus.val_bytes == 65_536 and corpus.train_bytes > 1_000_000
    assert corpus.name == name
    assert (3.0 < corpus.unigram_entropy < 3.2) if name == "english" else corpus.unigram_entropy > 3.5


def test_bytes_are_the_default_and_named(tmp_path: Path) -> None:
    corpus = data(str(json_lines(tmp_path / "a.jsonl", DOCUMENTS)))
    assert (corpus.tokenizer, corpus.vocab_size) == ("bytes", 256)
    assert corpus.tokenizer_sha256 == open_tokenizer("bytes").sha256
