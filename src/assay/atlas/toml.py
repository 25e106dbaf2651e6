"""An authored recipe table as a TOML file, in the hand of the shipped presets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TABLES = ("embedding", "block", "layers", "head", "init")  # written as [tables], in this order
_GROUPED = 10_000  # integers from here on are written with underscores


def to_toml(table: Mapping[str, Any]) -> str:
    """The TOML text of an authored table; ``tomllib`` reads the same table back.

    Raises:
        ValueError: a value that TOML cannot hold.
    """
    lines = [f"{_key(k)} = {_value(v)}" for k, v in table.items() if not _is_table(k, v)]
    order = [k for k in _TABLES if k in table] + [k for k in table if k not in _TABLES]
    for key in order:
        if _is_table(key, table[key]):
            lines += _section(key, table[key])
    return "\n".join(lines) + "\n"


def _is_table(key: str, value: Any) -> bool:
    return key in _TABLES and isinstance(value, Mapping)


def _section(path: str, table: Mapping[str, Any]) -> list[str]:
    """``[path]`` with its plain values; what holds tables of its own becomes a section below it."""
    deep = path == "layers" or (path.startswith("layers.") and path.count(".") == 1) or path == "block"
    plain = {k: v for k, v in table.items() if not (deep and isinstance(v, Mapping))}
    lines = [f"[{path}]"] if plain or not table else []
    lines += [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for key, value in table.items():
        if key not in plain:
            lines += _section(f"{path}.{_key(key)}", value)
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= _GROUPED else str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    raise ValueError(f"cannot be written as TOML: {value!r}")


def _float(value: float) -> str:
    """``1e6``, ``0.25``, ``1e-5``: the shortest text that reads back to the same number and is a TOML float."""
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    if e:
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if value.is_integer() and abs(value) >= _GROUPED:
        digits = str(int(value))
        stripped = digits.rstrip("0")
        zeros = len(digits) - len(stripped)
        if len(stripped) <= 3 and zeros >= 3:
            return f"{stripped}e{zeros}"
    return text
