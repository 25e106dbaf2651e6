"""Rotary positions in both dialects of config.json.

New: ``rope_parameters``, one table or one a layer type. Old: ``rope_theta``, ``rope_scaling`` and a rotary fraction at
the top level. A file that speaks both must say the same twice. What is written speaks both, so that a reader of either
dialect finds the numbers and falls back on no default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.interop.config import Config
from assay.interop.errors import InteropError, UnsupportedArchitecture, shown
from assay.interop.template import At, Entries, Hole, Spot, matches, put
from assay.recipe.base import kinds_of
from assay.recipe.position import RopeScaling

# what each rope type reads beside theta and the fraction
_KNOWN = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    ),
    "ntk_alpha": ("alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),  # all but alpha are idle
    "dynamic": ("factor",),
    "longrope": (
        "factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor",
    ),
}  # fmt: skip
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_IDLE = ("finetuned",)  # seen in published files, read by nobody
_LACKING = {"proportional": "proportional"}  # rope type -> the kind it would need


@dataclass(frozen=True)
class RopeKeys:
    """What a family calls things, and what it assumes where the config is silent."""

    theta: float = 10_000.0
    fraction: float = 1.0
    theta_key: str = "rope_theta"
    fraction_key: str = "partial_rotary_factor"
    partial: bool = False  # the family rotates only a part of each head if told so
    local_theta: float = 10_000.0  # of the sliding layers, where the family has two bases
    local_theta_key: str = "rope_theta"
    scaled: tuple[str, ...] = ("full_attention", "sliding_attention")  # layer types that old ``rope_scaling`` reaches
    types: tuple[str, ...] | None = None  # the rope types that the family reads; None: all
    renamed: tuple[tuple[str, str], ...] = ()  # older names of rope types
    original_key: str | None = None  # a top-level key that holds the original length
    silent: tuple[tuple[str, Any], ...] = ()  # the whole table of a config that says nothing at all
    beside: tuple[str, ...] = ()  # keys of the table that are not about rotation; other holes read them


@dataclass(frozen=True)
class RopeHole(Hole):
    """``position = {kind = "rope", …}``. ``by``: the axis whose layer types have tables of their own."""

    layout: str = "half"
    names: RopeKeys = RopeKeys()
    by: str | None = None
    alpha: bool = False  # "dynamic" with an ``alpha`` is a fixed stretch of the base (Hunyuan)

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        n = self.names
        extra = (n.original_key,) if n.original_key else ()
        found = ("rope_parameters", "rope_scaling", n.theta_key, n.local_theta_key, n.fraction_key, *extra)
        return tuple(dict.fromkeys(found))

    def read(self, cfg: Config, at: At) -> Any:
        kind = None if self.by is None else str(at.cases[self.by])
        return self._position(cfg, self.table(cfg, kind))

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return matches({"kind": "rope", "layout": self.layout}, node)

    def table(self, cfg: Config, layer_type: str | None) -> dict[str, Any]:
        """Everything the config says of these layers' RoPE, under the new names."""
        new, old = self._new(cfg, layer_type), self._old(cfg, layer_type)
        if new is not None and (cfg.says("rope_scaling") or cfg.says(self.names.theta_key)):
            for key in sorted(set(new) & set(old)):
                if new[key] != old[key] and self._spoken(cfg, key, layer_type):
                    raise InteropError(
                        f"{cfg.where}: rope_parameters says {key} = {new[key]!r}, the older keys say {old[key]!r}"
                    )
        table = {**old, **(new or {})}
        if not table["rope_theta"]:
            raise cfg.fault(self.names.theta_key, table["rope_theta"], "a base above 1")
        return table

    def _spoken(self, cfg: Config, key: str, layer_type: str | None) -> bool:
        """Whether the older dialect really gives this value, rather than a default filling in."""
        if key == "rope_theta":
            return cfg.says(self._theta_key(layer_type))
        if key == "partial_rotary_factor":
            return cfg.says(self.names.fraction_key)
        return cfg.says("rope_scaling")

    def _theta_key(self, layer_type: str | None) -> str:
        return self.names.local_theta_key if layer_type == "sliding_attention" else self.names.theta_key

    def _new(self, cfg: Config, layer_type: str | None) -> dict[str, Any] | None:
        tables = cfg.raw.get("rope_parameters")
        if not tables:
            return None
        if not isinstance(tables, Mapping):
            raise cfg.fault("rope_parameters", tables, "a table")
        if layer_type is None:
            if any(isinstance(value, Mapping) for value in tables.values()):
                raise cfg.fault("rope_parameters", sorted(tables), "one table for all layers")
            return _named(tables, cfg)
        if not any(isinstance(value, Mapping) for value in tables.values()):
            raise cfg.fault("rope_parameters", sorted(tables), "one table a layer type")
        return _named(tables.get(layer_type) or {}, cfg)

    def _old(self, cfg: Config, layer_type: str | None) -> dict[str, Any]:
        n = self.names
        scaling = cfg.get("rope_scaling") or {}
        if not isinstance(scaling, Mapping):
            raise cfg.fault("rope_scaling", scaling, "a table")
        local = layer_type == "sliding_attention"
        usual = n.local_theta if local else n.theta
        table = {"rope_theta": cfg.get(self._theta_key(layer_type)) or usual}
        fraction = cfg.get(n.fraction_key)
        table["partial_rotary_factor"] = n.fraction if fraction is None else fraction
        if layer_type is None or layer_type in n.scaled:
            table.update(_named(scaling, cfg))
        if not (scaling or cfg.says("rope_parameters") or cfg.says(self._theta_key(layer_type))):
            table.update(n.silent)
        table.setdefault("rope_type", "default")
        return table

    def _position(self, cfg: Config, table: dict[str, Any]) -> dict[str, Any]:
        kind = dict(self.names.renamed).get(table["rope_type"], table["rope_type"])
        if self.alpha and kind == "dynamic" and table.get("alpha"):
            kind = "ntk_alpha"
            table.pop("factor", None)  # read by nobody beside alpha
        allowed = self.names.types
        if allowed is not None and kind not in allowed and kind not in _LACKING:
            raise UnsupportedArchitecture(f"{cfg.where}: rope type {kind!r}: {cfg.model_type} reads {shown(allowed)}")
        if kind not in _KNOWN:
            lacking = _LACKING.get(kind)
            if lacking is not None and lacking not in kinds_of(RopeScaling):
                raise UnsupportedArchitecture(f"{cfg.where}: rope type {kind!r} needs rope_scaling kind {lacking!r}")
            raise UnsupportedArchitecture(
                f"{cfg.where}: unknown rope type {kind!r}; known: {shown(sorted({*_KNOWN, *_LACKING}), 20)}"
            )
        said = {key: value for key, value in table.items() if value is not None}
        unknown = sorted(set(said) - {*_KNOWN[kind], *_ALWAYS, *_IDLE, *self.names.beside})
        if kind == "default":  # left over by writers that cleared the type only
            unknown = [key for key in unknown if key not in ("factor", "original_max_position_embeddings")]
        if unknown:
            raise InteropError(f"{cfg.where}: rope type {kind!r} does not know {unknown[0]} = {said[unknown[0]]!r}")
        out = {"kind": "rope", "theta": _number(cfg, "rope_theta", table), "layout": self.layout}
        fraction = _number(cfg, "partial_rotary_factor", table)
        if fraction != 1.0 and not self.names.partial:
            raise cfg.fault("partial_rotary_factor", fraction, f"1: {cfg.model_type} rotates whole heads")
        if fraction != 1.0:
            out["fraction"] = _whole(cfg, fraction)
        if kind != "default":
            out["scaling"] = _READ[kind](self, cfg, table)
        return out

    def original(self, cfg: Config, table: Mapping[str, Any]) -> int:
        """The length the frequencies were trained at."""
        key = self.names.original_key
        if key is not None and cfg.get(key) is not None:
            return cfg.integer(key)
        found = table.get("original_max_position_embeddings")
        return int(found) if found is not None else cfg.integer("max_position_embeddings")

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        if not isinstance(node, Mapping) or node.get("kind") != "rope":
            return
        scaling = node["scaling"]
        kind = scaling["kind"]
        table: dict[str, Any] = {"rope_type": "default", "rope_theta": node["theta"]}
        if kind in _WRITE:
            table.update(_WRITE[kind](scaling))
        if self.names.partial:
            table["partial_rotary_factor"] = node["fraction"]
        old = {k: v for k, v in table.items() if k not in ("rope_theta", "partial_rotary_factor")}
        scaled = old if kind != "none" else None
        if self.by is None:
            put(out, "rope_parameters", table)
            put(out, self.names.theta_key, node["theta"])
            if scaled is not None:
                put(out, "rope_scaling", scaled)
            if self.names.partial:
                put(out, self.names.fraction_key, node["fraction"])
        else:
            layer_type = str(spot.at.cases[self.by])
            put(out, "rope_parameters", {layer_type: table})
            put(out, self._theta_key(layer_type), node["theta"])
            if scaled is not None and layer_type in self.names.scaled and self._alike(spot):
                put(out, "rope_scaling", scaled)
        if self.names.original_key is not None and "original_seq_len" in scaling:
            put(out, self.names.original_key, scaling["original_seq_len"])

    def _alike(self, spot: Spot) -> bool:
        """Whether the one table of the older dialect says what all layers that it reaches are scaled by."""
        if len(self.names.scaled) == 1:
            return True
        scalings = [layer["mixer"]["position"].get("scaling") for layer in spot.top["layers"]]
        return all(scaling == scalings[0] for scaling in scalings)


