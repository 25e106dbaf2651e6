"""31. BOS twice or never, EOS per window, lengths without EOS (EleutherAI/lm-evaluation-harness#3333).

Documents of 5 and 2 tokens, row length 4. Right: the stream B a b c / d e E B / f g E: one B and one E a document,
nothing lost or repeated, lengths of 7 and 4 in the index.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.model import IGNORED
from assay.training.data import open_bins, open_tokenizer
from assay.training.data.batches import rows_of
from assay.training.data.stream import Stream
from tests.training.data.support import bins_of, bpe, flat, texts, word_level

NAMES = "BE?abcdefg"


def spelt(ids: list[int]) -> str:
    return "".join(NAMES[i] for i in ids)


def bins(folder: Path, template: bool) -> Path:
    """By a tokenizer that adds its own BOS and EOS, and by one that does not and is told of them."""
    path = word_level(folder / f"{template}.json", bos="B" if template else None)
    tokenizer = open_tokenizer(path) if template else open_tokenizer(path, bos="B", eos="E")
    return bins_of(folder / f"bins-{template}", ["abcde", "fg"], tokenizer)


@pytest.mark.parametrize("template", [True, False])
def test_one_of_each_a_document(tmp_path: Path, template: bool) -> None:
    found = open_bins(bins(tmp_path, template))
    stream = Stream.chosen(found, np.ones(2, dtype=bool))
    assert flat(np.diff(found.starts)) == [7, 4]
    assert spelt(flat(stream.windows(np.array([0]), 11)[0])) == "BabcdeEBfgE"


def test_windows_add_nothing_and_lose_nothing(tmp_path: Path) -> None:
    found = open_bins(bins(tmp_path, True))
    stream = Stream.chosen(found, np.ones(2, dtype=bool))
    plain = rows_of(stream, np.array([0, 4]), 4, isolated=False)
    assert [spelt(flat(row)) for row in plain.ids.numpy()] == ["Babc", "deEB"]
    assert [spelt(flat(row)) for row in plain.targets.numpy()] == ["abcd", "eEBf"]
    alone = rows_of(stream, np.array([0, 4]), 4, isolated=True)
    assert alone.segments is not None
    assert alone.segments.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]
    assert alone.targets[1].tolist() == [NAMES.index("e"), NAMES.index("E"), IGNORED, NAMES.index("f")]


@given(st.integers(1, 40), st.integers(1, 9))
def test_the_count_of_ends_is_that_of_documents(seq_len: int, seed: int) -> None:
    """Over the windows of an epoch each target once: as many ends as documents that end in them."""
    ids = np.array([0, 3, 4, 1] * 30 + [0, 5, 1] * 7, dtype=np.uint8)
    stream = Stream.of(np.roll(ids, 4 * seed), np.arange(0, 120, 4))
    starts = np.arange((stream.size - 1) // seq_len) * seq_len
    targets = rows_of(stream, starts, seq_len, isolated=False).targets.numpy().ravel()
    assert targets.tolist() == stream.arrays[0][1 : 1 + len(targets)].tolist()


def test_an_end_spelt_out_in_the_text_ends_nothing(tmp_path: Path) -> None:
    """Literal <|endoftext|> in a document is text: it makes no boundary for the model."""
    documents = [f"{text} <|endoftext|> more" for text in texts(10)]
    found = open_bins(bins_of(tmp_path / "b", documents, bpe(tmp_path)))
    tokens = np.concatenate(found.shards)
    assert int((tokens == 0).sum()) == found.counts["documents"] == 10
