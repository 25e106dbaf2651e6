"""Scores of text against a plain loop over uncached log-softmax: truncation, empty contexts, rolling windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.decoding import Bytes, DecodingError, Sampling, generate
from assay.decoding.scoring import Scorer, score_windows, windows
from tests.laws.common import examples
from tests.pitfalls.support import decoder as small
from tests.strategies import random_decoder, recipes

TOKENS = st.lists(st.integers(0, 10), max_size=12)


def model(vocab: int = 256, length: int = 12) -> Any:
    return small({"vocab_size": vocab, "max_seq_len": length}, seed=3)


def by_hand(decoder: Any, context: list[int], wanted: list[int], limit: int) -> tuple[float, bool]:
    """One pass a window, each token's log-probability on its own."""
    whole, total, greedy = [*context, *wanted], 0.0, True
    first = len(context)
    while first < len(whole):
        end = min(first + limit, len(whole))
        seen = whole[: end - 1][-limit:]
        with torch.no_grad():
            p = torch.log_softmax(decoder(torch.tensor([seen]))[0].double(), dim=-1)
        for place in range(first, end):
            row = p[place - (end - 1) + len(seen) - 1]
            total += float(row[whole[place]])
            greedy &= int(row.argmax()) == whole[place]
        first = end
    return total, greedy


