"""QK-clip: heads whose attention logits grew too large have their query and key projections scaled down."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from assay.model import Decoder, Linear
from assay.model.attention import Attention

_SCORES = re.compile(r"layers\.(\d+)\.mixer\.scores")


class HeadPeaks:
    """A probe that keeps the largest attention logit of every head, over all forward passes it watches."""

    def __init__(self) -> None:
        self.peaks: dict[int, Tensor] = {}

    def wants(self, name: str) -> bool:
        return _SCORES.fullmatch(name) is not None

    def __call__(self, name: str, value: Tensor) -> None:
        hit = _SCORES.fullmatch(name)
        assert hit is not None
        peak = value.detach().float().amax((0, 2, 3))
        layer = int(hit[1])
        self.peaks[layer] = peak if layer not in self.peaks else torch.maximum(self.peaks[layer], peak)


@torch.no_grad()
def clip_heads(decoder: Decoder, peaks: dict[int, Tensor], limit: float) -> int:
    """Scale heads whose largest logit S was above ``limit`` so that it would have been ``limit``; returns how many.

    With g = limit / S: query and key rows by sqrt(g) where a head has its own keys; where heads or layers share them,
    the queries by g and the keys not at all (Kimi K2, arXiv:2507.20534, algorithm 1, which does so with its shared
    rotary key).
    """
    clipped = 0
    for layer, peak in peaks.items():
        mixer = decoder.get_submodule(f"layers.{layer}.mixer")
        assert isinstance(mixer, Attention)
        factor = torch.where(peak > limit, limit / peak, 1.0)  # (H,)
        clipped += int((peak > limit).sum())
        shared = mixer.offers or mixer.spec.source is not None
        own = mixer.spec.n_kv_heads == mixer.spec.n_heads and not shared
        _scale_rows(mixer.q, factor.sqrt() if own else factor, mixer.spec.head_dim)
        if own:
            _scale_rows(mixer.k, factor.sqrt(), mixer.spec.head_dim)
    return clipped


def _scale_rows(linear: Linear, factor: Tensor, head_dim: int) -> None:
    rows = factor.repeat_interleave(head_dim)
    linear.weight.mul_(rows.to(linear.weight.dtype).unsqueeze(-1))
    if linear.bias is not None:
        linear.bias.mul_(rows.to(linear.bias.dtype))
