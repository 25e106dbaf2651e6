"""Reading a record: every field may be missing, null or NaN, and none of its text is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.report.numbers import finite, finite_list, median

Record = Mapping[str, Any]

ALIVE = "alive"
FAILURES = ("dead", "diverged", "nonfinite")
CLASS_WORDS = {ALIVE: "alive", "dead": "dead", "diverged": "diverged", "nonfinite": "non-finite"}
DEAD_MARGIN = 0.05  # a run is dead above H - 0.05

# colours of the arms are CSS variables (--arm-0 ...), so that one chart serves light, dark and print
SHAPES = ("circle", "square", "diamond", "triangle-right", "triangle-left", "triangle-down")
DASHES = ((1, 0), (7, 3), (2, 2), (8, 2, 2, 2), (4, 4), (10, 4))


def record_of(value: Any) -> Record:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def records(record: Record, key: str) -> list[Record]:
    """The mappings of a list."""
    found = record.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list | tuple) else []


def text(record: Record, key: str, default: str = "") -> str:
    """A text, or ``default`` where it is missing or empty."""
    found = record.get(key)
    return default if found is None or found == "" else str(found)


def texts(record: Record, key: str) -> list[str]:
    """A list of texts; one text is a list of one."""
    found = record.get(key)
    if isinstance(found, str):
        return [found] if found else []
    return [str(each) for each in found if each is not None] if isinstance(found, list | tuple) else []


def jsonable(value: Any) -> Any:
    """``value`` with NaN and infinities as null, tuples as lists and keys as text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, float):
        return finite(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def label_of(record: Record) -> str:
    """What an arm is called on the page."""
    return text(record, "label") or text(record, "name") or text(record, "arm") or "unnamed"


@dataclass(frozen=True)
class Arm:
    """How an arm looks in every chart: its colour, shape and dash go by ``index``."""

    name: str
    label: str
    index: int
    alone: bool = False  # the only arm of its page: a solid line whatever its colour

    @property
    def color(self) -> str:
        return f"var(--arm-{self.index % len(SHAPES)})"

    @property
    def shape(self) -> str:
        return SHAPES[self.index % len(SHAPES)]

    @property
    def dash(self) -> list[int]:
        return list(DASHES[0 if self.alone else self.index % len(DASHES)])


@dataclass(frozen=True)
class Point:
    """One run in a sweep: where it stands, and how it ended."""

    arm: str
    x: float
    seed: str
    loss: float | None
    klass: str
    run: str

    @property
    def failed(self) -> bool:
        return self.klass != ALIVE


@dataclass(frozen=True)
class Median:
    """The seeds of an arm at one place of a sweep."""

    arm: str
    x: float
    median: float | None
    alive: int
    n: int


def arm_key(record: Record) -> str:
    """An arm's name; its label where it has none."""
    return text(record, "name") or label_of(record)


def comparisons(result: Record) -> list[Record]:
    """The parts that compare arms, the main one first as the plan has them."""
    return [part for part in records(result, "parts") if part.get("kind") == "comparison"]


def baseline_of(part: Record) -> str:
    """The baseline's name; the first arm's where none is given."""
    arms = [arm_key(arm) for arm in records(part, "arms")]
    named = text(part, "baseline")
    return named if named in arms or not arms else arms[0]


def change_of(part: Record) -> str | None:
    """The arm that is held against the baseline: the first that is not it."""
    baseline = baseline_of(part)
    return next((arm_key(arm) for arm in records(part, "arms") if arm_key(arm) != baseline), None)


def ordered_arms(result: Record) -> dict[str, Arm]:
    """Every arm of the study by name, the main baseline first; an arm looks the same in every chart."""
    main = next(iter(comparisons(result)), {})
    found: dict[str, str] = {}
    if main:
        baseline = baseline_of(main)
        found.update({arm_key(a): label_of(a) for a in records(main, "arms") if arm_key(a) == baseline})
    for holder in [main, result, *records(result, "parts")]:
        for each in records(holder, "arms"):
            found.setdefault(arm_key(each), label_of(each))
    for run in records(result, "runs"):
        if run.get("arm") is not None:
            found.setdefault(str(run["arm"]), label_of(run))
    return {name: Arm(name, label, index) for index, (name, label) in enumerate(found.items())}


def class_of(record: Record) -> str:
    """How a run ended. A run without a class is non-finite if it has no loss, else alive."""
    named = text(record, "class")
    return named if named else ALIVE if finite(record.get("loss")) is not None else "nonfinite"


def whole(value: Any) -> int:
    """A count; 0 where there is none."""
    return round(finite(value) or 0)


def points_of(arm: Record, key: str, x_key: str) -> list[Point]:
    """The runs of one arm's sweep, in the order of their place and seed."""
    found = []
    for each in records(arm, key):
        x = finite(each.get(x_key))
        if x is not None:
            loss, run = finite(each.get("loss")), text(each, "run")
            found.append(Point(arm_key(arm), x, text(each, "seed"), loss, class_of(each), run))
    return sorted(found, key=lambda point: (point.x, point.seed.zfill(12)))


def medians_of(arm: Record, points: list[Point], x_key: str) -> list[Median]:
    """The arm's curve as the record has it, or counted from its points."""
    name = arm_key(arm)
    if given := [each for each in records(arm, "curve") if finite(each.get(x_key)) is not None]:
        return [
            Median(name, float(each[x_key]), finite(each.get("median")), whole(each.get("alive")), whole(each.get("n")))
            for each in sorted(given, key=lambda each: float(each[x_key]))
        ]
    places = sorted({point.x for point in points})
    found = []
    for x in places:
        here = [point for point in points if point.x == x]
        losses = [float("inf") if point.loss is None else point.loss for point in here]
        found.append(Median(name, x, median(losses), sum(not point.failed for point in here), len(here)))
    return found


def series(record: Record, key: str) -> list[tuple[float, float]]:
    """A curve ``[[step, value], ...]`` without its gaps."""
    found = record.get(key)
    pairs = [finite_list(each) for each in found] if isinstance(found, list | tuple) else []
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]


def layered(record: Record, key: str) -> list[tuple[float, list[float | None]]]:
    """A curve ``[[step, [a value per layer]], ...]``; a layer without a finite value is None."""
    found = record.get(key)
    rows: list[tuple[float, list[float | None]]] = []
    for each in found if isinstance(found, list | tuple) else []:
        if isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[1], list | tuple):
            step = finite(each[0])
            if step is not None:
                rows.append((step, [finite(value) for value in each[1]]))
    return rows


def reporting_runs(result: Record, part: Record) -> list[tuple[Record, Record]]:
    """(arm, run) of every reporting seed whose run is in the record."""
    by_digest = {text(run, "digest"): run for run in records(result, "runs")}
    found = []
    for arm in records(part, "arms"):
        for each in records(arm, "reporting"):
            run = by_digest.get(text(each, "run"))
            if run is not None:
                found.append((arm, run))
    return found


def entropy_of(result: Record) -> float | None:
    """H, the unigram entropy of the corpus, in nats a token."""
    return finite(record_of(result.get("corpus")).get("unigram_entropy"))


def loss_unit(result: Record) -> str:
    """``nats per byte`` for a byte-level tokenizer, else ``nats per token``."""
    tokenizer = text(record_of(result.get("corpus")), "tokenizer")
    return "nats per byte" if tokenizer.lower().startswith("byte") else "nats per token"