@given(TOKENS.filter(len), TOKENS, st.integers(1, 12))
def test_windows_give_every_target_once(context: list[int], wanted: list[int], limit: int) -> None:
    made = list(windows(context, wanted, limit))
    assert [t for _, targets in made for t in targets] == wanted
    whole, end = [*context, *wanted], len(context)
    for inputs, targets in made:
        end += len(targets)
        assert 1 <= len(inputs) <= limit
        assert len(targets) <= len(inputs)
        assert inputs == whole[: end - 1][-limit:]
        assert targets == whole[end - len(targets) : end]
    assert len(made) == -(-len(wanted) // limit)


@given(recipes(causal=True), st.lists(st.tuples(TOKENS.filter(len), TOKENS), min_size=1, max_size=5), st.integers(1, 4))
@examples(0.5)
def test_scores_equal_the_plain_loop(recipe: Any, pairs: list[tuple[list[int], list[int]]], batch: int) -> None:
    """Over random recipes, in any batch; contexts that are cut, continuations longer than the context."""
    decoder, limit = random_decoder(recipe), 7
    scorer = Scorer(decoder, Bytes(), limit, batch)
    for (context, wanted), (nats, greedy) in zip(pairs, scorer.score(pairs), strict=True):
        total, best = by_hand(decoder, context, wanted, limit)
        assert nats == pytest.approx(total, rel=1e-5, abs=1e-5)
        assert greedy == best
    assert not scorer.score([])


def test_greedy_text_is_told_as_greedy() -> None:
    decoder = model()
    wrote = generate(decoder, torch.tensor([[5, 6, 7]]), 5)[0].tolist()
    other = [*wrote[:-1], (wrote[-1] + 1) % 256]
    assert [best for _, best in Scorer(decoder, Bytes(), 12).score([([5, 6, 7], wrote), ([5, 6, 7], other)])] == [
        True, False,
    ]  # fmt: skip


def test_equal_inputs_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-token answers to one question share a pass, and are scored apart."""
    decoder = model()
    read = []
    features = decoder.features
    monkeypatch.setattr(decoder, "features", lambda ids, *a, **k: read.append(len(ids)) or features(ids, *a, **k))
    found = score_windows(decoder, [([1, 2], [t]) for t in range(9)] + [([1], [2])], batch=16)
    assert read == [2]
    want = torch.log_softmax(decoder(torch.tensor([[1, 2]]))[0, -1], dim=-1)
    torch.testing.assert_close(torch.tensor([nats for nats, _ in found[:9]]).double(), want[:9].detach().double())


@dataclass(frozen=True)
class Starting(Bytes):
    """Bytes whose texts start with 1, as many tokenizers put <s>; the text may also spell it."""

    name: str = "starting"
    prefix_id: int | None = 1
    specials: dict[str, str] = field(default_factory=lambda: {"bos_token": "\x01"})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [1] * special + list(text.encode())


@pytest.mark.parametrize("tokenizer", [Bytes(), Starting()])
def test_every_request_has_one_start_token_at_most(tokenizer: Any) -> None:
    scorer = Scorer(model(), tokenizer, 12)
    starts = int(isinstance(tokenizer, Starting))
    for context in ("ab", "\x01ab"):
        before, wanted = scorer.pair(context, "c")
        assert before.count(1) == (1 if starts else context.count("\x01"))
        assert bytes(wanted) == b"c"
    prefix = [tokenizer.prefix_id]
    assert scorer.pair("", "abc") == (prefix, list(b"abc"))
    assert scorer.pair("  ", "a") == (prefix, list(b"  a"))
    assert scorer.pair("ab  ", "c")[1] == list(b"  c")
    for text in ("abcd", *(["\x01abcd"] if starts else [])):
        asked: list[Any] = []
        spy = Scorer(scorer.decoder, tokenizer, 12)
        object.__setattr__(spy, "score", lambda pairs, told=None, asked=asked: asked.extend(pairs) or [(0.0, True)])
        spy.texts([text])
        assert asked == [(prefix, list(b"abcd"))]


def test_a_long_text_rolls_past_the_context() -> None:
    """Every token once: windows of 12 after the start token, the last with as much before it as fits."""
    decoder = model()
    text = "the cat sat on the mat and the dog lay by the door"
    total = Scorer(decoder, Bytes(), 12, 3).texts([text, "the", ""])
    ids = list(text.encode())
    assert total[0] == pytest.approx(by_hand(decoder, [0], ids, 12)[0], rel=1e-6)
    assert total[1] == pytest.approx(by_hand(decoder, [0], ids[:3], 12)[0], rel=1e-6)
    assert total[2] == 0
    # by the rule in full, for the first two windows and the last: targets 0-11, 12-23, 48-49
    assert [len(t) for _, t in windows([0], ids, 12)] == [12, 12, 12, 12, 2]
    assert list(windows([0], ids, 12))[1][0] == ids[11:23]
    assert list(windows([0], ids, 12))[4][0] == ids[37:49]


def test_text_is_written_up_to_a_stop_string_after_a_context_cut_from_the_left() -> None:
    decoder = model(length=16)
    scorer = Scorer(decoder, Bytes(), 16, 2)
    contexts = ["a long context that does not fit", "b", "", "ccc"]
    free = dict(scorer.write(contexts, [], 6, Sampling(), [0] * 4))
    for i, context in enumerate(contexts):
        ids = (list(context.encode()) or [0])[-10:]
        out = generate(decoder, torch.tensor([ids]), 6, stop_ids=[0])[0].tolist()
        assert free[i] == Bytes().decode(out)
    stop = next(text[1:3] for text in free.values() if len(text) > 3)
    cut = dict(scorer.write(contexts, ["", stop], 6, Sampling(), [0] * 4))
    assert cut == {i: text.partition(stop)[0] for i, text in free.items()}
    sampled = Sampling.of(temperature=1.5)
    one = dict(scorer.write(contexts, [], 5, sampled, [1, 2, 3, 4]))
    assert one[1] == dict(scorer.write(contexts[1:2], [], 5, sampled, [2]))[0]
    with pytest.raises(DecodingError, match="max_gen_toks: 16 new tokens leave no room"):
        list(scorer.write(["a"], [], 16, Sampling(), [0]))


def test_a_model_that_looks_ahead_scores_nothing() -> None:
    decoder = small(span={"kind": "full", "causal": False})
    with pytest.raises(DecodingError, match=r"layers\.0\.mixer.*sees tokens that come after"):
        Scorer(decoder, Bytes(), 12).score([([1], [2])])


def test_an_empty_context_needs_a_token_to_stand_for_it() -> None:
    @dataclass(frozen=True)
    class Bare(Bytes):
        prefix_id: int | None = None

    with pytest.raises(DecodingError, match="names neither a start nor an end token"):
        Scorer(model(), Bare(), 12).continuations([("", "a")])
