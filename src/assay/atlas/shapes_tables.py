"""Computed tables: shapes, ratios, flagships, parameters, disagreements and the texts' errors."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

from assay.atlas.authoring import expressible
from assay.atlas.cells import DASH, Cell, Table, compact, shown
from assay.atlas.counting import recount
from assay.atlas.facts import DATA, TEXTS, model, models
from assay.atlas.records import Model
from assay.atlas.ruleset import shipped_rules
from assay.atlas.tables import fact_cell, makes

ATLAS_SOURCE = ("the atlas: every model's own sources",)


def _id(m: Model) -> Cell:
    return Cell(m.id, m.id, m.source.arch)


def _size(n: int | float | None, sources: tuple[str, ...], note: str = "") -> Cell:
    return Cell(n, compact(n), sources, note)


def _text(text: str | None, sources: tuple[str, ...] = (), note: str = "") -> Cell:
    return Cell(text, text or DASH, sources, note)


def _ratio(value: float | None, m: Model) -> Cell:
    return Cell(value, DASH if value is None else f"{value:.3g}", m.source.arch)


def _heads(m: Model) -> Cell:
    text = f"{shown(m.n_heads)} / {shown(m.n_kv_heads)}"
    return Cell(text, text, m.source.arch)


@makes("models")
def every_model() -> Table:
    """The summary: models by the choices they make, each model's complete recipe in one row."""
    rows = []
    for m in models():
        norm = f"{shown(m.norm_kind)}, {shown(m.norm_placement)}"
        ffn = f"{shown(m.activation)}{' gated' if m.gated else ''}"
        rows.append((
            _id(m), Cell(m.date, m.date or DASH), Cell(m.kind, m.kind), _size(m.params.total, m.source.count),
            _text(norm, m.source.arch), fact_cell(m, "position"), _text(ffn, m.source.arch), _ratio(m.ffn_ratio, m),
            fact_cell(m, "attention"), _heads(m), fact_cell(m, "head_dim"), fact_cell(m, "attention_pattern"),
            Cell(m.qk_norm not in ("none", None), shown(m.qk_norm != "none") if m.qk_norm else DASH, m.source.arch),
            fact_cell(m, "block"), fact_cell(m, "biases"), fact_cell(m, "tied_embeddings"), fact_cell(m, "vocab_size"),
            fact_cell(m, "context_length"), _text("; ".join(m.disagreements), m.source.all),
        ))  # fmt: skip
    columns = (
        "Model", "Date", "Kind", "Parameters", "Norm", "Positions", "FFN", "d_ff/d", "Attention", "Q / KV heads",
        "Head size", "Pattern", "QK-norm", "Block", "Biases", "Tied", "Vocabulary", "Context", "Sources disagree",
    )  # fmt: skip
    return Table("models", "Every model of the atlas", columns, tuple(rows), ATLAS_SOURCE)


@makes("ratios")
def ratios() -> Table:
    """The ratios of every model; d_ff per matrix, MLA by its query-key size."""
    rows = tuple(
        (
            _id(m), _ratio(m.ffn_ratio, m), Cell(m.gated, "gated" if m.gated else "plain", m.source.arch),
            _ratio(m.attention_ratio, m), _ratio(m.aspect_ratio, m), fact_cell(m, "vocab_size"), _heads(m),
        )
        for m in models()
    )  # fmt: skip
    columns = ("Model", "d_ff / d", "FFN", "heads x head_dim / d", "d / layers", "Vocabulary", "Q / KV heads")
    return Table("ratios", "Ratios of every model", columns, rows, ATLAS_SOURCE)


_DENSE = (
    ("qwen3-0.6b", "on a device"), ("qwen3-1.7b", "on a device"), ("qwen3-4b", "one GPU"), ("qwen3-8b", "one GPU"),
    ("qwen3-14b", "workstation"), ("qwen3-32b", "dense flagship"), ("llama-3.1-8b", "the usual baseline"),
)  # fmt: skip


