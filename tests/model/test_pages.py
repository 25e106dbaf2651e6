"""Huge pages: the values stay, and nothing is asked for where it cannot help."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from assay.model import pages
from assay.model.cache import KeyValues, Room
from assay.recipe.span import FullSpan

PAGE = 1 << 21


class Library:
    """A C library that notes what is asked of it, and refuses."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def madvise(self, address: Any, nbytes: Any, advice: int) -> int:
        self.asked.append((address.value, nbytes.value, advice))
        return -1


def test_values_stay() -> None:
    x = torch.arange(3 << 20, dtype=torch.float32)
    pages.collapse(x.data_ptr(), x.nbytes)
    assert torch.equal(x, torch.arange(3 << 20, dtype=torch.float32))


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
@pytest.mark.parametrize(("address", "nbytes", "at"), [
    (5 * PAGE, PAGE, [5]), (5 * PAGE + 64, PAGE, [5, 6]), (5 * PAGE - 64, PAGE // 2, [4, 5]), (7 * PAGE, 1 << 17, []),
])  # fmt: skip
def test_every_page_that_is_touched_is_asked_for_alone(address: int, nbytes: int, at: list[int]) -> None:
    library = Library()
    with mock.patch.object(ctypes, "CDLL", return_value=library):
        pages.collapse(address, nbytes)
    assert library.asked == [(n * PAGE, PAGE, 25) for n in at]


def test_elsewhere_nothing_is_asked_for() -> None:
    library = Library()
    with mock.patch.object(ctypes, "CDLL", return_value=library), mock.patch.object(sys, "platform", "darwin"):
        pages.collapse(0, 8 * PAGE)
    assert not library.asked


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
def test_a_cache_stands_in_them_where_the_system_gives_them() -> None:
    """By the system's own count for this memory; a system that refuses is none that can be judged by."""

    def huge(at: int) -> int:
        """Bytes in huge pages of the mapping that holds an address."""
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            head = line.split()[0]
            if "-" in head:
                first, last = (int(part, 16) for part in head.split("-"))
                inside = first <= at < last
            elif inside and head == "AnonHugePages:":
                return int(line.split()[1]) << 10
        raise AssertionError("no such mapping")

    trial = torch.zeros(32 << 20, dtype=torch.uint8)
    pages.collapse(trial.data_ptr(), trial.nbytes)
    if huge(trial.data_ptr() + PAGE) == 0:
        pytest.skip("this system gives no huge pages")
    room = Room(batch=8, max_len=2048, device=torch.device("cpu"), dtype=torch.float32)
    store = KeyValues(room, FullSpan(), 4, 64).store  # 32 MiB
    assert huge(store.data_ptr() + PAGE) >= 28 << 20
    assert not store.any()
