"""Every way to change one field of a recipe, read off its specs: a new kind or field is covered when it is declared."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from assay.recipe import Layer, Part, Recipe, RecipeError, Spec, resolve
from assay.recipe.base import _KINDS
from assay.recipe.embedding import Embedding, Head
from assay.recipe.init import Init, RoleInit
from assay.recipe.residual import Branch, Sublayer
from assay.recipe.stack import read_stack
from tests.strategies import EXAMPLES, Table

Path = tuple[str | int, ...]

# tried in turn where a field is a number; those that a field does not admit are refused. The extremes matter before a
# ScaleNorm, which takes every other change of scale away
_FLOATS = (0.37, 1.9, 0.5, 1e-9, 60.0, 1e14, -1.0, 1.02)
# rotary sizes are even, so only these fractions are ever admitted
_FRACTIONS = tuple(sorted({size / head_dim for head_dim in range(3, 25) for size in range(4, head_dim + 1, 2)}))


@dataclass(frozen=True)
class Flip:
    """One field of one node, and what may be written there instead.

    ``every``: each of the values means something else (a choice); else they are sizes, some of which may lie where
    the field makes no difference (a cap that nothing reaches).
    """

    spec: type[Spec]
    field: str
    path: Path
    before: Any
    values: tuple[Any, ...]
    every: bool

    def __repr__(self) -> str:
        return f"{'.'.join(map(str, self.path))} = {self.before!r}"


def flips_of(recipe: Recipe) -> list[Flip]:
    """Every field of a recipe that may decide something; names, sources and notes do not."""
    table = recipe.to_dict()
    out = [Flip(Recipe, key, (key,), table[key], _numbers(table[key]), False) for key in ("d_model", "vocab_size")]
    out.append(Flip(Recipe, "max_seq_len", ("max_seq_len",), recipe.max_seq_len, _numbers(recipe.max_seq_len), False))
    out += _fields(recipe.embedding, ("embedding",))
    out += _fields(recipe.head, ("head",))
    for name, layer in dict(zip(read_stack(table, []), recipe.layers, strict=True)).items():
        out += _fields(layer, ("layers", name))
    for entry in recipe.init.roles:
        out += _node(type(entry), "distribution", entry.distribution, ("init", str(entry.role)))
    out += _node(Init, "depth", recipe.init.depth, ("init", "depth"))
    out.append(_stack(recipe, table))
    return [flip for flip in out if flip.values]


def every_field() -> set[tuple[str, str]]:
    """(spec, field) of everything that a recipe may hold and that may decide something."""
    out = set()
    kinds = [_KINDS[slot][kind] for slot, tables in EXAMPLES.items() for kind in tables]
    for cls in (Recipe, Embedding, Head, Layer, Init, RoleInit, Branch, Sublayer, *kinds):
        for name in cls.model_fields:
            tag = cls.tag if issubclass(cls, Part) else ""
            if name != tag and (cls.__name__, name) not in _NO_FLIP:
                out.add((cls.__name__, name))
    return out


# what decides nothing, and what is a table of other specs
_NO_FLIP = {
    *(("Recipe", key) for key in ("name", "sources", "notes", "embedding", "head", "init")),
    ("Layer", "name"),
    ("RoleInit", "role"),
    ("Init", "roles"),
    *((form, side) for form in ("Serial", "Parallel", "ParallelSharedNorm") for side in ("mixer", "ffn")),
}


def flipped(recipe: Recipe, flip: Flip, value: Any) -> Recipe | None:
    """The recipe with this value in that place; None where it is refused."""
    table = copy.deepcopy(recipe.to_dict())
    node: Any = table
    for key in flip.path[:-1]:
        node = node[key]
    node[flip.path[-1]] = value
    try:
        return resolve(table)
    except RecipeError:
        return None


def _fields(spec: Spec, path: Path) -> Iterator[Flip]:
    for name, field in type(spec).model_fields.items():
        value, here = getattr(spec, name), (*path, name)
        if name == "name" or (isinstance(spec, Part) and name == spec.tag):
            continue
        if isinstance(value, Part):
            yield from _node(type(spec), name, value, here)
        elif isinstance(value, Spec):
            yield from _fields(value, here)
        elif isinstance(value, tuple) and value and isinstance(value[0], Spec):
            dumps = [item.model_dump(mode="json") for item in value]
            yield Flip(type(spec), name, here, dumps, ([*dumps, dumps[0]], [dumps[-1], *dumps[:-1]]), False)
            for i, item in enumerate(value):
                yield from _fields(item, (*here, i))
        elif isinstance(value, tuple) and value and isinstance(value[0], float):
            yield Flip(type(spec), name, here, list(value), ([2 * v for v in value], [*value[:-1], 9.0]), True)
        elif isinstance(value, tuple):
            yield Flip(type(spec), name, here, list(value), _toggled(field.annotation, value), True)
        elif name == "fraction":
            yield Flip(type(spec), name, here, value, tuple(f for f in _FRACTIONS if f != value), False)
        else:
            choices, numbers = _alternatives(field.annotation, value)
            # a word among numbers ("sqrt_d_model", "none") stands for one
            yield Flip(type(spec), name, here, value, (*choices, *numbers), every=not numbers)


def _node(owner: type[Spec], name: str, part: Part, path: Path) -> Iterator[Flip]:
    """The kind of a part, then the part's own fields."""
    others = [{part.tag: kind, **table} for kind, table in EXAMPLES[part.slot].items() if kind != part.kind_name]
    if others:
        yield Flip(owner, name, path, part.kind_name, tuple(others), True)
    yield from _fields(part, path)


def _alternatives(annotation: Any, value: Any) -> tuple[list[Any], list[Any]]:
    """Other choices, and other numbers, that an annotation admits beside ``value``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0], value)
    if origin in (Union, types.UnionType):
        pairs = [_alternatives(member, value) for member in get_args(annotation)]
        return [c for choices, _ in pairs for c in choices], [n for _, numbers in pairs for n in numbers]
    if origin is Literal:
        return [choice for choice in get_args(annotation) if choice != value], []
    if annotation is bool:
        return [not value], []
    if annotation is int:
        return [], list(_numbers(value))
    if annotation is float:
        return [], [number for number in _FLOATS if number != value]
    raise TypeError(f"no flip for a field of type {annotation}: say here what else may stand in it")


def _numbers(value: int) -> tuple[int, ...]:
    return (value + 1, 2 * value + 2) if value < 2 else (value + 1, value - 1, 2 * value)


def _toggled(annotation: Any, value: tuple[str, ...]) -> tuple[list[str], ...]:
    """A set with each of its possible members put in or taken out."""
    members = get_args(get_args(annotation)[0])
    return tuple([m for m in members if (m in value) != (m == toggled)] for toggled in members)


def _stack(recipe: Recipe, table: Table) -> Flip:
    """One layer more at the end, and the layers in reverse where that is another order."""
    names = read_stack(table, [])
    values: list[list[str]] = [[*names, names[0]]]
    if names[::-1] != names:
        values.append(names[::-1])
    return Flip(Recipe, "layers", ("stack",), table["stack"], tuple(values), True)
