"""``assay atlas``: real models as facts, their tables, and one page of everything."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, asking, print_json, quantity, writing
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.atlas import Model

Filter = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Repeatable: any of them.", show_default=False)]
Year = Annotated[int | None, typer.Option(metavar="YEAR", show_default=False)]
Params = Annotated[float | None, typer.Option(metavar="N", parser=quantity, help="Like 7e9 or 7B.")]

DASH = "–"
_YES_NO = {"yes": True, "true": True, "no": False, "false": False}


def run(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A model's id, or a preset's name.")] = None,
    family: Filter = None,
    kind: Filter = None,
    attention: Filter = None,
    norm: Filter = None,
    placement: Filter = None,
    position: Filter = None,
    activation: Filter = None,
    since: Year = None,
    until: Year = None,
    min_params: Params = None,
    max_params: Params = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Another filter: tied=yes, qk_norm=no, org=Google, ..."),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="Print this table.")] = None,
    tables: Annotated[bool, typer.Option("--tables", help="List the tables.")] = False,
    recipe: Annotated[bool, typer.Option("--recipe", help="Print MODEL's recipe as TOML, or why it has none.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the whole atlas as a page.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Real models: every model, one model's facts, or a table.

    A fact has its sources; where sources disagree, it says so. Without an argument, the models that the filters leave.

    \b
    Examples:
      assay atlas --family gemma --since 2024
      assay atlas gemma2-9b
      assay atlas qwen3-14b --recipe > mine.toml
      assay atlas --table timeline
      assay atlas --html atlas.html
    """
    named = {
        "family": family, "kind": kind, "attention": attention, "norm": norm, "placement": placement,
        "position": position, "activation": activation, "since": since, "until": until,
        "min_params": min_params, "max_params": max_params,
    }  # fmt: skip
    filters = {key: value for key, value in named.items() if value not in (None, [])} | _where(where or [])
    _one_question(model, filters, table, tables, recipe, html)
    with asking():
        if html is not None:
            _write_page(html, json)
        elif tables:
            _print_names(json)
        elif table is not None:
            _print_table(table, json)
        elif model is not None:
            (_print_recipe if recipe else _print_model)(model, json)
        else:
            _print_models(filters, json)


def _one_question(
    model: str | None, filters: dict[str, Any], table: str | None, tables: bool, recipe: bool, html: Path | None
) -> None:
    asked = {
        "MODEL": model is not None, "a filter": bool(filters), "--table": table is not None, "--tables": tables,
        "--html": html is not None,
    }  # fmt: skip
    given = [name for name, there in asked.items() if there]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} exclude each other")
    if recipe and model is None:
        raise UserError("--recipe needs a MODEL")


def _where(texts: list[str]) -> dict[str, Any]:
    from assay.recipe.merge import parse_value

    out: dict[str, Any] = {}
    for text in texts:
        key, sep, value = text.partition("=")
        if not sep:
            raise UserError(f"--where: not KEY=VALUE: {text!r}")
        key = key.strip().replace("-", "_")
        out[key] = _YES_NO.get(value.strip().lower(), parse_value(value.strip()))
    return out


# --- many models


def _print_models(filters: dict[str, Any], json: bool) -> None:
    from assay.atlas import model_dict, models

    found = models(**filters)
    if json:
        print_json([model_dict(m) for m in found])
        return
    from assay.cli.tables import console, dim, ruled

    page = console()
    columns = [column for column in _COLUMNS if page.width >= column[2]]
    rows = [[column[3](m) for column in columns] for m in found]
    page.print(ruled([column[0] for column in columns], rows, right=[i for i, c in enumerate(columns) if c[1]]))
    if not found:
        page.print("no model passes every filter")
    page.print(dim(f"{len(found)} models; heads: query/KV; –: not found in a source. One model: assay atlas MODEL"))


def _norm(m: Model) -> str:
    short = {"rmsnorm": "RMS", "layernorm": "LN", "layernorm_nonparametric": "LN, no gain", "layernorm1p": "LN 1p"}
    return DASH if m.norm_kind is None else f"{short.get(m.norm_kind, m.norm_kind)} {m.norm_placement or DASH}"


def _ffn(m: Model) -> str:
    glu = {"silu": "SwiGLU", "gelu_tanh": "GeGLU", "gelu": "GeGLU", "relu": "ReGLU"}
    word = m.activation or DASH
    return (glu.get(word, f"gated {word}") if m.gated else word) + (", MoE" if m.is_moe else "")


def _heads(m: Model) -> str:
    if m.attention == "mla":
        return "MLA"
    return DASH if m.n_heads is None else f"{m.n_heads}/{DASH if m.n_kv_heads is None else m.n_kv_heads}"


def _mixer(m: Model) -> str:
    return f"hybrid {_heads(m)}" if m.kind.startswith("hybrid") else _heads(m)


def _short(n: float | None, unit: str = "") -> str:
    from assay.atlas.cells import compact

    return compact(n) if not unit else DASH if n is None else f"{n:.3g}"


# heading, flush right, columns of the terminal from which it is shown, what it says
_COLUMNS: tuple[tuple[str, bool, int, Callable[[Model], str]], ...] = (
    ("model", False, 0, lambda m: m.id),
    ("date", False, 92, lambda m: m.date or DASH),
    ("params", True, 0, lambda m: _short(m.params.total)),
    ("layers", True, 0, lambda m: DASH if m.n_layers is None else str(m.n_layers)),
    ("d_model", True, 0, lambda m: DASH if m.d_model is None else str(m.d_model)),
    ("d_ff/d", True, 120, lambda m: _short(m.ffn_ratio, "x")),
    ("norm", False, 0, _norm),
    ("positions", False, 100, lambda m: m.position or DASH),
    ("ffn", False, 0, _ffn),
    ("heads", False, 92, _mixer),
    ("context", True, 120, lambda m: _short(m.context_length if isinstance(m.context_length, int) else None)),
    ("vocab", True, 130, lambda m: _short(m.vocab_size)),
)


