"""Huge pages under what every token reads whole: caches, and weights laid out for a step.

Going through hundreds of megabytes a token in pages of 4 KiB spends a tenth of the time and more on looking pages up.
"""

from __future__ import annotations

import ctypes
import sys

_PAGE, _COLLAPSE = 1 << 21, 25  # bytes of a huge page; Linux's MADV_COLLAPSE, since 6.1
_LEAST = 1 << 18  # bytes below which a stretch of memory is left as it is


def collapse(address: int, nbytes: int) -> None:
    """Ask for huge pages under memory that is in use; where that is refused nothing changes.

    The pages at both ends are asked for too: what comes after one block of weights is most often the next.
    """
    if sys.platform != "linux" or nbytes < _LEAST:
        return
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):  # a C library without it
        return
    for page in range(address // _PAGE * _PAGE, address + nbytes, _PAGE):
        madvise(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _COLLAPSE)
