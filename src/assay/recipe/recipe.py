"""The recipe: a model's architecture and its start, complete, one full layer a depth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from assay.recipe.base import Part, Spec, refuse
from assay.recipe.embedding import Embedding, Head, LinearProjection
from assay.recipe.init import MATRIX_ORDER, Init, Place
from assay.recipe.layer import Layer, norms_of
from assay.recipe.mixer import Attention, attentions_of, check_sources
from assay.recipe.position import LearnedPosition, SinusoidalPosition, T5Bias
from assay.recipe.roles import ParamRole
from assay.recipe.sharing import written_sources


class Recipe(Spec):
    """A decoder, written out. Only this form is read by cost, model, training and interop.

    ``digest`` identifies architecture and init; ``name``, ``sources``, ``notes`` and layer names are not part of it.
    """

    name: str
    sources: Annotated[tuple[str, ...], Field(strict=False)] = ()
    notes: str = ""
    d_model: PositiveInt
    vocab_size: PositiveInt
    max_seq_len: PositiveInt
    embedding: Embedding
    layers: tuple[Layer, ...] = Field(min_length=1)
    head: Head
    init: Init

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        embedding, head = self.embedding, self.head
        if embedding.tied and embedding.projection != head.projection:
            same_dim = (
                isinstance(embedding.projection, LinearProjection)
                and isinstance(head.projection, LinearProjection)
                and embedding.projection.dim == head.projection.dim
            )
            if not same_dim:
                raise refuse("head.projection", "a tied table is as wide at the head as at the embedding")
        position = embedding.position
        if isinstance(position, SinusoidalPosition) and position.spacing == "inclusive" and self.d_model < 4:
            raise refuse(
                "embedding.position.spacing", "needs two pairs of channels", "inclusive", "d_model >= 4, or paper"
            )
        for path, norm in norms_of(head, "head"):
            if norm.kind_name == "fixnorm":
                raise refuse(path, "fixnorm acts on embedding rows only", "fixnorm", "scalenorm, rmsnorm, layernorm")
        _check_shared_tables(self.layers)
        check_sources([layer.mixer for layer in self.layers])
        have = tuple(entry.role for entry in self.init.roles)
        want = matrix_roles(embedding, head, self.layers)
        for role in have:
            if role not in want:
                raise refuse(f"init.{role}", f"has no effect: the recipe has no {role} matrix", allowed=", ".join(want))
        for role in want:
            if role not in have:
                raise refuse(f"init.{role}", "missing", allowed="a distribution, or init.weights")
        self._check_depth()
        return self

    def _check_depth(self) -> None:
        """The depth rule must shrink something, and a role that it starts at 0 has no other distribution."""
        rule, counts = self.init.depth, False
        for entry in self.init.roles:
            kind = entry.distribution.kind_name
            if rule.zeroes(entry.role) and kind != "zero":
                message = f"has no effect: {rule.kind_name} starts it at 0"
                raise refuse(f"init.{entry.role}", message, kind, "zero, or left out")
            if rule.is_none or kind == "zero" or counts:
                continue
            places = (Place(entry.role, layer, self.n_branches, self.n_layers) for layer in range(self.n_layers))
            counts = any(rule.factor(place) != 1.0 for place in places)
        if not rule.is_none and not counts:
            raise refuse("init.depth", "has no effect: it changes no matrix here", rule.kind_name, "none")

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def n_branches(self) -> int:
        """Sublayers that write to the residual stream, over the whole stack."""
        return sum(layer.n_branches for layer in self.layers)

    @cached_property
    def kv_sources(self) -> tuple[int | None, ...]:
        """For each layer the depth of the one whose keys and values it reads; None where they are its own."""
        return tuple(layer.mixer.source if isinstance(layer.mixer, Attention) else None for layer in self.layers)

    @property
    def embedding_width(self) -> int:
        """Columns of the token table."""
        projection = self.embedding.projection
        return projection.dim if isinstance(projection, LinearProjection) else self.d_model

    @property
    def head_width(self) -> int:
        """Columns of the output table."""
        projection = self.head.projection
        return projection.dim if isinstance(projection, LinearProjection) else self.d_model

    @cached_property
    def digest(self) -> str:
        """sha256 over the canonical JSON of architecture and init, in hexadecimal."""
        body = self.model_dump(mode="json", exclude={"name", "sources", "notes", "layers"})
        body["layers"] = [dump for dump, _ in _layer_dumps(self)]
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The authoring form with nothing left to default; ``resolve`` of it gives an equal recipe.

        Equal layers are written once, under their name, and counted in ``stack``.
        """
        out = self.model_dump(mode="json", exclude={"layers", "init"})
        named: dict[str, dict[str, Any]] = {}
        runs: list[tuple[str, int]] = []
        keys: dict[str, str] = {}
        for dump, name in self._written_layers():
            text = json.dumps(dump, sort_keys=True)
            if text not in keys:
                keys[text] = _fresh(name, named)
                named[keys[text]] = dump
            key = keys[text]
            if runs and runs[-1][0] == key:
                runs[-1] = (key, runs[-1][1] + 1)
            else:
                runs.append((key, 1))
        out["layers"] = named
        out["stack"] = stack_of_runs(runs)
        out["init"] = {
            **{str(e.role): e.distribution.model_dump(mode="json") for e in self.init.roles},
            "depth": self.init.depth.model_dump(mode="json"),
        }
        return out

    def _written_layers(self) -> Iterator[tuple[dict[str, Any], str]]:
        """As :func:`_layer_dumps`; layers of one name say whose keys they read in the same words, where they can."""
        dumps, sources = list(_layer_dumps(self)), self.kv_sources
        if all(source is None for source in sources):
            yield from dumps
            return
        shapes: dict[str, set[int]] = {}
        for dump, name in dumps:
            shapes.setdefault(name, set()).add(id(dump))
        names = [name if name != "block" and len(shapes[name]) == 1 else "" for _, name in dumps]
        owners = [own if source is None else name for own, source, (_, name) in zip(names, sources, dumps, strict=True)]
        for (dump, name), source in zip(dumps, written_sources(owners, sources), strict=True):
            if source is not None:
                mixer = dump["mixer"]
                dump = {**dump, "mixer": {**mixer, "kv": {**mixer["kv"], "layer": source}}}
            yield dump, name

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.to_dict())


