"""Validation: nats a token and bits a byte, against sums over decoded text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.model import Decoder, build
from assay.recipe import load
from assay.training.data import DataConfig, open_data, open_tokenizer
from assay.training.data.spec import DocumentsPacking
from assay.training.data.tokenizer import FileTokenizer
from assay.training.evaluate import evaluate
from tests.training.data.support import bins_of, bpe, flat, texts


def model(vocab: int) -> Decoder:
    decoder = build(load("tiny/base", ["n_layers=1", "d_model=32", f"vocab_size={vocab}"]), dtype=torch.float64)
    with torch.no_grad():
        for i, p in enumerate(decoder.parameters()):
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i), dtype=p.dtype))
    return decoder


@torch.no_grad()
def by_hand(decoder: Decoder, corpus: Any, seq_len: int, isolated: bool) -> dict[str, float]:
    """Token by token; the bytes of a token are those by which the decoded text grows."""
    nats, text_nats, n, n_bytes, means = 0.0, 0.0, 0, 0, []
    for part in corpus.parts:
        tokens = flat(part.held.tokens)
        for start in range(0, len(tokens) - seq_len, seq_len):
            row = tokens[start : start + seq_len + 1]
            row_nats = []
            for k in range(seq_len):
                begin = 0
                if isolated:
                    if row[k] == 0:
                        continue
                    begin = max([j + 1 for j in range(k) if row[j] == 0], default=0)
                logits = decoder(torch.tensor([row[begin : k + 1]]))[0, -1]
                loss = float(-torch.log_softmax(logits, -1)[row[k + 1]])
                row_nats.append(loss)
                if row[k + 1] != 0:
                    text_nats += loss
                    n_bytes += int(part.held.bytes[start + k + 1])
            nats, n = nats + sum(row_nats), n + len(row_nats)
            means.append((sum(row_nats), len(row_nats)))
    return {"loss": nats / n, "n": n, "bits": text_nats / math.log(2) / n_bytes, "bytes": n_bytes}


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_sums_by_hand(tmp_path: Path, kind: str, isolated: bool) -> None:
    tokenizer: Any = open_tokenizer("bytes") if kind == "bytes" else bpe(tmp_path, 300)
    corpus = open_data(DataConfig(corpus=str(bins_of(tmp_path / "b", texts(40), tokenizer)), val_bytes=150))
    decoder = model(tokenizer.vocab_size)
    packing = {"packing": DocumentsPacking()} if isolated else {}
    found, want = evaluate(decoder, corpus, 12, **packing), by_hand(decoder, corpus, 12, isolated)
    assert found.loss == pytest.approx(want["loss"], rel=1e-6)
    assert (found.n_tokens, found.n_bytes) == (want["n"], want["bytes"])
    assert found.bits_per_byte == pytest.approx(want["bits"], rel=1e-6)


def test_windows_bytes_are_those_of_their_text(tmp_path: Path) -> None:
    """Windows that cover the split: the bytes of their targets are those of the text, less the first token's."""
    from tokenizers import Tokenizer

    tokenizer = bpe(tmp_path, 300)
    place = bins_of(tmp_path / "b", texts(40), tokenizer)
    corpus = open_data(DataConfig(corpus=str(place), val_bytes=700))
    decoder, n = model(300), corpus.val_tokens - 1
    found = evaluate(decoder, corpus, n)
    ids = flat(corpus.val)[1:]
    raw = "".join(Tokenizer.from_file(str(tokenizer.path)).id_to_token(i) for i in ids if i != 0)
    assert found.n_bytes == len(raw)  # a character of a byte-level token is a byte
    assert found.n_tokens == n


