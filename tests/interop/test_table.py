"""The table of what can be read, and the list of what waits for a kind."""

from __future__ import annotations

from assay.interop import PENDING, Pending, families
from assay.interop.table import markdown, rows


def test_every_family_has_a_row() -> None:
    found = rows()
    assert [row["family"] for row in found if row["read"] == "yes"] == list(families())
    waiting = [row for row in found if row["read"] == "no"]
    assert {row["family"] for row in waiting} == {p.model_type for p in PENDING} - set(families())
    assert all(row["note"] for row in waiting)
    assert markdown().count("\n| ") == len(found) + 1


def test_what_waits_says_for_what() -> None:
    """The list is worked out from the kinds that are registered: a new kind shortens it by itself."""
    lacking = Pending("x", "", (("position", "alibi-of-the-moon"), ("position", "rope")))
    assert lacking.missing == ("position kind 'alibi-of-the-moon'",)
    assert Pending("x", "", (("position", "rope"),)).missing == ()


def test_nothing_waits_for_what_is_there() -> None:
    """When a kind arrives, its families get a converter and leave the list."""
    assert not [entry for entry in PENDING if not entry.missing]
