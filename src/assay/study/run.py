"""``run_study`` and ``dry_run``: from a plan to a result, and what that will take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.study import statistics as st
from assay.study.design import Design
from assay.study.errors import PlanError, fault
from assay.study.executors import Executor, PoolExecutor
from assay.study.folder import RESULT, StudyFolder
from assay.study.match import check, part_facts, resolvable
from assay.study.plan import Ladder, Plan, load_plan
from assay.study.result import StudyResult, assemble
from assay.study.runner import OnEvent, Runner, runs_root
from assay.study.worker import DEFAULT_ENTRY
from assay.training.folder import write_json_exactly

if TYPE_CHECKING:
    from assay.training.data import Corpus

# Measured on one core of a shared server, fp32: what an update costs beside its FLOPs, and how fast those go. A guess
# for the plan only; the time left of a running study is taken from its own runs.
_FLOPS_PER_SECOND = 8e10
_SECONDS_PER_UPDATE = 2.5e-3
_SECONDS_PER_LAYER = 3.6e-3
_BACKWARD = 3  # a training update is three forward passes


def run_study(
    plan: Plan | str | Path,
    out: str | Path | None = None,
    *,
    workers: int = 2,
    full: bool = False,
    reuse: Sequence[str | Path] = (),
    on_event: OnEvent | None = None,
    executor: Callable[[StudyFolder], Executor] | None = None,
    entry: str = DEFAULT_ENTRY,
    command: str | None = None,
) -> StudyResult:
    """Run a study to its verdict in ``out``, or on from where it stopped.

    Args:
        plan: a plan, a shipped study's name, or a plan file.
        out: the study's folder; ``studies/<name>`` in the working folder where none is given.
        workers: training processes, of ``numerics.threads`` threads each.
        full: also the arms that run only then.
        reuse: folders of other studies; runs that they have ended are taken over instead of repeated.
        on_event: told what happens, for a live table.
        executor: makes another executor than a pool of processes.
        entry: ``module:function`` that the processes train with.
        command: what repeats the study; by default its command line.

    Raises:
        PlanError: the plan is refused.
        StudyError: the folder is another study's or damaged, or a run failed with an error.
        StudyInterrupted: Ctrl-C; the same call goes on.
    """
    from assay.training.record import load_record

    said = plan.name if isinstance(plan, Plan) else str(plan)
    design, corpus, warnings = _opened(plan, full)
    root = runs_root(Path("studies") / design.plan.name if out is None else out)
    with StudyFolder.opened(root, design, load_record, [runs_root(each) for each in reuse]) as folder:
        pool = (
            executor(folder)
            if executor is not None
            else PoolExecutor(workers, int(design.plan.numerics.get("threads", 1)), entry, hold=(folder.lock,))
        )
        try:
            runner = Runner(design, folder, pool, corpus.unigram_entropy, lambda d: cpu_seconds(design, d), on_event)
            known = runner.run()
        finally:
            pool.close()
        command = command or f"assay study {said}{' --full' if full else ''}"
        record = assemble(design, known, corpus, warnings, command)
        write_json_exactly(root / RESULT, record)
    return StudyResult(record, root)


@dataclass(frozen=True)
class DryRun:
    """What a study will take, before it starts."""

    name: str
    title: str
    question: str
    runs: int
    runs_at_most: int
    cpu_seconds: float
    cpu_seconds_at_most: float
    mde: dict[str, Any] | None
    arms: list[dict[str, Any]]
    warnings: list[str]
    corpus: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


def dry_run(plan: Plan | str | Path, full: bool = False) -> DryRun:
    """Number of runs, estimated CPU-seconds, smallest visible effect, and each arm's cost; raises PlanError."""
    design, corpus, warnings = _opened(plan, full)
    due = design.due({})
    digests = {use.digest for use in due.uses}
    seconds = [cpu_seconds(design, digest) for digest in digests]
    reporting, extra = 0.0, 0.0
    part = design.plan.comparison
    if part is not None:
        for arm in part.arms_for(full):
            one = cpu_seconds(design, design.use(part, arm, "tuning", part.lrs[0], part.tuning_seeds[0]).digest)
            reporting += len(part.reporting_seeds) * one
    fresh = 0 if part is None else len(part.reporting_seeds) * len(part.arms_for(full))
    if due.open > fresh:  # survivors of an LR curve
        extra = (due.open - fresh) * max(seconds)
    return DryRun(
        name=design.plan.name,
        title=design.plan.title,
        question=design.plan.question,
        runs=len(digests) + fresh,
        runs_at_most=len(digests) + due.open,
        cpu_seconds=sum(seconds) + reporting,
        cpu_seconds_at_most=sum(seconds) + reporting + extra,
        mde=_mde(design.plan),
        arms=_arms(design),
        warnings=warnings,
        corpus=corpus.describe(),
    )


def _opened(plan: Plan | str | Path, full: bool) -> tuple[Design, Corpus, list[str]]:
    """The plan read, its corpus opened, everything checked."""
    from assay.training.config import DataConfig
    from assay.training.data import CorpusError, open_data

    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    try:
        data = DataConfig.model_validate(plan.data)
        corpus = open_data(data)
    except (CorpusError, OSError) as error:
        raise PlanError([fault("data", str(error))], plan.name) from None
    except ValueError as error:  # pydantic's
        raise PlanError([fault("data", str(error), plan.data, ", ".join(DataConfig.model_fields))], plan.name) from None
    design = Design(plan, corpus.sha256, full, corpus.tokenizer)
    return design, corpus, check(design, corpus)


def cpu_seconds(design: Design, digest: str) -> float:
    """A guess at what a run takes, from its FLOPs, its layers and its updates."""
    config = design.configs[digest]
    flops = _train_flops(design, digest)
    tokens = config.batch_size * config.seq_len
    layers = config.recipe.n_layers
    update = _SECONDS_PER_UPDATE + _SECONDS_PER_LAYER * layers + flops * tokens / _FLOPS_PER_SECOND
    passes = 1 + (config.steps // config.eval_every if config.eval_every else 0)
    return config.steps * update + passes * config.data.val_bytes / tokens * update / _BACKWARD


def _train_flops(design: Design, digest: str) -> int:
    from assay.cost import budget

    config = design.configs[digest]
    key = f"{config.recipe.digest}/{config.seq_len}"
    found = _FLOPS.get(key)
    if found is None:
        found = _FLOPS[key] = budget(config.recipe, config.batch_size, config.seq_len).flops.train_per_token
    return found


_FLOPS: dict[str, int] = {}


def _mde(plan: Plan) -> dict[str, Any] | None:
    part, stat = plan.comparison, plan.statistics
    if part is None:
        return None
    n = len(part.reporting_seeds)
    units = st.mde(n, stat.alpha, stat.power)
    return {
        "nats": units * stat.expected_sd,
        "sd": units,
        "n": n,
        "power": stat.power,
        "alpha": stat.alpha,
        "seed_sd": stat.expected_sd,
        "seed_sd_is": "expected",
        "interval_half_width_sd": st.half_width(n, stat.confidence),
        "margin": part.margin,
        "margin_resolvable": resolvable(plan, part),
    }


def _arms(design: Design) -> list[dict[str, Any]]:
    out = []
    for part in design.plan.parts:
        for arm in part.arms_for(design.full):
            for value in part.values if isinstance(part, Ladder) else (None,):
                facts = part_facts(design, part, arm, value)
                out.append({"part": part.name, "arm": arm.name, "label": arm.title, "value": value, **facts.to_dict()})
    return out
