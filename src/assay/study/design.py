"""A plan made concrete: the recipe of every arm, the configuration of every run, and which runs are due.

A *use* is a run in its place in the study (part, arm, stage, rate, seed). Two uses with one digest are one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Literal

from assay.recipe.errors import Problem, RecipeError
from assay.recipe.merge import apply_overrides, deep_merge
from assay.recipe.recipe import Recipe
from assay.recipe.resolve import resolve
from assay.study.errors import PlanError
from assay.study.learning_rate import Point, ladder_of, select
from assay.study.outcome import Outcome
from assay.study.plan import Arm, Comparison, Ladder, LrCurve, Plan, StudyPart

if TYPE_CHECKING:
    from assay.training.config import RunConfig

Stage = Literal["curve", "survivor", "ladder", "tuning", "reporting"]
Known = Mapping[str, Outcome]


@dataclass(frozen=True)
class Use:
    """A run in its place."""

    part: str
    arm: str
    label: str
    stage: Stage
    lr: float
    seed: int
    digest: str
    value: Any = None


@dataclass(frozen=True)
class Due:
    """The uses that are known by now, and how many more there may be once earlier ones have ended."""

    uses: tuple[Use, ...]
    open: int = 0


@dataclass
class Design:
    """Recipes and configurations of a plan, made once each; ``tokenizer`` is the corpus's."""

    plan: Plan
    corpus_sha256: str
    full: bool = False
    tokenizer: str = "bytes"
    configs: dict[str, RunConfig] = field(default_factory=dict)
    _recipes: dict[tuple[str, str, str], Recipe] = field(default_factory=dict, repr=False)
    _uses: dict[tuple[str, str, Stage, float, int, str], Use] = field(default_factory=dict, repr=False)

    def recipe(self, part: StudyPart, arm: Arm, value: Any = None) -> Recipe:
        """The recipe of an arm, at a value of the part's axis where it has one; raises PlanError."""
        key = (part.name, arm.name, repr(value))
        if key not in self._recipes:
            self._recipes[key] = _resolved(self.plan, part, arm, value)
        return self._recipes[key]

    def config(self, part: StudyPart, arm: Arm, lr: float, seed: int, value: Any = None) -> RunConfig:
        """The configuration of one run; raises PlanError."""
        from assay.training.config import RunConfig

        plan = self.plan
        table: dict[str, Any] = deep_merge(plan.run, part.run)
        table["schedule"] = deep_merge(table.get("schedule", {}), {"lr": lr})
        table["seed"] = seed
        table["data_seed"] = seed if plan.data_order == "by_seed" else plan.data_order
        table["data"], table["numerics"] = plan.data, plan.numerics
        table["recipe"] = self.recipe(part, arm, value)
        try:
            return RunConfig.from_dict(table)
        except RecipeError as error:
            raise PlanError([_run_place(part, p) for p in error.problems], plan.name) from None

    def use(self, part: StudyPart, arm: Arm, stage: Stage, lr: float, seed: int, value: Any = None) -> Use:
        """A run in its place, with its digest; the arm's seed offset is added here."""
        key = (part.name, arm.name, stage, lr, seed, repr(value))
        if key not in self._uses:
            config = self.config(part, arm, lr, seed + arm.seed_offset, value)
            digest = config.digest(self.corpus_sha256)
            self.configs.setdefault(digest, config)
            self._uses[key] = Use(part.name, arm.name, arm.title, stage, lr, config.seed, digest, value)
        return self._uses[key]

    def due(self, known: Known) -> Due:
        """All uses that can be told from what has ended, in the order in which they should run."""
        found = [due_of(part, self, known) for part in self.plan.parts]
        return Due(tuple(use for due in found for use in due.uses), sum(due.open for due in found))


def _resolved(plan: Plan, part: StudyPart, arm: Arm, value: Any) -> Recipe:
    place = f"parts.{part.name}.arms.{arm.name}"
    try:
        table: dict[str, Any] = deep_merge(plan.base, part.recipe)
        table = apply_overrides(table, part.overrides)
        table = apply_overrides(deep_merge(table, arm.recipe), arm.overrides)
        if isinstance(part, Ladder) and value is not None:
            over: Any = value
            for key in reversed(part.axis.split(".")):
                over = {key: over}
            table = deep_merge(table, over)
        return resolve({**table, "name": f"{part.name}/{arm.name}", "notes": ""}, place)
    except RecipeError as error:
        at = f" at {part.axis} = {value}" if isinstance(part, Ladder) else ""
        raise PlanError([p.under(f"{place}{at}") for p in error.problems], plan.name) from None