# --- one model


def _print_model(name: str, json: bool) -> None:
    from assay.atlas import model, model_dict, why_not

    found = model(name)
    reasons = why_not(found.id)
    facts = model_dict(found)
    if json:
        print_json({**facts, "recipe_reasons": list(reasons)})
        return
    from assay.cli.atlas_facts import facts_of, recount_words, sources_of
    from assay.cli.tables import console, dim, heading, indented, pairs

    page, width = console(), 27
    page.print(heading(f"{found.name} ({found.id})"))
    when = f"{found.date} ({found.date_basis})" if found.date_basis else found.date or "no date found"
    page.print(f"{found.org}, {when}; {found.kind}, family {found.family}")
    for title, rows in facts_of(facts).items():
        if title == "Parameters":
            rows.append(("recounted", recount_words(facts)))
        if rows:
            page.print()
            page.print(heading(title))
            page.print(indented(pairs(rows, width)))
            for source in sources_of(facts, title) if title in ("Parameters", "Shape", "Training") else ():
                page.print(indented(dim(f"source: {source}")))
    for title, texts in (("Where sources disagree", found.disagreements), ("Notes", found.notes)):
        if texts:
            page.print()
            page.print(heading(title))
            page.print(indented(pairs([("-", text) for text in texts])))
    page.print()
    page.print(heading("Recipe"))
    page.print(indented(pairs([("-", text) for text in _recipe_words(found, reasons)])))


def _recipe_words(m: Model, reasons: tuple[str, ...]) -> list[str]:
    from assay.recipe import preset_names

    if reasons:
        return [f"this version cannot express it: {'; '.join(reasons)}"]
    preset = next((name for name in (m.preset, m.id) if name in preset_names()), None)
    words = [f"assay atlas {m.id} --recipe > {m.id}.toml"]
    return [f"the preset {preset}: assay show {preset}", *words] if preset else words


def _print_recipe(name: str, json: bool) -> None:
    from assay.atlas import write_recipe

    written = write_recipe(name)
    if json:
        print_json({"recipe": written.table, "assumed": list(written.assumed)})
        return
    for text in written.assumed:
        typer.echo(f"# assumed: {text}")
    typer.echo(written.toml, nl=False)


# --- tables


def _print_names(json: bool) -> None:
    from assay.atlas import table, table_names

    found = [table(name) for name in table_names()]
    if json:
        print_json([{"id": t.id, "title": t.title, "rows": len(t.rows)} for t in found])
        return
    from assay.cli.tables import console, pairs

    console().print(pairs([(t.id, f"{t.title} ({len(t.rows)} rows)") for t in found]))


def _print_table(name: str, json: bool) -> None:
    from assay.atlas import table

    found = table(name)
    if json:
        print_json(found.to_dict())
        return
    from assay.cli.tables import console, dim, heading, indented, pairs, ruled

    page = console()
    page.print(heading(found.title))
    columns, rows = list(found.columns), found.texts()
    turned = _turned(columns, rows)
    if _fits(columns, rows, page.width):
        page.print(ruled(columns, rows))
    elif _fits(*turned, page.width):
        page.print(ruled(*turned, right=range(1, len(turned[0]))))
    else:
        for row in rows:  # a block a row: no column would have room for its words
            page.print()
            page.print(heading(row[0]))
            page.print(indented(pairs(zip(columns[1:], row[1:], strict=True))))
    page.print()
    for i, note in enumerate(found.footnotes(), 1):
        page.print(f"[{i}] {note}")
    for note in found.notes:
        page.print(note)
    for source in found.sources:
        page.print(dim(f"source: {source}"))


def _turned(columns: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Rows as columns; a share without the numbers behind it, which would not fit."""
    short = [[re.sub(r" \(\d+/\d+\)$", "", text) for text in row] for row in rows]
    down = [[name, *(row[i] for row in short)] for i, name in enumerate(columns)]
    return down[0], down[1:]


def _fits(columns: list[str], rows: list[list[str]], width: int) -> bool:
    """Whether the first column and the longest words of the others fit side by side."""
    needed = max(len(row[0]) for row in [columns, *rows])
    for i in range(1, len(columns)):
        needed += 3 + max((min(len(w), 24) for row in [columns, *rows] for w in row[i].split()), default=1)
    return needed <= width


# --- the page


def _write_page(path: Path, json: bool) -> None:
    from assay.report import write_atlas_page

    with writing(path):
        write_atlas_page(page_record(), path)
    if json:
        print_json({"page": str(path.resolve())})
    else:
        typer.echo(f"page: {path.resolve()}")


def page_record() -> dict[str, Any]:
    """The atlas as the plain values that its page is made of."""
    from assay.atlas import atlas_data, model
    from assay.cli.atlas_facts import GROUPS, facts_of, recount_words

    data = atlas_data()
    for found in data["models"]:
        facts = facts_of(found)
        facts["Parameters"].append(("recounted", recount_words(found)))
        found["facts"] = [[title, GROUPS[title][0], rows] for title, rows in facts.items() if rows]
        found["recipe_words"] = _recipe_words(model(found["id"]), tuple(found["recipe_reasons"]))
    return data
