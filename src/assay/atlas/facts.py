"""Reading the atlas: every model, one model, the models that share a choice."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from assay.atlas.records import Model, ModelParams, ModelSource, OtherCount, QkNormFact, Training

DATA = Path(__file__).parent / "data"

# what "the course chapter" and "the lecture notes" are, where a fact or a correction names them
TEXTS = {
    "course chapter": "《第 5 章 稳定训练》 (course chapter on stable training; shapes in section 5.7)",
    "lecture notes": "《架构与超参数：现代 LM 到底长什么样》 (notes on Stanford CS336, lecture 3)",
    "summary": "《第四章 语言模型架构和训练的技术细节》 (summary of the same lecture)",
    "lecture slides": "Stanford CS336, lecture 3, slides of 2025",
}


class UnknownModel(ValueError):
    """No such model; names the nearest."""


def near(word: str, known: Iterable[str]) -> str:
    """``; nearest: x`` for a misspelt word, else nothing."""
    hit = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f"; nearest: {hit[0]}" if hit else ""


@cache
def _all() -> tuple[Model, ...]:
    raw = json.loads((DATA / "models.json").read_text(encoding="utf-8"))
    defaults, refs = raw["defaults"], raw["sources"]
    return tuple(_model({**defaults, **entry}, refs) for entry in raw["models"])


def _model(raw: dict[str, Any], refs: list[str]) -> Model:
    params = dict(raw["params"])
    params["also"] = tuple(OtherCount(**other) for other in params.get("also", ()))
    raw["params"] = ModelParams(**params)
    training = raw["training"]
    raw["training"] = Training(**{**training, "dropout_on": tuple(training.get("dropout_on", ()))})
    raw["source"] = ModelSource(**{key: tuple(refs[i] for i in found) for key, found in raw["source"].items()})
    if isinstance(raw["qk_norm"], dict):
        raw["qk_norm"] = QkNormFact(**raw["qk_norm"])
    for key in ("biases", "extra_params", "disagreements", "notes", "local_to_global"):
        if isinstance(raw[key], list):
            raw[key] = tuple(_frozen(item) for item in raw[key])
    return Model(**{key: _frozen(value) for key, value in raw.items()})


def _frozen(value: Any) -> Any:
    return MappingProxyType(value) if isinstance(value, dict) else value


def models(**where: Any) -> tuple[Model, ...]:
    """The real models, families together: all of them, or those that satisfy every filter.

    Args:
        where: a filter each. By value (or a list of alternatives): ``id, family, org, kind, attention, norm, placement,
            position, activation, gated, block, tied, qk_norm, window, moe, hybrid, bias, precision, year``.
            By bound: ``since, until`` (years), ``min_params, max_params, min_context, max_context``.

    Raises:
        ValueError: an unknown filter, or a value that no model has; says what is known.
    """
    found = _all()
    for key, wanted in where.items():
        found = _filtered(found, key, wanted)
    return found


def model(model_id: str) -> Model:
    """The model of this id (or of the shipped recipe of this name).

    Raises:
        UnknownModel: there is none; names the nearest.
    """
    by_id = _by_id()
    if model_id not in by_id:
        raise UnknownModel(f"no such model in the atlas: {model_id!r}{near(model_id, by_id)}")
    return by_id[model_id]


@cache
def _by_id() -> dict[str, Model]:
    return {**{m.preset: m for m in _all() if m.preset}, **{m.id: m for m in _all()}}


def _has(value: Any) -> bool | None:
    """Whether a fact that may be ``none`` or ``na`` is there; None where it is not known."""
    return None if value is None else value not in ("none", "na")


FILTERS: Mapping[str, Callable[[Model], Any]] = {
    "id": lambda m: m.id,
    "family": lambda m: m.family,
    "org": lambda m: m.org,
    "kind": lambda m: m.kind,
    "attention": lambda m: m.attention,
    "norm": lambda m: m.norm_kind,
    "placement": lambda m: m.norm_placement,
    "position": lambda m: m.position,
    "activation": lambda m: m.activation,
    "gated": lambda m: m.gated,
    "block": lambda m: m.block,
    "tied": lambda m: m.tied_embeddings,
    "qk_norm": lambda m: _has(m.qk_norm),
    "window": lambda m: _has(m.sliding_window),
    "moe": lambda m: m.is_moe,
    "hybrid": lambda m: m.kind.startswith("hybrid"),
    "bias": lambda m: m.linear_bias,
    "precision": lambda m: m.params.precision,
    "year": lambda m: m.year,
}
_BOUNDS: Mapping[str, tuple[Callable[[Model], Any], bool]] = {
    "since": (lambda m: m.year, False),
    "until": (lambda m: m.year, True),
    "min_params": (lambda m: m.params.total, False),
    "max_params": (lambda m: m.params.total, True),
    "min_context": (lambda m: m.context_length, False),
    "max_context": (lambda m: m.context_length, True),
}


def _filtered(found: tuple[Model, ...], key: str, wanted: Any) -> tuple[Model, ...]:
    if key in _BOUNDS:
        read, upper = _BOUNDS[key]
        if isinstance(wanted, bool) or not isinstance(wanted, int | float):
            raise ValueError(f"{key}: not a number: {wanted!r}")
        known = ((m, read(m)) for m in found)
        numbers = ((m, v) for m, v in known if isinstance(v, int | float))
        return tuple(m for m, v in numbers if (v <= wanted if upper else v >= wanted))
    if key not in FILTERS:
        names = [*FILTERS, *_BOUNDS]
        raise ValueError(f"no such filter: {key!r}{near(key, names)}; known: {', '.join(names)}")
    read_value = FILTERS[key]
    options = tuple(wanted) if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)
    known_values = {read_value(m) for m in _all()} - {None}
    for option in options:
        if option not in known_values:
            listed = sorted(map(str, known_values))
            shown = ", ".join(listed[:40]) + (", ..." if len(listed) > 40 else "")
            raise ValueError(f"{key}: no model has {option!r}{near(str(option), listed)}; known: {shown}")
    return tuple(m for m in found if read_value(m) in options)
