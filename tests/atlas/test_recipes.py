"""Atlas and presets are one set of facts: what the atlas writes is what is shipped, and has the published size."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given

from assay.atlas import Inexpressible, expressible, model, models, recipe_for, recount, shipped, to_toml, why_not
from assay.atlas.authoring import write_recipe
from assay.cost.budget import count_params
from assay.recipe import Recipe, load, resolve
from assay.recipe.base import kinds_of
from assay.recipe.position import Position
from tests.atlas.test_counting import OFF
from tests.strategies import recipes, tables

SHIPPED = [name for name, _ in shipped()]
DENSE = [m.id for m in models(kind="dense")]
EXPRESSIBLE = [m.id for m in models() if not why_not(m.id)]


def architecture(recipe: Recipe) -> dict[str, Any]:
    """A recipe without its init, names and notes."""
    body = recipe.model_dump(mode="json", exclude={"name", "sources", "notes", "init"})
    for layer in body["layers"]:
        del layer["name"]
    return body


@pytest.mark.parametrize("name", SHIPPED)
def test_the_atlas_writes_every_shipped_recipe(name: str) -> None:
    table = recipe_for(name, decoder_half=True)
    assert architecture(resolve(table)) == architecture(load(name))


def test_the_digest_of_the_architecture_is_the_same() -> None:
    for name in SHIPPED:
        ours, theirs = resolve(recipe_for(name, decoder_half=True)), load(name)
        assert ours.model_copy(update={"init": theirs.init}).digest == theirs.digest


def test_most_shipped_recipes_are_of_the_atlas() -> None:
    assert len(SHIPPED) >= 31


@pytest.mark.parametrize("model_id", EXPRESSIBLE)
def test_a_written_recipe_has_the_published_parameters(model_id: str) -> None:
    m, total = model(model_id), count_params(write_recipe(model_id).recipe).total
    rows = write_recipe(model_id).recipe.vocab_size
    published = {m.vocab_size: m.params.total} | {o.vocab_size: o.total for o in m.params.also}
    if m.params.precision in ("exact", "computed"):
        assert total - (published[rows] or 0) == OFF.get(model_id, 0)
    if rows == m.vocab_size:
        assert total == recount(m).total


def test_dense_models_are_written_or_the_reason_is_said() -> None:
    reasons = expressible(kind="dense")
    assert set(reasons) == set(DENSE)
    assert sum(not r for r in reasons.values()) >= 89
    for model_id, why in reasons.items():
        if why:
            with pytest.raises(Inexpressible, match=re.escape(why[0])) as caught:
                recipe_for(model_id)
            assert caught.value.reasons == why


def test_reasons_are_computed() -> None:
    missing_kind = "no position kind 'alibi' in this version"
    assert (missing_kind in why_not("bloom-176b")) is ("alibi" not in kinds_of(Position))
    assert "d_ff was not found in a source" in why_not("yi-34b")
    assert why_not("bert-large") == ("an encoder: a recipe describes a decoder",)
    assert any("describes a decoder" in r for r in why_not("t5-11b"))
    assert why_not("llama-7b") == ()


def test_what_stands_in_for_unknown_facts_is_said() -> None:
    palm = write_recipe("palm-540b")
    assert any("rope_theta" in a for a in palm.assumed)
    assert any("norm_eps" in a for a in palm.assumed)
    assert any("banded" in a for a in write_recipe("gpt3-175b").assumed)
    assert write_recipe("gpt2").assumed == ()


@pytest.mark.parametrize("model_id", EXPRESSIBLE)
def test_the_toml_reads_back(model_id: str) -> None:
    written = write_recipe(model_id)
    assert tomllib.loads(written.toml) == written.table
    assert written.table["sources"]


@given(tables())
def test_any_authored_table_is_written_as_toml(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


@given(recipes())
def test_any_dumped_recipe_is_written_as_toml(recipe: Recipe) -> None:
    assert resolve(tomllib.loads(to_toml(recipe.to_dict()))).digest == recipe.digest


def test_toml_of_odd_values() -> None:
    table = {"name": 'a "quoted" \\ name', "embedding": {}, "init": {"a b": [1.5e-7, 1e22, -0.0, 3.0, 123456789.0]}}
    assert tomllib.loads(to_toml(table)) == table
    with pytest.raises(ValueError, match="cannot be written"):
        to_toml({"a": None})
