"""Every model of the atlas as a row to search, filter and open; what it is opened to stands beside it as data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.report.atlas_charts import GLU
from assay.report.numbers import NONE, finite
from assay.report.panels import compact
from assay.report.records import Record, record_of, text, texts


class Sources:
    """Every source of the page once; cells name them by number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._index: dict[str, int] = {}

    def numbers(self, found: Iterable[Any]) -> list[int]:
        """The numbers of these sources, added where they are new."""
        out = []
        for source in map(str, found):
            if source not in self._index:
                self._index[source] = len(self.all)
                self.all.append(source)
            out.append(self._index[source])
        return out


@dataclass(frozen=True)
class ModelCell:
    """One fact in the table."""

    text: str
    sort: str = ""
    disputed: bool = False


@dataclass(frozen=True)
class ModelRow:
    """One model."""

    id: str
    name: str
    disputes: int
    cells: list[ModelCell]


Read = Callable[[Record], tuple[str, Any]]  # text, and what to sort by


@dataclass(frozen=True)
class Column:
    """One column: heading, which of the model's sources it is from, its value, and the disagreements that touch it."""

    title: str
    source: str
    read: Read
    numeric: bool = False
    about: str = ""  # a pattern in the words of a disagreement
    slight: bool = False  # left out on paper


_ABSENT = {"na": "n/a"}


def _word(key: str, names: Mapping[str, str] | None = None) -> Read:
    def read(m: Record) -> tuple[str, Any]:
        value = m.get(key)
        if value is None:
            return NONE, None
        if isinstance(value, bool):
            return ("yes" if value else "no"), None
        return {**(names or {}), **_ABSENT}.get(str(value), str(value)), None

    return read


def _whole(key: str) -> Read:
    def read(m: Record) -> tuple[str, Any]:
        value = m.get(key)
        return _ABSENT.get(str(value)) or (NONE if value is None else f"{value:,}"), finite(value)

    return read


def _ratio(key: str) -> Read:
    def read(m: Record) -> tuple[str, Any]:
        value = finite(record_of(m.get("ratios")).get(key))
        return (NONE if value is None else f"{value:.3g}"), value

    return read


def _size(m: Record) -> tuple[str, Any]:
    params = record_of(m.get("params"))
    total, active = finite(params.get("total")), finite(params.get("active"))
    more = f" ({compact(active)} active)" if total and active and active < 0.999 * total else ""
    return compact(total) + more, total


def _tokens(m: Record) -> tuple[str, Any]:
    value = finite(record_of(m.get("training")).get("tokens"))
    return compact(value), value


def _ffn(m: Record) -> tuple[str, Any]:
    word = m.get("activation")
    if word is None:
        return NONE, None
    return (GLU.get(str(word), f"gated {word}") if m.get("gated") else str(word)), None


def _heads(m: Record) -> tuple[str, Any]:
    q, kv = m.get("n_heads"), m.get("n_kv_heads")
    return (NONE if q is None else f"{q} / {NONE if kv is None else kv}"), finite(q)


def _norm(m: Record) -> tuple[str, Any]:
    word = m.get("norm_kind")
    return (NONE if word is None else {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}.get(str(word), str(word))), None


def _qk(m: Record) -> tuple[str, Any]:
    value = m.get("qk_norm")
    if isinstance(value, Mapping):
        return f"{text(value, 'norm')}, {text(value, 'over')}", None
    return (NONE if value is None else "no"), None


def _biases(m: Record) -> tuple[str, Any]:
    if m.get("biases") is None:
        return NONE, None
    return ", ".join(texts(m, "biases")).replace("_", " ") or "none", None


def _recipe(m: Record) -> tuple[str, Any]:
    return ("no" if texts(m, "recipe_reasons") else "yes"), None


