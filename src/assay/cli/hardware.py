"""The device of ``--hardware`` as a design ranks by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.atlas import Device


def device_of(text: str, count: int = 1) -> Device:
    """The device of a name or of a TOML file; raises ValueError with the known names."""
    from assay.atlas import Device
    from assay.cost.hardware import find_hardware

    found = find_hardware(text)
    return Device(found.name, found.peak("bf16"), found.memory, found.bandwidth, count)
