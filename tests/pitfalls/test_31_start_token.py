"""31. BOS twice or never in evaluation (EleutherAI/lm-evaluation-harness#3333, #2382).

Every request has exactly one start token when the tokenizer adds its own and when it does not; rolling windows follow a
stated rule: one start token before the first token of a text, then each window is read after the token before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from assay.decoding import Bytes, Scorer
from tests.pitfalls.support import decoder

START = 1


@dataclass(frozen=True)
class Tokens(Bytes):
    """Bytes with a start token that is written \x01; ``adds`` it to a text or not."""

    adds: bool = False
    prefix_id: int | None = START
    specials: dict[str, str] = field(default_factory=lambda: {"bos_token": "\x01"})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [START] * (special and self.adds) + list(text.encode())


def asked(scorer: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The inputs of every pass from now on."""
    seen: list[list[int]] = []

    def remember(model: Any, rows: Any, batch: int, told: Any = None) -> Any:
        seen.extend(inputs for inputs, _ in rows)
        return [(0.0, True)] * len(rows)

    monkeypatch.setattr("assay.decoding.scoring.score_windows", remember)
    return seen


@pytest.mark.parametrize("adds", [True, False])
def test_every_request_has_one_start_token(adds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer(decoder({"vocab_size": 256}), Tokens(adds=adds), 64, start="always")
    seen = asked(scorer, monkeypatch)
    scorer.continuations([("ab", "c"), ("\x01ab", "c"), ("", "c"), ("", "\x01c"), ("ab ", "c")])
    scorer.texts(["abc", "\x01abc"])
    assert [row.count(START) for row in seen] == [1] * 7
    assert all(row[0] == START for row in seen)


@pytest.mark.parametrize("adds", [True, False])
def test_rolling_windows_read_the_start_token_once(adds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """7 tokens in windows of 3: after the start, then after the last token before; nothing is lost or told twice."""
    scorer = Scorer(decoder({"vocab_size": 256}), Tokens(adds=adds), 3)
    seen = asked(scorer, monkeypatch)
    scorer.texts(["abcdefg"])
    assert seen == [[START, *b"ab"], [*b"cde"], [*b"def"]]


def test_the_tokenizers_own_way_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for adds in (True, False):
        for start, count in (("tokenizer", int(adds)), ("never", 0)):
            scorer = Scorer(decoder({"vocab_size": 256}), Tokens(adds=adds), 64, start=start)  # type: ignore[arg-type]
            seen = asked(scorer, monkeypatch)
            scorer.continuations([("ab", "c")])
            assert seen[0].count(START) == count
