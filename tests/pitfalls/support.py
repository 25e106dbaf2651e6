"""Small models for the entries, and a kernel that remembers what it was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.model import BACKENDS, Decoder, build
from assay.model.backend import Backend, Call
from assay.recipe import Recipe, resolve
from assay.recipe.merge import deep_merge
from assay.recipe.mixer import Attention

BASE: dict[str, Any] = {
    "d_model": 16,
    "vocab_size": 32,
    "max_seq_len": 64,
    "n_layers": 2,
    "embedding": {"tied": False},
    "block": {
        "mixer": {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "position": {"kind": "rope"}},
        "ffn": {"kind": "glu", "d_ff": 24, "activation": "silu"},
        "residual": {"rule": "pre", "norm": "rmsnorm"},
    },
    "head": {"norm": "rmsnorm"},
    "init": {"weights": {"kind": "fan_in"}, "embedding": {"kind": "normal", "std": 1.0}},
}


def recipe(over: Mapping[str, Any] | None = None, **mixer: Any) -> Recipe:
    """The base with tables laid over it; ``mixer`` fields go to the attention of every layer."""
    table: dict[str, Any] = deep_merge(BASE, over or {})
    return resolve(deep_merge(table, {"block": {"mixer": mixer}}))


def decoder(
    over: Mapping[str, Any] | None = None, *, seed: int = 0, dtype: Any = torch.float64, **mixer: Any
) -> Decoder:
    """Its model, weights drawn, ready to read."""
    return build(recipe(over, **mixer), seed=seed, dtype=dtype).eval()


def ids(seed: int, *shape: int, vocab: int = 32) -> Tensor:
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


class Recording:
    """A kernel that keeps its calls."""

    name = "recording"

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.calls: list[tuple[Tensor, Tensor, Tensor, Call]] = []

    def refuses(self, spec: Attention) -> str | None:
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        self.calls.append((q, k, v, call))
        return self.inner.attend(q, k, v, call)


def record(monkeypatch: pytest.MonkeyPatch, model: Decoder) -> Recording:
    """The model's kernel from now on."""
    recording = Recording(BACKENDS["reference"])
    monkeypatch.setitem(BACKENDS, "recording", recording)
    model.use_backend("recording")
    return recording


def close(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> bool:
    """Every entry within ``tolerance`` of the largest entry wanted."""
    return bool((got - want).abs().max() <= tolerance * want.abs().max())
