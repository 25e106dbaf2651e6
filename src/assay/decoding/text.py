"""Tokens as text while they come: no half character is shown, a stop string is found wherever tokens cut it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from assay.decoding.errors import fault

_HALF = "\ufffd"  # what an unfinished character decodes to


class Decodes(Protocol):
    """The part of a tokenizer that reading needs."""

    def decode(self, ids: Sequence[int], /) -> str: ...


class TextStream:
    """One row's text. :meth:`push` gives what can be shown for good; the pieces, :meth:`close`'s too, join to ``text``.

    Held back: an unfinished character, and an ending that may become a stop string. The text ends before the stop
    string that is complete first (of those complete at once, the longest), whatever the tokens' borders.
    """

    def __init__(self, tokenizer: Decodes, stop: Iterable[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        if not all(self.stop):
            raise fault("stop", "an empty string stops everything", list(self.stop), "strings of one character or more")
        self.ids: list[int] = []
        self.text = ""
        self.stopped: str | None = None  # the stop string that was met
        self._held = ""  # whole characters, not yet shown
        self._from, self._read = 0, 0  # ids[_from:_read] are read already, and give the next ones their context

    def push(self, token: int) -> str:
        """One more token; returns what can be shown now."""
        if self.stopped is not None:
            return ""
        self.ids.append(token)
        piece = self._piece()
        if piece.endswith(_HALF):
            # not to be shown yet; but a stop string before the half character ends the row now
            return self._take(piece) if self._first_stop(self._held + piece.rstrip(_HALF)) else ""
        if not piece:
            return ""
        self._from, self._read = self._read, len(self.ids)
        return self._take(piece)

    def close(self) -> str:
        """The end of the row: what was held back, an unfinished character as U+FFFD."""
        if self.stopped is not None:
            return ""
        piece = self._piece()
        self._from = self._read = len(self.ids)
        shown = self._take(piece)
        if self.stopped is None:
            shown, self.text, self._held = shown + self._held, self.text + self._held, ""
        return shown

    def _piece(self) -> str:
        """The text that ids[_read:] add."""
        before = self.tokenizer.decode(self.ids[self._from : self._read])
        return self.tokenizer.decode(self.ids[self._from :])[len(before) :]

    def _first_stop(self, text: str) -> tuple[int, int, str] | None:
        """Where the first stop string ends and begins; None without one."""
        found = [(text.find(s) + len(s), text.find(s), s) for s in self.stop if s in text]
        return min(found) if found else None

    def _take(self, piece: str) -> str:
        text = self._held + piece
        hit = self._first_stop(text)
        if hit is not None:
            self.stopped, self._held, shown = hit[2], "", text[: hit[1]]
        else:
            keep = max((_overlap(text, s) for s in self.stop), default=0)
            shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """The longest ending of ``text`` that begins ``stop`` without being all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
