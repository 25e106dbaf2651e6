"""What a plan is refused for once its models are known: undeclared changes, unlike sizes, doubles, small data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from assay.cost import budget
from assay.recipe.base import make
from assay.recipe.diff import diff
from assay.recipe.errors import Problem, nearest
from assay.recipe.recipe import Recipe
from assay.study import statistics as st
from assay.study.design import Design
from assay.study.errors import PlanError, fault
from assay.study.plan import Arm, Comparison, Ladder, LrCurve, Plan, StudyPart

if TYPE_CHECKING:
    from assay.training.data import Corpus

MAX_EPOCHS = 4  # up to about four passes repeated data is nearly as good as fresh (Muennighoff et al. 2023, 2305.16264)
CLAIM_SEEDS = 5  # fewer reporting seeds screen, they do not claim


@dataclass(frozen=True)
class Facts:
    """What an arm costs at the study's batch and length: fp32 weights, its optimizer's state, train FLOPs a token."""

    params: int
    flops_per_token: int
    decode_flops: int
    kv_bytes_per_token: int
    kv_bytes: int
    weights_bytes: int
    optimizer_bytes: int
    digest: str

    @property
    def decode_intensity(self) -> float:
        """FLOPs a byte of decoding one token of one sequence: every weight and the whole cache are read once."""
        return self.decode_flops / (self.weights_bytes + self.kv_bytes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def facts_of(recipe: Recipe, batch: int, seq_len: int, ledger: str = "adamw") -> Facts:
    """The cost of a recipe in a study; ``ledger``: the rule that counts its optimizer's state."""
    cost = budget(recipe, batch=batch, seq_len=seq_len, dtype="fp32", optimizer=f"{ledger}-pure")
    one = budget(recipe, batch=1, seq_len=seq_len, dtype="fp32")
    return Facts(
        params=cost.params.total,
        flops_per_token=cost.flops.train_per_token,
        decode_flops=one.flops.decode_per_token,
        kv_bytes_per_token=one.cache.bytes_per_token,
        kv_bytes=one.cache.bytes,
        weights_bytes=cost.memory.weights_bytes,
        optimizer_bytes=cost.memory.train["optimizer_bytes"],
        digest=recipe.digest,
    )


def part_facts(design: Design, part: StudyPart, arm: Arm, value: Any = None) -> Facts:
    """The cost of an arm with the part's batch, length and optimizer."""
    from assay.training.optim import OptimizerSpec

    run = {**design.plan.run, **part.run}
    told = run.get("optimizer", "adamw")
    spec = make(OptimizerSpec, {"kind": told} if isinstance(told, str) else told, {})
    return facts_of(design.recipe(part, arm, value), run["batch_size"], run["seq_len"], spec.ledger)


def check(design: Design, corpus: Corpus) -> list[str]:
    """Warnings about a plan that may run.

    Raises:
        PlanError: a plan that may not; every fault is listed.
    """
    problems: list[Problem] = []
    warnings: list[str] = []
    for part in design.plan.parts:
        values = part.values if isinstance(part, Ladder) else (None,)
        try:
            for value in values:
                problems += _arms(design, part, value)
            problems += _axis(design, part)
            problems += _settings(design, part, corpus)
        except PlanError as error:
            problems += error.problems
            continue
        if isinstance(part, Comparison):
            problems += _unmatched(design, part)
            warnings += _resolution(design.plan, part)
    if problems:
        raise PlanError(problems, design.plan.name)
    return warnings


def _arms(design: Design, part: StudyPart, value: Any) -> Iterator[Problem]:
    """Doubles, and changes outside what is declared; ``full`` arms are checked whether they run or not."""
    reference = design.recipe(part, part.arm(part.reference), value)
    seen: dict[str, str] = {}
    for arm in part.arms:
        place = f"parts.{part.name}.arms.{arm.name}"
        recipe = design.recipe(part, arm, value)
        if arm.null_of is not None:
            twin = design.recipe(part, part.arm(arm.null_of), value)
            if twin.digest != recipe.digest:
                texts = "; ".join(diff(twin, recipe).sentences())
                yield fault(f"{place}.null_of", "not equal to the arm it repeats", texts, "no difference")
            continue
        if recipe.digest in seen:
            message = f"the same model as arm {seen[recipe.digest]}"
            yield fault(place, message, arm.name, "another model, or null_of with a seed_offset")
        seen[recipe.digest] = arm.name
        yield from _undeclared(arm, reference, recipe, place)


