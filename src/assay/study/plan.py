"""A study plan: the question, the arms, the grids and the seeds, fixed before anything runs.

A plan is one TOML file. ``base`` is a recipe (a preset, a file, or a table); a part lays its ``recipe`` table and its
``overrides`` over it, an arm lays its own over those. What an arm changes, it declares.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, SerializeAsAny, field_validator, model_validator
from pydantic_core import PydanticCustomError

from assay.recipe.base import Part, Spec, pick, refuse, validated
from assay.recipe.errors import Problem, RecipeError, nearest
from assay.recipe.load import read_authored
from assay.recipe.merge import deep_merge
from assay.study.errors import PlanError, fault
from assay.study.learning_rate import MIN_TUNING_SEEDS

LIBRARY = Path(__file__).parent / "library"
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Table = dict[str, Any]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Seeds = Annotated[tuple[NonNegativeInt, ...], Field(strict=False, min_length=1)]
Rates = Annotated[tuple[PositiveFloat, ...], Field(strict=False)]


class Arm(Part):
    """One model of a part: what it lays over the part's recipe, and the paths at which it says it differs.

    ``changes`` are paths of :func:`assay.recipe.diff.diff` (``layers.ffn``, ``head.norm``); a path stands for all
    below it. ``runs = "full"``: only with ``--full``. ``null_of`` names an arm that this one equals on purpose, to see
    what the study says of no difference; it needs a ``seed_offset``, added to each of its seeds.
    """

    slot = "study_arm"
    default_kind: ClassVar[str | None] = "arm"
    kind: Literal["arm"] = "arm"
    name: Slug
    label: str = ""
    recipe: Table = {}
    overrides: Texts = ()
    changes: Texts = ()
    runs: Literal["always", "full"] = "always"
    null_of: str | None = None
    seed_offset: NonNegativeInt = 0

    @property
    def title(self) -> str:
        return self.label or self.name


Arms = Annotated[
    tuple[Annotated[SerializeAsAny[Arm], pick(Arm)], ...],
    Field(strict=False, min_length=1),
]


class StudyPart(Part):
    """A question of the plan. ``run`` is laid over the plan's ``[run]``; the first arm is what others differ from."""

    slot = "study_part"
    name: Slug
    title: str
    question: str = ""
    recipe: Table = {}
    overrides: Texts = ()
    run: Table = {}
    arms: Arms

    @property
    def reference(self) -> str:
        """The arm that the declared changes are counted from."""
        return self.arms[0].name

    def arm(self, name: str) -> Arm:
        """The arm of this name; raises KeyError."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)

    def arms_for(self, full: bool) -> tuple[Arm, ...]:
        """The arms that run, in order."""
        return tuple(arm for arm in self.arms if full or arm.runs == "always")

    @model_validator(mode="after")
    def _arms(self) -> StudyPart:
        names = [arm.name for arm in self.arms]
        for i, arm in enumerate(self.arms):
            if arm.name in names[:i]:
                raise refuse(f"arms.{i}.name", "an arm of this name exists", arm.name, "another name")
            if arm.null_of is not None and arm.null_of not in names:
                raise refuse(f"arms.{i}.null_of", "no such arm", arm.null_of, ", ".join(names))
            if arm.null_of is not None and not arm.seed_offset:
                message = "an equal arm on the same seeds repeats the same runs"
                raise refuse(f"arms.{i}.seed_offset", message, allowed="a number that moves its seeds clear")
        return self


StudyPartSlot = Annotated[SerializeAsAny[StudyPart], pick(StudyPart)]


def distinct(path: str, values: tuple[Any, ...], what: str) -> None:
    """Refuse a value that stands twice in a list."""
    seen = [v for i, v in enumerate(values) if v in values[:i]]
    if seen:
        raise refuse(path, f"a {what} that stands twice", seen[0], "each once")


class LrCurve(StudyPart):
    """Loss over the learning rate, every arm on one grid; arms alive at its top go on to ``survivor_lrs``."""

    kind: Literal["lr_curve"] = "lr_curve"
    lrs: Rates = Field(min_length=2)
    seeds: Seeds
    survivor_lrs: Rates = ()

    @model_validator(mode="after")
    def _grid(self) -> LrCurve:
        distinct("lrs", self.lrs, "learning rate")
        distinct("seeds", self.seeds, "seed")
        distinct("survivor_lrs", self.survivor_lrs, "learning rate")
        low = [lr for lr in self.survivor_lrs if lr <= max(self.lrs)]
        if low:
            raise refuse("survivor_lrs", "not above the grid", low[0], f"above {max(self.lrs):g}")
        return self


class Ladder(StudyPart):
    """One quantity of the recipe raised step by step at one learning rate. ``axis`` is its path (``n_layers``)."""

    kind: Literal["ladder"] = "ladder"
    axis: str
    values: Annotated[tuple[Any, ...], Field(strict=False, min_length=2)]
    lr: PositiveFloat
    seeds: Seeds

    @model_validator(mode="after")
    def _rungs(self) -> Ladder:
        distinct("values", self.values, "value")
        distinct("seeds", self.seeds, "seed")
        return self


class Match(Spec):
    """What the arms of a comparison must have in common, within a share of the baseline's."""

    by: Literal["parameters", "flops"]
    tolerance: PositiveFloat = 0.005


