"""Numbers as a reader wants them: few digits, the unit always there, a dash where there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

NONE = "–"
MINUS = "\N{MINUS SIGN}"
_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def finite(value: Any) -> float | None:
    """``value`` as a float if it is a finite number, else None: NaN, infinity, text, a missing key."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def finite_list(values: Any) -> list[float]:
    """The finite numbers of a list; none if it is no list."""
    if not isinstance(values, list | tuple):
        return []
    return [number for number in map(finite, values) if number is not None]


def median(values: Sequence[float]) -> float | None:
    """The median; infinities count as the worst, and None stands for an empty list or an infinite median."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    found = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return found if math.isfinite(found) else None


def fixed(value: Any, digits: int = 3, *, signed: bool = False) -> str:
    """``2.423``; with ``signed``, ``+0.056`` or ``−0.056``."""
    number = finite(value)
    if number is None:
        return NONE
    text = f"{abs(number):,.{digits}f}"
    zero = not text.strip("0.,")
    if number < 0 and not zero:
        return MINUS + text
    return "+" + text if signed and not zero else text


def significant(value: Any, digits: int = 3) -> str:
    """``78.1``, ``0.258``, ``12,345``; tiny and huge numbers in powers of ten."""
    number = finite(value)
    if number is None:
        return NONE
    if number == 0:
        return "0"
    size = abs(number)
    if size < 1e-3 or size >= 1e9:
        return power(number, digits)
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{size:,.{decimals}f}"
    return (MINUS if number < 0 else "") + text


def power(value: Any, digits: int = 3) -> str:
    """``3e-3``: how learning rates are written in recipes and papers."""
    number = finite(value)
    if number is None:
        return NONE
    if number == 0:
        return "0"
    mantissa, exponent = f"{abs(number):.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{MINUS if number < 0 else ''}{mantissa}e{int(exponent)}"


def rate(value: Any) -> str:
    """A learning rate."""
    return power(value)


def count(value: Any) -> str:
    """``655,872``."""
    number = finite(value)
    return NONE if number is None else f"{round(number):,}".replace("-", MINUS)


def size(value: Any) -> str:
    """Bytes: ``2.50 MiB``."""
    number = finite(value)
    if number is None:
        return NONE
    if abs(number) < 1024:
        return f"{count(number)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if abs(number) < 1024 or unit == "TiB":
            break
    return f"{significant(number)} {unit}"


def scaled(value: Any, unit: str) -> str:
    """``3.94 MFLOPs``: an SI prefix before ``unit``."""
    number = finite(value)
    if number is None:
        return NONE
    for factor, prefix in _SI:
        if abs(number) >= factor:
            return f"{significant(number / factor)} {prefix}{unit}"
    return f"{significant(number)} {unit}".rstrip()


def ratio(value: Any) -> str:
    """``×1.004``."""
    number = finite(value)
    if number is None:
        return NONE
    off = abs(number - 1)
    digits = 4 if off < 2e-3 else 3 if off < 0.1 else 2
    if off < 5e-5:
        return "×1"
    return f"×{fixed(number, digits)}" if abs(number) < 100 else f"×{significant(number)}"


def p_value(value: Any) -> str:
    """``p = 0.007``, ``p < 0.001``."""
    number = finite(value)
    if number is None:
        return f"p = {NONE}"
    return "p < 0.001" if number < 0.001 else f"p = {number:.2f}" if number >= 0.095 else f"p = {number:.3f}"


def interval(bounds: Any, digits: int = 3, *, signed: bool = True) -> str:
    """``−0.151 to −0.067``."""
    pair = pair_of(bounds)
    if pair is None:
        return NONE
    return f"{fixed(pair[0], digits, signed=signed)} to {fixed(pair[1], digits, signed=signed)}"


def pair_of(bounds: Any) -> tuple[float, float] | None:
    """Two finite numbers, the lower first, or None."""
    found = finite_list(bounds)
    if len(found) != 2 or len(bounds) != 2:
        return None
    return min(found), max(found)


def of(pair: Any) -> str:
    """``[3, 5]`` as ``3 of 5``."""
    found = pair if isinstance(pair, list | tuple) else []
    return f"{count(found[0])} of {count(found[1])}" if len(found) == 2 else NONE


def quantity(value: Any, unit: str = "") -> tuple[str, str]:
    """Any value of a record with its unit: the text, and the unit that still has to stand beside it."""
    if value is None or finite(value) is None:
        return plain(value), unit if value is not None else ""
    per = unit.partition("/")[2].strip()
    if unit.split("/")[0].strip().lower() in ("bytes", "byte", "b"):
        return size(value), f"per {per}" if per else ""
    if unit.lower().startswith("flop"):
        return scaled(value, "FLOPs"), f"per {per}" if per else ""
    if unit.lower().startswith(("nat", "bit")):
        return fixed(value), unit
    if isinstance(value, int) or float(value).is_integer():
        return count(value), unit
    return significant(value), unit


def plain(value: Any) -> str:
    """A setting as text: yes and no, lists joined, a dash for nothing."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value).replace("-", MINUS)
    if isinstance(value, float):
        number = finite(value)
        if number is None:
            return NONE
        return f"{number:.6g}".replace("-", MINUS) if abs(number) >= 1e-3 else power(number, 6)
    if isinstance(value, list | tuple):
        return joined(value) or "none"
    return str(value)


def joined(values: Iterable[Any]) -> str:
    """``a, b, c``."""
    return ", ".join(map(plain, values))


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
