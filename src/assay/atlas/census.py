"""Computed tables: what converged and what diverged by year, who uses what, and how many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from assay.atlas.cells import Cell, Table, compact, shown
from assay.atlas.facts import models
from assay.atlas.records import Model, QkNormFact
from assay.atlas.tables import fact_cell, makes, text_cell

Test = Callable[[Model], bool | None]  # None: not known


def has(value: Any) -> bool | None:
    """Whether a fact is there; None where it was not found."""
    return None if value is None else value not in ("none", "na")


def has_z_loss(m: Model) -> bool | None:
    return has(m.training.z_loss)


def is_gqa(m: Model) -> bool | None:
    return None if m.attention is None else m.attention in ("gqa", "mqa", "mqa-shared-kv")


def is_windowed(m: Model) -> bool | None:
    pattern = m.attention_pattern or ""
    return True if "banded" in pattern else has(m.sliding_window)


def has_soft_cap(m: Model) -> bool | None:
    caps = [has(m.attn_softcap), has(m.final_softcap)]
    return True if True in caps else None if None in caps else False


# choice -> whether a model makes it; the columns of the timeline
CHOICES: dict[str, Test] = {
    "pre-norm": lambda m: None if m.norm_placement is None else m.norm_placement == "pre",
    "norm on the output": lambda m: None if m.norm_placement is None else m.norm_placement in ("sandwich", "reordered"),
    "RMSNorm": lambda m: None if m.norm_kind is None else m.norm_kind == "rmsnorm",
    "gated FFN": lambda m: m.gated,
    "RoPE": lambda m: None if m.position is None else m.position == "rope",
    "GQA or MQA": is_gqa,
    "MLA": lambda m: None if m.attention is None else m.attention == "mla",
    "windows": is_windowed,
    "recurrent layers": lambda m: m.kind.startswith("hybrid"),
    "experts": lambda m: m.is_moe,
    "no linear bias": lambda m: None if m.linear_bias is None else not m.linear_bias,
    "tied": lambda m: m.tied_embeddings,
    "QK-norm": lambda m: has(m.qk_norm),
    "soft-cap": has_soft_cap,
    "z-loss": has_z_loss,
    "parallel block": lambda m: None if m.block is None else m.block == "parallel",
}
ATLAS_SOURCE = ("the atlas: every model's own sources",)


def _share(found: Iterable[Model], test: Test) -> Cell:
    """``17/24``: models that make a choice, of those where it is known."""
    answers = [test(m) for m in found]
    known = [a for a in answers if a is not None]
    if not known:
        return Cell(None, "–")
    yes = sum(known)
    return Cell(round(yes / len(known), 4), f"{yes / len(known):.0%} ({yes}/{len(known)})")


def _shares(label: int | str, found: list[Model]) -> tuple[Cell, ...]:
    head = (Cell(label, str(label)), Cell(len(found), str(len(found))))
    return (*head, *(_share(found, test) for test in CHOICES.values()))


@makes("timeline")
def timeline() -> Table:
    """What converged and what diverged: the share of each year's decoders that make a choice."""
    decoders = [m for m in models() if m.is_decoder and m.year]
    years = sorted({m.year for m in decoders if m.year})
    rows = []
    for year in years:
        then = [m for m in decoders if m.year == year]
        rows.append(_shares(year, then))
    rows.append(_shares("all", decoders))
    notes = (
        "Share of the year's decoders that make the choice, of those where a source says; undated models are left out.",
        "z-loss: a paper that does not mention it counts as not known, so the share is of those that say.",
    )
    columns = ("Year", "Models", *CHOICES)
    return Table("timeline", "What converged and what diverged, by year", columns, tuple(rows), ATLAS_SOURCE, notes)


_CENSUS: dict[str, tuple[str, Callable[[Model], Any]]] = {
    "census-norm": ("Norm: kind and placement", lambda m: _both(m.norm_kind, m.norm_placement)),
    "census-activation": ("Activation", lambda m: None if m.activation is None else _glu_name(m)),
    "census-position": ("Positions", lambda m: m.position),
    "census-attention": ("Attention", lambda m: m.attention),
    "census-head-dim": ("Head size", lambda m: m.head_dim),
    "census-kind": ("Kind of model", lambda m: m.kind),
    "census-vocabulary": ("Vocabulary camps", lambda m: _camp(m.vocab_size)),
}
_CAMPS = ((30_000, "under 30K"), (66_000, "30K to 66K (one language)"), (100_000, "66K to 100K"))


def _camp(rows: int | None) -> str | None:
    """The camp of a vocabulary: the lecture notes put one language at 30K to 50K and many at 100K to 250K."""
    if rows is None:
        return None
    return next((name for bound, name in _CAMPS if rows < bound), "100K and more (many languages)")


_GLU = {"silu": "SwiGLU", "gelu_tanh": "GeGLU", "gelu": "GeGLU", "relu": "ReGLU"}


def _both(kind: str | None, placement: str | None) -> str | None:
    return None if kind is None or placement is None else f"{kind}, {placement}"


