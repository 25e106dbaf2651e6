"""What the verbs share: options, recipes from the command line, JSON."""

from __future__ import annotations

import json
import math
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.cost import Budget
    from assay.recipe import Recipe

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A preset's name, or a .toml or .json file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Lay a value over the recipe before it is resolved; repeatable."
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="Load parts of your own from a Python file; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", metavar="N", help="Tokens a sequence.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", help="Sequences.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it there; never overwrites.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of weights and cache: fp32, bf16, fp16, fp8.")]


def load_recipe(name: str, overrides: Sequence[str] | None = None) -> Recipe:
    """The recipe of a name or path with its overrides."""
    from assay.recipe import load

    return load(name, overrides or ())


def load_plugins(paths: Sequence[Path] | None) -> None:
    """Register what installed packages and plugin files bring, before any recipe is read."""
    from importlib.metadata import entry_points

    installed = bool(entry_points(group="assay.parts"))
    if not (installed or paths):
        return
    from assay.plugin import load_entry_points, load_plugin

    if installed:
        load_entry_points()
    for path in paths or ():
        load_plugin(path)


def cost_of(recipe: Recipe, *, batch: int, seq_len: int | None, dtype: str, **more: Any) -> Budget:
    """The recipe's budget at these settings; ``more`` as :func:`assay.cost.budget` takes it."""
    from assay.cost import budget

    with costing(recipe):
        return budget(recipe, batch=batch, seq_len=seq_len, dtype=dtype, **more)


@contextmanager
def costing(recipe: Recipe) -> Iterator[None]:
    """A setting that cannot be, or a part without a cost rule, is the user's fault."""
    try:
        yield
    except (ValueError, LookupError) as error:
        if type(error) not in (ValueError, LookupError):  # a KeyError is ours
            raise
        raise UserError(f"{recipe.name}: {error}") from None


@contextmanager
def asking() -> Iterator[None]:
    """A question that the atlas cannot answer is the user's fault, in the atlas's words."""
    from assay.atlas import Inexpressible, RuleError, UnknownModel

    try:
        yield
    except ValueError as error:
        if type(error) not in (ValueError, Inexpressible, RuleError, UnknownModel):
            raise
        raise UserError(str(error)) from None


def quantity(text: str | float) -> float:
    """A number as people write it: ``1.3e9``, ``1.3B``, ``500M``, ``15T`` (decimal)."""
    text = str(text)  # a default comes as it is
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        value = float(digits.replace("_", "").replace(",", "")) * _UNITS[unit]
    except (ValueError, KeyError):
        raise typer.BadParameter(f"not a number: {text!r}; like 1.3e9, 1.3B or 500M") from None
    if not math.isfinite(value):
        raise typer.BadParameter(f"not a finite number: {text!r}")
    return float(round(value)) if abs(value - round(value)) < 1e-6 * abs(value) else value  # 1.3B is a whole number


_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def write_new(texts: Mapping[Path, str]) -> None:
    """Write files that do not exist yet: all of them, or none where one does."""
    for path in texts:
        if path.exists():
            raise UserError(f"{path}: exists and is not overwritten; remove it, or write elsewhere with --out")
    for path, text in texts.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A file that cannot be written is told of by its name."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def command_line(verb: str) -> str:
    """What was typed, to be typed again; empty where the verb was called by a program."""
    return shlex.join(["assay", *sys.argv[1:]]) if sys.argv[1:2] == [verb] else ""


def print_json(value: Any) -> None:
    """A value as indented JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
