"""The fault of data."""

from __future__ import annotations


class CorpusError(ValueError):
    """Data that cannot be used: names the file, the place in it, what is there and what is needed."""
