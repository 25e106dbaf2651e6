"""Checkpoints of other libraries: Hugging Face folders in and out, GGUF files in.

Torch is loaded by the functions that make or take a decoder; :func:`read_recipe` needs none.
"""

from __future__ import annotations

from assay.interop.errors import CannotExport, DamagedFolder, InteropError, UnsupportedArchitecture
from assay.interop.export import lost_fields, to_hf
from assay.interop.families import PENDING, Pending, families
from assay.interop.folder import Opened, open_folder
from assay.interop.gguf import from_gguf
from assay.interop.load import from_hf, read_recipe
from assay.interop.pool import CannotPool, pool_heads, pooled_recipe
from assay.interop.relayout import relayout

__all__ = [
    "PENDING",
    "CannotExport",
    "CannotPool",
    "DamagedFolder",
    "InteropError",
    "Opened",
    "Pending",
    "UnsupportedArchitecture",
    "families",
    "from_gguf",
    "from_hf",
    "lost_fields",
    "open_folder",
    "pool_heads",
    "pooled_recipe",
    "read_recipe",
    "relayout",
    "to_hf",
]
