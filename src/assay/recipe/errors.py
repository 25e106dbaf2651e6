"""What is wrong with a recipe, said all at once.

A :class:`RecipeError` carries every problem found; each names the path of the value in the authoring
file, the value itself, what is allowed there and, for a misspelt key or name, the nearest valid one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

_SHOWN = 12  # problems printed before "and n more": an error stays on one screen


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like ``word``, or None when nothing is close."""
    flat = {c.lower().replace("-", "_"): c for c in candidates}
    hit = difflib.get_close_matches(word.lower().replace("-", "_"), flat, n=1, cutoff=0.6)
    return flat[hit[0]] if hit else None


@dataclass(frozen=True)
class Problem:
    """One fault: where it is, what stands there, why it is wrong, what would be right."""

    path: str
    message: str
    value: Any = field(default=None, compare=False)
    allowed: str = ""
    suggestion: str = ""
    has_value: bool = field(default=False, compare=False)

    def under(self, prefix: str) -> Problem:
        """The same problem with its path below ``prefix``."""
        path = ".".join(s for s in (prefix, self.path) if s)
        return replace(self, path=path)

    def __str__(self) -> str:
        head = f"{self.path}: {self.message}" if self.path else self.message
        lines = [head]
        if self.has_value:
            lines.append(f"    found:   {_short(self.value)}")
        if self.allowed:
            lines.append(f"    allowed: {self.allowed}")
        if self.suggestion:
            lines.append(f"    nearest: {self.suggestion}")
        return "\n".join(lines)


class RecipeError(ValueError):
    """A recipe that cannot be resolved. ``problems`` lists everything found in one pass."""

    def __init__(self, problems: Iterable[Problem], where: str = "recipe") -> None:
        self.problems = tuple(dict.fromkeys(problems))
        self.where = where
        n = len(self.problems)
        title = f"{where}: {n} problem{'s' if n != 1 else ''}"
        shown = [str(p) for p in self.problems[:_SHOWN]]
        if n > _SHOWN:
            shown.append(f"... and {n - _SHOWN} more")
        super().__init__("\n".join([title, *("  " + s.replace("\n", "\n  ") for s in shown)]))


def _short(value: Any, limit: int = 100) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
