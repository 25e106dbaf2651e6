"""The holes that families are made of. Each says how one foreign value reads as a recipe value, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from assay.interop.config import Config
from assay.interop.errors import UnsupportedArchitecture, shown
from assay.interop.template import OMIT, At, Entries, Hole, Spot, collect, matches, put


@dataclass(frozen=True)
class Key(Hole):
    """A value as it is. ``otherwise`` computes it where the config says null or nothing.

    ``implied``: on the way out the key is left away where ``otherwise`` would give the same.
    """

    name: str
    otherwise: Callable[[Config], Any] | None = None
    implied: bool = False

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        value = cfg.get(self.name) if self.otherwise is not None else cfg[self.name]
        if value is None and self.otherwise is not None:
            return self.otherwise(cfg)
        if value is None:
            raise cfg.fault(self.name, value, "a value")
        return value

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        if self.implied and self.otherwise is not None and spot.defaults.get(self.name) is None:
            try:
                told = self.otherwise(Config({**spot.defaults, **out}, str(spot.defaults["model_type"])))
            except (ValueError, TypeError):
                told = None
            if told == node:
                return
        put(out, self.name, node)


@dataclass(frozen=True)
class Derived(Hole):
    """A value that follows from other keys and has none of its own."""

    rule: Callable[[Config], Any]
    keys: tuple[str, ...] = ()

    def read(self, cfg: Config, at: At) -> Any:
        return self.rule(cfg)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        return


@dataclass(frozen=True)
class SameAs(Hole):
    """A value that equals a neighbour of its table, whose key is ``name``: key/value heads as many as query heads."""

    field: str
    name: str

    def read(self, cfg: Config, at: At) -> Any:
        return cfg[self.name]

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return bool(node == parent.get(self.field))

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        return


@dataclass(frozen=True)
class OrNone(Hole):
    """A number, or null for the recipe's ``"none"`` (soft-caps, clips). Zero counts as a number."""

    name: str
    none: Any = "none"

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        value = cfg[self.name]
        return self.none if value is None else value

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        put(out, self.name, None if node == self.none else node)


@dataclass(frozen=True)
class Rate(Hole):
    """A dropout rate; null is 0. Keys the config class lacks may be read but never written."""

    name: str

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        return float(cfg.get(self.name) or 0.0)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        put(out, self.name, node)


@dataclass(frozen=True)
class Word(Hole):
    """A name out of a fixed vocabulary: ``words`` maps foreign names to kinds of the recipe."""

    name: str
    words: Mapping[str, Any]

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        value = cfg[self.name]
        if not isinstance(value, str) or value not in self.words:
            raise UnsupportedArchitecture(
                f"{cfg.where}: {self.name} = {value!r} has no kind in a recipe; known: {shown(sorted(self.words), 20)}"
            )
        return self.words[value]

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return any(matches(kind, node) for kind in self.words.values())

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        names = [name for name, kind in self.words.items() if matches(kind, node)]
        usual = spot.defaults.get(self.name)
        if names:
            put(out, self.name, usual if usual in names else names[0])


@dataclass(frozen=True)
class Biases(Hole):
    """Which projections have a bias: each flag switches some, ``always`` are there whatever the flags say."""

    flags: Mapping[str, tuple[str, ...]]
    always: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.flags)

    def read(self, cfg: Config, at: At) -> Any:
        on = {name for flag, names in self.flags.items() if cfg[flag] for name in names} | set(self.always)
        return sorted(on)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        for flag, names in self.flags.items():
            put(out, flag, set(names) <= set(node))


def same(value: Any) -> Hashable:
    """The selector of a switch that looks at its key's value itself."""
    hashable: Hashable = value
    return hashable


