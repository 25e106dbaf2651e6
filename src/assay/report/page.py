"""One self-contained page: a study's record, or a run's, as HTML that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from assay.report.charts import CONFIG, Chart, Figure
from assay.report.records import Record, jsonable, record_of
from assay.report.run import run_context
from assay.report.study import study_context

SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js", "page.js")


def study_page(result: Record) -> str:
    """The page of a study.

    ``result`` is a plain record, as ``assay study --json`` prints it. Any field may be missing, null or NaN. A lower
    loss is better; ``effect.nats`` is the change's mean minus the baseline's; the first part of kind ``comparison`` is
    the main one. The same record gives the same text.
    """
    return render("study.html.j2", study_context(record_of(jsonable(result))))


def run_page(record: Record) -> str:
    """The page of one run: ``{"run": {...}, "metrics": [{"step", "loss", "lr", ...}, ...]}``."""
    return render("run.html.j2", run_context(record_of(jsonable(record))))


def write_study_page(result: Record, path: str | os.PathLike[str]) -> Path:
    """Write the page of a study; whoever reads ``path`` sees the old file or the whole new one."""
    return write_page(path, study_page(result))


def write_run_page(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write the page of one run, as ``write_study_page`` does."""
    return write_page(path, run_page(record))


def write_page(path: str | os.PathLike[str], page: str) -> Path:
    """Write a page: whoever reads ``path`` sees the old file or the whole new one."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with draft.open("x", encoding="utf-8", newline="\n") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def data_script(value: Any) -> Markup:
    """JSON for a ``<script>``: no ``<``, ``>`` or ``&`` in it, so that nothing ends the element."""
    text = json.dumps(
        _short(jsonable(value)), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _short(value: Any) -> Any:
    """Six digits of every number: more cannot be seen in a chart."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _asset(name: str) -> str:
    return (files("assay.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _scripts(names: tuple[str, ...]) -> tuple[tuple[Markup, str], ...]:
    """The page's scripts and the hash by which its policy lets each run; the licences stand before the first."""
    found = []
    for index, name in enumerate(names):
        source = re.sub(r"^//# sourceMappingURL=.*$", "", _asset(name), flags=re.MULTILINE).strip()
        source = re.sub(r"</(?=script)", r"<\\/", source, flags=re.IGNORECASE).replace("<!--", r"<\!--")
        if index == 0:
            source = f"/*!\n{_asset('NOTICE').strip()}\n*/\n{source}"
        source = f"\n{source}\n"
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        found.append((Markup(source), f"'sha256-{digest}'"))
    return tuple(found)


def unbroken(text: str) -> Markup:
    """Prose whose short hyphenated words (``5e-3``, ``pre-LN``) stay on one line."""
    parts = re.split(r"([^\s]*\w-\w[^\s]*)", text)
    word = Markup('<span class="nb">{}</span>')
    return Markup("").join(word.format(each) if "-" in each and len(each) <= 16 else each for each in parts)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    return environment


def _numbered(figures: Iterable[Figure]) -> list[Chart]:
    """Give every figure and chart of the page an id."""
    charts = []
    for number, figure in enumerate(figures, 1):
        figure.id = f"figure-{number}"
        for index, chart in enumerate(figure.charts):
            chart.id = f"chart-{number}-{index + 1}"
            charts.append(chart)
    return charts


def render(
    template: str, context: dict[str, Any], *, scripts: tuple[str, ...] = (), styles: tuple[str, ...] = ()
) -> str:
    """A page from its template and context; ``scripts`` and ``styles`` are assets beside those of every page."""
    found = _scripts((*SCRIPTS, *scripts))
    charts = _numbered(context["figures"])
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
        + " ".join(digest for _, digest in found)
    )
    page = _environment().get_template(template).render(
        **context,
        policy=policy,
        style=Markup("".join(_asset(name) for name in ("page.css", *styles))),
        scripts=[source for source, _ in found],
        chart_config=data_script(CONFIG),
        chart_data=[(chart.id, data_script(chart.spec)) for chart in charts],
    )  # fmt: skip
    return page if page.endswith("\n") else page + "\n"
