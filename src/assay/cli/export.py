"""``assay export``: a model as a folder that transformers loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from assay.cli.common import AsJson, print_json


def run(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `assay import` or `assay train` wrote.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The Hugging Face folder to write.")],
    model_type: Annotated[str | None, typer.Option("--model-type", metavar="TYPE", help="The family to write.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FOLDER", help="Copy its tokenizer files beside the weights.")
    ] = None,
    json: AsJson = False,
) -> None:
    """A model as a Hugging Face folder, or the fields in the way.

    AutoModelForCausalLM loads the folder with equal logits. A recipe that the target cannot express is refused, with
    the list of its fields that would be lost. The model's own tokenizer comes along, that of a run on bytes too.

    \b
    Examples:
      assay export imported exported
      assay export runs/mine exported --model-type llama --json
    """
    importer = import_module("assay.cli.import")
    with importer.interop_faults():
        from assay.interop import to_hf

        decoder = importer.open_model(source)
        with _tokenizer(source, tokenizer) as (found, tokens):
            folder = to_hf(decoder, out, model_type=model_type, tokenizer=found, tokens=tokens)
    if json:
        print_json({"folder": str(folder), "digest": decoder.recipe.digest})
    else:
        typer.echo(f"written: {folder}")


@contextmanager
def _tokenizer(source: Path, given: Path | None) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """The folder whose tokenizer is copied, and its special ids: as given, else the model's own if it has one."""
    from assay.decoding import read_tokenizer
    from assay.interop.folder import tokenizer_of_run
    from assay.interop.tokenizer_files import token_ids, write_byte_tokenizer

    own = source if given is None and (source / "tokenizer.json").is_file() else given
    if own is not None:
        ids = token_ids(read_tokenizer(own)) if (own / "tokenizer.json").is_file() else {}
        yield own, ids
    elif source.is_dir() and tokenizer_of_run(source) == "bytes":
        with TemporaryDirectory() as folder:
            yield write_byte_tokenizer(Path(folder)), {"eos": 0, "pad": 0}
    else:
        yield None, {}
