"""Rules as data: read from TOML, checked, laid over by the user's own."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from assay.atlas.facts import DATA, near
from assay.atlas.subject import measures

Severity = Literal["ok", "note", "warning", "fault"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "fault")
LABELS = {
    "swept": "swept",
    "copied": "copied: nobody re-checked",
    "unchecked": "nobody checked",
    "derived": "follows from the definition",
}
Scalar = bool | int | float | str


class RuleError(ValueError):
    """A rule file that cannot be used; names the file, the rule and what is wrong."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Band(_Frozen):
    """What a value should be: within bounds, one of several, or a multiple."""

    low: float | None = None
    high: float | None = None
    any_of: Annotated[tuple[Scalar, ...] | None, Field(strict=False)] = None
    multiple_of: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _something(self) -> Band:
        given = [self.low is not None or self.high is not None, self.any_of is not None, self.multiple_of is not None]
        if sum(given) != 1:
            raise ValueError("a band has bounds (low, high), or any_of, or multiple_of: one of the three")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the band; a value of another kind does not."""
        if self.any_of is not None:
            return any((type(value) is type(v) and value == v) or _equal(value, v) for v in self.any_of)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.multiple_of is not None:
            return value % self.multiple_of == 0
        return (self.low is None or value >= self.low or math.isclose(value, self.low)) and (
            self.high is None or value <= self.high or math.isclose(value, self.high)
        )

    def __str__(self) -> str:
        if self.any_of is not None:
            return " | ".join("yes" if v is True else "no" if v is False else f"{v}" for v in self.any_of)
        if self.multiple_of is not None:
            return f"multiple of {self.multiple_of}"
        if self.low is None:
            return f"at most {_number(self.high)}"
        return f"at least {_number(self.low)}" if self.high is None else f"{_number(self.low)} to {_number(self.high)}"


def _equal(value: Any, other: Scalar) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, other))
    return numbers and value == other


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 and value == int(value) else f"{value:g}"


class Evidence(_Frozen):
    """What a rule rests on; ``swept`` names the study and what it found."""

    label: Literal["swept", "copied", "unchecked", "derived"]
    study: str = ""
    figure: str = ""

    @model_validator(mode="after")
    def _named(self) -> Evidence:
        if self.label == "swept" and not (self.study and self.figure):
            raise ValueError("swept needs the study and its figure")
        return self

    def __str__(self) -> str:
        """``swept: Narang et al. 2021, table 1``; ``copied: nobody re-checked``."""
        return f"swept: {self.study}" if self.label == "swept" else LABELS[self.label]


class Rule(_Frozen):
    """What a measure is held against, why, and on what evidence."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    measure: str
    band: Band
    limit: Band | None = None
    when: dict[str, Band] = {}
    severity: Literal["note", "warning", "fault"] = "note"
    limit_severity: Literal["note", "warning", "fault"] | None = None
    evidence: Evidence
    why: str
    advice: str = ""
    sources: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    peers: bool = True
    within: float = Field(default=0.02, ge=0.0, lt=1.0)

    @property
    def graver(self) -> Severity:
        """The severity of a value outside the limit."""
        if self.limit_severity is not None:
            return self.limit_severity
        return SEVERITIES[min(SEVERITIES.index(self.severity) + 1, len(SEVERITIES) - 1)]


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of the atlas."""
    return _read(DATA / "rules.toml")[0]


def rules(extra: Iterable[str | Path | Rule] = ()) -> tuple[Rule, ...]:
    """The rules of the atlas with the user's own laid over them.

    Args:
        extra: TOML files of ``[[rule]]`` tables (a rule with the id of a shipped one replaces it; a top-level
            ``off = ["id", ...]`` switches rules off), or rules.

    Raises:
        RuleError: a file that cannot be read, an unknown measure, a bad band, a rule without a source.
    """
    found = {rule.id: rule for rule in shipped_rules()}
    for item in extra:
        if isinstance(item, Rule):
            found[item.id] = item
            continue
        own, off = _read(Path(item))
        for name in off:
            if name not in found:
                raise RuleError(f"{item}: off: no such rule: {name!r}{near(name, found)}")
            del found[name]
        found.update({rule.id: rule for rule in own})
    return tuple(found.values())


def _read(path: Path) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RuleError(f"{path}: cannot be read: {error}") from None
    unknown = sorted(set(raw) - {"rule", "off"})
    if unknown:
        raise RuleError(f"{path}: unknown key {unknown[0]!r}; known: rule, off")
    off = raw.get("off", [])
    tables = raw.get("rule", [])
    if not isinstance(off, list) or not all(isinstance(name, str) for name in off):
        raise RuleError(f"{path}: off: not a list of rule ids: {off!r}")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RuleError(f"{path}: rule: not a list of [[rule]] tables")
    built = tuple(_rule(table, f"{path.name}: rule {i}") for i, table in enumerate(tables, 1))
    ids = [rule.id for rule in built]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise RuleError(f"{path}: {twice[0]!r} is defined twice")
    return built, tuple(off)


def _rule(table: Mapping[str, Any], where: str) -> Rule:
    if "id" in table:
        where = f"{where} ({table['id']})"
    try:
        rule = Rule.model_validate(table)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise RuleError(f"{where}: {faults}") from None
    for name in (rule.measure, *rule.when):
        if name not in measures():
            raise RuleError(f"{where}: no such measure: {name!r}{near(name, measures())}")
    return rule