@dataclass(frozen=True)
class Switch(Hole):
    """One of several templates, chosen by a key. On the way out the first that fits counts: the narrower stand first.

    ``by`` turns the key's value into the name of a case. ``values`` says what to write for a case; a case whose value
    is ``OMIT`` leaves the key to another hole.
    """

    name: str
    cases: Mapping[Hashable, Any]
    by: Callable[[Any], Hashable] = same
    values: Mapping[Hashable, Any] | None = None

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        value = cfg[self.name]
        try:
            return self.cases[self.by(value)]
        except (KeyError, TypeError):
            known = shown(repr(case) for case in self.cases)
            raise UnsupportedArchitecture(
                f"{cfg.where}: {self.name} = {value!r} is not supported; known: {known}"
            ) from None

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return any(matches(case, node, parent) for case in self.cases.values())

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        told = self.by(out[self.name]) if self.name in out and self.values is None else None
        first = [told] if told in self.cases else []
        for name in (*first, *self.cases):  # a case that another hole has chosen stays chosen, if it fits
            case = self.cases[name]
            if matches(case, node, spot.parent):
                value = name if self.values is None else self.values.get(name, OMIT)
                if value is not OMIT:
                    put(out, self.name, value)
                collect(case, node, spot, out)
                return

    def inside(self) -> Iterator[Any]:
        return iter(self.cases.values())


@dataclass(frozen=True)
class Window(Hole):
    """A sliding window; null is the full span, unless ``required``. ``only_if`` names a flag that must be on."""

    name: str = "sliding_window"
    only_if: str | None = None
    required: bool = False

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,) if self.only_if is None else (self.name, self.only_if)

    def read(self, cfg: Config, at: At) -> Any:
        size = cfg[self.name]
        if self.only_if is not None and not cfg[self.only_if]:
            size = None
        if size is None and self.required:
            raise cfg.fault(self.name, cfg[self.name], "a window, since some layers slide")
        return "full" if size is None else {"kind": "window", "size": size}

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return matches({"kind": "window", "causal": True}, node) or (not self.required and matches("full", node))

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        windowed = matches({"kind": "window"}, node)
        put(out, self.name, node["size"] if windowed else None)
        if self.only_if is not None:
            put(out, self.only_if, windowed)


@dataclass(frozen=True)
class Scale(Hole):
    """The factor on q·k; null is 1/√head_dim. ``back`` undoes ``to``; without them the key holds the factor itself."""

    name: str
    to: Callable[[float], float] | None = None
    back: Callable[[float], float] | None = None

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        value = cfg[self.name]
        if value is None:
            return "inv_sqrt_head_dim"
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise cfg.fault(self.name, value, "a positive number")
        return float(value) if self.to is None else self.to(value)

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return bool(node != "inv_head_dim")

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        factor = spot.parent["head_dim"] ** -0.5 if node == "inv_sqrt_head_dim" else node
        if isinstance(factor, int | float):
            put(out, self.name, factor if self.to is None or self.back is None else undo(self.to, self.back, factor))


@dataclass(frozen=True)
class Inverse(Hole):
    """One over the key's value (Granite's ``logits_scaling``)."""

    name: str

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        value = cfg[self.name]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise cfg.fault(self.name, value, "a positive number")
        return 1.0 / value

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return isinstance(node, int | float)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        if isinstance(node, int | float):
            put(out, self.name, undo(lambda v: 1.0 / v, lambda v: 1.0 / v, node))


@dataclass(frozen=True)
class Start(Hole):
    """The init of every matrix from ``initializer_range``; null or 0 leaves the recipe's default."""

    name: str = "initializer_range"

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        std = cfg.get(self.name)
        return {"kind": "normal", "std": float(std)} if std else OMIT

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        if matches("normal", node):
            put(out, self.name, node["std"])


def undo(to: Callable[[float], float], back: Callable[[float], float], value: float) -> float:
    """The number that ``to`` maps to exactly ``value``: ``back`` of it, a whole number, or a near float."""
    guess = back(value)
    whole = round(guess)
    if abs(guess - whole) < 1e-9 * max(1.0, abs(guess)) and whole and to(whole) == value:
        return whole
    up = down = guess
    for _ in range(8):
        if to(up) == value:
            return up
        if to(down) == value:
            return down
        up, down = math.nextafter(up, math.inf), math.nextafter(down, 0.0)
    return guess
