"""The drawn recipes leave nothing out: every kind and every field, away from its default too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, given, seed, settings

from assay.recipe import Part, Recipe, Spec, resolve
from assay.recipe.base import slots
from assay.recipe.parametrization import Parametrization
from tests.laws.flips import every_field
from tests.strategies import EXAMPLES, Table, tables


def specs(spec: Spec) -> Iterator[Spec]:
    """A spec and all inside it."""
    yield spec
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Spec):
                yield from specs(item)


def test_there_is_an_example_of_every_kind() -> None:
    """A new kind needs a table in ``EXAMPLES``, and a place in the strategies."""
    of_a_recipe = {slot: kinds for slot, kinds in slots().items() if slot != Parametrization.slot}  # that is a run's
    own = {slot: tuple(k for k in kinds if _is_ours(slot, k)) for slot, kinds in of_a_recipe.items()}
    assert {slot: set(kinds) for slot, kinds in own.items() if kinds} == {s: set(k) for s, k in EXAMPLES.items()}


def _is_ours(slot: str, kind: str) -> bool:
    from assay.recipe.base import _KINDS

    return _KINDS[slot][kind].__module__.startswith("assay.recipe.")


def test_the_strategies_reach_everything() -> None:
    """In a few hundred draws: each kind, and each field at two values or more."""
    kinds: Counter[tuple[str, str]] = Counter()
    values: dict[tuple[str, str], set[str]] = {}

    @settings(max_examples=60, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(tables(dropout=True))
    def draw(table: Table) -> None:
        recipe: Recipe = resolve(table)
        for spec in specs(recipe):
            if isinstance(spec, Part):
                kinds[spec.slot, spec.kind_name] += 1
            for name in type(spec).model_fields:
                values.setdefault((type(spec).__name__, name), set()).add(repr(getattr(spec, name)))

    for start in range(16):  # draws of one seed are much alike
        seed(start)(draw)()
    never = {(slot, kind) for slot in EXAMPLES for kind in EXAMPLES[slot]} - set(kinds)
    assert never == set()
    assert {field for field in every_field() if len(values.get(field, ())) < 2} == set()