@makes("dense-shapes")
def dense_shapes() -> Table:
    """The dense shapes of the course chapter (section 5.7), from the facts, its slips noted."""
    rows = []
    for model_id, place in _DENSE:
        m = model(model_id)
        context_note = ""
        if model_id.startswith("qwen3") and m.n_layers and m.n_layers > 28:
            context_note = "the course chapter says 128K native; that is with YaRN"
        tokens_note = "the course chapter says 15.6T, which is the 405B's" if model_id == "llama-3.1-8b" else ""
        per_token = m.training.tokens / m.params.total if m.training.tokens and m.params.total else None
        rows.append((
            _id(m), _text(place), _size(m.params.total, m.source.count), fact_cell(m, "n_layers"), _heads(m),
            fact_cell(m, "d_model"), _ratio(m.aspect_ratio, m),
            Cell(m.context_length, shown(m.context_length), m.source.arch, context_note),
            _size(m.training.tokens, m.source.training, tokens_note),
            Cell(per_token, shown(per_token), m.source.training),
        ))  # fmt: skip
    columns = (
        "Model", "Place", "Parameters", "Layers", "Q / KV heads", "d_model", "d / layers", "Context", "Tokens",
        "Tokens a parameter",
    )  # fmt: skip
    notes = ("Chinchilla's optimum of training compute is about 20 tokens a parameter (arXiv:2203.15556).",)
    return Table("dense-shapes", "Dense shapes", columns, tuple(rows), ("course chapter, section 5.7",), notes)


_FLAGSHIPS = {
    "deepseek-v3": "experts: capacity by total, price by active parameters",
    "qwen3-235b-a22b": "experts, and deeper (94 layers)",
    "llama-4-scout": "experts, positions and spans by layer (iRoPE)",
    "llama-4-maverick": "experts, positions and spans by layer (iRoPE)",
    "deepseek-v4-pro": "very sparse experts, compressed and sparse attention",
    "kimi-k3": "as above, and a changed residual stream",
    "qwen3.8-flash-next": "hybrid attention (about 3:1), experts, a large extra embedding table",
}
_TOKEN_NOTES = {
    "deepseek-v3": "the course chapter rounds to 15T",
    "llama-4-scout": "the course chapter says over 30T for both; the card about 40T",
    "llama-4-maverick": "the course chapter says over 30T for both; the card about 22T",
}


@makes("flagships")
def flagships() -> Table:
    """The flagships of the course chapter (section 5.7), from the facts."""
    rows = []
    for model_id, axis in _FLAGSHIPS.items():
        m = model(model_id)
        tokens_note = _TOKEN_NOTES.get(model_id, m.training.tokens_note or "")
        rows.append((
            _id(m), _size(m.params.total, m.source.count, m.params.note or ""),
            _size(m.params.active, m.source.count), fact_cell(m, "context_length"),
            _size(m.training.tokens, m.source.training, tokens_note), fact_cell(m, "attention_pattern"), _text(axis),
        ))  # fmt: skip
    columns = ("Model", "Total", "Active", "Context", "Tokens", "Attention", "Axis beyond a dense 8B")
    notes = ("Active parameters by each publisher's own convention; see active-parameters.",)
    where = ("course chapter, section 5.7",)
    return Table("flagships", "Flagships of 2024 to 2026", columns, tuple(rows), where, notes)


@makes("parameters")
def parameters() -> Table:
    """Published parameters beside the generic count of the fields."""
    rows = []
    for m in models():
        count = recount(m)
        published = m.params.total
        off = count.total / published - 1 if published and count.counted else None
        words = [*count.missing, m.params.note, *(f"{o.total:,} with {o.vocab_size:,} rows" for o in m.params.also)]
        note = "; ".join(w for w in words if w)
        rows.append((
            _id(m), Cell(published, shown(published), m.source.count), _text(m.params.precision),
            Cell(count.total or None, shown(count.total or None), m.source.arch, note),
            Cell(off, DASH if off is None else "exact" if off == 0 else f"{off:+.2%}"),
        ))  # fmt: skip
    columns = ("Model", "Published", "Precision", "Recounted", "Difference")
    notes = ("rounded: a name or a rounded figure; computed: from these fields only.",)
    return Table("parameters", "Parameters, published and recounted", columns, tuple(rows), ATLAS_SOURCE, notes)


