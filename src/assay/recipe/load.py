"""Finding recipes: files, presets, ``extends``, and overrides from the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from assay.recipe.errors import Problem, RecipeError, nearest
from assay.recipe.merge import apply_overrides, deep_merge
from assay.recipe.recipe import Recipe
from assay.recipe.resolve import resolve

PRESETS = Path(__file__).parent / "presets"


@cache
def preset_names() -> tuple[str, ...]:
    """Every shipped recipe by name; members of a family are ``family/name``."""
    return tuple(sorted(p.relative_to(PRESETS).with_suffix("").as_posix() for p in PRESETS.rglob("*.toml")))


def load(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a preset or of a TOML or JSON file.

    Args:
        name_or_path: a preset's name (``llama-3.1-8b``) or a path that ends in .toml or .json.
        overrides: ``key.path=value`` texts laid over the authored table before it is resolved.

    Raises:
        RecipeError: the recipe does not exist, cannot be read, or has faults; all of them are listed.
    """
    authored = read_authored(name_or_path)
    if overrides:
        authored = apply_overrides(authored, list(overrides))
    authored.setdefault("name", Path(name_or_path).stem)
    return resolve(authored, str(name_or_path))


def read_authored(name_or_path: str | Path) -> dict[str, Any]:
    """The authored table with every ``extends`` followed and laid under it."""
    return _follow(_locate(str(name_or_path), Path()), ())


def _follow(path: Path, trail: tuple[Path, ...]) -> dict[str, Any]:
    if path in trail:
        chain = " -> ".join(p.stem for p in (*trail, path))
        raise RecipeError([Problem("extends", f"goes round in a circle: {chain}")], str(path))
    table = _read(path)
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise RecipeError([Problem("extends", "not a name", base, "a preset or a path", has_value=True)], str(path))
    under = _follow(_locate(base, path.parent), (*trail, path))
    if _counts_itself(table.get("stack")):
        under.pop("n_layers", None)
    for key in ("name", "notes"):
        under.pop(key, None)
    merged: dict[str, Any] = deep_merge(under, table)
    return merged


def _counts_itself(stack: Any) -> bool:
    """True unless the stack is absent or a single cycle that takes its length from ``n_layers``."""
    if not isinstance(stack, list):
        return False
    return not (len(stack) == 1 and isinstance(stack[0], dict) and "n_layers" not in stack[0])


def _locate(name: str, folder: Path) -> Path:
    if name.endswith((".toml", ".json")):
        path = folder / name
        if not path.is_file():
            raise RecipeError([Problem("", "no such file", name, has_value=True)], name)
        return path.resolve()
    if name in preset_names():
        return PRESETS / f"{name}.toml"
    near = nearest(name, preset_names()) or ""
    problem = Problem("", "no such recipe", name, "a preset (see `assay list`) or a .toml or .json file", near, True)
    raise RecipeError([problem], name)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise RecipeError([Problem("", f"cannot be read: {error}")], str(path)) from None
    if not isinstance(table, dict):
        raise RecipeError([Problem("", "not a table", table, has_value=True)], str(path))
    return table
