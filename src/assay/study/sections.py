"""The record of each kind of part: numbers by arm, and sentences that say what the runs said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from statistics import median
from typing import Any

from assay.recipe.diff import diff
from assay.recipe.words import layer_clauses, sizes_of, words
from assay.study import statistics as st
from assay.study.card import card
from assay.study.design import (
    Design,
    Known,
    Use,
    curve_uses,
    ladder_uses,
    points_of,
    reporting_uses,
    survivor_uses,
    tuning_uses,
)
from assay.study.learning_rate import Point, Rung, breaking, ladder_of, rate_text, select, sensitivity
from assay.study.match import Facts, part_facts, resolvable, spread_of
from assay.study.plan import Arm, Comparison, Ladder, LrCurve, StudyPart
from assay.study.verdict import Reported, Rules, Verdict, judge

Record = dict[str, Any]


@singledispatch
def section_of(part: StudyPart, design: Design, known: Known, unigram_entropy: float) -> Record:
    """The part's record, once all its runs have ended. A new kind of part registers its own."""
    raise LookupError(f"study_part kind {part.kind_name!r} has no record")


def _head(part: StudyPart) -> Record:
    return {"name": part.name, "title": part.title, "question": part.question, "kind": part.kind_name}


def _point(point: Point) -> Record:
    return {"lr": point.lr, "seed": point.seed, "loss": point.loss, "class": point.cls, "run": point.run}


def _rung(rung: Rung) -> Record:
    middle = rung.median if math.isfinite(rung.median) else None
    return {"lr": rung.lr, "median": middle, "alive": rung.alive, "n": rung.n}


def _swept(points: Sequence[Point], grid: Sequence[float], unigram_entropy: float) -> Record:
    """What a sweep says, as the record writes it. LR sensitivity is over the common grid, not over survivors' rates."""
    common = [p for p in points if p.lr in grid]
    sensitive, chosen, breaks = sensitivity(common, unigram_entropy), select(points), breaking(points)
    return {
        "best_lr": chosen.lr,
        "best_lr_on_edge": chosen.on_edge,
        "selectable": list(chosen.selectable),
        "l_star": sensitive.l_star,
        "lr_sensitivity": sensitive.value,
        "lr_sensitivity_high": sensitive.high_side,
        "never_learned": sensitive.never_learned,
        "lr_to_divergence": {
            "last_good": breaks.last_good,
            "first_bad": breaks.first_bad,
            "text": breaks.text,
            "words": breaks.words,
        },
        "curve": [_rung(rung) for rung in ladder_of(points)],
    }


def _costs(facts: Facts) -> Record:
    return {"recipe_digest": facts.digest, "params": facts.params, "flops_per_token": facts.flops_per_token}


@section_of.register
def _(part: LrCurve, design: Design, known: Known, unigram_entropy: float) -> Record:
    arms, sentences = [], []
    for arm in part.arms_for(design.full):
        survivors, _ = survivor_uses(part, arm, design, known)
        points = points_of([*curve_uses(part, arm, design), *survivors], known)
        swept = _swept(points, part.lrs, unigram_entropy)
        arms.append(
            {
                "name": arm.name,
                "label": arm.title,
                **_costs(part_facts(design, part, arm)),
                **swept,
                "points": [_point(p) for p in points],
            }
        )
        sentences.append(_curve_sentence(arm, points, swept["best_lr"]))
    return {**_head(part), "arms": arms, "sentences": sentences}


def _curve_sentence(arm: Arm, points: Sequence[Point], selected: float | None) -> str:
    rungs = ladder_of(points)
    alive = [rung for rung in rungs if 2 * rung.alive > rung.n]
    failing = [f"{rung.n - rung.alive} of {rung.n} at {rate_text(rung.lr)}" for rung in rungs if rung.alive < rung.n]
    fails = f"; seeds that fail: {', '.join(failing)}" if failing else "; no seed fails"
    if not alive:
        return f"{arm.title} learns at no rate of the grid{fails}."
    best = min(alive, key=lambda rung: (rung.median, rung.lr))
    where = breaking(points).words
    safe = ""
    if selected is not None and selected != best.lr:
        safe = f", one step from failure, so {rate_text(selected)} is the rate to use"
    return (
        f"{arm.title} has its lowest loss at {rate_text(best.lr)} (median {best.median:.3f}){safe}; training breaks "
        f"{where}{fails}."
    )