@makes("active-parameters")
def active_parameters() -> Table:
    """Active parameters are three conventions: which one a publisher follows shows in the nearest column."""
    rows = []
    for m in models(moe=True):
        count = recount(m)
        if not count.counted:
            continue
        values = (count.active, count.active_without_input_embedding, count.non_embedding)
        near = None
        if m.params.active:
            near = min(values, key=lambda v: abs(v - (m.params.active or 0)))
        cells = [Cell(v, compact(v) + (" <" if v == near else ""), m.source.arch) for v in values]
        rows.append((_id(m), _size(count.total, m.source.arch), _size(m.params.active, m.source.count), *cells))
    columns = ("Model", "Total", "Published active", "Everything used", "Without input table", "Without any table")
    notes = ("<: nearest to the published figure.",)
    return Table("active-parameters", "Active parameters, by convention", columns, tuple(rows), ATLAS_SOURCE, notes)


@dataclass(frozen=True)
class Correction:
    """What a text says, what is so, and the models that show it."""

    text: str
    section: str
    says: str
    is_: str
    source: str
    models: tuple[str, ...]
    facts: tuple[str, ...]


@cache
def corrections() -> tuple[Correction, ...]:
    """Where the texts and slides differ from the primary sources."""
    raw = tomllib.loads((DATA / "corrections.toml").read_text(encoding="utf-8"))
    return tuple(
        Correction(
            c["text"], c["section"], c["says"], c["is"], c["source"], tuple(c["models"]), tuple(c["facts"])
        )
        for c in raw["correction"]
    )  # fmt: skip


@makes("corrections")
def corrections_table() -> Table:
    """The texts' errors, with what is so."""
    rows = tuple(
        (
            _text(f"{c.text}, {c.section}", (TEXTS[c.text],)), _text(c.says, (TEXTS[c.text],)),
            _text(c.is_, (c.source,)), _text(c.source), _text(", ".join(c.models)),
        )
        for c in corrections()
    )  # fmt: skip
    columns = ("Where", "Says", "Is", "Source", "Models")
    return Table("corrections", "Where texts and slides are wrong", columns, rows, tuple(TEXTS.values()))


@makes("disagreements")
def disagreements() -> Table:
    """Where sources of one model disagree."""
    rows = tuple((_id(m), _text(d, m.source.all)) for m in models() for d in m.disagreements)
    return Table("disagreements", "Where sources disagree", ("Model", "Disagreement"), rows, ATLAS_SOURCE)


@makes("evidence")
def evidence() -> Table:
    """What the field agrees on and on what evidence: the rules of ``assay check`` as a table."""
    rows = tuple(
        (
            _text(rule.title, rule.sources), _text(str(rule.band), rule.sources),
            _text("swept" if rule.evidence.label == "swept" else str(rule.evidence), rule.sources),
            _text(rule.evidence.study, rule.sources), _text(rule.evidence.figure, rule.sources),
            _text(rule.why, rule.sources),
        )
        for rule in shipped_rules()
    )  # fmt: skip
    columns = ("Choice", "Usual", "Evidence", "Study", "What it found", "Why")
    return Table("evidence", "What is usual, and on what evidence", columns, rows)


@makes("recipes")
def recipes() -> Table:
    """Which models have a recipe, and why the others have none."""
    found = expressible()
    rows = tuple(
        (_id(model(i)), _text("yes" if not reasons else "no"), _text("; ".join(reasons)))
        for i, reasons in found.items()
    )
    return Table("recipes", "Models that a recipe can express", ("Model", "Recipe", "Why not"), rows, ATLAS_SOURCE)