_POSITIONS = {"rope": "RoPE", "alibi": "ALiBi"}
COLUMNS = (
    Column("date", "arch", _word("date")),
    Column("kind", "arch", _word("kind"), about=r"state-space"),
    Column("parameters", "count", _size, True, r"counts [\d,]{9}|text counts|340M|117M|lists [\d,]{9}"),
    Column("layers", "arch", _whole("n_layers"), True),
    Column("d_model", "arch", _whole("d_model"), True),
    Column("d / layers", "arch", _ratio("aspect"), True, r"aspect ratio"),
    Column("norm", "arch", _norm, about=r"norm eps|norm_eps|LayerNorm|bias_in_norms"),
    Column("placement", "arch", _word("norm_placement")),
    Column("positions", "arch", _word("position", _POSITIONS), about=r"position(s|\b)(?!_)|\brope|RoPE"),
    Column("FFN", "arch", _ffn, about=r"\bactivation:|GeGLU"),
    Column("d_ff / d", "arch", _ratio("ffn"), True, r"d_ff|feed-forward|intermediate_size|under GLU"),
    Column("attention", "arch", _word("attention"), about=r"multi_query"),
    Column("heads Q / KV", "arch", _heads, True, r"n_heads|kv_heads"),
    Column("head size", "arch", _whole("head_dim"), True, r"head_dim|d_head|pre-attention"),
    Column("heads x size / d", "arch", _ratio("attention"), True, slight=True),
    Column("pattern", "arch", _word("attention_pattern"), about=r"sliding_window", slight=True),
    Column("QK-norm", "arch", _qk),
    Column("block", "arch", _word("block"), slight=True),
    Column("biases", "arch", _biases, about=r"(?<!norm and )\bbias(?!_in_norms)", slight=True),
    Column("tied", "arch", _word("tied_embeddings"), about=r"tie_word|closes untied"),
    Column("vocabulary", "arch", _whole("vocab_size"), True, r"\bvocab|\brows\b"),
    Column("context", "arch", _whole("context_length"), True, r"\bcontexts?\b|max_position"),
    Column("tokens", "training", _tokens, True, r"\btokens\b"),
    Column("recipe", "", _recipe, slight=True),
)  # fmt: skip

# what the table is filtered by: heading, and a model's value
FILTERS: tuple[tuple[str, Callable[[Record], Any]], ...] = (
    ("family", lambda m: m.get("family")),
    ("kind", lambda m: m.get("kind")),
    ("norm", lambda m: m.get("norm_kind")),
    ("placement", lambda m: m.get("norm_placement")),
    ("positions", lambda m: m.get("position")),
    ("activation", lambda m: m.get("activation")),
    ("attention", lambda m: m.get("attention")),
    ("year", lambda m: m.get("year")),
)


def model_rows(models: Iterable[Record]) -> list[ModelRow]:
    """The table of every model."""
    return [_row(m) for m in models]


def _row(m: Record) -> ModelRow:
    disputes = texts(m, "disagreements")
    cells = []
    for column in COLUMNS:
        words, sort = column.read(m)
        disputed = bool(column.about) and any(re.search(column.about, said) for said in disputes)
        cells.append(ModelCell(words, "" if sort is None else repr(sort), disputed))
    return ModelRow(text(m, "id"), text(m, "name", text(m, "id")), len(disputes), cells)


def choices(models: Sequence[Record]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Each filter with its values and how many models have them; years in order, others by number."""
    out = []
    for name, read in FILTERS:
        counts = sorted(Counter(str(value) for m in models if (value := read(m)) is not None).items())
        by_name = name in ("year", "family")
        out.append((name, counts if by_name else sorted(counts, key=lambda item: -item[1])))
    return out


def model_data(models: Iterable[Record], sources: Sources) -> dict[str, Any]:
    """What the page's script reads: each model's facts, sources and disagreements, and its values for the filters."""
    found = {}
    for m in models:
        where = record_of(m.get("source"))
        disputes = texts(m, "disagreements")
        touched = {
            str(i): [k for k, said in enumerate(disputes) if re.search(column.about, said)]
            for i, column in enumerate(COLUMNS)
            if column.about
        }
        found[text(m, "id")] = {
            "name": text(m, "name"),
            "head": _head(m),
            "sources": {key: sources.numbers(texts(where, key)) for key in ("arch", "count", "training")},
            "facts": m.get("facts") or [],
            "disputes": disputes,
            "touched": {i: ks for i, ks in touched.items() if ks},
            "notes": texts(m, "notes"),
            "recipe": texts(m, "recipe_words") or texts(m, "recipe_reasons"),
            "values": {name: None if read(m) is None else str(read(m)) for name, read in FILTERS},
            "words": " ".join((text(m, "org"), text(m, "family"), text(m, "hf_id"))),
        }
    columns = [{"title": column.title, "source": column.source} for column in COLUMNS]
    return {"models": found, "columns": columns, "sources": sources.all}


def _head(m: Record) -> str:
    basis = text(m, "date_basis")
    when = f"{text(m, 'date', 'undated')}{f' ({basis})' if basis else ''}"
    return f"{text(m, 'org', 'unknown')}, {when}; {text(m, 'kind')}, family {text(m, 'family')}"


def model_ids(models: Iterable[Record]) -> frozenset[str]:
    """The ids that links may lead to."""
    return frozenset(text(m, "id") for m in models)
