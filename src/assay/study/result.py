"""A study's result: one plain record, complete in itself, that a page can be made of."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.study.design import Design, Known, Use
from assay.study.errors import StudyError, fault
from assay.study.folder import RESULT, RUNS, plan_digest
from assay.study.methods import methods_of, settings_of
from assay.study.outcome import Outcome
from assay.study.sections import section_of
from assay.training.environment import environment, version

if TYPE_CHECKING:
    from assay.training.data import Corpus

Record = dict[str, Any]
SCHEMA = 1
# what a rerun of the same study may change
TIMING = ("cpu_seconds", "tokens_per_s", "step_ms", "peak_rss_mb", "environment", "finished", "command")


@dataclass(frozen=True)
class StudyResult:
    """A finished study. ``to_dict()`` is its whole record."""

    record: Record
    folder: Path

    @property
    def verdict(self) -> str | None:
        """The word on the plan's comparison; None for a plan without one."""
        word: str | None = self.record["verdict"]
        return word

    @property
    def answer(self) -> list[str]:
        """The answer in two sentences."""
        sentences: list[str] = self.record["answer"]
        return sentences

    def to_dict(self) -> Record:
        """The record as plain values; what ``assay study --json`` prints."""
        return self.record

    def numbers(self) -> Record:
        """The record without what depends on when and where it ran: equal on every rerun of the same study."""
        kept: Record = _untimed(self.record)
        return kept


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _untimed(v) for k, v in value.items() if k not in TIMING}
    if isinstance(value, list):
        return [_untimed(v) for v in value if not (isinstance(v, dict) and v.get("timing"))]
    return value


def load_result(folder: str | Path) -> StudyResult:
    """The result of a finished study's folder; raises StudyError where there is none or it is damaged."""
    folder = Path(folder)
    path = folder / RESULT
    if not path.exists():
        raise StudyError(
            [fault(str(folder), "holds no finished study", allowed=f"a folder with {RESULT}")], str(folder)
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA:
            raise ValueError(f"schema {record['schema']!r}, this version reads {SCHEMA}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError([fault(str(path), f"damaged: {error}")], str(folder)) from None
    return StudyResult(record, folder)


def assemble(design: Design, known: Known, corpus: Corpus, warnings: Sequence[str], command: str) -> Record:
    """The record of a study whose every run has ended."""
    plan = design.plan
    described = corpus.describe()
    parts = [section_of(part, design, known, corpus.unigram_entropy) for part in plan.parts]
    main = next((part for part in parts if part["kind"] == "comparison"), None)
    uses = design.due(known).uses
    record: Record = {
        "schema": SCHEMA,
        "study": {
            "name": plan.name,
            "title": plan.title,
            "question": plan.question,
            "plan_digest": plan_digest(design),
            "full": design.full,
            "command": command,
            "assay_version": version(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "complete": True,
        },
        "answer": _answer(parts, main),
        "verdict": None if main is None else main["verdict"],
        "arms": [] if main is None else main["arms"],
        "effect": None if main is None else main["effect"],
        "mde": None if main is None else main["mde"],
        "parts": parts,
        "runs": _runs(design, uses, known),
        "corpus": {**described, "notes": _corpus_notes(described)},
        "settings": settings_of(design),
        "environment": environment(plan.numerics.get("device", "cpu"), plan.numerics.get("threads", 1)),
        "methods": methods_of(design, described),
        "warnings": [*warnings, *_remarks(parts)],
    }
    plain: Record = _plain(record)
    return plain


def _answer(parts: Sequence[Record], main: Record | None) -> list[str]:
    """Two sentences: what became of quality, and what of stability."""
    if main is None:
        return [str(part["sentences"][0]) for part in parts[:2]]
    by_name = {arm["name"]: arm for arm in main["arms"]}
    first = main["sentences"][0]
    if main["verdict"] == "unstable":
        first = " ".join(main["sentences"][: 2 if len(main["sentences"]) > 1 else 1])
    two = [by_name[main["change"]], by_name[main["baseline"]]]
    breaks = " and ".join(f"{arm['label']} breaks {arm['lr_to_divergence']['words']}" for arm in two)
    fresh = " and ".join(f"{k} of {n}" if n else "none (no rate to use)" for k, n in (arm["alive"] for arm in two))
    return [first, f"As the learning rate rises, {breaks}; of fresh seeds at the rates chosen, {fresh} learn."]


def _runs(design: Design, uses: Sequence[Use], known: Known) -> list[Record]:
    """A row a run, at its first place; other places that share it are listed in ``uses``."""
    rows: dict[str, Record] = {}
    for use in uses:
        place = {"part": use.part, "arm": use.arm, "stage": use.stage}
        if use.digest in rows:
            rows[use.digest]["uses"].append(place)
        else:
            rows[use.digest] = {**_row(use, known[use.digest]), "uses": [place]}
    return list(rows.values())


def _row(use: Use, ended: Outcome) -> Record:
    return {
        "digest": use.digest,
        "part": use.part,
        "arm": use.arm,
        "label": use.label,
        "stage": use.stage,
        "lr": use.lr,
        "seed": use.seed,
        "value": use.value,
        "steps": ended.steps,
        "loss": ended.loss,
        "stderr": ended.stderr,
        "class": ended.cls,
        "initial_loss": ended.initial_loss,
        "cpu_seconds": ended.cpu_seconds,
        "tokens_per_s": ended.timing.get("tokens_per_s"),
        "step_ms": ended.timing.get("step_ms"),
        "train_curve": ended.train_curve,
        "val_curve": ended.val_curve,
        "residual_rms": ended.residual_rms,
        "max_logit": ended.layer_logits,
        "grad_norm_max": ended.grad_norm_max,
        "folder": f"{RUNS}/{use.digest}",
    }


def _corpus_notes(described: Record) -> str:
    if described["name"] == "stdlib":
        return (
            "The sources of the Python standard library of the machine that ran; they differ by Python build, so "
            "losses compare within one corpus digest only."
        )
    return "Losses compare within one corpus digest only."


def _remarks(parts: Sequence[Record]) -> list[str]:
    """What a reader has to know beside the numbers."""
    out = []
    for part in parts:
        for arm in part["arms"]:
            if arm.get("never_learned"):
                out.append(f"{part['title']}: {arm['label']} never learned, so its LR sensitivity means nothing.")
            if part["kind"] == "comparison" and arm["best_lr_on_edge"]:
                out.append(
                    f"{part['title']}: the rate of {arm['label']} is on the edge of the grid; its best may lie beyond."
                )
    return out


def _plain(value: Any) -> Any:
    """Every NaN and infinity as None, every tuple as a list: what JSON gives back is what was written."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
