"""``assay new``: a recipe and a run to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.common import AsJson, OutFile, asking, print_json, quantity, write_new
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.atlas import Design

_SEQ = 256  # tokens a sequence of the run, where the context is longer
_BATCH = 16
_STEPS = 200


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the recipe; the files are called after it.")],
    params: Annotated[float, typer.Option("--params", metavar="N", parser=quantity, help="Like 30e6 or 30M.")] = 1e6,
    vocab: Annotated[int, typer.Option("--vocab", metavar="N", help="Rows of the token table; 256: bytes.")] = 256,
    context: Annotated[int, typer.Option("--context", metavar="N", help="Longest sequence.")] = 1024,
    out: OutFile = None,
    json: AsJson = False,
) -> None:
    """Start here: a recipe of a size, and a run that trains it.

    Writes NAME.toml, the best shape of `assay design`, and NAME.run.toml, a short run on the standard library's own
    sources. Both are small text files to change; nothing is ever overwritten.

    \b
    Examples:
      assay new mine
      assay new my-30m --params 30e6
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"NAME: letters, digits, points, strokes only: {name!r}; a place is given by --out FILE")
    path = out if out is not None else Path(f"{name}.toml")
    if path.suffix != ".toml":
        raise UserError(f"--out: a recipe's file ends in .toml: {path}")
    with asking():
        from assay.atlas import design

        found = design(params, vocab_size=vocab, context=context, n=1)[0]
    run_path = path.with_name(f"{path.stem}.run.toml")
    write_new({path: _recipe_text(name, found), run_path: _run_text(path, found)})
    follow = _commands(path, run_path)
    if json:
        print_json({**found.to_dict(), "name": name, "recipe": str(path), "run_file": str(run_path), "next": follow})
    else:
        _print_page(name, found, (path, run_path), follow)


def _recipe_text(name: str, d: Design) -> str:
    from assay.atlas import to_toml

    return to_toml({**d.table, "name": name})


def _run_text(path: Path, d: Design) -> str:
    """The run's file, with what it costs and what a full length would be."""
    from assay.cli.numbers import short_flops

    seq = min(_SEQ, d.recipe.max_seq_len)
    per_step = seq * _BATCH
    full = -(-round(d.run["tokens"]) // per_step)
    work = round(d.run["train_flops"] / d.run["tokens"]) * per_step * _STEPS
    lr = f"{d.run['lr']:.0e}".replace("e-0", "e-")
    return f"""\
# A run of {path.name}: assay train {path.stem}.run.toml
# {_STEPS} updates of {per_step:,} tokens ({short_flops(work)}) show that it learns; 20 tokens a parameter: {full:,}.
recipe = "{path.name}"
seq_len = {seq}
batch_size = {_BATCH}
steps = {_STEPS}
eval_every = 50
telemetry_every = 20
checkpoint_every = 50
z_loss = 1e-4

[schedule]
kind = "cosine"
lr = {lr}  # DeepSeek's rule for 20 tokens a parameter; `assay study` sweeps it
warmup = {_STEPS // 20}
floor = 0.1

[optimizer]
kind = "adamw"
betas = [0.9, 0.95]
weight_decay = 0.1

[samples]  # what it writes on the way
every = 50
prompts = ["def main("]
"""


def _commands(path: Path, run_path: Path) -> list[str]:
    return [
        f"assay show {path}",
        f"assay budget {path}",
        f"assay check {path} --run {run_path}",
        f"assay train {run_path}",
    ]


def _print_page(name: str, d: Design, files: tuple[Path, Path], follow: list[str]) -> None:
    from assay.cli.numbers import count
    from assay.cli.tables import console, heading, indented, pairs

    page = console()
    recipe = d.recipe
    page.print(heading(f"{name}: {count(d.budget.params.total)} parameters"))
    page.print(f"{recipe.n_layers} layers of {recipe.d_model}, vocabulary {recipe.vocab_size:,}")
    page.print(indented(pairs([("-", line) for line in d.why])))
    page.print()
    for path in files:
        page.print(f"written: {path}")
    page.print()
    page.print(heading("Next"))
    for command in follow:
        page.print(indented(command))