def _named(table: Mapping[str, Any], cfg: Config) -> dict[str, Any]:
    """A rope table with its type under ``rope_type``, and nothing null."""
    out = {key: value for key, value in table.items() if value is not None}
    kind, old = out.get("rope_type"), out.pop("type", None)
    if kind is not None and old is not None and kind != old and "default" not in (kind, old):
        raise InteropError(f"{cfg.where}: rope_type = {kind!r} and type = {old!r} say different things")
    if (kind or old) is not None:
        out["rope_type"] = kind or old
    return out


def _number(cfg: Config, key: str, table: Mapping[str, Any]) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise cfg.fault(f"rope {key}", value, "a number")
    return float(value)


def _whole(cfg: Config, fraction: float) -> float:
    """The fraction whose rotary size is whole: transformers cuts the product down to a whole number."""
    size = cfg.get("head_dim") or cfg.integer("hidden_size") // cfg.integer("num_attention_heads")
    exact = fraction * size
    return fraction if abs(exact - round(exact)) < 1e-6 else int(exact) / float(size)


def _linear(hole: RopeHole, cfg: Config, table: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "linear", "factor": _number(cfg, "factor", table)}


def _llama3(hole: RopeHole, cfg: Config, table: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: _number(cfg, key, table) for key in ("factor", "low_freq_factor", "high_freq_factor")}
    return {"kind": "llama3", **numbers, "original_seq_len": hole.original(cfg, table)}


