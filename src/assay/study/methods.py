"""The methods paragraph and the settings table, from the plan and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.recipe.merge import deep_merge
from assay.study.design import Design
from assay.study.learning_rate import rate_text
from assay.study.plan import Comparison, Ladder, LrCurve, StudyPart
from assay.training.config import UNDECIDING

Record = dict[str, Any]


def settings_of(design: Design) -> Record:
    """Everything that was set, by part."""
    plan = design.plan
    return {
        "data": _data(plan.data),
        "data_order": plan.data_order,
        "numerics": plan.numerics,
        "statistics": plan.statistics.model_dump(mode="json"),
        "parts": {part.name: _part_settings(design, part) for part in plan.parts},
        "notes": list(plan.notes),
    }


def _data(data: Record) -> Record:
    """The data's settings, files by name: where they lay decides nothing."""
    out = {"corpus": "stdlib", **data}
    if isinstance(out["corpus"], str):
        out["corpus"] = Path(out["corpus"]).name
    else:
        out["corpus"] = [{**portion, "corpus": Path(portion["corpus"]).name} for portion in out["corpus"]]
    if "tokenizer" in out:
        out["tokenizer"] = Path(out["tokenizer"]).name
    return out


def _part_settings(design: Design, part: StudyPart) -> Record:
    arm = part.arms[0]
    value = part.values[0] if isinstance(part, Ladder) else None
    lr = part.lr if isinstance(part, Ladder) else part.lrs[0] if isinstance(part, LrCurve | Comparison) else 1e-3
    run = design.config(part, arm, lr, 0, value).model_dump(
        mode="json", exclude={"recipe", "data", "numerics", "seed", "data_seed", "init_from", *UNDECIDING}
    )
    run["schedule"].pop("lr")
    own = part.model_dump(mode="json", exclude={"title", "question", "recipe", "overrides", "run", "arms", "name"})
    return {**run, **{k: v for k, v in own.items() if v is not None}}


def methods_of(design: Design, corpus: Record) -> str:
    """How the study was done, in one paragraph."""
    plan, comparison = design.plan, design.plan.comparison
    one, tokens = ("byte", "bytes") if corpus["tokenizer"] == "bytes" else ("token", f"tokens ({corpus['tokenizer']})")
    sentences = [
        f"Every model was trained on {corpus['train_tokens']:,} {tokens} of {corpus['name']} and judged on "
        f"{corpus['val_tokens']:,} others, the same for all, at the end of its schedule.",
        _run_sentence(design),
        "A seed sets the weights and the order of the data."
        if plan.data_order == "by_seed"
        else "A seed sets the weights; the order of the data is the same for all.",
        f"A run is dead when it ends above H - 0.05 = {corpus['unigram_entropy'] - 0.05:.3f} nats a {one}, H being "
        f"what {one} frequencies alone reach; diverged when it ends above its initial loss or after a spike that never "
        "came back; non-finite when a loss or gradient stops being a number. Failed runs are counted, never dropped.",
    ]
    if comparison is not None:
        sentences += _comparison_sentences(design, comparison)
    return " ".join(sentences)


def _run_sentence(design: Design) -> str:
    """Batch, length, optimizer, schedule; and the steps of each part."""
    plan = design.plan
    runs = [deep_merge(plan.run, part.run) for part in plan.parts]
    steps = ", ".join(f"{run['steps']} ({part.title})" for part, run in zip(plan.parts, runs, strict=True))
    config = design.config(plan.parts[0], plan.parts[0].arms[0], 1e-3, 0, getattr(plan.parts[0], "values", [None])[0])
    optimizer = config.optimizer.model_dump(mode="json")
    schedule = config.schedule.model_dump(mode="json", exclude={"lr", "kind"})
    usual = {"decay_by": "lr", "decay_where": "all", "lr_multipliers": {}, "qk_clip": "none"}
    told = {key: value for key, value in optimizer.items() if key != "kind" and usual.get(key, ()) != value}
    options = ", ".join(f"{key} {value}" for key, value in told.items())
    shape = ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in schedule.items()
    )
    return (
        f"Updates: {steps}, of {config.batch_size} sequences of {config.seq_len} tokens; {optimizer['kind']} "
        f"({options}); {config.schedule.kind_name} schedule ({shape}); gradient norm clipped at {config.clip}; "
        f"{config.precision}."
    )


def _comparison_sentences(design: Design, part: Comparison) -> Sequence[str]:
    stat, offsets = design.plan.statistics, [arm for arm in part.arms if arm.seed_offset]
    rates = ", ".join(map(rate_text, sorted(part.lrs)))
    out = [
        f"In the comparison each arm tuned its own peak learning rate on the same grid ({rates}) with the same "
        f"{len(part.tuning_seeds)} seeds; a rate is selectable when all of them live and the next rate up is not dead "
        f"for most; the selectable rate of lowest mean loss was then run with {len(part.reporting_seeds)} seeds not "
        "used before, and only those are compared.",
        f"Arms are matched in {part.match.by} within {part.match.tolerance:.1%}.",
        f"The difference of means is given with Welch's {stat.confidence:.0%} interval; it ignores the error of "
        "choosing the rate, and where a fresh seed fails no mean is taken and the verdict is 'unstable'.",
    ]
    if part.margin is not None:
        out.append(
            f"Equivalence means inside ±{part.margin:g} nats by two one-sided tests at {1 - stat.confidence:.0%}."
        )
    if offsets:
        out.append(
            f"Null arms, equal to another on purpose, use seeds of their own: {', '.join(a.name for a in offsets)}."
        )
    return out
