"""From a decoder to text."""

from assay.decoding.engine import Engine

__all__ = ["Engine"]