def _glu_name(m: Model) -> str:
    return _GLU.get(m.activation or "", f"gated {m.activation}") if m.gated else str(m.activation)


def census(name: str) -> Table:
    """How many models make each choice of an axis, which ones, and from when to when."""
    title, read = _CENSUS[name]
    groups: dict[Any, list[Model]] = {}
    for m in models():
        groups.setdefault(read(m), []).append(m)
    rows = []
    for value in sorted(groups, key=lambda v: (v is None, -len(groups[v]), str(v))):
        found = groups[value]
        years = [m.year for m in found if m.year]
        span = f"{min(years)}–{max(years)}" if years else "–"
        ids = [m.id for m in found]
        shown_value = "not found" if value is None else shown(value)
        rows.append(
            (Cell(value, shown_value), Cell(len(found), str(len(found))), Cell(span, span), Cell(ids, ", ".join(ids)))
        )
    return Table(name, f"Census: {title}", (title, "Models", "Years", "Which"), tuple(rows), ATLAS_SOURCE)


def _makes_census(name: str) -> None:
    makes(name)(lambda: census(name))


for _name in _CENSUS:
    _makes_census(_name)


def _qk_words(m: Model) -> str:
    fact = m.qk_norm
    if not isinstance(fact, QkNormFact):
        return shown(fact)
    gain = "no gain" if not fact.gain else "a gain for each head" if fact.gain_per == "head" else "gain"
    after = ", after RoPE" if fact.order == "after_rope" else ""
    return f"{fact.norm} over the {fact.over}, {gain}{after}"


# table -> (title, who, column -> cell)
_USERS: dict[str, tuple[str, Test, dict[str, Callable[[Model], Cell]]]] = {
    "users-z-loss": (
        "Users of a loss on the logits' normaliser",
        has_z_loss,
        {"Coefficient": lambda m: fact_cell(m, "training.z_loss")},
    ),
    "users-qk-norm": (
        "Users of QK-norm",
        lambda m: has(m.qk_norm),
        {"QK-norm": lambda m: text_cell(_qk_words(m), m.source.arch)},
    ),
    "users-soft-cap": (
        "Users of logit soft-caps",
        has_soft_cap,
        {"Attention": lambda m: fact_cell(m, "attn_softcap"), "Output": lambda m: fact_cell(m, "final_softcap")},
    ),
    "users-parallel": (
        "Users of parallel blocks",
        lambda m: None if m.block is None else m.block == "parallel",
        {"Norms a layer": lambda m: fact_cell(m, "parallel_norms")},
    ),
    "users-windows": (
        "Users of windows or chunks",
        is_windowed,
        {"Size": lambda m: fact_cell(m, "sliding_window"), "Pattern": lambda m: fact_cell(m, "attention_pattern")},
    ),
    "users-nope": (
        "Layers without positions",
        lambda m: has(m.nope_layers),
        {"Which layers": lambda m: fact_cell(m, "nope_layers")},
    ),
    "users-bias": (
        "Users of biases in linear layers",
        lambda m: m.linear_bias,
        {"Where": lambda m: fact_cell(m, "biases")},
    ),
}


def users(name: str) -> Table:
    """The models that use a technique, oldest first, with its value and their parameters."""
    title, test, columns = _USERS[name]
    found = sorted((m for m in models() if test(m)), key=lambda m: m.date or "9")
    rows = []
    for m in found:
        size = Cell(m.params.total, compact(m.params.total), m.source.count)
        own = tuple(read(m) for read in columns.values())
        rows.append((Cell(m.id, m.id, m.source.arch), Cell(m.date, m.date or "–"), size, *own))
    unknown = [m.id for m in models() if test(m) is None]
    notes = (f"Not known for {len(unknown)} of {len(models())} models.",) if unknown else ()
    return Table(name, title, ("Model", "Date", "Parameters", *columns), tuple(rows), ATLAS_SOURCE, notes)


@makes("decay-and-dropout")
def decay_and_dropout() -> Table:
    """Dropout and weight decay of every model whose paper or configuration says."""
    rows = []
    for m in sorted(models(), key=lambda m: m.date or "9"):
        t = m.training
        if t.dropout is None and t.weight_decay is None and not (t.dropout_note or t.wd_note):
            continue
        rows.append(
            (
                Cell(m.id, m.id, m.source.arch),
                Cell(m.date, m.date or "–"),
                fact_cell(m, "training.dropout", t.dropout_note or ""),
                fact_cell(m, "training.weight_decay", t.wd_note or ""),
            )
        )
    columns = ("Model", "Date", "Dropout", "Weight decay")
    notes = ("On open models, silence about dropout usually means none; on closed ones nothing follows from it.",)
    return Table("decay-and-dropout", "Dropout and weight decay, by date", columns, tuple(rows), ATLAS_SOURCE, notes)


def _makes_users(name: str) -> None:
    makes(name)(lambda: users(name))


for _name in _USERS:
    _makes_users(_name)
