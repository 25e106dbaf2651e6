"""Numbers for people: short and exact side by side."""

from __future__ import annotations

_BINARY = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_COUNTS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_SI = (
    (10**24, "Y"),
    (10**21, "Z"),
    (10**18, "E"),
    (10**15, "P"),
    (10**12, "T"),
    (10**9, "G"),
    (10**6, "M"),
    (10**3, "k"),
)


def short_count(n: int) -> str:
    """``8.03 B``."""
    return _short(n, _COUNTS)


def count(n: int) -> str:
    """``8.03 B (8,030,261,248)``."""
    return f"{short_count(n)} ({n:,})" if n >= 10_000 else f"{n:,}"


def short_flops(n: int) -> str:
    """``16.1 GFLOP``: an amount of work, not a rate."""
    return f"{_short(n, _SI)}FLOP" if n >= 1000 else f"{n} FLOP"


def flops(n: int) -> str:
    """``16.1 GFLOP (16,060,522,496)``."""
    return f"{short_flops(n)} ({n:,})" if n >= 10_000 else f"{n:,} FLOP"


def short_size(n: int) -> str:
    """``16.00 GiB``; a small size in MiB or KiB."""
    for unit, name in _BINARY:
        if n >= (unit / 8 if name == "GiB" else unit):
            return f"{n / unit:,.2f} {name}"
    return f"{n} bytes"


def size(n: int) -> str:
    """``16.00 GiB (17,179,869,184 bytes)``."""
    return f"{short_size(n)} ({n:,} bytes)" if n >= 1024 else short_size(n)


def ratio(before: float, after: float) -> str:
    """``0.25x``; a dash where nothing stands before."""
    if before == after:
        return "same"
    return f"{after / before:.3g}x" if before else "-"


def share(part: int, whole: int) -> str:
    """``12.3%``."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _short(n: int, units: tuple[tuple[int, str], ...]) -> str:
    for unit, name in units:
        if n >= unit:
            digits = f"{n / unit:#.3g}".rstrip(".") if n / unit < 999.5 else f"{n / unit:,.0f}"
            return f"{digits} {name}"
    return f"{n:,}"
