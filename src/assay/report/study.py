"""What a study's page says, in order: the answer, the parts of the plan, and all that stands behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.report.charts import Figure
from assay.report.curves import layers_figure, loss_figure
from assay.report.effects import difference_chart, effect_facts, seeds_figure, step_time_figure
from assay.report.numbers import finite, fixed, rate
from assay.report.records import (
    Arm,
    Record,
    arm_key,
    baseline_of,
    change_of,
    comparisons,
    loss_unit,
    ordered_arms,
    record_of,
    records,
    text,
    texts,
)
from assay.report.sweeps import LEARNING_RATE, sweep_figure, sweep_of
from assay.report.tables import (
    CardGroup,
    Table,
    arms_table,
    card_groups,
    corpus_table,
    matched_words,
    runs_table,
    settings_table,
)

# the verdict's word -> (its sign, what it means)
VERDICTS = {
    "better": ("▲", "The change has the lower loss, by more than seed noise explains."),
    "worse": ("▼", "The change has the higher loss, by more than seed noise explains."),
    "equivalent": ("=", "The difference lies inside the margin that the plan fixed and could resolve."),
    "undecided": ("?", "The study cannot tell the arms apart at this number of seeds."),
    "unstable": ("!", "At least one reporting seed failed, so the means do not speak for the arms."),
}


@dataclass
class Section:
    """A part of the study on the page."""

    id: str
    kind: str
    title: str
    question: str
    sentences: list[str]
    figures: list[Figure] = field(default_factory=list)
    later: list[Figure] = field(default_factory=list)  # after the card and the arms
    verdict: str = ""
    card: list[CardGroup] = field(default_factory=list)
    sides: tuple[str, str] = ("baseline", "change")
    arms: Table | None = None
    matched: str = ""
    facts: list[str] = field(default_factory=list)  # of a comparison that is not the main one


def study_context(result: Record) -> dict[str, Any]:
    """Everything that the template of a study reads."""
    styles, unit = ordered_arms(result), loss_unit(result)
    about = record_of(result.get("study"))
    sections = [_section(result, part, styles, index) for index, part in enumerate(records(result, "parts"), 1)]
    main = next(iter(comparisons(result)), None)
    head = _headline(result, main, styles, unit)
    figures = [*([head] if head else []), *(f for each in sections for f in [*each.figures, *each.later])]
    verdict = text(result, "verdict")
    sign, meaning = VERDICTS.get(verdict, ("", ""))
    return {
        "about": {key: text(about, key) for key in ("name", "plan_digest", "command", "assay_version", "finished")},
        "title": text(about, "title") or text(about, "name") or "A study",
        "question": text(about, "question"),
        "complete": about.get("complete") is not False,
        "answer": texts(result, "answer"),
        "verdict": verdict,
        "verdict_known": verdict in VERDICTS,
        "verdict_sign": sign,
        "verdict_meaning": meaning,
        "headline": head,
        "tiles": card_groups(main) if main else [],
        "sides": _sides(main, styles) if main else ("baseline", "change"),
        "facts": _facts(result, main, unit),
        "warnings": texts(result, "warnings") + _doubts(main),
        "sections": sections,
        "figures": figures,
        "runs": runs_table(result),
        "corpus": corpus_table(result),
        "settings": settings_table(result.get("settings")),
        "environment": settings_table(result.get("environment")),
        "unit": unit,
        "command": [line.split(" ") for line in text(about, "command").splitlines()],
        "methods": [each for each in text(result, "methods").split("\n\n") if each.strip()],
    }


def _sides(part: Record, styles: dict[str, Arm]) -> tuple[str, str]:
    baseline, change = styles.get(baseline_of(part)), styles.get(change_of(part) or "")
    return baseline.label if baseline else "baseline", change.label if change else "change"


def _with_effect(result: Record, part: Record) -> Record:
    """The main comparison with the effect of the study where its own is missing."""
    if record_of(part.get("effect")) or not record_of(result.get("effect")):
        return part
    return {**part, "effect": result.get("effect"), "mde": part.get("mde") or result.get("mde")}


def _headline(result: Record, main: Record | None, styles: dict[str, Arm], unit: str) -> Figure | None:
    part = _with_effect(result, main or {})
    strip = difference_chart(part, styles, unit)
    if strip is None:
        return None
    band = finite(record_of(part.get("mde")).get("nats"))
    note = f"Effects inside the grey band, ±{fixed(band)}, are too small for this plan to see." if band else ""
    return Figure("The difference", [strip], "", note)


def _facts(result: Record, main: Record | None, unit: str) -> list[str]:
    if main is None:
        return []
    part = _with_effect(result, main)
    first, *others = effect_facts({**part, "mde": part.get("mde") or result.get("mde")}, unit)
    return [first[:1].upper() + first[1:], *others]


def _doubts(main: Record | None) -> list[str]:
    """What does not fit together in the record itself."""
    if main is None:
        return []
    means = {arm_key(arm): finite(arm.get("mean")) for arm in records(main, "arms")}
    before, after = means.get(baseline_of(main)), means.get(change_of(main) or "")
    nats = finite(record_of(main.get("effect")).get("nats"))
    if before is None or after is None or nats is None or abs(after - before - nats) < 5e-3:
        return []
    told = f"{fixed(after - before, signed=True)}, the effect {fixed(nats, signed=True)}"
    return [f"The effect is not the difference of the arms' means: the means differ by {told}."]


def _section(result: Record, part: Record, styles: dict[str, Arm], index: int) -> Section:
    kind, unit = text(part, "kind"), loss_unit(result)
    title = text(part, "title") or text(part, "name") or f"Part {index}"
    section = Section(f"part-{index}", kind, title, text(part, "question"), texts(part, "sentences"))
    arms = records(part, "arms")
    if kind == "ladder":
        sweep = sweep_of(result, part, styles, points_key="points", axis=None)
        words = f"Loss over {sweep.axis.name}"
        words += f", at learning rate {rate(part.get('lr'))}" if finite(part.get("lr")) is not None else ""
        section.figures += _some(sweep_figure(sweep, words))
    elif kind == "comparison":
        _compare(section, result, part, styles)
    else:
        sweep = sweep_of(result, part, styles, points_key="points", axis=LEARNING_RATE)
        section.figures += _some(sweep_figure(sweep, "Loss over the learning rate"))
    if kind != "comparison":
        section.arms = arms_table(arms, styles, unit)
    return section


def _compare(section: Section, result: Record, part: Record, styles: dict[str, Arm]) -> None:
    unit, main = loss_unit(result), next(iter(comparisons(result)), None)
    is_main = part is main
    part = _with_effect(result, part) if is_main else part
    section.verdict = "" if is_main else text(part, "verdict")
    section.figures += _some(seeds_figure(result, part, styles))
    section.card, section.sides = card_groups(part), _sides(part, styles)
    ordered = sorted(records(part, "arms"), key=lambda arm: styles[arm_key(arm)].index)
    section.arms, section.matched = arms_table(ordered, styles, unit), matched_words(part, styles)
    section.facts = [] if is_main else effect_facts(part, unit)
    sweep = sweep_of(result, part, styles, points_key="tuning", axis=LEARNING_RATE)
    section.later += _some(sweep_figure(sweep, "How each arm's learning rate was chosen"))
    section.later += _some(loss_figure(result, part, styles))
    section.later += _some(layers_figure(result, part, styles))
    section.later += _some(step_time_figure(part, styles))


def _some(figure: Figure | None) -> list[Figure]:
    return [figure] if figure else []
