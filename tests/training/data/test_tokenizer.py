"""Tokenizers: round trips, bytes of each token, specials only at the ends of documents."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.data import CorpusError, open_tokenizer, train_bpe
from assay.training.data.tokenizer import END, FileTokenizer
from tests.training.data.support import MIXED, bpe, flat, texts, word_level

ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    return bpe(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="module")
def lossy(trained: FileTokenizer, tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """One that folds case and knows no byte beyond a to z and a few: as an imported one may be."""
    table = json.loads(trained.path.read_text())
    table["normalizer"] = {"type": "Lowercase"}
    path = tmp_path_factory.mktemp("lossy") / "tokenizer.json"
    path.write_text(json.dumps(table))
    return FileTokenizer(path, None, 0)


@pytest.fixture(scope="module")
def holes(trained: FileTokenizer, tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """One without a token for the byte of the letter z."""
    table = json.loads(trained.path.read_text())
    vocab, merges = table["model"]["vocab"], table["model"]["merges"]
    table["model"]["merges"] = [pair for pair in merges if not any("z" in each for each in pair)]
    gone = [text for text in vocab if "z" in text]
    for text in gone:
        del vocab[text]
    path = tmp_path_factory.mktemp("holes") / "tokenizer.json"
    path.write_text(json.dumps(table))
    return FileTokenizer(path, None, 0)


@given(ANY)
def test_bpe_brings_every_text_back_and_knows_its_bytes(trained: FileTokenizer, text: str) -> None:
    from tokenizers import Tokenizer

    (found,) = trained.encode([text])
    assert trained.token_bytes is not None
    assert int(trained.token_bytes[found.ids].sum()) == len(text.encode())
    assert Tokenizer.from_file(str(trained.path)).decode(flat(found.ids), skip_special_tokens=False) == text
    assert trained.eos not in found.ids


@given(ANY)
def test_bytes_bring_every_text_back(text: str) -> None:
    tokenizer = open_tokenizer("bytes")
    (found,) = tokenizer.encode([text])
    assert bytes(flat(found.ids)).decode() == text.replace("\0", " ")


@given(ANY)
def test_every_byte_is_some_tokens_where_ids_do_not_tell(lossy: FileTokenizer, holes: FileTokenizer, text: str) -> None:
    for tokenizer in (lossy, holes):
        assert tokenizer.token_bytes is None
        for each in (text, "zzz" + text + "z"):
            (found,) = tokenizer.encode([each])
            assert found.spans is not None and len(found.spans) == len(found.ids)
            if len(found.ids):
                assert int(found.spans.sum()) == len(each.encode())
                assert found.spans.min() >= 0


def test_spelt_out_specials_are_text(trained: FileTokenizer) -> None:
    assert END in MIXED
    (found,) = trained.encode([MIXED])
    assert trained.eos not in found.ids
    assert len(found.ids) > len(MIXED) // 4


def test_training_is_reproducible_and_whole(tmp_path: Path) -> None:
    a, b = (train_bpe(iter(texts()), 300, tmp_path / name) for name in ("a.json", "b.json"))
    assert a.sha256 == b.sha256
    assert a.vocab_size == 300 and a.eos == 0 and a.bos is None
    assert open_tokenizer(a.path) == a
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]
    with pytest.raises(CorpusError, match="257 tokens already"):
        train_bpe(iter(texts()), 256, tmp_path / "c.json")
    with pytest.raises(CorpusError, match=r"holds no more than \d+ tokens"):
        train_bpe(iter(["short"]), 5000, tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()


def test_ends_of_a_document(tmp_path: Path) -> None:
    """What the template adds, then what the configuration names, then a known spelling; or what is said."""
    own = word_level(tmp_path / "own.json", bos="B")
    assert (open_tokenizer(own).bos, open_tokenizer(own).eos) == (0, 1)
    bare = word_level(tmp_path / "bare.json")
    with pytest.raises(CorpusError, match="names no end of a document"):
        open_tokenizer(bare)
    assert open_tokenizer(bare, eos="none").eos is None
    assert (open_tokenizer(bare, bos="B", eos="E").bos, open_tokenizer(bare, bos="B", eos="E").eos) == (0, 1)
    with pytest.raises(CorpusError, match="has no token 'Z'"):
        open_tokenizer(bare, eos="Z")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "E"}}))
    assert open_tokenizer(bare).eos == 1


def test_faults_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}")
    for name, said in (("no.json", "not a tokenizer.json"), ("gone.json", "cannot be read: No such file")):
        with pytest.raises(CorpusError, match=said) as caught:
            open_tokenizer(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(CorpusError, match="cannot be chosen"):
        open_tokenizer("bytes", eos="E")


def test_one_encoding_whatever_the_batch(trained: FileTokenizer, lossy: FileTokenizer) -> None:
    documents = texts(20)
    for tokenizer in (trained, lossy, open_tokenizer("bytes")):
        together = tokenizer.encode(documents)
        for text, found in zip(documents, together, strict=True):
            (alone,) = tokenizer.encode([text])
            assert np.array_equal(alone.ids, found.ids)