@section_of.register
def _(part: Ladder, design: Design, known: Known, unigram_entropy: float) -> Record:
    arms, sentences = [], []
    for arm in part.arms_for(design.full):
        uses = ladder_uses(part, arm, design)
        points = [
            {
                "value": use.value,
                "seed": use.seed,
                "loss": known[use.digest].loss,
                "class": known[use.digest].cls,
                "run": use.digest,
            }
            for use in uses
        ]
        arms.append({"name": arm.name, "label": arm.title, "points": points})
        sentences.append(_ladder_sentence(part, arm, points))
    n = len(part.seeds)
    seeds = "one seed a point" if n == 1 else f"{n} seeds a point"
    sentences.append(f"At learning rate {rate_text(part.lr)} for every point, {seeds}: a picture, not a comparison.")
    return {**_head(part), "axis": part.axis, "lr": part.lr, "arms": arms, "sentences": sentences}


def _ladder_sentence(part: Ladder, arm: Arm, points: Sequence[Record]) -> str:
    fine: list[Any] = []
    failed: list[Any] = []
    for value in part.values:
        here = [p["class"] == "alive" for p in points if p["value"] == value]
        (fine if 2 * sum(here) > len(here) else failed).append(value)
    axis = part.axis
    if not failed:
        return f"{arm.title} learns at every {axis}: {_listed(fine)}."
    if not fine:
        return f"{arm.title} fails at every {axis}: {_listed(failed)}."
    if list(part.values) == fine + failed:
        return f"{arm.title} learns up to {axis} {fine[-1]} and fails from {failed[0]} on."
    return f"{arm.title} learns at {axis} {_listed(fine)} and fails at {_listed(failed)}."


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


@section_of.register
def _(part: Comparison, design: Design, known: Known, unigram_entropy: float) -> Record:
    arms = [_compared(part, arm, design, known, unigram_entropy) for arm in part.arms_for(design.full)]
    by_name = {arm["name"]: arm for arm in arms}
    baseline, primary = by_name[part.baseline], by_name[part.change]
    others = [arm for arm in arms if arm["name"] not in (part.baseline, part.change)]
    rules = rules_of(part, design)
    verdicts = judge(reported(primary), [reported(arm) for arm in others], reported(baseline), rules)
    for arm, verdict in zip([primary, *others], verdicts, strict=True):
        arm["effect"] = _effect(verdict, bits=design.tokenizer == "bytes")
        arm["verdict"] = verdict.word
        arm["card"] = card(baseline, arm, verdict)
        arm["sentences"] = list(verdict.sentences)
    sentences = [*verdicts[0].sentences, *_bundle(primary), *(_arm_sentence(arm) for arm in arms)]
    sentences += [verdict.sentences[0] for verdict in verdicts[1:]]
    errors = [row["stderr"] for arm in arms for row in arm["reporting"] if row["stderr"] is not None]
    if errors:
        sentences.append(
            f"One evaluation has a standard error of {median(errors):.3f} nats, over windows that are the same for all."
        )
    field = "params" if part.match.by == "parameters" else "flops_per_token"
    return {
        **_head(part),
        "baseline": part.baseline,
        "change": part.change,
        "arms": arms,
        "effect": primary["effect"],
        "verdict": primary["verdict"],
        "mde": _mde(part, design, [reported(baseline), reported(primary)]),
        "matched": {
            "by": part.match.by,
            "values": {arm["name"]: arm[field] for arm in arms},
            "spread": spread_of((arm[field] for arm in arms), baseline[field]),
            "tolerance": part.match.tolerance,
            "flops": {arm["name"]: arm["flops_per_token"] for arm in arms},
        },
        "evaluation_stderr": median(errors) if errors else None,
        "margin": part.margin,
        "margin_resolvable": rules.resolvable,
        "card": primary["card"],
        "sentences": sentences,
    }


def _bundle(arm: Record) -> list[str]:
    """Said of a change that is several at once."""
    axes = [change["axis"] for change in arm["changes"]]
    if len(axes) < 2:
        return []
    listed = ", ".join(dict.fromkeys(axes))
    return [f"It differs in {len(axes)} places at once ({listed}): the effect is the bundle's, not any one's."]


def rules_of(part: Comparison, design: Design) -> Rules:
    """What the plan fixed for its verdict."""
    stat = design.plan.statistics
    unit = "nats a byte" if design.tokenizer == "bytes" else "nats a token"
    return Rules(stat.confidence, stat.power, part.margin, resolvable(design.plan, part), unit)


