"""A corrupted recipe is refused, with the path of what is wrong; never accepted, never another exception."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from assay.recipe import RecipeError, resolve
from assay.recipe.merge import deep_merge
from tests.strategies import Table, tables

MARK = "zzcorrupt"
Path = tuple[str | int, ...]

# never right anywhere
JUNK: tuple[Any, ...] = ({MARK: 1}, [[MARK]], [{MARK: 2}])


def nodes(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every table, list and leaf below ``value`` with its path."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key), inner
        yield from nodes(inner, (*path, key))


def put(table: Table, path: Path, value: Any) -> Table:
    out = copy.deepcopy(table)
    node: Any = out
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return out


def survives(table: Table, path: Path) -> bool:
    """False where what is corrupted in ``block`` is replaced by every layer: nobody reads it then."""
    if path[:1] != ("block",) or not isinstance(table.get("block"), dict):
        return True
    layers = table.get("layers", {})
    merged = [deep_merge(table["block"], layers.get(name, {})) for name in _flat(table.get("stack", ["block"]))]
    return MARK in json.dumps(merged)


def _flat(stack: list[Any]) -> Iterator[str]:
    for entry in stack:
        if isinstance(entry, dict):
            yield from _flat(entry.get("cycle", []))
        elif isinstance(entry, str):
            yield entry.split()[-1]


def refused(table: Table, path: Path) -> None:
    """The error of a table names the corrupted place: one of its paths goes through every key, in order.

    Places that the author did not write may stand between them (``residual.mixer.input_norm`` for ``residual.norm``).
    """
    with pytest.raises(RecipeError) as raised:
        resolve(table)
    paths = [problem.path for problem in raised.value.problems]
    assert any(_goes_through(found.split("."), [str(key) for key in path]) for found in paths), f"{path}: {paths}"


def _goes_through(found: list[str], wanted: list[str]) -> bool:
    """A list may stand for its items, and ``norm`` for the norms that a rule places."""
    while wanted[-1].isdigit():
        wanted = wanted[:-1]
    rest = iter(found)
    return all(any(key == step or (key == "norm" and step.endswith("_norm")) for step in rest) for key in wanted)


def coerced(value: Any) -> list[Any]:
    """What a lenient reader would take for the value."""
    if isinstance(value, bool):
        return [int(value), str(value).lower()]
    if isinstance(value, int):
        return [float(value), str(value), True]
    return [str(value), True] if isinstance(value, float) else []


@given(tables(dropout=True), st.data())
def test_an_unknown_key_is_refused_at_any_depth(table: Table, data: st.DataObject) -> None:
    places = [(), *(path for path, node in nodes(table) if isinstance(node, dict))]
    for path in data.draw(st.lists(st.sampled_from(places), min_size=6, max_size=6)):
        if path == ("layers",):
            continue  # a key there is a layer's name
        corrupted = put(table, (*path, MARK), 1)
        if survives(corrupted, path):
            refused(corrupted, (*path, MARK))


@given(tables(dropout=True), st.data())
def test_a_misspelt_key_is_refused(table: Table, data: st.DataObject) -> None:
    """The key itself is named, and where one is near, so is the right one."""
    places = [path for path, _ in nodes(table) if isinstance(path[-1], str) and path[-2:-1] != ("layers",)]
    places = [path for path in places if path[-1] != "kind"]  # without its kind a table has no keys to compare with
    path = data.draw(st.sampled_from(places))
    corrupted = copy.deepcopy(table)
    node: Any = corrupted
    for key in path[:-1]:
        node = node[key]
    misspelt = f"{path[-1]}_{MARK}"
    node[misspelt] = node.pop(path[-1])
    assume(survives(corrupted, path))
    refused(corrupted, (*path[:-1], misspelt))


@given(tables(dropout=True), st.data())
def test_a_value_of_the_wrong_type_is_refused(table: Table, data: st.DataObject) -> None:
    """Tables, lists, texts and JSON's null, wherever they cannot stand."""
    places = [path for path, _ in nodes(table)]
    for path in data.draw(st.lists(st.sampled_from(places), min_size=10, max_size=10)):
        values = [*JUNK, None]
        if path[0] not in ("name", "notes", "sources"):
            values.append(MARK)
        if path[-2:-1] == ("layers",):
            values = [MARK, [[MARK]], None]  # a table there is a layer, whose keys would be named
        old: Any = table
        for key in path:
            old = old[key]
        if path[-1] not in ("ratio", "multiplier"):  # fractions may be texts
            values += coerced(old)
        if survives(put(table, path, [MARK]), path):
            for value in values:
                refused(put(table, path, value), path)


@given(tables(dropout=True), st.data())
def test_a_missing_key_is_refused_or_has_a_default(table: Table, data: st.DataObject) -> None:
    """Whatever is left out, the answer is a recipe or a RecipeError."""
    places = [path for path, _ in nodes(table) if isinstance(path[-1], str)]
    path = data.draw(st.sampled_from(places))
    cut = copy.deepcopy(table)
    node: Any = cut
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    with contextlib.suppress(RecipeError):
        resolve(cut)


@given(tables(dropout=True), st.data())
def test_every_fault_is_said_at_once(table: Table, data: st.DataObject) -> None:
    """Two unknown keys in two places: both are named."""
    places = [(), *((key,) for key in ("embedding", "head") if key in table)]
    places += [path for path, node in nodes(table) if isinstance(node, dict) and path[-1] in ("mixer", "ffn")]
    first, second = data.draw(st.lists(st.sampled_from(places), min_size=2, max_size=2, unique=True))
    corrupted = put(put(table, (*first, MARK), 1), (*second, f"{MARK}2"), 1)
    assume(all(survives(put(table, (*path, MARK), 1), path) for path in (first, second)))
    refused(corrupted, (*first, MARK))
    refused(corrupted, (*second, f"{MARK}2"))
