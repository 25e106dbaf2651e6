"""Overlays: one table laid over another, and ``key.path=value`` overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from assay.recipe.errors import Problem, RecipeError
from assay.recipe.residual import NORMLESS

# What stays of a residual table whose rule changes. A changed form keeps every key: what it cannot place is an error.
_BESIDE_RULE = ("form", "norm", "dropout", "mixer", "ffn")


def deep_merge(base: Any, over: Any, path: tuple[str, ...] = ()) -> Any:
    """``over`` laid over ``base``; tables merge key by key, a node whose kind changes is replaced whole.

    A residual whose rule changes keeps its norm and dropout: the placement changes, not the norm.
    """
    residual = "residual" in path and path[-1] in ("residual", "mixer", "ffn")
    if isinstance(over, str) and isinstance(base, Mapping) and residual:
        over = {"rule": over}
    if not isinstance(over, Mapping):
        return over
    if isinstance(base, str):
        base = {"rule" if residual else "kind": base}
    if not isinstance(base, Mapping) or _changes("kind", base, over):
        return dict(over)
    out = dict(base)
    if _changes("rule", base, over):
        dropped = ("norm",) if over["rule"] in NORMLESS else ()
        out = {k: v for k, v in base.items() if k in _BESIDE_RULE and k not in dropped}
    for key, value in over.items():
        out[key] = deep_merge(out[key], value, (*path, key)) if key in out else value
    return out


def _changes(tag: str, base: Mapping[str, Any], over: Mapping[str, Any]) -> bool:
    return tag in over and base.get(tag) != over[tag]


def apply_overrides(authored: dict[str, Any], overrides: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Lay ``key.path=value`` texts over an authored table. The value is TOML; anything else is a bare string."""
    problems = []
    for text in overrides:
        key, sep, value = text.partition("=")
        keys = key.strip().split(".")
        if not sep or not all(keys):
            problems.append(Problem("--set", "not key.path=value", text, "d_model=512", has_value=True))
            continue
        over: Any = parse_value(value.strip())
        for part in reversed(keys):
            over = {part: over}
        authored = deep_merge(authored, over)
    if problems:
        raise RecipeError(problems, "overrides")
    return authored


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is not one."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text
