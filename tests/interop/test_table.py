"""The table of what can be read, and the list of what waits for a kind."""

from __future__ import annotations

from assay.interop import PENDING, Pending, families
from assay.interop.table import markdown, rows
from tests.interop import table
from tests.interop.cases import CASES
from tests.interop.support import TOLERANCE


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


def test_the_page_holds_every_case_and_nothing_else() -> None:
    """docs/parity.md is of today's families and cases: ``python -m tests.interop.table --write``."""
    page = table.TARGET.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    cells = [dict(zip(table.COLUMNS, line.strip("| ").split(" | "), strict=False)) for line in lines[1:]]
    told = [(row["family"], row["config"]) for row in cells]
    assert told == [(case.model_type, table.setting(name)) for name, case in CASES.items()]
    assert {family for family, _ in told} == set(families())
    for row in cells:
        assert float(row["error"]) < TOLERANCE
        assert float(row["export"]) < TOLERANCE
        assert row["argmax"] == "equal"
    assert all(f"- {text}" in page for text in table.EXCEPTIONS)
