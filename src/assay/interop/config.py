"""A foreign ``config.json`` as data: what it says, and what its family assumes where it is silent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from assay.interop.errors import DamagedFolder, InteropError

MISSING: Any = object()


@cache
def _data() -> dict[str, Any]:
    text = (resources.files("assay.interop") / "data" / "hf_defaults.json").read_text(encoding="utf-8")
    out: dict[str, Any] = json.loads(text)
    return out


def defaults_version() -> str:
    """The release of transformers whose defaults are recorded."""
    return str(_data()["transformers_version"])


def defaults_of(model_type: str) -> dict[str, Any]:
    """What transformers assumes for every key that a config of this type leaves out."""
    found: dict[str, Any] = _data()["families"][model_type]["defaults"]
    return dict(found)


def aliases_of(model_type: str) -> dict[str, str]:
    """Other names of keys of this type, and the name that counts."""
    found: dict[str, str] = _data()["families"][model_type]["aliases"]
    return dict(found)


def flat(table: Mapping[str, Any], nested: tuple[str, ...]) -> dict[str, Any]:
    """A config whose tables in ``nested`` are spread out: ``attn_config.alibi``."""
    out = {key: value for key, value in table.items() if key not in nested}
    for key in nested:
        out.update({f"{key}.{inner}": value for inner, value in (table.get(key) or {}).items()})
    return out


def folded(table: Mapping[str, Any], nested: tuple[str, ...]) -> dict[str, Any]:
    """The inverse of :func:`flat`."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        head, _, inner = key.partition(".")
        if inner and head in nested:
            out.setdefault(head, {})[inner] = value
        else:
            out[key] = value
    return out


class Config:
    """One config. Reading a key gives the file's value, else the family's default; ``where`` names it in errors."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        model_type: str,
        where: str = "config.json",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.where = where
        self.model_type = model_type
        self.defaults = defaults_of(model_type)
        self.raw = self._canonical(dict(raw), {**aliases_of(model_type), **(aliases or {})})

    def _canonical(self, raw: dict[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
        for alias, name in aliases.items():
            if alias not in raw:
                continue
            value = raw.pop(alias)
            if name in raw and raw[name] != value:
                raise InteropError(f"{self.where}: {alias} = {value!r} and {name} = {raw[name]!r} say different things")
            raw[name] = value
        return raw

    def says(self, key: str) -> bool:
        """Whether the file itself gives this key a value other than null."""
        return self.raw.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; ``default`` where neither file nor family has one."""
        return self.raw[key] if key in self.raw else self.defaults.get(key, default)

    def __getitem__(self, key: str) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise InteropError(f"{self.where}: {key} is missing, and {self.model_type} has no default for it")
        return value

    def integer(self, key: str) -> int:
        """The value of a key that must be a positive whole number."""
        value = self[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fault(key, value, "a positive whole number")
        return value

    def fault(self, key: str, value: Any, allowed: str) -> InteropError:
        """An error that names key, value and what would be right."""
        return InteropError(f"{self.where}: {key} = {value!r}: expected {allowed}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; errors name the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedFolder(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DamagedFolder(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise DamagedFolder(f"{path}: not a JSON object")
    return value