class Comparison(StudyPart):
    """Is the change better? Each arm tunes its own rate on the same grid, then reports on fresh seeds."""

    kind: Literal["comparison"] = "comparison"
    baseline: str
    lrs: Rates
    tuning_seeds: Seeds
    reporting_seeds: Seeds
    match: Match
    margin: PositiveFloat | None = None

    @property
    def reference(self) -> str:
        return self.baseline

    @property
    def change(self) -> str:
        """The arm that the verdict is about: the first that always runs and is not the baseline."""
        return next(arm.name for arm in self.arms if arm.name != self.baseline and arm.runs == "always")

    @model_validator(mode="after")
    def _sound(self) -> Comparison:
        always = [arm.name for arm in self.arms if arm.runs == "always"]
        if self.baseline not in always:
            raise refuse("baseline", "not an arm that always runs", self.baseline, ", ".join(always))
        if len(always) < 2:
            raise refuse("arms", "nothing to compare with the baseline", always, "two arms or more that always run")
        if len(self.lrs) < 2:
            message = "a grid of one: the rate that suits one arm decides the comparison"
            raise refuse("lrs", message, list(self.lrs), "two rates or more, the same for every arm")
        if len(self.tuning_seeds) < MIN_TUNING_SEEDS:
            message = "too few to tell a rate that works from one that works by luck"
            raise refuse("tuning_seeds", message, list(self.tuning_seeds), f"{MIN_TUNING_SEEDS} seeds or more")
        if len(self.reporting_seeds) < 2:
            raise refuse(
                "reporting_seeds", "no spread to judge by", list(self.reporting_seeds), "2 or more; 5 to claim"
            )
        distinct("lrs", self.lrs, "learning rate")
        distinct("tuning_seeds", self.tuning_seeds, "seed")
        distinct("reporting_seeds", self.reporting_seeds, "seed")
        self._seeds_apart()
        return self

    def _seeds_apart(self) -> None:
        offsets = {arm.seed_offset for arm in self.arms}
        tuning = {seed + offset for seed in self.tuning_seeds for offset in offsets}
        both = sorted(tuning & {seed + offset for seed in self.reporting_seeds for offset in offsets})
        if both:
            message = "seeds that chose the rate are reported: the winner's luck counts twice"
            raise refuse("reporting_seeds", message, both, "seeds that are not in tuning_seeds")


class StatisticsPlan(Spec):
    """``expected_sd``: the seed standard deviation, in nats, that the plan's resolution is judged with beforehand."""

    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    power: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.8
    expected_sd: PositiveFloat = 0.04

    @property
    def alpha(self) -> float:
        return round(1.0 - self.confidence, 12)


