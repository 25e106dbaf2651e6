"""A family of foreign models: one description, read into a recipe and written back out of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.interop.common import COMMON, REQUIRED, SPECIAL_TOKENS
from assay.interop.config import Config, defaults_of, flat, folded
from assay.interop.errors import InteropError, UnsupportedArchitecture, closest, shown
from assay.interop.template import At, Entries, Hole, Spot, collect, fill, holes, matches, overlaid, put
from assay.interop.tensors import Move
from assay.recipe import Layer, Recipe, RecipeError, resolve

Template = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """A choice a layer, told by a list in the config: ``layer_types``, ``no_rope_layers``.

    Attributes:
        key: the foreign list.
        cases: foreign value -> (name in the stack, template laid over ``block``); tried in order on the way out.
        otherwise: the list where the config gives none.
        also: keys that repeat what the list says, computed from it on the way out.
        keys: foreign keys that only ``otherwise`` and ``also`` touch.
        raw: turns the config's value into one entry a layer, and back.
    """

    key: str
    cases: Mapping[Any, tuple[str, Template]]
    otherwise: Callable[[Config, int], list[Any]]
    also: Callable[[list[Any]], Entries] | None = None
    keys: tuple[str, ...] = ()
    unpack: Callable[[Any], list[Any]] = list
    pack: Callable[[list[Any]], Any] = list

    def read(self, cfg: Config, n_layers: int) -> list[Any]:
        """What the config says of every layer."""
        value = cfg.get(self.key)
        try:
            found = self.otherwise(cfg, n_layers) if value is None else self.unpack(value)
        except (TypeError, ValueError, IndexError) as error:
            if isinstance(error, InteropError):
                raise
            raise cfg.fault(self.key, value, "one entry a layer") from None
        if len(found) != n_layers:
            raise cfg.fault(self.key, value, f"one entry for each of {n_layers} layers, not {len(found)}")
        for entry in found:
            if entry not in self.cases:
                known = shown(repr(case) for case in self.cases)
                raise UnsupportedArchitecture(f"{cfg.where}: {self.key} holds {entry!r}; known: {known}")
        return found

    def write(self, cases: list[Any], out: Entries) -> None:
        put(out, self.key, self.pack(cases))
        for key, value in (self.also(cases) if self.also is not None else {}).items():
            put(out, key, value)


@dataclass(frozen=True)
class Limit:
    """What transformers asks of a config beyond its keys: a recipe that breaks it is not written."""

    field: str  # of the recipe
    says: str
    holds: Callable[[Mapping[str, Any]], bool]  # of the config


@dataclass(frozen=True)
class Constant:
    """A number of the recipe that foreign files hold as a tensor: checked on the way in, written on the way out."""

    theirs: str  # {i} is the depth
    value: Callable[[Layer], float]


WHOLE_HEADS = Limit(
    "layers.*.mixer.n_heads", "must divide d_model", lambda c: c["hidden_size"] % c["num_attention_heads"] == 0
)


@dataclass(frozen=True)
class Family:
    """What every key and every tensor of one ``model_type`` means.

    Attributes:
        recipe: an authored recipe with holes; ``block`` is what all layers share.
        tensors: where each foreign tensor goes.
        axes: choices a layer.
        fixed: keys that must have one of these values: no recipe expresses the others.
        ignored: keys that change no number, with the reason.
        dropped: regular expressions of tensors that hold no weight, with the reason.
        prefix: what the base model's tensors start with; files without it are read too.
        aliases: further foreign names of keys.
        limits: what transformers asks of the config as a whole.
        nested: tables inside the config, whose keys are called ``table.key`` here.
        constants: numbers that the files hold as tensors.
        told_tokens: ids of special tokens that the config class wants as numbers; never written as null.
        masked: the class of a model whose attention sees both ways, where the family has one.
    """

    model_type: str
    architecture: str
    recipe: Template
    tensors: tuple[Move, ...]
    n_layers: str = "num_hidden_layers"
    axes: tuple[Axis, ...] = ()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    prefix: str = "model."
    aliases: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    nested: tuple[str, ...] = ()
    constants: tuple[Constant, ...] = ()
    told_tokens: tuple[str, ...] = ()
    masked: str = ""

    def architecture_of(self, config: Mapping[str, Any]) -> str:
        """The class that transformers builds for a config of this family."""
        return self.masked if self.masked and not config.get("is_decoder") else self.architecture

    @property
    def block(self) -> Template:
        block: Template = self.recipe["block"]
        return block

    def _ends(self) -> dict[str, Any]:
        return {key: value for key, value in self.recipe.items() if key != "block"}

    def holes(self) -> Iterator[Hole]:
        """Every hole of the description."""
        yield from holes(self.recipe)
        for axis in self.axes:
            for _, overlay in axis.cases.values():
                yield from holes(overlay)

    def claims(self) -> dict[str, str]:
        """Every foreign key that is dealt with, and how: ``maps``, ``fixed``, or the reason it is ignored."""
        out = {**COMMON, **dict.fromkeys(REQUIRED, "fixed"), **self.ignored, **dict.fromkeys(self.fixed, "fixed")}
        out.update(dict.fromkeys((self.n_layers, "tie_word_embeddings"), "maps"))
        for axis in self.axes:
            out.update(dict.fromkeys((axis.key, *axis.keys), "maps"))
        for hole in self.holes():
            out.update(dict.fromkeys(hole.keys, "maps"))
        return out

    # from a config

    def config(self, raw: Mapping[str, Any], where: str = "config.json") -> Config:
        """A config of this family as data."""
        return Config(flat(raw, self.nested), self.model_type, where, self.aliases)

    def check(self, cfg: Config, ignore: tuple[str, ...] = ()) -> None:
        """Raise for a key that no rule deals with, or whose value no recipe expresses."""
        claims = self.claims()
        for key, value in cfg.raw.items():
            inner = key.rpartition(".")[2]
            if value is None or key in claims or key in ignore or inner.startswith("_"):
                continue
            if inner != key and (inner in COMMON or value in REQUIRED.get(inner, ())):
                continue
            raise InteropError(
                f"{cfg.where}: {key} = {value!r}: {self.model_type} has no rule for this key "
                f"(nearest: {closest(key, claims)}); if it changes no number, name it in ignore"
            )
        for key, allowed in {**REQUIRED, **self.fixed}.items():
            value = cfg.get(key)
            if value is not None and value not in allowed and key not in ignore:
                raise UnsupportedArchitecture(
                    f"{cfg.where}: {key} = {value!r}: only {shown(map(repr, allowed))} can be expressed"
                )

    def authored(self, cfg: Config) -> dict[str, Any]:
        """The authored recipe that a config stands for."""
        n = cfg.integer(self.n_layers)
        lists = {axis.key: axis.read(cfg, n) for axis in self.axes}
        tables: list[dict[str, Any]] = []
        names: list[str] = []
        for depth in range(n):
            template: Mapping[str, Any] = self.block
            words = []
            for axis in self.axes:
                word, overlay = axis.cases[lists[axis.key][depth]]
                template = overlaid(template, overlay)
                words.append(word)
            at = At(depth, {key: values[depth] for key, values in lists.items()})
            tables.append(fill(template, cfg, at))
            names.append("-".join(word for word in words if word) or "layer")
        return {**fill(self._ends(), cfg, At()), **_stacked(tables, names)}

    def read(self, cfg: Config, ignore: tuple[str, ...] = ()) -> Recipe:
        """The recipe of a checked config."""
        self.check(cfg, ignore)
        try:
            return resolve({"name": self.model_type, **self.authored(cfg)}, cfg.where)
        except RecipeError as error:
            raise InteropError(str(error)) from None

    # to a config

    def write(self, recipe: Recipe) -> dict[str, Any]:
        """The config that says most of a recipe; what it loses shows when it is read again."""
        defaults = {**defaults_of(self.model_type), "model_type": self.model_type}
        top = recipe.model_dump(mode="json")
        roles = {entry["role"]: entry["distribution"] for entry in top["init"]["roles"]}
        top["init"] = {**roles, "weights": _usual_init(top["init"])}
        out: Entries = {}
        ends = Spot(At(), top, {}, top, defaults)
        both = self._ends()
        # sizes first, which other holes lean on; then the layers, which decide more switches than the two ends
        late = {key: both.pop(key) for key in ("embedding", "head")}
        collect(both, top, ends, out)
        out[self.n_layers] = recipe.n_layers
        cases = {axis.key: [self._case(axis, layer) for layer in top["layers"]] for axis in self.axes}
        for axis in self.axes:
            axis.write(cases[axis.key], out)
        seen: list[tuple[Any, dict[str, Any]]] = []
        for depth, layer in enumerate(top["layers"]):
            body = {key: value for key, value in layer.items() if key != "name"}
            own = {key: values[depth] for key, values in cases.items()}
            if (body, own) in seen:
                continue
            seen.append((body, own))
            template: Mapping[str, Any] = self.block
            for axis in self.axes:
                template = overlaid(template, axis.cases[own[axis.key]][1])
            collect(template, body, Spot(At(depth, own), top, body, body, defaults), out)
        collect(late, top, ends, out)
        return folded({**{k: v for k, v in defaults.items() if k not in SPECIAL_TOKENS}, **out}, self.nested)

    def _case(self, axis: Axis, layer: Mapping[str, Any]) -> Any:
        for value, (_, overlay) in axis.cases.items():
            if matches(overlay, layer):
                return value
        return next(iter(axis.cases))


def _usual_init(init: Mapping[str, Any]) -> Any:
    found = [entry["distribution"] for entry in init["roles"]]
    return max(found, key=found.count)


def _stacked(tables: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Layers of a stack by name; equal ones share a name."""
    if all(table == tables[0] for table in tables):
        return {"block": tables[0], "n_layers": len(tables)}
    layers: dict[str, dict[str, Any]] = {}
    stack = []
    for table, name in zip(tables, names, strict=True):
        fresh, n = name, 1
        while fresh in layers and layers[fresh] != table:
            n += 1
            fresh = f"{name}-{n}"
        layers[fresh] = table
        stack.append(fresh)
    return {"layers": layers, "stack": stack}
