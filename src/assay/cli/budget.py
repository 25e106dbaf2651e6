"""``assay budget``: what a recipe costs, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import (
    AsJson,
    Batch,
    Dtype,
    Overrides,
    Plugins,
    RecipeName,
    SeqLen,
    command_line,
    cost_of,
    load_plugins,
    load_recipe,
    print_json,
    quantity,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.cost import Budget
    from assay.recipe import Recipe

Hardware = Annotated[
    str | None, typer.Option("--hardware", metavar="NAME|FILE.toml", help="A device: bounds of time, what fits.")
]
Parallel = Annotated[
    str | None, typer.Option("--parallel", metavar="PLAN", help="Like tp=8,pp=2,dp=64,zero=1,sp=1,microbatches=16.")
]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="NAME", help="adamw, muon, sgd, ...; with a ledger: adamw-megatron."),
]
Tokens = Annotated[
    float | None, typer.Option("--tokens", metavar="N", parser=quantity, help="Of the whole training, like 15T.")
]
Rate = Annotated[
    float | None,
    typer.Option("--tokens-per-second", metavar="N", parser=quantity, help="Measured: told as utilization."),
]


def run(
    recipe: RecipeName,
    seq_len: SeqLen = None,
    batch: Batch = 1,
    dtype: Dtype = "bf16",
    hardware: Hardware = None,
    parallel: Parallel = None,
    optimizer: Optimizer = None,
    tokens: Tokens = None,
    devices: Annotated[int | None, typer.Option("--devices", metavar="N", help="Of the cluster, for dp=auto.")] = None,
    recompute: Annotated[
        str, typer.Option("--recompute", metavar="WHAT", help="In the backward pass: none, selective, full.")
    ] = "none",
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="Attention kernel: auto, sdpa, reference.")
    ] = "auto",
    mfu: Annotated[float | None, typer.Option("--mfu", metavar="SHARE", help="Assumed utilization, 0 to 1.")] = None,
    tokens_per_second: Rate = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")] = None,
    json: AsJson = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
) -> None:
    """What a recipe costs: parameters, FLOPs, memory, time.

    Each number has its convention beside it. The length is the recipe's max_seq_len unless --seq-len is given. --batch
    is all sequences of a step, over all replicas. With --hardware, lower bounds of step and token time.

    \b
    Examples:
      assay budget llama-3.1-8b
      assay budget llama-3.1-8b --seq-len 8192 --batch 4 --json
      assay budget llama-3.1-8b --set block.mixer.n_kv_heads=1
      assay budget llama-3.1-8b --seq-len 8192 --batch 64 --hardware h100 --parallel tp=8,dp=8
      assay budget llama-3.1-8b --hardware h200 --tokens 15T --html budget.html
    """
    load_plugins(plugins)
    found_recipe = load_recipe(recipe, overrides)
    found = cost_of(
        found_recipe, batch=batch, seq_len=seq_len, dtype=dtype, hardware=hardware, parallel=parallel,
        optimizer=optimizer, tokens=tokens, devices=devices, recompute=recompute, backend=backend, mfu=mfu,
        tokens_per_second=tokens_per_second,
    )  # fmt: skip
    if html is not None:
        _write_page(found_recipe, found, html)
    if json:
        print_json({**found.to_dict(), "page": str(html.resolve())} if html is not None else found.to_dict())
    elif html is not None:
        typer.echo(f"page: {html.resolve()}")
    else:
        _print_page(found)


def _write_page(recipe: Recipe, found: Budget, path: Path) -> None:
    from assay.atlas import models
    from assay.report import write_budget_page

    record = {
        "budget": found.to_dict(),
        "cache_at": _cache_by_length(recipe, found),
        "models": [
            {"id": m.id, "name": m.name, "params": m.params.total, "tokens": m.training.tokens} for m in models()
        ],
        "command": command_line("budget"),
    }
    with writing(path):
        write_budget_page(record, path)


def _cache_by_length(recipe: Recipe, found: Budget) -> list[tuple[int, dict[str, int]]]:
    """Bytes of cache by kind of layer, at powers of two up to the longer of the recipe's and the asked length."""
    from assay.cost.budget import DTYPE_BYTES
    from assay.cost.rules import rule_of

    longest = max(recipe.max_seq_len, found.seq_len)
    lengths = [n for i in range(7, 40) if (n := 2**i) < longest]
    out = []
    for n in (*lengths, longest):
        held: dict[str, int] = {}
        for layer in recipe.layers:
            size = rule_of(layer.mixer).cache(layer.mixer, recipe.d_model, n).held
            held[layer.name] = held.get(layer.name, 0) + found.batch * size * DTYPE_BYTES[found.dtype]
        out.append((n, {**held, "all layers": sum(held.values())} if len(held) > 1 else held))
    return out


# --- the terminal


def _print_page(found: Budget) -> None:
    from assay.cli import numbers
    from assay.cli.budget_pages import print_findings, print_more
    from assay.cli.tables import console, heading, indented, remarked, ruled

    groups: dict[str, tuple[str, Callable[[int], str]]] = {
        "params": ("Parameters", numbers.count),
        "flops": ("FLOPs", numbers.flops),
        "cache": ("Cache", numbers.size),
        "memory": ("Memory", numbers.size),
    }
    page = console()
    values = found.to_dict()
    sequences = f"{found.batch:,} sequence{'s' if found.batch > 1 else ''} of {found.seq_len:,} tokens"
    page.print(heading(f"{found.name}, {sequences}, {found.dtype}"))
    print_findings(page, values)
    for group, (title, say) in groups.items():
        page.print()
        page.print(heading(title))
        rows = [
            (key, say(value), found.conventions.get(f"{group}.{key}", ""))
            for key, value in values[group].items()
            if isinstance(value, int)
        ]
        page.print(indented(remarked(rows, page.width)))
        for name, parts, whole in _breakdowns(group, values):
            table = ruled((name, "", ""), [(k, say(v), numbers.share(v, whole)) for k, v in parts.items()], right=(2,))
            page.print()
            page.print(indented(table))
    print_more(page, values)


def _breakdowns(group: str, values: dict[str, Any]) -> Iterator[tuple[str, dict[str, int], int]]:
    """The tables that divide a number: a title, its parts, and the whole."""
    if group == "params":
        for key, title in (("by_component", "by component"), ("by_role", "by role")):
            yield title, values["params"][key], values["params"]["total"]
    elif group == "flops":
        ops = {k: v for k, v in values["flops"]["by_op"].items() if v and not k.endswith("_square")}
        yield "forward_causal by operation", ops, values["flops"]["forward_causal"]
    elif group == "cache" and len(values["cache"]["by_layer"]) > 1:
        kinds = values["cache"]["by_layer"].items()
        parts = {f"{name} ({held['layers']} layers)": held["bytes"] for name, held in kinds}
        yield "bytes by layer", parts, values["cache"]["bytes"]
