"""Holding a recipe against the rules: findings with value, band, the models that share it, severity and evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from assay.atlas.cells import shown
from assay.atlas.facts import models, near
from assay.atlas.ruleset import SEVERITIES, Band, Evidence, Rule, Severity, rules
from assay.atlas.subject import Missing, Reading, Subject, measures
from assay.recipe import Recipe

_SHOWN = 6  # models named before "and n more"


@dataclass(frozen=True)
class Finding:
    """One value held against one rule."""

    rule: str
    title: str
    severity: Severity
    value: Any
    text: str
    where: str  # the layers or sizes it was read from; empty for the whole recipe
    band: str
    evidence: Evidence
    why: str
    advice: str
    sources: tuple[str, ...]
    peers: tuple[str, ...]  # real models with the same value
    known: int  # real models whose value is known

    @property
    def peers_text(self) -> str:
        """``12 of 147: llama-7b, llama-13b, ... and 4 more``; empty where real models have no such value."""
        if not self.known:
            return ""
        named = ", ".join(self.peers[:_SHOWN])
        more = f" and {len(self.peers) - _SHOWN} more" if len(self.peers) > _SHOWN else ""
        return f"{len(self.peers)} of {self.known}" + (f": {named}{more}" if self.peers else "")

    def to_dict(self) -> dict[str, Any]:
        value = self.value if isinstance(self.value, bool | int | str) else _plain(self.value)
        return {
            "rule": self.rule,
            "title": self.title,
            "severity": self.severity,
            "value": value,
            "text": self.text,
            "where": self.where,
            "band": self.band,
            "evidence": {
                "label": self.evidence.label,
                "study": self.evidence.study,
                "figure": self.evidence.figure,
                "text": str(self.evidence),
            },
            "why": self.why,
            "advice": self.advice,
            "sources": list(self.sources),
            "peers": list(self.peers),
            "known": self.known,
        }


def _plain(value: Any) -> Any:
    """A float as JSON holds it; an infinite one as text."""
    return value if isinstance(value, float) and abs(value) != float("inf") else str(value)


@dataclass(frozen=True)
class Skipped:
    """A rule that needs run settings which were not given."""

    rule: str
    title: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """Everything that was held against the rules, gravest first."""

    name: str
    digest: str
    all: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings outside their band."""
        return tuple(f for f in self.all if f.severity != "ok")

    @property
    def worst(self) -> Severity:
        return max((f.severity for f in self.all), key=SEVERITIES.index, default="ok")

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(f for f in self.all if f.severity == severity)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts: what ``assay check --json`` prints."""
        return {
            "name": self.name,
            "digest": self.digest,
            "worst": self.worst,
            "counts": {s: len(self.of(s)) for s in SEVERITIES},
            "findings": [f.to_dict() for f in self.all],
            "skipped": [{"rule": s.rule, "title": s.title, "needs": list(s.needs)} for s in self.skipped],
        }


def check(
    recipe: Recipe,
    settings: Mapping[str, Any] | None = None,
    extra: Iterable[str | Path | Rule] = (),
    only: Iterable[str] = (),
) -> Findings:
    """Hold a recipe against what the field does and knows.

    Args:
        settings: of a run (``lr, warmup_steps, steps, tokens, epochs, dtype, tp, language, ...``; see
            ``assay.atlas.SETTINGS``). Rules that need one that is absent are listed as skipped.
        extra: rule files or rules of the user's own, laid over the shipped ones.
        only: ids of the rules to hold; all when empty.

    Raises:
        ValueError: an unknown or malformed setting, an unknown rule; RuleError: a faulty rule file.
    """
    subject = Subject(recipe, dict(settings or {}))
    chosen = _chosen(rules(extra), tuple(only))
    found: list[Finding] = []
    skipped: list[Skipped] = []
    for rule in chosen:
        try:
            found += _hold(rule, subject)
        except Missing as missing:
            skipped.append(Skipped(rule.id, rule.title, missing.names))
    found.sort(key=lambda f: -SEVERITIES.index(f.severity))
    return Findings(recipe.name, recipe.digest, tuple(found), tuple(skipped))


def _chosen(known: tuple[Rule, ...], only: tuple[str, ...]) -> tuple[Rule, ...]:
    if not only:
        return known
    by_id = {rule.id: rule for rule in known}
    for name in only:
        if name not in by_id:
            raise ValueError(f"no such rule: {name!r}{near(name, by_id)}; known: {', '.join(by_id)}")
    return tuple(by_id[name] for name in only)


def _hold(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """The findings of one rule: one for each distinct value; none where its conditions do not hold."""
    known = measures()
    for name, band in rule.when.items():
        if not any(band.holds(r.value) for r in known[name].read(subject)):
            return
    for value, where in _grouped(known[rule.measure].read(subject)):
        severity = _severity(rule, value)
        peers, total = _peers(rule.measure, value, rule.within) if rule.peers else ((), 0)
        yield Finding(
            rule=rule.id,
            title=rule.title,
            severity=severity,
            value=value,
            text=shown(value),
            where=where,
            band=str(rule.band),
            evidence=rule.evidence,
            why=rule.why,
            advice=rule.advice if severity != "ok" else "",
            sources=rule.sources,
            peers=peers,
            known=total,
        )


def _grouped(readings: Iterable[Reading]) -> list[tuple[Any, str]]:
    """Each distinct value with the places it was read from; no place where all agree."""
    groups: dict[Any, list[str]] = {}
    for r in readings:
        places = groups.setdefault(r.value, [])
        if r.where and r.where not in places:
            places.append(r.where)
    if len(groups) == 1:
        value, places = next(iter(groups.items()))
        return [(value, places[0] if len(places) == 1 and places[0] not in ("block", "layer") else "")]
    return [(value, ", ".join(places)) for value, places in groups.items()]


def _severity(rule: Rule, value: Any) -> Severity:
    if rule.band.holds(value):
        return "ok"
    beyond: Band | None = rule.limit
    return rule.severity if beyond is None or beyond.holds(value) else rule.graver


@lru_cache(maxsize=256)
def _field_values(name: str) -> tuple[tuple[str, Any], ...]:
    of_model = measures()[name].of_model
    if of_model is None:
        return ()
    values = ((m.id, of_model(m)) for m in models())
    return tuple((i, v) for i, v in values if v is not None)


def _peers(name: str, value: Any, within: float) -> tuple[tuple[str, ...], int]:
    """Real models with the same value, and how many have a known one."""
    values = _field_values(name)
    return tuple(i for i, v in values if _same(v, value, within)), len(values)


def _same(a: Any, b: Any, within: float) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (a, b))
    if not numbers or a == b:
        return bool(a == b)
    size = max(abs(a), abs(b))
    return bool(size != float("inf") and abs(a - b) <= within * size)
