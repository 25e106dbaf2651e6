"""Each preset's dumps are what the golden files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.dump import FOLDER, dump, expected, stale

REGEN = "python -m tests.golden.regen writes it again"


@pytest.mark.parametrize("path", expected(), ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_dump_is_golden(path: Path) -> None:
    kind, name = expected()[path]
    assert path.is_file(), f"no golden {kind} of {name}: {REGEN}"
    assert dump(kind, name).splitlines() == path.read_text(encoding="utf-8").splitlines(), REGEN


def test_no_golden_file_outlives_its_preset() -> None:
    assert stale() == [], REGEN
