"""Tables: the card of a change, the arms side by side, every run, settings, and the numbers behind each figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.report.numbers import (
    NONE,
    count,
    finite,
    finite_list,
    fixed,
    joined,
    listed,
    of,
    plain,
    quantity,
    rate,
    ratio,
    scaled,
    significant,
    size,
)
from assay.report.records import (
    ALIVE,
    CLASS_WORDS,
    FAILURES,
    Arm,
    Point,
    Record,
    arm_key,
    class_of,
    loss_unit,
    record_of,
    records,
    text,
    texts,
)

DIMENSIONS = ("quality", "memory", "compute", "bandwidth", "stability")


@dataclass(frozen=True)
class Cell:
    """One cell. ``kind``: empty, ``number``, ``code``, ``head`` (a row's name) or a run's class."""

    text: str
    kind: str = ""
    sort: str = ""  # what to sort by, where it is not the text
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table as the template draws it."""

    columns: list[Cell]
    rows: list[list[Cell]]
    sortable: bool = False


def head(words: str, note: str = "") -> Cell:
    return Cell(words, "head", note=note)


def num(words: str, value: Any = None) -> Cell:
    number = finite(value)
    return Cell(words, "number", "" if number is None else repr(number))


def class_cell(klass: str) -> Cell:
    return Cell(CLASS_WORDS.get(klass, klass), klass if klass in (ALIVE, *FAILURES) else "")


def sweep_table(title: str, write: Callable[[float], str], arms: list[Arm], points: list[Point], unit: str) -> Table:
    """The runs of a sweep."""
    labels = {arm.name: arm.label for arm in arms}
    columns = [Cell("arm"), Cell(title, "number"), Cell("seed", "number"), Cell(f"loss, {unit}", "number"), Cell("run")]
    rows = [
        [
            head(labels[point.arm]),
            num(write(point.x), point.x),
            num(point.seed),
            num(fixed(point.loss), point.loss),
            class_cell(point.klass),
        ]
        for point in points
    ]
    return Table(columns, rows)


def seeds_table(arms: list[Arm], found: Sequence[Record], unit: str) -> Table:
    """The reporting seeds of a comparison."""
    labels = {arm.name: arm.label for arm in arms}
    columns = [Cell("arm"), Cell("seed", "number"), Cell(f"loss, {unit}", "number"), Cell("evaluation s.e.", "number")]
    columns.append(Cell("run"))
    rows = [
        [
            head(labels[arm_key(arm)]),
            num(text(each, "seed")),
            num(fixed(each.get("loss")), each.get("loss")),
            num(fixed(each.get("stderr"), 4), each.get("stderr")),
            class_cell(class_of(each)),
        ]
        for arm in found
        for each in records(arm, "reporting")
    ]
    return Table(columns, rows)


def ends_table(curves: Sequence[tuple[str, str, list[tuple[float, float]], str, str]], unit: str) -> Table:
    """Where the curves of a figure begin and end: (arm, seed, curve, final loss, class)."""
    columns = [Cell("arm"), Cell("seed", "number"), Cell("first loss", "number"), Cell("loss halfway", "number")]
    columns += [Cell(f"final loss, {unit}", "number"), Cell("run")]
    rows = []
    for arm, seed, curve, final, words in curves:
        half = next((loss for step, loss in curve if step >= curve[-1][0] / 2), None)
        first = curve[0][1] if curve else None
        rows.append([head(arm), num(seed), num(fixed(first)), num(fixed(half)), num(final), Cell(words)])
    return Table(columns, rows)


def layers_table(columns: Sequence[tuple[str, list[float | None]]]) -> Table:
    """Values by layer, one column a curve."""
    depth = max((len(column) for _, column in columns), default=0)
    rows = [
        [head(str(layer + 1)), *(num(significant(c[layer]) if layer < len(c) else NONE) for _, c in columns)]
        for layer in range(depth)
    ]
    return Table([Cell("layer"), *(Cell(name, "number") for name, _ in columns)], rows)


@dataclass(frozen=True)
class CardRow:
    """One measure of the card."""

    measure: str
    unit: str
    baseline: str
    change: str
    ratio: str
    note: str


@dataclass(frozen=True)
class CardGroup:
    """A dimension of the card."""

    dimension: str
    rows: list[CardRow]


def card_groups(part: Record) -> list[CardGroup]:
    """The card, always in the order quality, memory, compute, bandwidth, stability; unknown dimensions after them."""
    groups = []
    for each in records(part, "card"):
        rows = []
        for row in records(each, "rows"):
            unit = text(row, "unit")
            values = [_measured(row.get(side), unit) for side in ("baseline", "change")]
            left = next((rest for _, rest in values if rest), "")
            shown = ratio(row["ratio"]) if finite(row.get("ratio")) is not None else ""
            rows.append(CardRow(text(row, "measure"), left, values[0][0], values[1][0], shown, text(row, "note")))
        if rows:
            groups.append(CardGroup(text(each, "dimension"), rows))
    rank = {name: index for index, name in enumerate(DIMENSIONS)}
    return sorted(groups, key=lambda group: rank.get(group.dimension, len(rank)))


def _measured(value: Any, unit: str) -> tuple[str, str]:
    if isinstance(value, list | tuple) and len(finite_list(value)) == len(value) == 2 and unit in ("", "seeds", "runs"):
        return of(value), unit
    return quantity(value, unit)


Writer = Callable[[Record], str]


def _step_time(arm: Record) -> str:
    times = record_of(arm.get("step_ms"))
    if finite(times.get("median")) is None:
        return NONE
    spread = f" ({significant(times.get('q25'))} to {significant(times.get('q75'))})"
    return significant(times.get("median")) + (spread if finite(times.get("q25")) is not None else "")


def _best_rate(arm: Record) -> str:
    if finite(arm.get("best_lr")) is None:
        return "none" if "best_lr" in arm else NONE
    return rate(arm.get("best_lr")) + (" (on the edge of the grid)" if arm.get("best_lr_on_edge") is True else "")


def _classes(arm: Record) -> str:
    found = record_of(arm.get("classes"))
    said = [f"{count(found[name])} {CLASS_WORDS[name]}" for name in (ALIVE, *FAILURES) if finite(found.get(name))]
    return ", ".join(said) or NONE


def _mean(arm: Record) -> str:
    mean, spread = finite(arm.get("mean")), finite(arm.get("sd"))
    return NONE if mean is None else fixed(mean) + ("" if spread is None else f" ± {fixed(spread)}")


def _selectable(arm: Record) -> str:
    rates = finite_list(arm.get("selectable"))
    return ", ".join(rate(each) for each in rates) if rates else "none" if "selectable" in arm else NONE


def _sensitivity(arm: Record) -> str:
    said = fixed(arm.get("lr_sensitivity"))
    return f"{said} (never learned)" if arm.get("never_learned") is True else said


def _divergence(arm: Record) -> str:
    found = record_of(arm.get("lr_to_divergence"))
    if words := text(found, "text"):
        return words
    good, bad = finite(found.get("last_good")), finite(found.get("first_bad"))
    if bad is None:
        return NONE if good is None else f"> {rate(good)}"
    return f"< {rate(bad)}" if good is None else f"{rate(good)} to {rate(bad)}"


def arm_rows(unit: str) -> list[tuple[str, str, Writer]]:
    """What is told of an arm: (name, note, how it is written)."""
    return [
        ("Recipe", "", lambda arm: "; ".join(texts(arm, "recipe_words")) or NONE),
        ("Recipe digest", "", lambda arm: text(arm, "recipe_digest", NONE)[:16]),
        ("Parameters", "", lambda arm: count(arm.get("params"))),
        ("Training compute", "per token", lambda arm: scaled(arm.get("flops_per_token"), "FLOPs")),
        ("Weights", "", lambda arm: size(arm.get("weights_bytes"))),
        ("Optimizer state", "", lambda arm: size(arm.get("optimizer_bytes"))),
        ("KV cache", "per token", lambda arm: size(arm.get("kv_bytes_per_token"))),
        ("Best learning rate", "", _best_rate),
        ("Selectable learning rates", "", _selectable),
        ("LR to divergence", "", _divergence),
        ("LR sensitivity", unit, _sensitivity),
        ("Lowest tuning loss", unit, lambda arm: fixed(arm.get("l_star"))),
        ("Reported loss", f"mean ± sd, {unit}", _mean),
        ("Seeds alive", "reporting", lambda arm: of(arm.get("alive"))),
        ("Runs by outcome", "", _classes),
        ("Step time", "ms, median (quartiles)", _step_time),
        ("Processor time", "CPU-seconds", lambda arm: significant(arm.get("cpu_seconds"))),
        ("Largest attention logit", "", lambda arm: significant(arm.get("max_logit"))),
    ]


def arms_table(arms: Sequence[Record], styles: Mapping[str, Arm], unit: str) -> Table | None:
    """The arms side by side, one column each; only what some arm has."""
    if not arms:
        return None
    rows = []
    for name, note, write in arm_rows(unit):
        written = [write(arm) for arm in arms]
        if any(each != NONE for each in written):
            kind = "code" if name == "Recipe digest" else ""
            rows.append([head(name, note), *(Cell(each, kind) for each in written)])
    return Table([Cell(""), *(Cell(styles[arm_key(arm)].label) for arm in arms)], rows) if rows else None


def matched_words(part: Record, styles: Mapping[str, Arm]) -> str:
    """How closely the arms are matched, in one sentence; empty if the record does not say."""
    matched = record_of(part.get("matched"))
    by = text(matched, "by")
    if not by:
        return ""
    found = record_of(matched.get("values"))
    each = [f"{styles[n].label if n in styles else n} {count(v)}" for n, v in found.items() if finite(v) is not None]
    said = f"The arms are matched by {by}" + (f" ({listed(each)})" if each else "")
    spread, tolerance = finite(matched.get("spread")), finite(matched.get("tolerance"))
    if spread is not None:
        said += f"; they differ by {percent(spread)}"
        said += f" where the plan allows {percent(tolerance)}" if tolerance is not None else ""
    return said + "."


def percent(value: float) -> str:
    """A fraction as a percentage."""
    return f"{significant(value * 100, 2)}%"


def runs_table(result: Record) -> Table | None:
    """One row a run. Columns that no run fills are left out."""
    runs = records(result, "runs")
    if not runs:
        return None
    axes = {text(part, "axis") for part in records(result, "parts") if text(part, "axis")}
    columns = [Cell("part"), Cell("arm"), Cell("peak LR", "number"), Cell("seed", "number")]
    columns += [Cell(axes.pop() if len(axes) == 1 else "value", "number"), Cell("loss", "number")]
    columns += [Cell("s.e.", "number"), Cell("outcome"), Cell("steps", "number"), Cell("tokens/s", "number")]
    columns += [Cell("CPU-s", "number"), Cell("max grad norm", "number"), Cell("run")]
    rows = []
    for run in runs:
        value = run.get("value")
        rows.append(
            [
                Cell(text(run, "part", NONE)),
                Cell(text(run, "label") or text(run, "arm", NONE)),
                num(rate(run.get("lr")), run.get("lr")),
                num(plain(run.get("seed")), run.get("seed")),
                num(significant(value) if _fraction(value) else plain(value), value),
                num(fixed(run.get("loss")), run.get("loss")),
                num(fixed(run.get("stderr"), 4), run.get("stderr")),
                class_cell(class_of(run)),
                num(count(run.get("steps")), run.get("steps")),
                num(count(run.get("tokens_per_s")), run.get("tokens_per_s")),
                num(significant(run.get("cpu_seconds")), run.get("cpu_seconds")),
                num(significant(run.get("grad_norm_max")), run.get("grad_norm_max")),
                Cell(text(run, "digest", NONE)[:10], "code", note=text(run, "folder")),
            ]
        )
    used = [index for index in range(len(columns)) if any(row[index].text != NONE for row in rows)]
    return Table([columns[i] for i in used], [[row[i] for i in used] for row in rows], sortable=True)


def _fraction(value: Any) -> bool:
    number = finite(value)
    return number is not None and not number.is_integer()


def flat(settings: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as (dotted key, text), in the order of the record."""
    found: list[tuple[str, str]] = []
    for key, value in record_of(settings).items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found += flat(value, f"{name}.") if value else [(name, "none")]
        elif isinstance(value, list | tuple) and any(isinstance(each, Mapping | list | tuple) for each in value):
            for index, each in enumerate(value):
                inner = f"{name}[{index}]"
                found += flat(each, f"{inner}.") if isinstance(each, Mapping) else [(inner, plain(each))]
        else:
            found.append((name, plain(value)))
    return found


def settings_table(settings: Any) -> Table | None:
    """Settings or an environment, a row each."""
    rows = [[Cell(key, "code"), Cell(value)] for key, value in flat(settings)]
    return Table([Cell("setting"), Cell("value")], rows) if rows else None


def corpus_table(result: Record) -> Table | None:
    """The data that every run saw."""
    corpus = record_of(result.get("corpus"))
    entropy = finite(corpus.get("unigram_entropy"))
    named = [
        ("name", text(corpus, "name")),
        ("files", count(corpus.get("files"))),
        ("size", _exact(corpus.get("bytes"))),
        ("training split", _exact(corpus.get("train_bytes"))),
        ("validation split", _exact(corpus.get("val_bytes"))),
        ("tokenizer", text(corpus, "tokenizer")),
        ("tokens", _tokens(corpus)),
        (
            "unigram entropy H",
            ""
            if entropy is None
            else f"{fixed(entropy)} {loss_unit(result)}; a run above {fixed(entropy - 0.05)} is dead",
        ),
        ("SHA-256", text(corpus, "sha256")),
        ("notes", joined(texts(corpus, "notes"))),
    ]
    rows = [
        [head(name), Cell(value, "code" if name == "SHA-256" else "")]
        for name, value in named
        if value not in ("", NONE)
    ]
    return Table([Cell("corpus"), Cell("")], rows) if rows else None


def _tokens(corpus: Record) -> str:
    """Of both splits, where a token is not a byte."""
    if text(corpus, "tokenizer") == "bytes" or finite(corpus.get("train_tokens")) is None:
        return NONE
    return f"{count(corpus.get('train_tokens'))} to train on, {count(corpus.get('val_tokens'))} to validate"


def _exact(value: Any) -> str:
    return NONE if finite(value) is None else f"{size(value)} ({count(value)} bytes)"
