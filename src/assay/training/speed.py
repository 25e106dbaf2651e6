"""How much of the device a run uses: MFU, by the recipe's own count and a named peak."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import torch

from assay.cost import Hardware, budget, find_hardware, hardware_names
from assay.training.config import RunConfig


@dataclass(frozen=True)
class Ceiling:
    """The FLOP/s that a share is of, and what they are."""

    flops: float
    name: str


def train_flops(config: RunConfig) -> int | None:
    """FLOPs of training on one token: forward and backward, no recomputation (PaLM, arXiv:2204.02311, appendix B).

    None where a part has no cost rule.
    """
    try:
        return budget(config.built, batch=1, seq_len=config.seq_len).flops.train_per_token
    except (LookupError, ValueError):
        return None


def ceiling_of(config: RunConfig) -> Ceiling | None:
    """The dense peak of the run's device in its precision, from the hardware table; None where it is not in there."""
    device = torch.device(config.numerics.device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    found = hardware_of(torch.cuda.get_device_name(device))
    tf32 = torch.get_float32_matmul_precision() != "highest"
    dtype = "bf16" if config.precision == "bf16" else "tf32" if tf32 else "fp32"
    if found is None or dtype not in found.peaks:
        return None
    return Ceiling(found.peak(dtype), f"{found.name}, {dtype} dense {found.peak(dtype) / 1e12:g} TFLOP/s")


def hardware_of(name: str) -> Hardware | None:
    """The table's entry for a device's own name, like ``NVIDIA A100-SXM4-80GB``: the one that shares most words."""
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    best, score = None, 0
    for known in hardware_names():
        parts = known.split("-")
        model = next((part for part in parts if re.search(r"\d", part)), None)
        shared = sum(part in words for part in parts)
        if model in words and shared > score:
            best, score = known, shared
    return None if best is None else find_hardware(best)


def measured_ceiling(config: RunConfig, size: int = 768, seconds: float = 0.2) -> Ceiling:
    """What a large matrix product reaches here now, in the run's precision and threads: no peak of the device."""
    device = torch.device(config.numerics.device)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    a = torch.ones(size, size, device=device, dtype=dtype)
    best, ends = float("inf"), time.perf_counter() + seconds
    a @ a
    while True:
        began = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
        if time.perf_counter() > ends:
            break
    flops = 2 * size**3 / best
    kind = "bf16" if config.precision == "bf16" else "fp32"
    return Ceiling(flops, f"{flops / 1e9:,.0f} GFLOP/s, measured here by a matrix product in {kind}")
