"""Streams of text: whole characters only, stop strings across token borders, pieces that join to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.decoding import Bytes, DecodingError, TextStream

TEXT = st.text(alphabet=st.sampled_from("ab c\nnéß中文🙂🇩🇪́"), max_size=24)


class Cut:
    """A tokenizer whose tokens are given byte strings."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def decode(self, ids: Sequence[int], /) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(i % (len(data) + 1) for i in at)})
    return [data[a:b] for a, b in pairwise(edges)]


def by_characters(text: str, stops: Sequence[str]) -> str:
    """One character after another: the text before the first stop string that is whole."""
    for n in range(1, len(text) + 1):
        ends = [s for s in stops if text[:n].endswith(s)]
        if ends:
            return text[: n - max(map(len, ends))]
    return text


def written(pieces: list[bytes], stops: Sequence[str] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(Cut(pieces), stops)
    shown = [stream.push(i) for i in range(len(pieces))]
    return [*shown, stream.close()], stream


@given(
    TEXT, st.lists(st.integers(0, 99), max_size=12), st.lists(st.text("abé\n 中", min_size=1, max_size=4), max_size=3)
)
def test_any_cut_gives_the_same_text(text: str, at: list[int], stops: list[str]) -> None:
    shown, stream = written(cut(text.encode(), at), stops)
    want = by_characters(text, stops)
    assert "".join(shown) == stream.text == want
    assert (stream.stopped is not None) == (len(want) < len(text))
    assert "\ufffd" not in stream.text


@given(st.binary(max_size=24), st.lists(st.integers(0, 99), max_size=24))
def test_what_is_no_utf8_is_shown_as_the_whole_would_be(data: bytes, at: list[int]) -> None:
    shown, stream = written(cut(data, at))
    assert "".join(shown) == stream.text == data.decode("utf-8", errors="replace")


def test_half_a_character_waits() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(b) for b in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    stream.push(0xE4)
    assert stream.close() == "\ufffd"


def test_a_stop_string_is_held_back_and_then_shown_or_cut() -> None:
    stream = TextStream(Bytes(), ["\n\nQ:"])
    assert [stream.push(b) for b in b"a\n\nb\n\nQ"] == ["a", "", "", "\n\nb", "", "", ""]
    assert stream.push(ord(":")) == ""
    assert (stream.stopped, stream.text) == ("\n\nQ:", "a\n\nb")
    assert stream.push(ord("x")) == stream.close() == ""


def test_a_stop_string_ends_the_row_in_its_own_token() -> None:
    """Also where the same token begins a character."""
    shown, stream = written([b"one END\xe4", b"\xb8\xad"], ["END"])
    assert (stream.stopped, stream.text, len(stream.ids)) == ("END", "one ", 1)
    assert shown == ["one ", "", ""]


def test_the_first_to_be_whole_counts() -> None:
    assert written([b"abcd"], ["bcd", "c"])[1].text == "ab"
    assert written([b"xaab"], ["ab", "aab"])[1].text == "x"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(DecodingError, match="stop"):
        TextStream(Bytes(), [""])
