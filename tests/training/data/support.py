"""Small texts and tokenizers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from assay.training.data import open_tokenizer, train_bpe, write_bins
from assay.training.data.sources import open_source
from assay.training.data.tokenizer import FileTokenizer, Tokenizer

MIXED = "a naïve 東京 text, 🎈 and <|endoftext|> spelt out\r\n\ttabs  and   spaces\n"


def words(seed: int, n: int) -> str:
    rng = random.Random(seed)
    known = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 7))) for _ in range(120)]
    return " ".join(rng.choices(known, k=n))


def texts(n: int = 60, seed: int = 0) -> list[str]:
    """Documents of unlike length; some hold what is hard to spell."""
    rng = random.Random(seed)
    return [f"{words(seed * 1000 + i, rng.randint(1, 60))}{MIXED if i % 5 == 0 else ''}" for i in range(n)]


def json_lines(path: Path, documents: Iterable[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in documents), encoding="utf-8")
    return path


def bpe(folder: Path, vocab_size: int = 400, documents: Sequence[str] | None = None) -> FileTokenizer:
    return train_bpe(documents or texts(), vocab_size, folder / "tok.json")


def bins_of(folder: Path, documents: Sequence[str], tokenizer: Tokenizer | None = None, shard: int = 1 << 26) -> Path:
    """A folder of tokens of these documents."""
    source = open_source(str(json_lines(folder.with_suffix(".jsonl"), documents)))
    write_bins(source, tokenizer or open_tokenizer("bytes"), folder, shard_tokens=shard)
    return folder


def word_level(path: Path, *, bos: str | None = None) -> Path:
    """A tokenizer.json of one token a letter, with B and E; with ``bos`` its template adds that and E itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocab = {each: i for i, each in enumerate(["B", "E", "?", *"abcdefg"])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    made.add_special_tokens(["B", "E"])
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if bos is not None:
        made.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A E", special_tokens=[(bos, vocab[bos]), ("E", 1)]
        )
    made.save(str(path))
    return path


def flat(array: np.ndarray) -> list[int]:
    return [int(each) for each in np.asarray(array).ravel()]
