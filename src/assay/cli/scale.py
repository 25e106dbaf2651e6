"""``assay scale``: a faithful small proxy of a recipe, or a ladder of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.common import (
    AsJson,
    Overrides,
    Plugins,
    RecipeName,
    asking,
    load_plugins,
    load_recipe,
    print_json,
    quantity,
    write_new,
)
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.atlas import Proxy
    from assay.recipe import Recipe

Vocab = Annotated[int | None, typer.Option("--vocab", metavar="N", help="Another vocabulary; 256 for bytes.")]


def run(
    recipe: RecipeName,
    params: Annotated[
        float | None, typer.Option("--params", metavar="N", parser=quantity, help="Like 20e6 or 20M.")
    ] = None,
    ladder: Annotated[
        str | None, typer.Option("--ladder", metavar="N,N,...", help="Several sizes, like 5M,20M,80M.")
    ] = None,
    count: Annotated[
        str, typer.Option("--count", metavar="WHICH", help="What the size counts: non_embedding, total.")
    ] = "non_embedding",
    vocab: Vocab = None,
    context: Annotated[
        int | None, typer.Option("--context", metavar="N", help="Another longest sequence; windows shrink with it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE|DIR", help="Write the recipe; a ladder into a folder.")
    ] = None,
    json: AsJson = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
) -> None:
    """The same architecture at another size: a proxy.

    Every choice is kept (layer pattern, head size, groups, d_ff ratio, tying, scalings), the shape shrinks to the
    parameters; what had to give is said, and written into the recipe's notes.

    \b
    Examples:
      assay scale gemma3-4b --params 20e6
      assay scale llama-3.1-8b --ladder 5M,20M,80M --vocab 256 --context 1024
      assay scale llama-3.1-8b --params 20M --set block.mixer.n_kv_heads=4 --json
    """
    if (params is None) is (ladder is None):
        raise UserError("give --params N or --ladder N,N,...: one of the two")
    load_plugins(plugins)
    found = load_recipe(recipe, overrides)
    sizes = [params] if params is not None else _sizes(ladder or "")
    with asking():
        proxies = _proxies(found, sizes, count, vocab, context)
    files = _files(proxies, out, is_ladder=ladder is not None)
    write_new({path: p.recipe.to_toml() for path, p in files.items()})
    if json:
        rows = [_row(p) for p in proxies]
        for row, path in zip(rows, files, strict=False):
            row["file"] = str(path)
        print_json(rows[0] if ladder is None else rows)
    else:
        _print_page(found, proxies, list(files))


def _sizes(text: str) -> list[float]:
    sizes = sorted(quantity(part.strip()) for part in text.split(","))
    if len(set(sizes)) < len(sizes):
        raise UserError(f"--ladder: a size stands twice: {text}")
    return sizes


def _proxies(recipe: Recipe, sizes: list[float], count: str, vocab: int | None, context: int | None) -> list[Proxy]:
    from assay.atlas import proxy

    return [
        proxy(recipe, size, count=count, vocab_size=vocab, max_seq_len=context)  # type: ignore[arg-type]
        for size in sizes
    ]


def _files(proxies: list[Proxy], out: Path | None, *, is_ladder: bool) -> dict[Path, Proxy]:
    if out is None:
        return {}
    if out.suffix == ".toml":
        if is_ladder:
            raise UserError(f"--out: a ladder is several recipes: give a folder, not {out}")
        return {out: proxies[0]}
    return {out / f"{p.recipe.name.replace('/', '-')}.toml": p for p in proxies}


def _row(p: Proxy) -> dict[str, object]:
    return {
        "name": p.recipe.name,
        "asked": p.asked,
        "count": p.count,
        "got": p.got,
        "error": p.error,
        "d_model": p.recipe.d_model,
        "n_layers": p.recipe.n_layers,
        "notes": list(p.notes),
        "recipe": p.recipe.to_dict(),
    }


def _print_page(old: Recipe, proxies: list[Proxy], files: list[Path]) -> None:
    from assay.cli.numbers import short_flops
    from assay.cli.tables import console, heading, indented, pairs, ruled
    from assay.cost import budget
    from assay.cost.budget import count_params

    page = console()
    rows = []
    for name, recipe, asked in [(old.name, old, None), *((p.recipe.name, p.recipe, p) for p in proxies)]:
        params = count_params(recipe)
        cost = budget(recipe, seq_len=min(recipe.max_seq_len, 4096))
        off = "" if asked is None else f"{asked.error:+.1%}"
        shape = f"{recipe.n_layers} x {recipe.d_model}"
        rows.append(
            (
                name,
                shape,
                f"{params.non_embedding:,}",
                f"{params.total:,}",
                off,
                short_flops(cost.flops.train_per_token),
            )
        )
    headings = ("recipe", "shape", "non-embedding", "total", "off", "training a token")
    page.print(ruled(headings, rows, right=(1, 2, 3, 4, 5)))
    for p in proxies:
        page.print()
        page.print(heading(p.recipe.name))
        page.print(indented(pairs([("-", note) for note in p.notes])))
    page.print()
    for path in files:
        page.print(f"written: {path}")
    if not files:
        page.print("To write it: the same with --out FILE.toml, or --out DIR for a ladder")
