"""The two ends of a decoder: the embedding and the head."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PositiveFloat, PositiveInt, SerializeAsAny

from assay.recipe.base import Part, Sizes, Spec, pick
from assay.recipe.ffn import ActivationSlot
from assay.recipe.norm import NO_NORM, DropoutRate, NormSlot
from assay.recipe.position import EmbeddingPositionSlot, NoEmbeddingPosition


class Projection(Part):
    """A linear map between the embedding's width and the model's."""

    slot = "projection"


ProjectionSlot = Annotated[SerializeAsAny[Projection], pick(Projection)]


class NoProjection(Projection):
    """The table is as wide as the model."""

    kind: Literal["none"] = "none"


class LinearProjection(Projection):
    """A table of width ``dim`` and a matrix between it and d_model (opt-350m: 512 against 1024)."""

    kind: Literal["linear"] = "linear"
    dim: PositiveInt
    bias: bool = False


class HeadTransform(Part):
    """What the head does to a state before it is compared with the table."""

    slot = "head_transform"


HeadTransformSlot = Annotated[SerializeAsAny[HeadTransform], pick(HeadTransform)]


class NoTransform(HeadTransform):
    """Nothing."""

    kind: Literal["none"] = "none"


class DenseTransform(HeadTransform):
    """``norm(activation(dense(x)))`` with a square matrix, as BERT has it (Devlin et al. 2018, arXiv:1810.04805).

    ``bias``: of the dense layer.
    """

    kind: Literal["dense"] = "dense"
    activation: ActivationSlot
    norm: NormSlot
    bias: bool = False


class Embedding(Spec):
    """``dropout(norm(project(scale · table[id]) + position))``.

    ``tied``: the head reads the same table. ``norm = "fixnorm"`` acts on the rows of the table instead.
    """

    tied: bool
    scale: PositiveFloat | Literal["sqrt_d_model"] = 1.0
    projection: ProjectionSlot = NoProjection()
    position: EmbeddingPositionSlot = NoEmbeddingPosition()
    norm: NormSlot = NO_NORM
    dropout: DropoutRate = 0.0

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        """A scale that is the rule's number is written as the rule: one architecture, one digest."""
        return {**raw, "scale": "sqrt_d_model"} if raw.get("scale") == sizes.d_model**0.5 else raw


class Head(Spec):
    """``soft_cap(scale · (table · project(transform(norm(x))) + bias))``; ``soft_cap`` c is ``c·tanh(z/c)`` (Gemma 2).

    ``norm`` has no default: a pre-LN stack without a final norm is a choice, not an oversight.
    """

    norm: NormSlot
    transform: HeadTransformSlot = NoTransform()
    projection: ProjectionSlot = NoProjection()
    bias: bool = False
    scale: PositiveFloat | Literal["inv_sqrt_d_model"] = 1.0
    soft_cap: PositiveFloat | Literal["none"] = "none"

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        """A scale that is the rule's number is written as the rule: one architecture, one digest."""
        return {**raw, "scale": "inv_sqrt_d_model"} if raw.get("scale") == sizes.d_model**-0.5 else raw
