"""Recipes with holes: one description of a family, read in both directions.

A template is an authored recipe table in which some values are *holes*. Reading fills every hole from a foreign
config; writing lays the template over a resolved recipe and lets every hole say what its value means in the foreign
config. What a template leaves out is the recipe's own default. Whether anything was lost on the way out is not
decided here: what was written is read again and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from assay.interop.config import Config
from assay.recipe.merge import deep_merge

Entries = dict[str, Any]
OMIT: Any = object()  # what a hole gives to leave its field to the recipe's default


@dataclass(frozen=True)
class At:
    """Where a hole is read: the depth of its layer (-1 outside the stack), and what each axis says of that layer."""

    depth: int = -1
    cases: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spot:
    """Where a hole is written from: the tables around its value in a dumped recipe."""

    at: At
    top: Mapping[str, Any]
    layer: Mapping[str, Any]
    parent: Mapping[str, Any]
    defaults: Mapping[str, Any]


class Hole:
    """One value of a recipe and the foreign keys that hold it."""

    keys: tuple[str, ...] = ()

    def read(self, cfg: Config, at: At) -> Any:
        """The authored value; may itself hold holes."""
        raise NotImplementedError

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        """Whether this hole can say ``node``, a dumped value that stands in ``parent``."""
        return True

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        """Add the foreign entries that mean ``node``."""
        raise NotImplementedError

    def inside(self) -> Iterator[Any]:
        """Templates nested in this hole."""
        return iter(())


def fill(template: Any, cfg: Config, at: At) -> Any:
    """The authored value of a template."""
    if isinstance(template, Hole):
        value = template.read(cfg, at)
        return value if value is OMIT else fill(value, cfg, at)
    if isinstance(template, Mapping):
        filled = {key: fill(value, cfg, at) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value is not OMIT}
    if isinstance(template, list | tuple):
        return [fill(value, cfg, at) for value in template]
    return template


def collect(template: Any, node: Any, spot: Spot, out: Entries) -> None:
    """Let every hole of a template write what it stands for in a dumped value."""
    if isinstance(template, Hole):
        template.write(node, spot, out)
    elif isinstance(template, Mapping) and isinstance(node, Mapping):
        inner = Spot(spot.at, spot.top, spot.layer, node, spot.defaults)
        for key, value in template.items():
            if key in node:
                collect(value, node[key], inner, out)


def matches(template: Any, node: Any, parent: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether a dumped value has the shape of a template: constants equal, holes able to say what stands there."""
    if isinstance(template, Hole):
        return template.accepts(node, parent)
    if isinstance(template, Mapping):
        return isinstance(node, Mapping) and all(
            key in node and matches(value, node[key], node) for key, value in template.items()
        )
    if isinstance(template, list | tuple):
        return isinstance(node, list | tuple) and list(template) == list(node)
    if isinstance(node, Mapping):  # a bare kind or number stands for a table
        return template in (node.get("kind"), node.get("form")) or (
            node.get("kind") == "constant" and template == node.get("value")
        )
    return bool(template == node)


def holes(template: Any) -> Iterator[Hole]:
    """Every hole of a template, nested ones too."""
    if isinstance(template, Hole):
        yield template
        for inner in template.inside():
            yield from holes(inner)
    elif isinstance(template, Mapping):
        for value in template.values():
            yield from holes(value)
    elif isinstance(template, list | tuple):
        for value in template:
            yield from holes(value)


def put(out: Entries, key: str, value: Any) -> None:
    """Set a foreign key; the first word counts, tables are merged. A contradiction is found when the result is read."""
    old = out.get(key)
    if isinstance(old, dict) and isinstance(value, dict):
        for inner, v in value.items():
            put(old, inner, v)
    elif key not in out:
        out[key] = value


def overlaid(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """One template laid over another, as named layers are laid over ``block``."""
    merged: dict[str, Any] = deep_merge(base, over)
    return merged
