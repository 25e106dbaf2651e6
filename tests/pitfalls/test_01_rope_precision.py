"""01. Rotary phases built in bf16 after a whole-model cast (huggingface/transformers PR#29285).

head_dim 128, base 1e4, position 4095, three ways: a float model, a model cast to bf16, a float model under autocast.
Right: cos and sin within 0.002 of a float64 table. Faults: 1.68 (frequency rounded), or 769 distinct positions below
4096 (index rounded).
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.model import BACKENDS
from assay.model.position import rope_tables
from assay.recipe.position import Rope
from tests.pitfalls.support import Recording, decoder, ids

WAYS = ["float", "cast", "autocast"]
LENGTH, PAIRS = 4096, 64


class Seen(Exception):
    """Raised where the scores would start, to spare the rest."""


class Stops(Recording):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        self.calls.append((q, k, v, call))
        raise Seen


def turned(way: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """cos and sin of every pair at 4096 positions, as the kernel of a whole model receives them: queries of (1, 0)."""
    model = decoder({"n_layers": 1}, dtype=torch.float32, n_heads=1, n_kv_heads=1, head_dim=2 * PAIRS, bias=["q"])
    with torch.no_grad():
        model.layers[0].mixer.q.weight.zero_()
        model.layers[0].mixer.q.bias.copy_(torch.arange(2 * PAIRS) < PAIRS)
    stops = Stops(BACKENDS["reference"])
    monkeypatch.setitem(BACKENDS, "stops", stops)
    model.use_backend("stops")
    context: Any = contextlib.nullcontext()
    if way == "cast":
        model = model.to(torch.bfloat16)
    elif way == "autocast":
        context = torch.autocast("cpu", dtype=torch.bfloat16)
    with torch.no_grad(), context, pytest.raises(Seen):
        model(ids(0, 1, LENGTH))
    return stops.calls[0][0][0, 0]


def exact() -> Tensor:
    """The same in float64, from the formula."""
    frequency = 1e4 ** -(torch.arange(PAIRS, dtype=torch.float64) / PAIRS)
    angle = torch.arange(LENGTH, dtype=torch.float64).unsqueeze(-1) * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_model(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got, want = turned(way, monkeypatch), exact()
    assert got.dtype == (torch.float32 if way == "float" else torch.bfloat16)
    assert (got[4095].double() - want[4095]).abs().max() <= 0.002
    if way == "float":
        assert (got.double() - want).abs().max() < 1e-6
    else:
        # rounding of the result and nothing else: half a unit of bf16's last place
        assert (got.double() - want).abs().max() <= 2**-9 + 1e-6
    assert torch.unique(got, dim=0).shape[0] == LENGTH


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tables_are_float32_whatever_the_model(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cos, sin = rope_tables(Rope(theta=1e4), 2 * PAIRS, torch.arange(LENGTH), dtype)
    assert cos.dtype == sin.dtype == torch.float32
    assert (torch.cat((cos, sin), dim=-1).double() - exact()).abs().max() < 1e-7


def test_a_cast_finds_no_table_to_round() -> None:
    assert not list(decoder().buffers())


def test_the_fault_is_as_large_as_reported() -> None:
    frequency = 1e4 ** -(torch.arange(PAIRS, dtype=torch.float64) / PAIRS)
    rounded = frequency.bfloat16().double()
    assert float((4095 * (rounded - frequency)).abs().max()) == pytest.approx(5.0, abs=0.1)
    assert float(((4095 * rounded).cos() - (4095 * frequency).cos()).abs().max()) == pytest.approx(1.68, abs=0.01)
    assert torch.unique(torch.arange(LENGTH).bfloat16()).numel() == 769