def _undeclared(arm: Arm, reference: Recipe, recipe: Recipe, place: str) -> Iterator[Problem]:
    changes = diff(reference, recipe).changes
    for change in changes:
        if not any(_below(change.path, path) for path in arm.changes):
            allowed = ", ".join(arm.changes) or f'nothing declared: changes = ["{change.path}"]'
            yield fault(f"{place}.changes", f"an undeclared difference at {change.path}", change.text, allowed)
    for path in arm.changes:
        if not any(_below(change.path, path) for change in changes):
            found = ", ".join(change.path for change in changes) or "no difference"
            close = nearest(path, [change.path for change in changes]) or ""
            yield fault(f"{place}.changes", "declared, but not different", path, found, close)


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + ".")


def _axis(design: Design, part: StudyPart) -> Iterator[Problem]:
    if not isinstance(part, Ladder):
        return
    for arm in part.arms:
        digests = {design.recipe(part, arm, value).digest for value in part.values}
        if len(digests) < len(part.values):
            yield fault(f"parts.{part.name}.axis", f"does not change arm {arm.name}", part.axis, "a path that counts")


def _settings(design: Design, part: StudyPart, corpus: Corpus) -> Iterator[Problem]:
    """The run settings, read as every run will read them, against the corpus."""
    arm = part.arms[0]
    value = part.values[0] if isinstance(part, Ladder) else None
    lr = part.lr if isinstance(part, Ladder) else part.lrs[0] if isinstance(part, LrCurve | Comparison) else 1e-3
    config = design.config(part, arm, lr, 0, value)
    samples = config.steps * config.batch_size
    tokens = samples * config.seq_len
    most = max(corpus.epochs(samples, config.seq_len))
    if most > MAX_EPOCHS:
        message = f"a run sees {tokens:,} tokens, {most:.1f} times the training split"
        yield fault("data.corpus", message, f"{corpus.train_tokens:,} tokens", f"at most {MAX_EPOCHS} passes")
    if corpus.val_tokens <= config.seq_len:
        yield fault("data.val_bytes", f"no window of {config.seq_len} + 1", corpus.val_tokens, "a larger val_bytes")
    if config.recipe.vocab_size < corpus.vocab_size:
        allowed = f"at least {corpus.vocab_size} ({corpus.tokenizer})"
        yield fault("base.vocab_size", "too small for the tokenizer", config.recipe.vocab_size, allowed)


def spread_of(values: Iterable[int], baseline: int) -> float:
    """The largest distance from the baseline, as a share of it."""
    return max(abs(value - baseline) / baseline for value in values)


def _unmatched(design: Design, part: Comparison) -> Iterator[Problem]:
    field = "params" if part.match.by == "parameters" else "flops_per_token"
    baseline = getattr(part_facts(design, part, part.arm(part.baseline)), field)
    for arm in part.arms:
        mine = getattr(part_facts(design, part, arm), field)
        off = abs(mine - baseline) / baseline
        if off > part.match.tolerance:
            allowed = f"within {part.match.tolerance:.2%} of {part.baseline}'s {baseline:,}"
            message = f"{part.match.by} {off:.2%} away from the baseline's"
            yield fault(f"parts.{part.name}.arms.{arm.name}", message, f"{mine:,}", allowed)


def resolvable(plan: Plan, part: Comparison) -> bool:
    """True where the margin is one that this many seeds can find two equal arms inside of (power as planned)."""
    if part.margin is None:
        return False
    stat = plan.statistics
    least = st.equivalence_margin(len(part.reporting_seeds), stat.alpha, stat.power)
    return part.margin >= least * stat.expected_sd


def _resolution(plan: Plan, part: Comparison) -> Iterator[str]:
    stat, n = plan.statistics, len(part.reporting_seeds)
    if n < CLAIM_SEEDS:
        yield f"{n} reporting seeds an arm screen; {CLAIM_SEEDS} or more make a claim"
    if part.margin is not None and not resolvable(plan, part):
        least = st.equivalence_margin(n, stat.alpha, stat.power) * stat.expected_sd
        seeds = st.equivalence_seeds(part.margin / stat.expected_sd, stat.alpha, stat.power)
        yield (
            f"a margin of ±{part.margin:g} nats is finer than {n} seeds can resolve at an expected seed sd of "
            f"{stat.expected_sd:g}: ±{least:.3g} or wider, or about {seeds} seeds an arm; "
            "the verdict cannot be 'equivalent'"
        )
