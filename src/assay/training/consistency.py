"""What the parts of a run ask of each other: faults that no field has alone. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from assay.cost import tensors_of
from assay.recipe.base import refuse
from assay.recipe.mixer import Attention
from assay.recipe.parametrization import STANDARD
from assay.recipe.position import LearnedPosition
from assay.recipe.recipe import Recipe
from assay.training.optim.spec import OptimizerSpec
from assay.training.ramp import LinearRamp

if TYPE_CHECKING:
    from assay.training.config import RunConfig


def faults(config: RunConfig) -> Iterator[PydanticCustomError]:
    """Each as an error that names the field."""
    recipe = config.recipe
    if config.batch_size % config.accumulate:
        yield refuse("accumulate", f"does not divide batch_size = {config.batch_size}", config.accumulate)
    if isinstance(recipe.embedding.position, LearnedPosition) and config.seq_len > recipe.max_seq_len:
        allowed = f"at most max_seq_len = {recipe.max_seq_len}"
        yield refuse("seq_len", "beyond the learned positions", config.seq_len, allowed)
    needs = config.schedule.needs
    if needs > config.steps:
        yield refuse("schedule", f"warmup and decay take {needs} updates of {config.steps}", needs, "at most steps")
    ramp = config.ramp
    if isinstance(ramp, LinearRamp) and (ramp.start >= config.batch_size or config.batch_size % ramp.multiple_of):
        place = "start" if ramp.start >= config.batch_size else "multiple_of"
        allowed = f"less than batch_size = {config.batch_size}" if place == "start" else "a divisor of batch_size"
        yield refuse(f"ramp.{place}", "no batch to grow to", getattr(ramp, place), allowed)
    yield from _optimizer_faults(config.optimizer, recipe)
    if config.parametrization != STANDARD:
        yield from _scale_faults(config)


def _optimizer_faults(spec: OptimizerSpec, recipe: Recipe) -> Iterator[PydanticCustomError]:
    if spec.lr_multipliers:
        roles = {t.role for t in tensors_of(recipe)}
        for role, value in spec.lr_multipliers.items():
            if role not in roles:
                message = f"has no effect: the recipe has no {role} parameter"
                allowed = ", ".join(sorted(map(str, roles)))
                yield refuse(f"optimizer.lr_multipliers.{role}", message, value, allowed)
    problem = None if spec.qk_clip == "none" else unclippable(recipe)
    if problem is not None:
        yield refuse("optimizer.qk_clip", f"has no effect: {problem}", spec.qk_clip, "none")


def _scale_faults(config: RunConfig) -> Iterator[PydanticCustomError]:
    """The parametrisation must have a rule for what the optimizer does to each parameter."""
    for t in tensors_of(config.recipe):
        family = config.optimizer.family(config.optimizer.rule_for(t.role, t.shape))
        try:
            config.parametrization.scales(t.role, t.name.startswith("layers."), family, config.recipe)
        except PydanticCustomError as error:
            yield error
            return


def unclippable(recipe: Recipe) -> str | None:
    """Why QK-clip cannot do what it says to this recipe; None where it can."""
    for i, layer in enumerate(recipe.layers):
        mixer = layer.mixer
        if mixer.is_none:
            continue
        if not isinstance(mixer, Attention):
            return f"layer {i}: a {mixer.kind_name} mixer has no attention logits of its own"
        if not mixer.qk_norm.is_none:
            return f"layer {i}: QK-norm undoes any scale of the query and key projections"
        if mixer.soft_cap != "none":
            return f"layer {i}: its logits are capped at {mixer.soft_cap:g} already"
    return None