def reported(arm: Record) -> Reported:
    """An arm's reporting runs out of its record."""
    rows = arm["reporting"]
    losses, classes, seeds = (tuple(row[key] for row in rows) for key in ("loss", "class", "seed"))
    return Reported(arm["label"], arm["best_lr"], losses, classes, seeds)


def _compared(part: Comparison, arm: Arm, design: Design, known: Known, unigram_entropy: float) -> Record:
    tuning = tuning_uses(part, arm, design)
    fresh = reporting_uses(part, arm, design, known) or []
    facts, recipe = part_facts(design, part, arm), design.recipe(part, arm)
    points = points_of(tuning, known)
    reporting = [_reporting(use, known) for use in fresh]
    values = [row["loss"] for row in reporting if row["loss"] is not None]
    classes = [row["class"] for row in reporting]
    sizes = sizes_of(recipe)
    phrases = [
        *dict.fromkeys(
            text for layer in recipe.layers for said in layer_clauses(layer, sizes).values() for text in said
        ),
        f"head: {words(recipe.head, sizes)}",
        f"init: {words(recipe.init, sizes)}",
    ]
    changes = diff(design.recipe(part, part.arm(part.baseline)), recipe).changes
    return {
        "name": arm.name,
        "label": arm.title,
        "recipe_words": phrases,
        "changes": [{"axis": change.axis, "path": change.path, "text": change.text} for change in changes],
        **_costs(facts),
        "decode_flops": facts.decode_flops,
        "decode_intensity": facts.decode_intensity,
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "weights_bytes": facts.weights_bytes,
        "optimizer_bytes": facts.optimizer_bytes,
        **_swept(points, part.lrs, unigram_entropy),
        "tuning": [_point(p) for p in points],
        "losses": [row["loss"] for row in reporting],
        "reporting": reporting,
        "classes": {cls: classes.count(cls) for cls in ("alive", "dead", "diverged", "nonfinite")},
        "mean": st.mean(values) if values else None,
        "sd": st.sd(values) if len(values) > 1 else None,
        "alive": [classes.count("alive"), len(classes)],
        **_timed([*tuning, *fresh], known),
        "max_logit": max((m for use in fresh if (m := known[use.digest].max_logit) is not None), default=None),
        "grad_norm_max": max((g for use in fresh if (g := known[use.digest].grad_norm_max) is not None), default=None),
        "full_only": arm.runs == "full",
    }


def _reporting(use: Use, known: Known) -> Record:
    ended = known[use.digest]
    return {"seed": use.seed, "loss": ended.loss, "stderr": ended.stderr, "class": ended.cls, "run": use.digest}


def _timed(uses: Sequence[Use], known: Known) -> Record:
    """Medians over the arm's runs of each run's median step and quartiles; CPU-seconds of all of them."""
    timings = [known[use.digest].timing for use in uses]
    steps = [t["step_ms"] for t in timings if t.get("step_ms")]
    peaks = [t["peak_rss_mb"] for t in timings if t.get("peak_rss_mb")]
    return {
        "step_ms": {q: median(s[q] for s in steps) for q in ("median", "q25", "q75")} if steps else None,
        "cpu_seconds": math.fsum(t.get("cpu_seconds") or 0.0 for t in timings),
        "peak_rss_mb": max(peaks, default=None),
    }


def _effect(verdict: Verdict, bits: bool) -> Record | None:
    return None if verdict.effect is None else verdict.effect.to_dict(bits)


def _mde(part: Comparison, design: Design, arms: Sequence[Reported]) -> Record:
    """The smallest effect that could be seen, with the seeds' own spread where they all lived."""
    stat, n = design.plan.statistics, len(part.reporting_seeds)
    seen = all(arm.sound and arm.n > 1 for arm in arms)
    spread = st.pooled_sd(*(arm.values for arm in arms)) if seen else stat.expected_sd
    units = st.mde(n, stat.alpha, stat.power)
    return {
        "nats": units * spread,
        "sd": units,
        "n": n,
        "power": stat.power,
        "alpha": stat.alpha,
        "seed_sd": spread,
        "seed_sd_is": "measured" if seen else "expected",
    }


def _arm_sentence(arm: Record) -> str:
    breaks = f"training breaks {arm['lr_to_divergence']['words']}"
    if arm["best_lr"] is None:
        return f"{arm['label']}: no rate of the grid is selectable; {breaks}."
    k, n = arm["alive"]
    edge = ", on the edge of the grid" if arm["best_lr_on_edge"] else ""
    return f"{arm['label']}: reported at {rate_text(arm['best_lr'])}{edge}; {k} of {n} fresh seeds learn; {breaks}."
