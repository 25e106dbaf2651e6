"""A part of your own: one spec, one module, one cost rule, in a Python file that a recipe never names.

The file is given by flag (``assay budget mine.toml --plugin my_mixer.py``), or a package names it under the entry point
group ``assay.parts``. Defining the spec registers its kind; :func:`register` adds its cost and its module::

    from assay.plugin import CostRule, Mixer, ParamRole, Tensor, register

    class Average(Mixer):
        kind: Literal["average"] = "average"

    class AverageCost(CostRule[Average]):
        def tensors(self, spec, d): ...

    def module(spec, d):
        from assay.model import Linear, Module   # torch is imported here, when a model is built
        ...

    register(Average, cost=AverageCost(), module=module)

:func:`says` gives it a phrase of its own for ``assay show`` and ``assay diff``; without one it is told by its fields.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from assay.cost.rules import CacheSize, CostRule, Flops, Tensor, Work, register_cost
from assay.recipe.base import Part, Sizes
from assay.recipe.extension import record_source, register_module
from assay.recipe.ffn import Activation, Ffn
from assay.recipe.init import DepthScale, Distribution, Draw, Place
from assay.recipe.mixer import Mixer
from assay.recipe.norm import Norm, NormSlot
from assay.recipe.position import Position, PositionSlot
from assay.recipe.roles import ParamRole
from assay.recipe.span import Span, SpanSlot
from assay.recipe.words import says

__all__ = [
    "Activation",
    "CacheSize",
    "CostRule",
    "DepthScale",
    "Distribution",
    "Draw",
    "Ffn",
    "Flops",
    "Loaded",
    "Mixer",
    "Norm",
    "NormSlot",
    "ParamRole",
    "Place",
    "PluginError",
    "Position",
    "PositionSlot",
    "Sizes",
    "Span",
    "SpanSlot",
    "Tensor",
    "Work",
    "load_entry_points",
    "load_plugin",
    "loaded",
    "register",
    "says",
]


class PluginError(ValueError):
    """A plugin that cannot be loaded; names the file and the reason."""


@dataclass(frozen=True)
class Loaded:
    """A plugin in use: where it came from, and the digest of its source (part of a run's identity)."""

    name: str
    path: str
    sha256: str


_LOADED: dict[str, Loaded] = {}


def register(spec: Any, *, cost: CostRule[Any] | None = None, module: Callable[..., Any] | None = None) -> None:
    """Give a kind its cost rule and the callable ``(spec, d_model) -> torch module`` that builds it."""
    if not (isinstance(spec, type) and issubclass(spec, Part)):
        raise PluginError(f"register: {spec!r} is not a kind; derive it from Mixer, Ffn, Norm, ...")
    if cost is not None:
        register_cost(spec, cost)
    if module is not None:
        register_module(spec, module)


def load_plugin(path: str | Path) -> Loaded:
    """Run a plugin file once; loading the same file again does nothing.

    Raises:
        PluginError: no such file, or an exception while it ran.
    """
    file = Path(path).resolve()
    key = str(file)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise PluginError(f"{path}: cannot be read: {error.strerror or error}") from None
    sha256 = hashlib.sha256(source).hexdigest()
    if key in _LOADED:
        if _LOADED[key].sha256 != sha256:
            raise PluginError(f"{path}: changed since it was loaded; start a new process")
        return _LOADED[key]
    name = f"assay_plugin_{file.stem}_{sha256[:8]}"
    module_spec = importlib.util.spec_from_file_location(name, file)
    if module_spec is None or module_spec.loader is None:
        raise PluginError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # so that its classes can be found again by name
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PluginError(f"{path}: {type(error).__name__}: {error}") from error
    _LOADED[key] = Loaded(file.stem, key, sha256)
    record_source(file.stem, sha256)
    return _LOADED[key]


def load_entry_points() -> tuple[Loaded, ...]:
    """Import every installed ``assay.parts`` entry point."""
    for point in entry_points(group="assay.parts"):
        if point.name in _LOADED:
            continue
        try:
            module = point.load()
        except Exception as error:
            raise PluginError(f"entry point {point.name}: {type(error).__name__}: {error}") from error
        file = getattr(module, "__file__", None) or getattr(sys.modules.get(point.module), "__file__", None)
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else "unknown"
        _LOADED[point.name] = Loaded(point.name, file or point.value, digest)
        record_source(point.name, digest)
    return loaded()


def loaded() -> tuple[Loaded, ...]:
    """Every plugin in use, in the order it was loaded."""
    return tuple(_LOADED.values())