def test_uniform_model_has_the_bits_of_its_vocabulary(tmp_path: Path) -> None:
    """log2 V bits a token, over the bytes a token: whatever the tokenizer, and however its bytes are known."""
    decoder = {v: build(load("tiny/base", ["n_layers=1", f"vocab_size={v}"])) for v in (256, 300)}
    for each in decoder.values():
        with torch.no_grad():
            for p in each.parameters():
                p.zero_()
    trained = bpe(tmp_path, 300)
    table = {**json.loads(trained.path.read_text()), "normalizer": {"type": "NFC"}}
    (tmp_path / "spans.json").write_text(json.dumps(table))
    spans = FileTokenizer(tmp_path / "spans.json", None, 0)
    found = {}
    for name, tokenizer in (("bytes", open_tokenizer("bytes")), ("ids", trained), ("spans", spans)):
        vocab = tokenizer.vocab_size
        corpus = open_data(DataConfig(corpus=str(bins_of(tmp_path / name, texts(60), tokenizer)), val_bytes=900))
        held = corpus.parts[0].held
        got = evaluate(decoder[vocab], corpus, 10)
        places = np.arange(1, 1 + 10 * ((held.stream.size - 1) // 10))
        real = ~held.special[places]
        want = math.log2(vocab) * int(real.sum()) / int(held.bytes[places][real].sum())
        assert got.bits_per_byte == pytest.approx(want, rel=1e-6)
        assert got.loss == pytest.approx(math.log(vocab), rel=1e-6)
        found[name] = got.bits_per_byte
    assert found["bytes"] == pytest.approx(8.0, rel=1e-6)
    assert found["spans"] == pytest.approx(found["ids"], rel=1e-6)


def test_parts_that_are_called_alike_are_both_evaluated(tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        bins_of(tmp_path / name / "tokens", texts(40, i))
    portions = [{"corpus": str(tmp_path / name / "tokens")} for name in "ab"]
    corpus = open_data(DataConfig.model_validate({"corpus": portions, "val_bytes": 300}))
    decoder = model(256)
    found, want = evaluate(decoder, corpus, 12), by_hand(decoder, corpus, 12, False)
    assert found.loss == pytest.approx(want["loss"], rel=1e-6) and found.n_tokens == want["n"]
    assert list(found.by_part) == list(corpus.describe()["parts"]) == ["a/tokens", "b/tokens"]
    assert corpus.name == "a/tokens 0.5 + b/tokens 0.5"


def test_parts_of_a_mixture(tmp_path: Path) -> None:
    portions = [{"corpus": str(bins_of(tmp_path / name, texts(40, i))), "weight": i + 1} for i, name in enumerate("ab")]
    corpus = open_data(DataConfig.model_validate({"corpus": portions, "val_bytes": 300}))
    decoder = model(256)
    found, want = evaluate(decoder, corpus, 12), by_hand(decoder, corpus, 12, False)
    assert found.loss == pytest.approx(want["loss"], rel=1e-6)
    alone = [
        evaluate(decoder, open_data(DataConfig(corpus=p["corpus"], val_bytes=n)), 12)
        for p, n in zip(portions, (100, 200), strict=True)
    ]
    assert found.by_part == pytest.approx({"a": alone[0].loss, "b": alone[1].loss}, rel=1e-9)
    assert alone[0].by_part == {}


def test_error_of_the_mean_is_over_windows(tmp_path: Path) -> None:
    corpus = open_data(DataConfig(corpus=str(bins_of(tmp_path / "b", texts(60))), val_bytes=900))
    decoder = model(256)
    found = evaluate(decoder, corpus, 12)
    windows = corpus.val[: 12 * ((corpus.val_tokens - 1) // 12) + 1].astype(np.int64)
    means = []
    with torch.no_grad():
        for i in range(0, len(windows) - 1, 12):
            row = torch.from_numpy(windows[i : i + 13])
            nll = torch.nn.functional.cross_entropy(decoder(row[None, :-1])[0], row[1:])
            means.append(float(nll))
    assert found.stderr == pytest.approx(float(np.std(means, ddof=1)) / math.sqrt(len(means)), rel=1e-5)
    assert decoder.training
