"""From what an author writes to a :class:`Recipe`: the only place for defaults, overlays and sizing rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from assay.recipe.base import P, Sizes, Spec, make, problems_of, validated
from assay.recipe.embedding import Embedding, Head
from assay.recipe.errors import Problem, RecipeError, nearest
from assay.recipe.init import DEFAULT_WEIGHTS, MATRIX_ORDER, DepthScale, Distribution, Init, RoleInit
from assay.recipe.layer import Layer
from assay.recipe.merge import deep_merge
from assay.recipe.recipe import Recipe, matrix_roles
from assay.recipe.roles import ParamRole
from assay.recipe.sharing import place_sources, with_source
from assay.recipe.stack import read_stack

TOP_KEYS = (
    "name",
    "sources",
    "notes",
    "extends",
    "d_model",
    "vocab_size",
    "max_seq_len",
    "n_layers",
    "stack",
    "embedding",
    "head",
    "block",
    "layers",
    "init",
)
_SIZE_KEYS = ("d_model", "vocab_size", "max_seq_len")
_TABLES = ("embedding", "head", "block", "layers", "init")
# what can be said of a part even when the sizes it derives from are unknown
_SIZE_FREE = ("unknown key", "no such", "not a ")

S = TypeVar("S", bound=Spec)


def resolve(authored: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """The recipe that an authored table stands for.

    Args:
        authored: the table, ``extends`` already followed (see :func:`assay.recipe.load.load`).
        where: what to call the source in an error.

    Raises:
        RecipeError: with every fault found, each with path, value and what is allowed.
    """
    table = dict(authored)
    problems: list[Problem] = []
    if "extends" in table:
        problems.append(Problem("extends", "is not followed here", table["extends"], "load()", has_value=True))
    _check_top(table, problems)
    names = read_stack(table, problems)
    sizes = _sizes(table, len(names), problems)
    known = sizes is not None
    found: list[Problem] = []
    context = {"sizes": sizes or Sizes(1, 1, 1, max(1, len(names)))}
    layers = _layers(table, names, context, found)
    embedding = _spec(Embedding, table, "embedding", context, found)
    head = _spec(Head, table, "head", context, found)
    init = None
    if layers and embedding is not None and head is not None:
        init = _init(table, (embedding, head, layers), context, found)
    else:
        _check_init_keys(table.get("init", {}), [str(role) for role in MATRIX_ORDER], found)
    problems += found if known else [p for p in found if p.message.startswith(_SIZE_FREE)]
    if problems or not known or init is None or embedding is None or head is None:
        raise RecipeError(problems or [Problem("", "cannot be resolved")], where)
    try:
        return Recipe(
            name=table.get("name", "unnamed"),
            sources=tuple(table.get("sources", ())),
            notes=table.get("notes", ""),
            **{key: table[key] for key in _SIZE_KEYS},
            embedding=embedding,
            layers=layers,
            head=head,
            init=init,
        )
    except ValidationError as error:
        raise RecipeError(problems_of(Recipe, error), where) from None


def _check_top(table: dict[str, Any], problems: list[Problem]) -> None:
    for key in table:
        if key not in TOP_KEYS:
            close = nearest(key, TOP_KEYS) or ""
            problems.append(Problem(key, "unknown key", table[key], ", ".join(TOP_KEYS), close, has_value=True))
    for key in _TABLES:
        if key in table and not isinstance(table[key], dict):
            problems.append(Problem(key, "not a table", table[key], f"[{key}]", has_value=True))
            table[key] = {}
    for key in ("name", "notes"):
        if not isinstance(table.get(key, ""), str):
            problems.append(Problem(key, "not a string", table[key], "text", has_value=True))
    sources = table.get("sources", [])
    if not isinstance(sources, list | tuple) or not all(isinstance(s, str) for s in sources):
        problems.append(Problem("sources", "not a list of strings", sources, '["arXiv:..."]', has_value=True))
    for name, layer in table.get("layers", {}).items():
        if not isinstance(layer, dict):
            problems.append(Problem(f"layers.{name}", "not a table", layer, f"[layers.{name}]", has_value=True))
        if name == "block":
            problems.append(Problem("layers.block", "block is what all layers share", allowed="another name"))


def _sizes(table: dict[str, Any], n_layers: int, problems: list[Problem]) -> Sizes | None:
    ok = True
    for key in _SIZE_KEYS:
        value = table.get(key)
        if value is None:
            problems.append(Problem(key, "missing; it has no default", allowed="a positive integer"))
        elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problems.append(Problem(key, "not a positive integer", value, "1, 2, 3, ...", has_value=True))
        else:
            continue
        ok = False
    if not ok or not n_layers:
        return None
    return Sizes(table["d_model"], table["vocab_size"], table["max_seq_len"], n_layers)


def _layers(
    table: dict[str, Any], names: list[str], context: dict[str, Any], found: list[Problem]
) -> tuple[Layer, ...]:
    block, over, raws = table.get("block", {}), {}, {}
    for name in dict.fromkeys(names):
        own = table.get("layers", {}).get(name, {}) if name != "block" else {}
        over[name] = own
        raws[name] = raw = deep_merge(block, own if isinstance(own, dict) else {})
        if "name" in raw:
            place = "block.name" if "name" in block else f"layers.{name}.name"
            found.append(Problem(place, "unknown key: a layer's name is its table's", raw["name"], has_value=True))
    built: dict[tuple[str, int | None], Layer | None] = {}
    places = list(zip(names, place_sources(names, raws, found), strict=True))
    for name, source in dict.fromkeys(places):
        raw = {"mixer": None, "ffn": None, "residual": None, **with_source(raws[name], source), "name": name}
        try:
            built[name, source] = validated(Layer, raw, context)
        except PydanticCustomError as error:
            built[name, source] = None
            new = (_placed(p, name, over[name], block) for p in _problems_in(error))
            found.extend(p for p in new if p not in found)
    layers = tuple(layer for name, source in places if (layer := built[name, source]) is not None)
    return layers if len(layers) == len(names) else ()


def _depth(table: Any, parts: list[str]) -> tuple[Any, int]:
    """How far down a table a path leads, and the node it leads to."""
    node, depth = table, 0
    while depth < len(parts) and isinstance(node, Mapping) and parts[depth] in node:
        node, depth = node[parts[depth]], depth + 1
    return node, depth


def _placed(problem: Problem, name: str, over: Any, block: Any) -> Problem:
    """The problem with its path in the authoring file: in the named layer where it wrote the value, else in block."""
    parts = problem.path.split(".") if problem.path else []
    node, depth = _depth(over, parts)
    missing = problem.message.startswith("missing")
    shorthand = depth > 0 and not isinstance(node, Mapping)  # a bare string stands for the whole node
    deeper = depth > _depth(block, parts)[1]  # a rule's norm is told at the slot it fills, which nobody wrote
    written = depth == len(parts) or shorthand or deeper or (missing and depth == len(parts) - 1 and depth > 0)
    own = name != "block" and written
    prefix = f"layers.{name}" if own else "block"
    path = ".".join([prefix, *parts])
    if problem.has_value and problem.value is None and len(parts) == 1 and parts[0] in ("mixer", "ffn", "residual"):
        return Problem(path, "missing; it has no default", allowed=problem.allowed)
    return problem.under(prefix)


def _problems_in(error: PydanticCustomError) -> list[Problem]:
    context: dict[str, Any] = dict(error.context or {})
    problems: list[Problem] = context["problems"]
    return problems


def _spec(cls: type[S], table: dict[str, Any], key: str, context: dict[str, Any], found: list[Problem]) -> S | None:
    try:
        return validated(cls, table.get(key, {}), context)
    except PydanticCustomError as error:
        found += [p.under(key) for p in _problems_in(error)]
        return None


def _init(
    table: dict[str, Any],
    parts: tuple[Embedding, Head, tuple[Layer, ...]],
    context: dict[str, Any],
    found: list[Problem],
) -> Init | None:
    """``weights`` spread over the roles that exist, roles by name laid over it."""
    raw = dict(table.get("init", {}))
    weights = raw.pop("weights", DEFAULT_WEIGHTS)
    depth = raw.pop("depth", "none")
    want = [str(role) for role in matrix_roles(*parts)]
    _check_init_keys(raw, want, found)
    scale = _part(DepthScale, depth, "depth", context, found)
    zero = {role for role in want if scale is not None and scale.zeroes(ParamRole(role))}
    if "weights" in table.get("init", {}) and all(role in raw or role in zero for role in want):
        found.append(Problem("init.weights", "has no effect: every role has its own", weights, has_value=True))
    # what is wrong with the weights is told where they are written, once
    places = {role: role if role in raw else "weights" for role in want}
    written = {role: raw.get(role, "zero" if role in zero else weights) for role in want}
    roles = [(role, _part(Distribution, written[role], places[role], context, found)) for role in want]
    if scale is None or any(distribution is None for _, distribution in roles):
        return None
    entries = tuple(RoleInit(role=ParamRole(role), distribution=d) for role, d in roles if d is not None)
    return Init(roles=entries, depth=scale)


def _part(base: type[P], value: Any, key: str, context: dict[str, Any], found: list[Problem]) -> P | None:
    try:
        part: P = make(base, base.shorthand(value, context["sizes"]), context)
        return part
    except PydanticCustomError as error:
        found += [p.under(f"init.{key}") for p in _problems_in(error)]
        return None


def _check_init_keys(raw: dict[str, Any], want: list[str], found: list[Problem]) -> None:
    keys = ["weights", "depth", *want]
    for key in raw:
        if key in keys:
            continue
        exists = key in [str(role) for role in MATRIX_ORDER]
        message = f"has no effect: the recipe has no {key} matrix" if exists else "unknown key"
        close = "" if exists else nearest(key, keys) or ""
        found.append(Problem(f"init.{key}", message, raw[key], ", ".join(keys), close, has_value=True))
