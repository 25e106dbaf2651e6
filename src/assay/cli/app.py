"""The ``assay`` command: finds the verb, runs it, and turns a user's fault into a message and exit code 2."""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from assay import __version__
from assay.cli.errors import UserError

# in the order of the help page; a verb `a-b` is the function `run` of assay/cli/a_b.py
VERBS = (
    "list", "show", "budget", "diff", "atlas", "check", "design", "scale", "new", "import", "export",
    "convert", "tokenize", "train", "coord-check", "generate", "eval", "study", "report", "demo",
)  # fmt: skip


class _Verbs(typer.core.TyperGroup):
    """Loads a verb's file only when the verb is run or the help page names it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        module = import_module(f"assay.cli.{cmd_name.replace('-', '_')}")
        verb = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        verb.command(cmd_name)(module.run)
        command = typer.main.get_command(verb)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"no such verb: {args[0]!r}; {f'nearest: {near[0]}' if near else 'known: ' + ', '.join(VERBS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except UserError as error:
            message = str(error)
        except ValueError as error:
            if not _is_users_fault(error):
                raise
            message = str(error)
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(2)


def _is_users_fault(error: ValueError) -> bool:
    from assay.plugin import PluginError
    from assay.recipe import RecipeError

    return isinstance(error, RecipeError | PluginError)


app = typer.Typer(
    cls=_Verbs,
    name="assay",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"assay {__version__}")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def _assay(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """A workbench for language-model architecture: write a model as one recipe, know its cost, compare.

    A RECIPE is the name of a preset (see `assay list`) or a path that ends in .toml or .json.
    """


def main() -> None:
    """The entry point of the ``assay`` script."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a terminal that has no × gets a ?, not a traceback
    app(prog_name="assay")
