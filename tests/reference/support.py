"""Tiny authored recipes, and decoders whose weights are all random."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from assay.model import Decoder, build, named_params
from assay.recipe import resolve
from assay.recipe.roles import ParamRole
from tests.reference.decoder import NORM, PLACEMENTS, Weights, logits

D_MODEL, VOCAB, MAX_LEN = 12, 17, 24
RMS = {"kind": "rmsnorm", "eps": 1e-3}
LAYER = {"kind": "layernorm", "eps": 1e-3}
ROPE = {"kind": "rope", "theta": 50.0}

# head_dim is not d_model / n_heads, and key/value heads are fewer than query heads
MIXER = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "position": ROPE}
FFN = {"kind": "glu", "d_ff": 10, "activation": "silu"}


def with_norm(table: Any, norm: Any) -> Any:
    """A copy in which the placeholder of the placed norm is the norm itself."""
    if isinstance(table, Mapping):
        return {key: with_norm(value, norm) for key, value in table.items()}
    return copy.deepcopy(norm) if table == NORM else table


def authored(
    placement: str = "pre",
    norm: Any = RMS,
    mixers: tuple[Mapping[str, Any], ...] = (MIXER, MIXER),
    ffns: tuple[Mapping[str, Any], ...] = (FFN, FFN),
    embedding: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An authored recipe with one complete layer a depth."""
    residual = with_norm(PLACEMENTS[placement][1], norm)
    names = [f"layer-{chr(ord('a') + i)}" for i in range(len(mixers))]
    layers = {
        name: {"mixer": dict(m), "ffn": dict(f), "residual": residual}
        for name, m, f in zip(names, mixers, ffns, strict=True)
    }
    return {
        "name": placement,
        "d_model": D_MODEL,
        "vocab_size": VOCAB,
        "max_seq_len": MAX_LEN,
        "embedding": dict(embedding or {"tied": False}),
        "layers": layers,
        "stack": names,
        "head": dict(head or {"norm": RMS}),
    }


def random_decoder(table: Mapping[str, Any], seed: int, dtype: torch.dtype = torch.float64) -> Decoder:
    """The decoder of an authored recipe, every parameter random: gains, biases, scales and sinks too."""
    decoder = build(resolve(table), dtype=dtype)
    randomise(decoder, seed)
    return decoder.eval()


@torch.no_grad()
def randomise(decoder: Decoder, seed: int) -> None:
    """Matrices around 0 with unit output, everything else spread around where it starts."""
    rng = np.random.default_rng(seed)
    for p in named_params(decoder):
        noise = torch.from_numpy(np.asarray(rng.normal(size=tuple(p.param.shape))))
        if p.role is ParamRole.EMBEDDING:
            p.param.copy_(noise)
        elif p.start is None:
            p.param.copy_(noise * p.param.shape[-1] ** -0.5)
        else:
            p.param.copy_(p.start + 0.4 * noise)


def weights_of(decoder: Decoder) -> Weights:
    """Its parameters as float64 arrays by name."""
    return Weights({p.name: p.param.detach().double().numpy() for p in named_params(decoder)})


def tokens(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng([seed, length]).integers(0, VOCAB, length)]


def reference_logits(table: Mapping[str, Any], placement: str, norm: Any, decoder: Decoder, ids: list[int]) -> Any:
    """Logits of the reference with the decoder's weights; every weight must have been used."""
    weights = weights_of(decoder)
    out = logits(table, placement, norm, weights, ids)
    assert not weights.unused
    return out


def distance(got: Any, want: Any) -> float:
    """Largest difference, relative to the largest value."""
    return float(np.abs(np.asarray(got) - np.asarray(want)).max() / np.abs(np.asarray(want)).max())
