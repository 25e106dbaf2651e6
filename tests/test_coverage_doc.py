"""docs/coverage.md: each id in one list, each command and test that it names is there."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from assay.atlas import model, table_names
from assay.atlas.ruleset import shipped_rules
from assay.cli.app import VERBS
from assay.recipe import load, preset_names
from assay.study import plan_names

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| *(\d+) *\|(.*)\|$", re.MULTILINE)


def rows(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """Every row that begins with a number, and its other cells."""
    return [(int(n), tuple(cell.strip() for cell in rest.split("|"))) for n, rest in ROW.findall(text)]


WORKS, NOT_YET = (rows(part) for part in TEXT.split("\n## Not yet\n"))
NAMED = dict.fromkeys(name for _, cells in WORKS for name in re.findall(r"`([^`]*)`", cells[-1]))  # each once
TESTS = [name for name in NAMED if name.startswith("tests/")]
COMMANDS = [name for name in NAMED if name not in TESTS]
TAKES = ("--table", "--only", "--set", "--run", "--seq-len")  # the options named there that take a word


def test_every_id_is_in_one_list() -> None:
    ids = [n for n, _ in WORKS + NOT_YET]
    assert sorted(ids) == list(range(1, 231))
    assert [n for n, _ in WORKS] == sorted(n for n, _ in WORKS)


def test_every_row_is_whole() -> None:
    for n, cells in WORKS:
        assert len(cells) == 2, n
        assert cells[0], n
        assert re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cells[1]), n
    for n, cells in NOT_YET:
        assert len(cells) == 2, n
        assert all(cells), n
        assert len(cells[1].split()) <= 4, n


@cache
def defined(file: str) -> frozenset[str]:
    """Tests of a file, as ``name`` or ``Class::name``; the file is read, not imported."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(found)


@pytest.mark.parametrize("name", TESTS)
def test_a_named_test_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert (ROOT / file).is_file()
    assert test.rpartition("::")[2].startswith("test_")
    assert test in defined(file)


def values(words: list[str], option: str) -> list[str]:
    """What is given to an option."""
    return [words[i + 1] for i, word in enumerate(words) if word == option]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_named_command_exists(command: str) -> None:
    """Its verb, its recipes with what is laid over them, its table, rule, study or file."""
    program, verb, *words = shlex.split(command)
    assert program == "assay"
    assert verb in VERBS
    assert set(values(words, "--table")) <= set(table_names())
    assert set(values(words, "--only")) <= {rule.id for rule in shipped_rules()}
    given = [word for before, word in pairwise(["", *words]) if not word.startswith("--") and before not in TAKES]
    if verb in ("show", "budget", "diff", "check"):
        assert given
        assert set(given) <= set(preset_names())
        load(given[-1], values(words, "--set"))
    elif verb == "atlas":
        assert all(model(name) for name in given)
    elif verb == "study":
        assert set(given) <= set(plan_names())
    elif verb == "train":
        assert all((ROOT / file).is_file() for file in given)