def _yarn(hole: RopeHole, cfg: Config, table: Mapping[str, Any]) -> dict[str, Any]:
    original = hole.original(cfg, table)
    factor = table.get("factor")
    factor = cfg.integer("max_position_embeddings") / original if factor is None else _number(cfg, "factor", table)
    out = {"kind": "yarn", "factor": factor, "original_seq_len": original}
    out["beta_fast"] = float(table.get("beta_fast") or 32.0)
    out["beta_slow"] = float(table.get("beta_slow") or 1.0)
    out["rounded"] = bool(table.get("truncate", True))
    scale, over = table.get("mscale"), table.get("mscale_all_dim")
    if table.get("attention_factor") is not None:
        out["attention_factor"] = _number(cfg, "attention_factor", table)
    elif scale and over:
        out["attention_factor"] = _mscale(factor, float(scale)) / _mscale(factor, float(over))
    return out


def _dynamic(hole: RopeHole, cfg: Config, table: Mapping[str, Any]) -> dict[str, Any]:
    # the base grows past max_position_embeddings, whatever else the table may say
    factor = _number(cfg, "factor", table)
    return {"kind": "dynamic", "factor": factor, "original_seq_len": cfg.integer("max_position_embeddings")}


def _longrope(hole: RopeHole, cfg: Config, table: Mapping[str, Any]) -> dict[str, Any]:
    original = hole.original(cfg, table)
    attention = table.get("attention_factor")
    if attention is None:
        factor = table.get("factor")
        factor = cfg.integer("max_position_embeddings") / original if factor is None else _number(cfg, "factor", table)
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    lists = {}
    for key in ("short_factor", "long_factor"):
        value = table.get(key)
        if not isinstance(value, list) or not all(isinstance(v, int | float) for v in value):
            raise cfg.fault(f"rope {key}", value, "a list of numbers, one a pair")
        lists[key] = [float(v) for v in value]
    return {"kind": "longrope", **lists, "original_seq_len": original, "attention_factor": float(attention)}


