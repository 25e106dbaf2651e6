"""Parts from outside: where a kind's torch module is looked up, and the files and packages that bring parts.

A table of plain callables, so that naming a module needs no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from assay.recipe.base import Part

Factory = Callable[..., Any]
_MODULES: dict[type[Part], Factory] = {}


def register_module(spec: type[Part], factory: Factory) -> None:
    """Name the callable that builds the module of a kind; called as ``factory(spec, d_model)``."""
    _MODULES[spec] = factory


def module_factory(spec: type[Part]) -> Factory | None:
    """The callable registered for exactly this kind, or None."""
    return _MODULES.get(spec)


class PluginError(ValueError):
    """A plugin that cannot be loaded; names the file and the reason."""


@dataclass(frozen=True)
class Loaded:
    """A plugin in use: where it came from, and the digest of its source (part of a run's identity)."""

    name: str
    path: str
    sha256: str
    source: Literal["file", "entry_point"] = "file"


_LOADED: dict[str, Loaded] = {}
_IN_USE: dict[str, Loaded] = {}  # those that decide the numbers of this process's runs


def load_plugin(path: str | Path, sha256: str | None = None) -> Loaded:
    """Run a plugin file once; loading the same file again does nothing.

    Args:
        sha256: what the file must be, where another process has loaded it already.

    Raises:
        PluginError: no such file, another content than asked for, or an exception while it ran.
    """
    file = Path(path).resolve()
    key = str(file)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise PluginError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = hashlib.sha256(source).hexdigest()
    if found != (sha256 or found) or (key in _LOADED and _LOADED[key].sha256 != found):
        raise PluginError(f"{path}: changed since it was loaded; start a new process")
    if key in _LOADED:
        return _IN_USE.setdefault(key, _LOADED[key])
    name = f"assay_plugin_{file.stem}_{found[:8]}"
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
    _LOADED[key] = _IN_USE[key] = Loaded(file.stem, key, found)
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
        _LOADED[point.name] = _IN_USE[point.name] = Loaded(point.name, file or point.value, digest, "entry_point")
    return loaded()


def loaded() -> tuple[Loaded, ...]:
    """Every plugin in use, in the order it was loaded."""
    return tuple(_LOADED.values())


def carried() -> list[dict[str, str]]:
    """The plugins in use as plain values, for :func:`load_carried` in another process of this machine."""
    return [asdict(plugin) for plugin in _IN_USE.values()]


def load_carried(plugins: Iterable[Mapping[str, str]]) -> None:
    """Load what another process had loaded, in its order; raises PluginError where a source has changed since."""
    for plugin in plugins:
        if plugin["source"] == "file":
            load_plugin(plugin["path"], plugin["sha256"])
            continue
        load_entry_points()
        found = _LOADED.get(plugin["name"])
        if found is None or found.sha256 != plugin["sha256"]:
            raise PluginError(
                f"entry point {plugin['name']}: {'gone' if found is None else 'changed'} since it was loaded"
            )


def plugin_sources() -> dict[str, str]:
    """Digest of the source of every plugin in use, by name."""
    return dict(sorted((plugin.name, plugin.sha256) for plugin in _IN_USE.values()))