def _run_place(part: StudyPart, problem: Problem) -> Problem:
    head = problem.path.split(".")[0]
    if head in ("data", "numerics"):
        return problem
    return problem.under(f"parts.{part.name}.run" if head in part.run else "run")


def points_of(uses: Sequence[Use], known: Known) -> list[Point]:
    """The ended runs among these uses as points of a sweep."""
    ended = [(use, known[use.digest]) for use in uses if use.digest in known]
    return [Point(u.lr, u.seed, o.loss, o.cls, o.initial_loss, u.digest) for u, o in ended]


@singledispatch
def due_of(part: StudyPart, design: Design, known: Known) -> Due:
    """The runs of one part that are due. A new kind of part registers its own."""
    raise LookupError(f"study_part kind {part.kind_name!r} does not say which runs it takes")


def curve_uses(part: LrCurve, arm: Arm, design: Design) -> list[Use]:
    """The common grid of an arm, rate by rate."""
    return [design.use(part, arm, "curve", lr, seed) for lr in sorted(part.lrs) for seed in part.seeds]


def survivor_uses(part: LrCurve, arm: Arm, design: Design, known: Known) -> tuple[list[Use], int]:
    """The rates above the grid, one after the other while most seeds live; and how many runs may follow."""
    below = curve_uses(part, arm, design)[-len(part.seeds) :]
    found: list[Use] = []
    for i, lr in enumerate(sorted(part.survivor_lrs)):
        points = points_of(below, known)
        if len(points) < len(below):
            return found, (len(part.survivor_lrs) - i) * len(part.seeds)
        if ladder_of(points)[-1].failing:
            return found, 0
        below = [design.use(part, arm, "survivor", lr, seed) for seed in part.seeds]
        found += below
    return found, 0


@due_of.register
def _(part: LrCurve, design: Design, known: Known) -> Due:
    arms = part.arms_for(design.full)
    found = [use for arm in arms for use in curve_uses(part, arm, design)]
    waiting = 0
    for arm in arms:
        uses, left = survivor_uses(part, arm, design, known)
        found += uses
        waiting += left
    return Due(tuple(found), waiting)


def ladder_uses(part: Ladder, arm: Arm, design: Design) -> list[Use]:
    """One run a value and seed."""
    return [design.use(part, arm, "ladder", part.lr, seed, value) for value in part.values for seed in part.seeds]


@due_of.register
def _(part: Ladder, design: Design, known: Known) -> Due:
    return Due(tuple(use for arm in part.arms_for(design.full) for use in ladder_uses(part, arm, design)))


def tuning_uses(part: Comparison, arm: Arm, design: Design) -> list[Use]:
    """The tuning grid of an arm: the same rates and seeds for every arm."""
    return [design.use(part, arm, "tuning", lr, seed) for lr in sorted(part.lrs) for seed in part.tuning_seeds]


def reporting_uses(part: Comparison, arm: Arm, design: Design, known: Known) -> list[Use] | None:
    """The fresh seeds at the arm's selected rate; none where no rate is selectable, None while it is still tuning."""
    tuning = tuning_uses(part, arm, design)
    points = points_of(tuning, known)
    if len(points) < len(tuning):
        return None
    lr = select(points).lr
    if lr is None:
        return []
    return [design.use(part, arm, "reporting", lr, seed) for seed in part.reporting_seeds]


@due_of.register
def _(part: Comparison, design: Design, known: Known) -> Due:
    arms = part.arms_for(design.full)
    found = [use for arm in arms for use in tuning_uses(part, arm, design)]
    waiting = 0
    for arm in arms:
        uses = reporting_uses(part, arm, design, known)
        found += uses or []
        waiting += len(part.reporting_seeds) if uses is None else 0
    return Due(tuple(found), waiting)