def _mscale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _alpha(hole: RopeHole, cfg: Config, table: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "ntk", "factor": _number(cfg, "alpha", table)}


_READ: dict[str, Callable[[RopeHole, Config, Mapping[str, Any]], dict[str, Any]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "ntk_alpha": _alpha,
    "dynamic": _dynamic,
    "longrope": _longrope,
}


def _write_llama3(s: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: s[key] for key in ("factor", "low_freq_factor", "high_freq_factor")}
    return {"rope_type": "llama3", **kept, "original_max_position_embeddings": s["original_seq_len"]}


def _write_yarn(s: Mapping[str, Any]) -> dict[str, Any]:
    out = {"rope_type": "yarn", "original_max_position_embeddings": s["original_seq_len"], "truncate": s["rounded"]}
    out.update({key: s[key] for key in ("factor", "beta_fast", "beta_slow")})
    if s["attention_factor"] != "paper":
        out["attention_factor"] = s["attention_factor"]
    return out


def _write_longrope(s: Mapping[str, Any]) -> dict[str, Any]:
    lists = {key: list(s[key]) for key in ("short_factor", "long_factor")}
    told = {"attention_factor": s["attention_factor"], "original_max_position_embeddings": s["original_seq_len"]}
    return {"rope_type": "longrope", **lists, **told}


_WRITE: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "linear": lambda s: {"rope_type": "linear", "factor": s["factor"]},
    "llama3": _write_llama3,
    "yarn": _write_yarn,
    "dynamic": lambda s: {"rope_type": "dynamic", "factor": s["factor"]},
    "longrope": _write_longrope,
    "ntk": lambda s: {"rope_type": "dynamic", "alpha": s["factor"], "factor": 1.0},
}


def rope(layout: str = "half", by: str | None = None, alpha: bool = False, **names: Any) -> RopeHole:
    """A RoPE hole; further arguments are those of :class:`RopeKeys`."""
    return RopeHole(layout, RopeKeys(**names), by, alpha)


@dataclass(frozen=True)
class RotarySize(Hole):
    """RoPE whose rotary size is a key of its own (GPT-J, CodeGen): null rotates the whole head; theta is 10000."""

    name: str = "rotary_dim"
    width: str = "n_embd"
    heads: str = "n_head"
    layout: str = "interleaved"

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    def read(self, cfg: Config, at: At) -> Any:
        size = cfg.get(self.name)
        head_dim = cfg.integer(self.width) // cfg.integer(self.heads)
        fraction = 1.0 if size is None else cfg.integer(self.name) / head_dim
        return {"kind": "rope", "theta": 10_000.0, "layout": self.layout, "fraction": fraction}

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return matches({"kind": "rope", "layout": self.layout}, node)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        if isinstance(node, Mapping) and node.get("kind") == "rope":
            put(out, self.name, round(node["fraction"] * spot.parent["head_dim"]))
