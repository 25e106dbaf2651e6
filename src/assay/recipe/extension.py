"""Where a kind's torch module is looked up, and which plugins are in use.

A table of plain callables, so that naming a module needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.recipe.base import Part

Factory = Callable[..., Any]
_MODULES: dict[type[Part], Factory] = {}


def register_module(spec: type[Part], factory: Factory) -> None:
    """Name the callable that builds the module of a kind; called as ``factory(spec, d_model)``."""
    _MODULES[spec] = factory


def module_factory(spec: type[Part]) -> Factory | None:
    """The callable registered for exactly this kind, or None."""
    return _MODULES.get(spec)


_SOURCES: dict[str, str] = {}


def record_source(name: str, sha256: str) -> None:
    """Note a plugin in use; its source is part of the identity of every run made with it."""
    _SOURCES[name] = sha256


def plugin_sources() -> dict[str, str]:
    """Digest of the source of every plugin in use, by name."""
    return dict(sorted(_SOURCES.items()))
