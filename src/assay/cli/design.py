"""``assay design``: shapes for a number of parameters, ranked, each with its reasons and its recipe file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.common import AsJson, asking, print_json, quantity, write_new

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.atlas import Design

Params = Annotated[float, typer.Option("--params", metavar="N", parser=quantity, help="Like 1.3e9 or 1.3B.")]
Tokens = Annotated[
    float | None,
    typer.Option("--tokens", metavar="N", parser=quantity, help="To train on; 20 a parameter when not given."),
]
Hardware = Annotated[
    str | None, typer.Option("--hardware", metavar="NAME|FILE.toml", help="Rank by time and fit on this device too.")
]
Vocab = Annotated[int | None, typer.Option("--vocab", metavar="N", help="Rows of the token table.")]


def run(
    params: Params,
    tokens: Tokens = None,
    hardware: Hardware = None,
    devices: Annotated[int, typer.Option("--devices", metavar="N", help="How many of them train.")] = 1,
    context: Annotated[int | None, typer.Option("--context", metavar="N", help="Longest sequence; 4096.")] = None,
    vocab: Vocab = None,
    n: Annotated[int, typer.Option("-n", metavar="N", help="How many shapes.")] = 5,
    count: Annotated[
        str, typer.Option("--count", metavar="WHICH", help="What --params counts: total, non_embedding.")
    ] = "total",
    tp: Annotated[
        int, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks that sizes must divide over.")
    ] = 1,
    language: Annotated[
        str | None, typer.Option("--language", metavar="WHICH", help="english, chinese, code, multilingual.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write each recipe there.")] = None,
    json: AsJson = False,
) -> None:
    """Shapes for a size, ranked, each with its reasons.

    The choices are the field's defaults (pre-norm, RMSNorm, SwiGLU, RoPE, grouped queries, QK-norm, no biases); the
    shape is what varies, within 10 % of the parameters and within the rules of `assay check`.

    \b
    Examples:
      assay design --params 1.3e9
      assay design --params 125M --vocab 32768 -n 3
      assay design --params 7B --tokens 2T --context 32768 --tp 8 --json
    """
    with asking():
        from assay.atlas import design
        from assay.cli.hardware import device_of

        device = None if hardware is None else device_of(hardware, devices)
        found = design(
            params, tokens, device, context, vocab, n, count=count, tp=tp, language=language  # type: ignore[arg-type]
        )  # fmt: skip
    files = {} if out is None else {out / f"{d.name}.toml": d.toml for d in found}
    write_new(files)
    if json:
        paths: Sequence[Path | None] = list(files) or [None] * len(found)
        rows = [d.to_dict() | ({"file": str(p)} if p else {}) for d, p in zip(found, paths, strict=True)]
        print_json(rows)
    else:
        _print_page(found, list(files))


def _print_page(found: Sequence[Design], files: list[Path]) -> None:
    from assay.cli.numbers import short_count, short_flops, short_size
    from assay.cli.tables import console, heading, indented, pairs, ruled

    page = console()
    headings = ("shape", "params", "layers", "d_model", "heads", "d_ff", "tied", "cache", "training")
    rows = [
        (
            d.name, short_count(d.params), str(d.recipe.n_layers), str(d.recipe.d_model), _heads(d),
            str(d.table["block"]["ffn"]["d_ff"]), "yes" if d.recipe.embedding.tied else "no",
            short_size(d.budget.cache.bytes), short_flops(round(d.run["train_flops"])),
        )
        for d in found
    ]  # fmt: skip
    page.print(ruled(headings, rows, right=(1, 2, 3, 5, 7, 8)))
    first = found[0]
    context = f"{first.budget.seq_len:,} tokens of context"
    page.print(f"Best first. heads: query/KV x their size; cache: one sequence at {context}, {first.budget.dtype};")
    page.print(f"training: {first.run['tokens']:.3g} tokens, peak learning rate near {first.run['lr']:.2g}.")
    for i, d in enumerate(found, 1):
        page.print()
        page.print(heading(f"{i}. {d.name}"))
        page.print(indented(pairs(_said(d), 8)))
    if files:
        page.print()
        for path in files:
            page.print(f"written: {path}")
    else:
        page.print()
        page.print("To write the recipes: the same with --out DIR")


def _heads(d: Design) -> str:
    mixer = d.table["block"]["mixer"]
    return f"{mixer['n_heads']}/{mixer['n_kv_heads']}x{mixer['head_dim']}"


def _said(d: Design) -> list[tuple[str, str | list[str]]]:
    rows: list[tuple[str, str | list[str]]] = [("why", list(d.why))]
    if d.near:
        rows.append(("near", ", ".join(d.near)))
    broken = [f"{f.severity}: {f.title}: {f.text}, usual {f.band}" for f in d.findings.problems]
    rows.append(("rules", broken or f"all {len(d.findings)} kept"))
    e = d.estimate
    if e is not None:
        fits = "fits" if e.fits_training else "does not fit"
        per_device = e.train_bytes_per_device / 2**30
        rows.append((
            "on it",
            [
                f"{e.count} x {e.device}: {e.train_days:.3g} days of training; {fits} "
                f"({per_device:.3g} GiB a device without activations)",
                f"decoding one sequence: at least {e.decode_ms:.3g} ms a token"
                + ("" if e.fits_one_device else "; does not fit one device"),
            ],
        ))  # fmt: skip
    return rows
