"""Faults of the one at the keyboard."""

from __future__ import annotations


class UserError(Exception):
    """A fault in what the user gave; its text says what is wrong and what would be right."""
