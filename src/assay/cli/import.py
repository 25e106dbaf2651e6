"""``assay import``: a Hugging Face folder or a GGUF file as a recipe and weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.common import AsJson, print_json
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.interop import Opened
    from assay.model import Decoder

RECIPE, WEIGHTS = "recipe.toml", "model.safetensors"


def run(
    source: Annotated[Path, typer.Argument(metavar="HF_DIR", help="A Hugging Face folder, or a .gguf file.")],
    out: Annotated[Path | None, typer.Argument(metavar="[OUT]", help="Where to write recipe and weights.")] = None,
    json: AsJson = False,
) -> None:
    """A Hugging Face checkpoint as a recipe and weights.

    Without OUT the recipe alone is read and printed. A tokenizer comes along where there is one. Nothing is fetched,
    unpickled or run from the folder.

    \b
    Examples:
      assay import path/to/checkpoint
      assay import path/to/checkpoint imported --json
    """
    with interop_faults():
        if out is None:
            _show(source, json)
            return
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out}: exists and is not empty; choose another folder")
        from assay.interop import open_folder

        opened = open_folder(source, finite=False)
        decoder = opened.decoder
        _write(decoder, out)
        carry_tokenizer(opened, out)
    found = {"recipe": str(out / RECIPE), "weights": str(out / WEIGHTS), "digest": decoder.recipe.digest}
    found["params"] = str(sum(p.numel() for p in decoder.parameters()))
    if json:
        print_json({**found, "params": int(found["params"])})
    else:
        from assay.cli.tables import console, pairs

        console().print(pairs(list(found.items())))


@contextmanager
def interop_faults() -> Iterator[None]:
    """What is wrong with a foreign folder is the user's fault, told on one screen."""
    from assay.interop import InteropError

    try:
        yield
    except (InteropError, FileExistsError) as error:
        raise UserError(str(error)) from None


def open_model(source: Path) -> Decoder:
    """The decoder in a Hugging Face folder, a GGUF file, or a folder that ``import`` or ``train`` wrote."""
    from assay.interop import open_folder

    return open_folder(source, finite=False).decoder


def carry_tokenizer(opened: Opened, out: Path) -> None:
    """Put a model's tokenizer beside its new weights; one that cannot be read is told, and left behind."""
    from assay.decoding import DecodingError
    from assay.interop.tokenizer_files import write_tokenizer

    if opened.kind == "hf" and not (opened.source / "tokenizer.json").is_file():
        return
    try:
        write_tokenizer(opened.tokenizer(), out)
    except DecodingError as error:
        typer.echo(f"warning: no tokenizer comes along: {error}", err=True)


def _show(source: Path, json: bool) -> None:
    if source.suffix == ".gguf":
        recipe = open_model(source).recipe
    else:
        from assay.interop import read_recipe

        recipe = read_recipe(source)
    if json:
        print_json(recipe.to_dict())
    else:
        typer.echo(recipe.to_toml())


def _write(decoder: Decoder, out: Path) -> None:
    from assay.model import save_weights

    out.mkdir(parents=True, exist_ok=True)
    save_weights(decoder, out / WEIGHTS)
    (out / RECIPE).write_text(decoder.recipe.to_toml(), encoding="utf-8")
