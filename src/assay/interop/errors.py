"""What can go wrong between a foreign folder and a recipe."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class InteropError(ValueError):
    """A folder, file or model that cannot be carried over; the message names the file and the key or tensor."""


class UnsupportedArchitecture(InteropError):
    """A foreign model that no recipe kind expresses yet; names its type and the nearest supported one."""


class DamagedFolder(InteropError):
    """A file that is missing, cut short or at odds with another; names it."""


class CannotExport(InteropError):
    """A recipe that the target cannot express. ``fields`` lists what it would lose, as paths of the recipe."""

    def __init__(self, message: str, fields: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.fields = tuple(fields)


def shown(items: Iterable[object], limit: int = 8) -> str:
    """A list on one line, cut short with a count."""
    texts = [str(item) for item in items]
    rest = len(texts) - limit
    return ", ".join(texts[:limit]) + (f" and {rest} more" if rest > 0 else "")


def closest(word: str, candidates: Iterable[str]) -> str:
    """The candidate most like ``word``, always one."""
    names = sorted(candidates)
    hits = difflib.get_close_matches(word, names, n=1, cutoff=0.0)
    return hits[0] if hits else names[0]