def matrix_roles(embedding: Embedding, head: Head, layers: tuple[Layer, ...]) -> tuple[ParamRole, ...]:
    """The roles of drawn matrices that this recipe has, in fixed order."""
    found = {ParamRole.EMBEDDING}
    if not embedding.tied:
        found.add(ParamRole.HEAD)
    if isinstance(embedding.position, LearnedPosition):
        found.add(ParamRole.POSITION)
    if not (embedding.projection.is_none and head.projection.is_none and head.transform.is_none):
        found.add(ParamRole.PROJECTION)
    for layer in {id(layer): layer for layer in layers}.values():  # a stack repeats its layers
        found.update(_roles(layer))
    return tuple(role for role in MATRIX_ORDER if role in found)


def _check_shared_tables(layers: tuple[Layer, ...]) -> None:
    first = layers[0].mixer
    source = first.position if isinstance(first, Attention) else None
    owns = isinstance(source, T5Bias) and source.table == "own"
    for i, layer in enumerate(layers):
        for mixer in attentions_of(layer.mixer):
            position = mixer.position
            if not isinstance(position, T5Bias) or position.table == "own":
                continue
            path = f"layers.{i}.mixer.position.table"
            if i == 0 or not owns or not isinstance(first, Attention):
                raise refuse(path, "the first layer has no T5 table of its own to share", "first", "own")
            if position.n_buckets != getattr(source, "n_buckets", 0) or mixer.n_heads != first.n_heads:
                raise refuse(path, "the first layer's table has other buckets or heads", "first", "equal ones, or own")


def _roles(spec: Spec) -> Iterator[ParamRole]:
    for field in type(spec).model_fields:
        value = getattr(spec, field)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Part):
                yield from getattr(item, "matrix_roles", ()) if item.kind_name != "sum" else ()
                yield from _roles(item)


def _layer_dumps(recipe: Recipe) -> Iterator[tuple[dict[str, Any], str]]:
    """Each layer without its name, and the name; equal layers are dumped once."""
    seen: dict[Layer, dict[str, Any]] = {}
    for layer in recipe.layers:
        if layer not in seen:
            seen[layer] = layer.model_dump(mode="json", exclude={"name"})
        yield seen[layer], layer.name


def _fresh(name: str, taken: dict[str, Any]) -> str:
    if name == "block":  # "block" is what all layers share, so a dumped layer needs a name of its own
        name = "layer"
    if name not in taken:
        return name
    n = 2
    while f"{name}-{n}" in taken:
        n += 1
    return f"{name}-{n}"


def stack_of_runs(runs: list[tuple[str, int]]) -> list[Any]:
    """A stack as an author writes it: one cycle that repeats (its last turn may be cut short), else its runs."""
    flat = [name for name, n in runs for _ in range(n)]
    total = len(flat)
    for period in range(2, min(24, total // 2) + 1):
        if len(set(flat[:period])) > 1 and all(flat[i] == flat[i % period] for i in range(total)):
            cycle: list[tuple[str, int]] = []
            for name in flat[:period]:
                cycle = (
                    [*cycle[:-1], (name, cycle[-1][1] + 1)] if cycle and cycle[-1][0] == name else [*cycle, (name, 1)]
                )
            return [{"cycle": [_entry(*run) for run in cycle], "n_layers": total}]
    return [_entry(*run) for run in runs]


def _entry(name: str, n: int) -> str:
    return name if n == 1 else f"{n} {name}"
