"""The rooms of assay and the imports allowed between them, read from the source without running it.

An edge counts wherever it stands: at the top, inside a function, under ``TYPE_CHECKING``, as a relative import or as
``importlib.import_module("assay...")`` with a literal name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "assay"

# room -> the rooms it may import
ROOMS: dict[str, frozenset[str]] = {
    "recipe": frozenset(),
    "cost": frozenset({"recipe"}),
    "atlas": frozenset({"recipe", "cost"}),
    "model": frozenset({"recipe"}),
    "decoding": frozenset({"recipe", "model"}),
    "training": frozenset({"recipe", "cost", "model"}),
    "profiling": frozenset({"recipe", "cost", "model", "training"}),
    "study": frozenset({"recipe", "cost", "model", "training"}),
    "report": frozenset(),
    "interop": frozenset({"recipe", "model", "decoding"}),
}
ROOMS["cli"] = frozenset(ROOMS)

# files beside the rooms -> the rooms they may import at their top; inside a function, any
EDGE_FILES: dict[str, frozenset[str]] = {
    "__init__": frozenset(),
    "__main__": frozenset({"cli"}),
    "plugin": frozenset({"recipe", "cost"}),
}
LAZY = {"cli"}  # rooms whose imports of other rooms wait until a function runs

ONLY_THIRD_PARTY = {"recipe": {"pydantic", "pydantic_core", "tomli_w"}}
TORCH_FREE = {"recipe", "cost", "atlas", "report"}
BRING_TORCH = {"torch", "transformers", "triton", "liger_kernel", "fla", "lm_eval", "accelerate"}
BRING_TORCH_MODULES = {"safetensors.torch"}


@dataclass(frozen=True)
class Import:
    """One imported module: its full dotted name, where it stands, and when it runs."""

    target: str
    line: int
    in_function: bool
    typing_only: bool

    @property
    def runs_at_import(self) -> bool:
        return not (self.in_function or self.typing_only)


@dataclass
class _Collector(ast.NodeVisitor):
    package: str  # what a relative import of level 1 starts from
    found: list[Import] = field(default_factory=list)
    depth: int = 0
    typing_only: bool = False

    def _add(self, target: str, node: ast.AST) -> None:
        self.found.append(Import(target, getattr(node, "lineno", 0), self.depth > 0, self.typing_only))

    def _absolute(self, name: str, level: int) -> str:
        if level == 0:
            return name
        parts = self.package.split(".")
        return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self._absolute(node.module or "", node.level)
        for alias in node.names:
            # `from assay import cost` names a room, `from assay.cost import budget` a thing in one
            self._add(base if alias.name == "*" else f"{base}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("import_module", "__import__") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                dots = len(first.value) - len(first.value.lstrip("."))
                self._add(self._absolute(first.value[dots:], dots), node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        test = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        if test != "TYPE_CHECKING":
            self.generic_visit(node)
            return
        before, self.typing_only = self.typing_only, True
        for child in node.body:
            self.visit(child)
        self.typing_only = before
        for child in node.orelse:
            self.visit(child)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        body = node.body if isinstance(node.body, list) else [node.body]
        inside = {id(child) for child in body}
        for child in ast.iter_child_nodes(node):  # decorators and defaults run when the module does
            self.depth += id(child) in inside
            self.visit(child)
            self.depth -= id(child) in inside

    visit_FunctionDef = _function
    visit_AsyncFunctionDef = _function
    visit_Lambda = _function


def imports_of(source: str, module: str, *, is_package: bool = False) -> list[Import]:
    """Every import of ``source``, the text of ``module`` (``assay.cost.flops``)."""
    collector = _Collector(module if is_package else module.rpartition(".")[0])
    collector.visit(ast.parse(source))
    return collector.found


def faults_in(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """The imports of ``source`` that the plan does not allow, one line each."""
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    if name not in ROOMS and name not in EDGE_FILES:
        return [f"{module}: neither a room nor a file of the plan"]
    found = imports_of(source, module, is_package=is_package)
    reasons = ((each, _fault(each, name)) for each in found)
    return list(dict.fromkeys(f"{module}:{each.line}: {reason}" for each, reason in reasons if reason))


def _fault(found: Import, name: str) -> str | None:
    top, _, rest = found.target.partition(".")
    if top == "assay":
        return _edge_fault(found, name, rest.partition(".")[0])
    return _third_party_fault(found, name, top)


def _edge_fault(found: Import, name: str, other: str) -> str | None:
    if other == name:
        return None
    if name in EDGE_FILES:
        if other in ROOMS and found.runs_at_import and other not in EDGE_FILES[name]:
            return f"imports {found.target} at its top; only inside a function"
        return None
    if name in LAZY:
        if found.runs_at_import and other != "__version__":
            return f"imports {found.target} at its top; each verb imports what it needs inside its function"
        return None
    if other not in ROOMS:
        return f"{name} imports {found.target}; a room never imports the package above it"
    if other not in ROOMS[name]:
        return f"{name} imports {other} ({found.target}); allowed: {', '.join(sorted(ROOMS[name])) or 'no room'}"
    return None


def _third_party_fault(found: Import, name: str, top: str) -> str | None:
    brings_torch = top in BRING_TORCH or any(
        found.target == m or found.target.startswith(m + ".") for m in BRING_TORCH_MODULES
    )
    if name in TORCH_FREE and brings_torch:
        return f"{name} imports {found.target}; it never imports torch, inside functions neither"
    if (name in LAZY or name in EDGE_FILES) and brings_torch and found.runs_at_import:
        return f"imports {found.target} at its top; only inside a function"
    allowed = ONLY_THIRD_PARTY.get(name)
    if allowed is not None and top not in allowed and top not in sys.stdlib_module_names:
        return f"{name} imports {found.target}; allowed: the standard library, {', '.join(sorted(allowed))}"
    return None


def _modules() -> Iterator[tuple[str, bool, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("assay", *path.relative_to(ROOT).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), is_package, path


def test_imports_follow_the_plan() -> None:
    modules = list(_modules())
    assert {name.split(".")[1] for name, _, _ in modules if "." in name} >= {"recipe", "cost", "model", "cli"}
    faults = [
        fault
        for name, is_package, path in modules
        for fault in faults_in(path.read_text(encoding="utf-8"), name, is_package=is_package)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_the_plan_has_no_cycle() -> None:
    done: set[str] = set()
    while ready := {room for room in ROOMS if room not in done and ROOMS[room] - {room} <= done}:
        done |= ready
    assert done == set(ROOMS)


BAD = [
    ("assay.recipe.load", "from assay.cost import flops"),
    ("assay.recipe.load", "import assay.model.decoder"),
    ("assay.recipe.load", "def f():\n    import torch"),
    ("assay.recipe.load", "import numpy as np"),
    ("assay.recipe.load", "from assay import load"),
    ("assay.recipe.load", "from assay.plugin import register"),
    ("assay.cost.flops", "def f():\n    from assay.model import build"),
    ("assay.cost.flops", "from ..model.decoder import Decoder"),
    ("assay.cost.flops", "from .. import model"),
    ("assay.cost.flops", "import importlib\nmodel = importlib.import_module('assay.model')"),
    ("assay.cost.flops", "from importlib import import_module\nmodel = import_module('..model', __package__)"),
    ("assay.cost.flops", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from assay.model import Decoder"),
    ("assay.cost.flops", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor"),
    ("assay.atlas.facts", "async def f():\n    from safetensors.torch import load_file"),
    ("assay.model.decoder", "from assay.cost.flops import count"),
    ("assay.decoding.sampling", "from assay.training import loss"),
    ("assay.training.loop", "from assay.study import plan"),
    ("assay.profiling.ops", "from assay.study import plan"),
    ("assay.study.plan", "from assay.report import page"),
    ("assay.report.page", "from assay.recipe import Recipe"),
    ("assay.report.page", "def f():\n    import torch.nn"),
    ("assay.interop.lm_eval", "from assay.training import loop"),
    ("assay.model.decoder", "from assay.cli import app"),
    ("assay.cli.budget", "from assay.recipe import load"),
    ("assay.cli.budget", "import torch"),
    ("assay.cli.budget", "from assay import load"),
    ("assay.cli.budget", "try:\n    from assay.cost import budget\nexcept ImportError:\n    raise"),
    ("assay.cli.budget", "class Verb:\n    from assay.cost import budget"),
    ("assay.cli.budget", "def verb(x=__import__('assay.cost')):\n    pass"),
    ("assay.cli.budget", "import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    from assay.cost import budget"),
    ("assay", "from assay.recipe import load"),
    ("assay.plugin", "from assay.model import build"),
    ("assay.helpers", "import math"),
]

GOOD = [
    ("assay.recipe.load", "import tomllib\nimport tomli_w\nfrom pydantic_core import ErrorDetails\nfrom . import norm"),
    (
        "assay.cost.flops",
        "from assay.recipe import Recipe\nfrom ..recipe.norm import RMSNorm\nfrom .params import count",
    ),
    ("assay.model.decoder", "import torch\nfrom assay.recipe.ffn import Glu"),
    ("assay.report.page", "import jinja2"),
    ("assay.cli.app", "import typer\nfrom assay import __version__\nfrom assay.cli import budget\nfrom . import diff"),
    (
        "assay.cli.budget",
        "def verb():\n    import torch\n    from assay import load\n    from assay.cost import budget",
    ),
    ("assay.cli.budget", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from assay.cost import Budget"),
    ("assay", "def __getattr__(name):\n    from assay.model import build\n    return build"),
    ("assay.plugin", "from assay.recipe import Part\nfrom assay.cost import rules\ndef f():\n    import assay.model"),
    ("assay.__main__", "from assay.cli.app import main\nmain()"),
]


@pytest.mark.parametrize(("module", "source"), BAD)
def test_the_checker_reports_what_is_not_allowed(module: str, source: str) -> None:
    faults = faults_in(source, module, is_package=module == "assay")
    assert len(faults) == 1
    assert faults[0].startswith(f"{module}:")


@pytest.mark.parametrize(("module", "source"), GOOD)
def test_the_checker_lets_pass_what_is_allowed(module: str, source: str) -> None:
    assert faults_in(source, module, is_package=module == "assay") == []
