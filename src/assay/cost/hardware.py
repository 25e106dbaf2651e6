"""Hardware as data: peaks, memory, bandwidth. Its table is ``hardware.toml`` beside this file; yours is a TOML file.

A file of your own::

    name = "my-box"
    memory_gib = 96                       # or memory_gb, decimal
    bandwidth_gb_s = 1800
    peak_tflops = {bf16 = 500, fp32 = 100}
    link_gb_s = 64                        # optional: sent plus received
    source = "where these numbers are from"
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from assay.recipe.errors import nearest

TABLE = Path(__file__).with_name("hardware.toml")
DTYPES = ("fp8", "bf16", "fp16", "tf32", "fp32")
_MEMORY = {"memory_gib": 2.0**30, "memory_gb": 1e9}
_NUMBERS = (*_MEMORY, "bandwidth_gb_s", "link_gb_s")
_KEYS = ("name", "aliases", "cpu", "peak_tflops", "source", *_NUMBERS)


class Hardware(NamedTuple):
    """One device: matrix FLOP/s by dtype, bytes, and bytes a second."""

    name: str
    peaks: dict[str, float]
    memory: float
    bandwidth: float
    link: float | None
    source: str
    is_cpu: bool = False

    def peak(self, dtype: str) -> float:
        """Matrix FLOP/s in a dtype, dense; raises ValueError where the device has none."""
        if dtype not in self.peaks:
            raise ValueError(
                f"dtype: {self.name} has no {dtype} peak; it has {', '.join(self.peaks)} (choose one of them, or "
                "describe the device in a TOML file)"
            )
        return self.peaks[dtype]

    def vector_peak(self, dtype: str) -> float:
        """FLOP/s of elementwise work: the fp32 vector rate where it is known."""
        return self.peaks.get("fp32", self.peak(dtype))

    def ridge(self, dtype: str) -> float:
        """FLOPs a byte above which the device is limited by compute (Williams et al. 2009, the roofline)."""
        return self.peak(dtype) / self.bandwidth

    def to_dict(self, dtype: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "peak_flops_per_s": self.peak(dtype),
            "peak_dtype": dtype,
            "vector_flops_per_s": self.vector_peak(dtype),
            "memory_bytes": round(self.memory),
            "bytes_per_s": self.bandwidth,
            "link_bytes_per_s": self.link,
            "ridge_flops_per_byte": self.ridge(dtype),
            "source": self.source,
        }


@cache
def _table() -> dict[str, Any]:
    with TABLE.open("rb") as f:
        return tomllib.load(f)


def hardware_names() -> tuple[str, ...]:
    """Every device of the table, by name."""
    return tuple(_table())


def find_hardware(name: str | Path | Hardware) -> Hardware:
    """A device by its name or alias, or from a TOML file.

    Raises:
        ValueError: no such device (lists the known ones and the nearest), or a file that does not describe one.
    """
    if isinstance(name, Hardware):
        return name
    text = str(name)
    if text.endswith(".toml"):
        return _from_file(Path(text))
    key = text.strip().lower().replace("_", "-").replace(" ", "-")
    aliases = {alias: known for known, entry in _table().items() for alias in entry.get("aliases", ())}
    key = aliases.get(key, key)
    if key not in _table():
        close = nearest(key, [*_table(), *aliases])
        hint = f" (nearest: {close})" if close else ""
        known = ", ".join(hardware_names())
        raise ValueError(f"hardware: no such device {text!r}{hint}; known: {known}; or the path of a .toml file")
    return _read(_table()[key], key)


def _from_file(path: Path) -> Hardware:
    try:
        with path.open("rb") as f:
            table = tomllib.load(f)
    except OSError as error:
        raise ValueError(f"hardware: {path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"hardware: {path}: not TOML: {error}") from None
    return _read(table, str(table.get("name", path.stem)), f"{path}: ")


def _read(table: dict[str, Any], name: str, where: str = "") -> Hardware:
    def fault(key: str, message: str, allowed: str) -> ValueError:
        found = f", not {table[key]!r}" if key in table else ""
        return ValueError(f"hardware: {where}{key}: {message}{found}; allowed: {allowed}")

    for key in table:
        if key not in _KEYS:
            close = nearest(key, _KEYS)
            raise fault(key, "unknown key" + (f" (nearest: {close})" if close else ""), ", ".join(_KEYS))
    given = [key for key in _MEMORY if key in table]
    if len(given) != 1:
        raise fault("memory_gib", "must be given, or memory_gb, once", "a number above 0")
    for key in _NUMBERS:
        if (key in table or key == "bandwidth_gb_s") and not _positive(table.get(key)):
            raise fault(key, "must be a positive number", "a number above 0")
    peaks = table.get("peak_tflops")
    if not isinstance(peaks, dict) or not peaks or not all(_positive(v) for v in peaks.values()):
        raise fault("peak_tflops", "must name at least one dtype's TFLOP/s", "{bf16 = 989.4, fp32 = 66.9}")
    unknown = [dtype for dtype in peaks if dtype not in DTYPES]
    if unknown:
        raise ValueError(f"hardware: {where}peak_tflops.{unknown[0]}: no such dtype; allowed: {', '.join(DTYPES)}")
    link = table.get("link_gb_s")
    return Hardware(
        name=name,
        peaks={dtype: float(peaks[dtype]) * 1e12 for dtype in DTYPES if dtype in peaks},
        memory=table[given[0]] * _MEMORY[given[0]],
        bandwidth=table["bandwidth_gb_s"] * 1e9,
        link=None if link is None else link * 1e9,
        source=str(table.get("source", "given by you")),
        is_cpu=bool(table.get("cpu", False)),
    )


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def utilization(flops_per_second: float, hardware: str | Path | Hardware, dtype: str = "bf16") -> float:
    """Achieved FLOP/s over the device's dense peak in ``dtype``: MFU or HFU, by which FLOPs were counted."""
    return flops_per_second / find_hardware(hardware).peak(dtype)
