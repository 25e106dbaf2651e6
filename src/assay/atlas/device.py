"""A machine in four numbers, and what a recipe takes on it: time to train, memory, the floor of a decoded token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from assay.atlas.facts import near
from assay.cost.budget import Budget

TRAIN_BYTES = 16  # a parameter: bf16 weights and gradients, float32 master, two float32 moments (2 + 2 + 4 + 4 + 4)


@dataclass(frozen=True)
class Device:
    """One accelerator, ``count`` of them, and the share of the peak that training reaches."""

    name: str
    peak_flops: float  # dense bf16, a device
    memory_bytes: float  # a device
    bandwidth: float  # bytes a second, a device
    count: int = 1
    mfu: float = 0.4

    def __post_init__(self) -> None:
        for key in ("peak_flops", "memory_bytes", "bandwidth", "count", "mfu"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"hardware.{key}: not a positive number: {value!r}")
        if self.mfu > 1:
            raise ValueError(f"hardware.mfu: a share of the peak is at most 1: {self.mfu!r}")


@dataclass(frozen=True)
class Estimate:
    """Lower bounds and estimates on a device; memory without activations."""

    device: str
    count: int
    train_days: float  # training FLOPs over count x peak x mfu
    train_bytes_per_device: float  # 16 bytes a parameter, sharded over all devices
    fits_training: bool
    weights_bytes: int  # bf16
    cache_bytes: int  # one sequence at the longest context
    fits_one_device: bool  # to serve
    decode_ms: float  # reading weights and cache once, one sequence

    @property
    def penalty(self) -> float:
        """What a shape that does not fit, or decodes slowly, loses in a ranking."""
        return (0.0 if self.fits_training else 2.0) + (0.0 if self.fits_one_device else 0.2) + self.decode_ms / 1000

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def device_of(value: Device | Mapping[str, Any]) -> Device:
    """A device from itself or from a table with its fields.

    Raises:
        ValueError: an unknown or missing field, or a number that is not positive.
    """
    if isinstance(value, Device):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"hardware: not a device or a table of its fields: {value!r}")
    known = [f.name for f in fields(Device)]
    for key in value:
        if key not in known:
            raise ValueError(f"hardware.{key}: unknown{near(str(key), known)}; known: {', '.join(known)}")
    missing = [k for k in known[:4] if k not in value]
    if missing:
        raise ValueError(f"hardware: missing {', '.join(missing)}")
    return Device(**value)


def estimate(cost: Budget, device: Device, tokens: float) -> Estimate:
    """What a model takes on a device; ``cost`` is its budget at the context of interest, in bf16, batch 1."""
    flops = cost.flops.train_per_token * tokens
    weights = cost.memory.weights_bytes
    train_bytes = TRAIN_BYTES * cost.params.total / device.count
    held = weights + cost.cache.bytes
    return Estimate(
        device=device.name,
        count=device.count,
        train_days=flops / (device.count * device.peak_flops * device.mfu) / 86_400,
        train_bytes_per_device=train_bytes,
        fits_training=train_bytes < 0.8 * device.memory_bytes,
        weights_bytes=weights,
        cache_bytes=cost.cache.bytes,
        fits_one_device=held < 0.9 * device.memory_bytes,
        decode_ms=1e3 * held / device.bandwidth,
    )
