"""Written out and read back, a recipe is the same recipe."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from assay.recipe import Recipe, load, resolve
from tests.laws.common import examples
from tests.strategies import Table, tables


@given(tables(dropout=True))
def test_written_out_is_the_same_recipe(table: Table) -> None:
    """As a table, as JSON and as TOML: an equal recipe with an equal digest, and the text is the same again."""
    before = copy.deepcopy(table)
    recipe = resolve(table)
    assert table == before, "resolve changed the author's table"
    again = (recipe.to_dict(), json.loads(recipe.to_json()), tomllib.loads(recipe.to_toml()))
    for text in again:
        other = resolve(text)
        assert other.digest == recipe.digest
        assert nameless(other) == nameless(recipe)
        assert other.to_json() == recipe.to_json()
        assert other.to_toml() == recipe.to_toml()


def nameless(recipe: Recipe) -> dict[str, object]:
    """Everything but the names of layers: equal layers are written once, under the first name."""
    dump = recipe.model_dump(mode="json")
    for layer in dump["layers"]:
        del layer["name"]
    return dump


@examples(0.4)
@given(tables(dropout=True))
def test_files_are_the_same_recipe(table: Table) -> None:
    recipe = resolve(table)
    with TemporaryDirectory() as folder:
        for name, text in (("r.toml", recipe.to_toml()), ("r.json", recipe.to_json())):
            (Path(folder) / name).write_text(text, encoding="utf-8")
            assert load(Path(folder) / name).digest == recipe.digest
            assert load(Path(folder) / name).name == recipe.name
        (Path(folder) / "over.toml").write_text('extends = "r.toml"\n', encoding="utf-8")
        assert load(Path(folder) / "over.toml").digest == recipe.digest


@given(tables(dropout=True), st.randoms(use_true_random=False))
def test_names_and_order_decide_nothing(table: Table, random: object) -> None:
    """The digest knows neither names, notes nor sources, nor the order in which keys stand."""
    recipe = resolve(table)
    other = shuffled({**table, "name": "another", "notes": "something else", "sources": ["x"]}, random)
    renamed = {name: f"other-{i}" for i, name in enumerate(table.get("layers", {}))}
    if renamed:
        other["layers"] = {renamed[name]: reread(layer, renamed) for name, layer in other["layers"].items()}
        other["stack"] = [rename(entry, renamed) for entry in other["stack"]]
    assert resolve(other).digest == recipe.digest


def shuffled(value: object, random: object) -> object:
    """The same tables with their keys in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)  # type: ignore[attr-defined]
        return {key: shuffled(value[key], random) for key in keys}
    return [shuffled(item, random) for item in value] if isinstance(value, list) else value


def reread(layer: Any, names: dict[str, str]) -> Any:
    """A layer whose keys are those of a layer with a new name."""
    mixer = layer.get("mixer")
    if not isinstance(mixer, dict) or "kv" not in mixer:
        return layer
    source = mixer["kv"]["layer"]
    return {**layer, "mixer": {**mixer, "kv": {"layer": names.get(source, source)}}}


def rename(entry: object, names: dict[str, str]) -> object:
    if isinstance(entry, dict):
        return {**entry, "cycle": [rename(item, names) for item in entry["cycle"]]}
    count, _, name = str(entry).rpartition(" ")
    return f"{count} {names.get(name, name)}".strip()


@given(tables(dropout=True))
def test_a_recipe_has_a_layer_for_each_depth(table: Table) -> None:
    """The stack, expanded by hand, names the layers in order."""
    names: list[str] = []
    for entry in table.get("stack", [f"{table.get('n_layers')} block"]):
        if isinstance(entry, dict):
            total = entry.get("n_layers", table.get("n_layers"))
            cycle = [name for item in entry["cycle"] for name in _run(item)]
            names += [cycle[i % len(cycle)] for i in range(total)]
        else:
            names += _run(entry)
    recipe = resolve(table)
    assert [layer.name for layer in recipe.layers] == names
    assert recipe.n_layers == len(names)


def _run(entry: str) -> list[str]:
    count, _, name = entry.rpartition(" ")
    return [name] * int(count or 1)