class Plan(Spec):
    """A whole plan. ``run`` holds the settings of every run but recipe, rate, seed, data and numerics.

    ``data_order``: ``by_seed`` draws a fresh order of the data with each seed; a number fixes one order for all.
    """

    name: Slug
    title: str
    question: str
    kind: Literal["training", "probe", "timing", "identity"] = "training"
    base: Table
    data: Table = {}
    run: Table
    numerics: Table
    data_order: NonNegativeInt | Literal["by_seed"] = "by_seed"
    statistics: StatisticsPlan = StatisticsPlan()
    notes: Texts = ()
    parts: Annotated[tuple[StudyPartSlot, ...], Field(strict=False, min_length=1)]

    @field_validator("kind")
    @classmethod
    def _kind(cls, value: str) -> str:
        if value != "training":
            message = "studies of this kind cannot be run yet"
            raise refuse("", message, value, "training")
        return value

    @model_validator(mode="after")
    def _parts(self) -> Plan:
        names = [part.name for part in self.parts]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise refuse(f"parts.{i}.name", "a part of this name exists", name, "another name")
        comparisons = [part.name for part in self.parts if isinstance(part, Comparison)]
        if len(comparisons) > 1:
            raise refuse("parts", "two comparisons, and one verdict to give", comparisons, "one comparison a study")
        for key in ("recipe", "data", "numerics", "seed", "data_seed"):
            for place, table in [("run", self.run), *((f"parts.{i}.run", p.run) for i, p in enumerate(self.parts))]:
                if key in table:
                    raise refuse(f"{place}.{key}", "not set here", table[key], _ELSEWHERE[key])
        return self

    @property
    def comparison(self) -> Comparison | None:
        """The part that gives the verdict."""
        return next((part for part in self.parts if isinstance(part, Comparison)), None)


_ELSEWHERE = {
    "recipe": "base, and the arms' recipes",
    "data": "[data], one corpus for all",
    "numerics": "[numerics], one plan for all arms",
    "seed": "the seeds of a part",
    "data_seed": "data_order",
}


def plan_names() -> tuple[str, ...]:
    """The shipped studies."""
    return tuple(sorted(path.stem for path in LIBRARY.glob("*.toml")))


def load_plan(name_or_path: str | Path) -> Plan:
    """A shipped study by name, or a plan file.

    Raises:
        PlanError: no such plan, or one with faults; all that can be seen at once are listed.
    """
    text = str(name_or_path)
    if not text.endswith(".toml"):
        if text not in plan_names():
            near = nearest(text, plan_names()) or ""
            allowed = ", ".join(plan_names()) + ", or a .toml file"
            raise PlanError([fault("", "no such study", text, allowed, near)], text)
        return load_plan(LIBRARY / f"{text}.toml")
    path = Path(text)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanError([fault("", f"cannot be read: {error}")], text) from None
    return parse_plan(table, text, path.parent)


def parse_plan(table: Mapping[str, Any], where: str = "plan", folder: Path | None = None) -> Plan:
    """A plan from plain values; recipe, corpus and tokenizer files are relative to ``folder``."""
    from assay.training.data.spec import place_paths

    raw = dict(table)
    folder = Path() if folder is None else folder
    try:
        raw["base"] = _base(raw.get("base"), folder)
        if "data" in raw:
            raw["data"] = place_paths(raw["data"], folder)
        return validated(Plan, raw, {})
    except PydanticCustomError as error:
        problems: list[Problem] = dict(error.context or {})["problems"]
        raise PlanError(problems, where) from None
    except RecipeError as error:
        raise PlanError([p.under("base") for p in error.problems], where) from None


def _base(base: Any, folder: Path) -> Table:
    """The authored table that ``base`` stands for."""
    if isinstance(base, str):
        table: Table = read_authored(folder / base if base.endswith((".toml", ".json")) else base)
        return table
    if not isinstance(base, dict):
        raise RecipeError([fault("", "not a recipe", base or "missing", "a preset, a file, or a table")])
    own: Table = dict(base)
    under = own.pop("extends", None)
    if under is None:
        return own
    merged: Table = deep_merge(_base(under, folder), own)
    return merged
