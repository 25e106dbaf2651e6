"""What decides a run's numbers: recipe, data, optimizer, schedule, precision, numerics plan."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from assay.recipe.base import Spec, problems_of, refuse, validated
from assay.recipe.errors import Problem, RecipeError
from assay.recipe.extension import plugin_sources
from assay.recipe.load import load as load_recipe
from assay.recipe.parametrization import STANDARD, ParametrizationSlot
from assay.recipe.recipe import Recipe
from assay.recipe.resolve import resolve
from assay.training.consistency import faults
from assay.training.data.spec import DataConfig as DataConfig
from assay.training.data.spec import place_paths
from assay.training.keep import KeepLast, KeepSlot
from assay.training.optim import AdamW, OptimizerSlot
from assay.training.ramp import BatchPlan, NoRamp, RampSlot
from assay.training.schedule import ScheduleSlot

Seed = Annotated[int, Field(ge=0, lt=1 << 63)]  # what torch's generators take
UNDECIDING = frozenset({"checkpoint_every", "keep", "samples", "log"})  # fields that decide no number


class RunError(RecipeError):
    """A run configuration that cannot be used; every fault with its place, value and what is allowed."""


class Numerics(Spec):
    """The numerics plan: what may change the last bits but not the mathematics. One for all arms of a study."""

    attention: Literal["auto", "sdpa", "reference"] = "auto"
    compile: bool = False
    deterministic: bool = False  # only kernels whose sums have one order; an operation without one is an error
    threads: PositiveInt = 1
    device: str = "cpu"


class InitFrom(Spec):
    """Weights that a run began from: where they lay, and the digest that stands for them in the run's identity."""

    source: str
    sha256: Annotated[str, Field(pattern="[0-9a-f]{64}")]


class Samples(Spec):
    """Texts written every ``every`` updates and at the end (0: never), greedily, ``tokens`` long.

    No ``prompts``: the start of the validation split is gone on from.
    """

    every: NonNegativeInt = 0
    prompts: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    tokens: PositiveInt = 64

    @model_validator(mode="after")
    def _written(self) -> Samples:
        if self.prompts and not self.every:
            raise refuse("every", "prompts have no effect: no sample is written", 0, "a number of updates")
        return self


class RunConfig(Spec):
    """One training run.

    ``batch_size`` sequences of ``seq_len`` tokens an update, in ``accumulate`` equal parts; ``clip`` bounds the global
    gradient norm; ``z_loss`` times log² Z joins the loss; ``eval_every`` and ``telemetry_every`` count updates (0: at
    the end only, and never). ``ramp`` lets the batch grow; its parts stay ``batch_size / accumulate`` sequences.
    ``parametrization`` scales start, multipliers and rates with the recipe's size; ``ema`` is the decay of a running
    mean of the weights, evaluated beside them. ``init_from`` is set by whoever gives the weights. ``checkpoint_every``
    and what follows it do not decide any number: which checkpoints stay, texts written on the way, who else is told.
    """

    recipe: Recipe
    data: DataConfig = DataConfig()
    seq_len: PositiveInt
    batch_size: PositiveInt
    accumulate: PositiveInt = 1
    steps: PositiveInt
    seed: Seed = 0
    data_seed: Seed = 0
    optimizer: OptimizerSlot = AdamW()
    schedule: ScheduleSlot
    parametrization: ParametrizationSlot = STANDARD
    ramp: RampSlot = NoRamp()
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | Literal["none"] = "none"
    clip: PositiveFloat | Literal["none"] = 1.0
    z_loss: NonNegativeFloat = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    eval_every: NonNegativeInt = 0
    telemetry_every: NonNegativeInt = 0
    numerics: Numerics = Numerics()
    init_from: InitFrom | Literal["none"] = "none"
    checkpoint_every: NonNegativeInt = 0
    keep: KeepSlot = KeepLast(best=True)
    samples: Samples = Samples()
    log: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        for fault in faults(self):
            raise fault
        _ = self.built, self.batches  # a parametrisation that does not know a part refuses here
        return self

    @cached_property
    def built(self) -> Recipe:
        """The recipe of the model that is trained: ``recipe`` under the run's parametrisation."""
        return self.parametrization.applied(self.recipe)

    @cached_property
    def batches(self) -> BatchPlan:
        """Which samples each update reads."""
        return self.ramp.plan(self.batch_size, self.seq_len)

    def lr_at(self, step: int) -> float:
        """The learning rate of update ``step``, before the multipliers of roles."""
        return self.schedule.at(step, self.steps) * self.batches.of(step).lr_scale

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], where: str = "run") -> RunConfig:
        """A configuration from plain values; ``recipe`` is a Recipe, a name, a path, or an authored table."""
        raw = dict(table)
        recipe = raw.get("recipe")
        if isinstance(recipe, str | Path):
            raw["recipe"] = load_recipe(recipe)
        elif isinstance(recipe, Mapping):
            raw["recipe"] = resolve(recipe, f"{where}: recipe")
        try:
            return validated(cls, raw, {})
        except PydanticCustomError as error:
            problems: list[Problem] = dict(error.context or {})["problems"]
            raise RunError(problems, where) from None

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """A configuration from a TOML file; a recipe path in it is relative to the file."""
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise RunError([Problem("", f"cannot be read: {error}")], str(path)) from None
        recipe = table.get("recipe")
        if isinstance(recipe, str) and recipe.endswith((".toml", ".json")):
            table["recipe"] = path.parent / recipe
        if "data" in table:
            table["data"] = place_paths(table["data"], path.parent)
        return cls.from_dict(table, str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; ``from_dict`` of them gives an equal configuration."""
        return {**self.model_dump(mode="json", exclude={"recipe"}), "recipe": self.recipe.to_dict()}

    def changed(self, **fields: Any) -> RunConfig:
        """A copy with some fields replaced, validated."""
        try:
            return type(self).model_validate({**{k: getattr(self, k) for k in type(self).model_fields}, **fields})
        except ValidationError as error:
            raise RunError(problems_of(type(self), error), "run") from None

    def digest(self, corpus_sha256: str) -> str:
        """sha256 of everything that decides the numbers: recipe, settings, data, plugins, numerics plan."""
        body = self.model_dump(mode="json", exclude={"recipe", "init_from", *UNDECIDING})
        if isinstance(self.init_from, InitFrom):
            body["init_from"] = self.init_from.sha256
        body["data"] = {"sha256": corpus_sha256, **self.data.identity()}  # where the text lay does not matter
        body["recipe"] = self.recipe.digest
        body["plugins"] = plugin_sources()
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
