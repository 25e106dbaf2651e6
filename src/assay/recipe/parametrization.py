"""Parametrisations: how start, multipliers and learning rates follow width and depth, so that settings transfer.

Width multiplier m = d_model / base_width, depth multiplier k = n_layers / base_depth. At the base nothing changes.
A parametrisation is a setting of a run: it turns the recipe that was written into the one that is built, and scales
learning rate, decay and Adam's eps of each parameter by its role.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveInt, SerializeAsAny

from assay.recipe.base import Part, pick, refuse
from assay.recipe.init import (
    Distribution,
    FanIn,
    Init,
    Normal,
    RoleInit,
    TruncatedNormal,
    Xavier,
    Zero,
)
from assay.recipe.layer import Layer
from assay.recipe.mixer import Attention, Mixer
from assay.recipe.recipe import Recipe
from assay.recipe.residual import Branch, Residual
from assay.recipe.roles import ParamRole
from assay.recipe.scale import ConstantScale

Family = Literal["adam", "spectral", "sgd"]


class Scales(NamedTuple):
    """Factors on the learning rate, the weight decay and Adam's eps of one parameter."""

    lr: float = 1.0
    decay: float = 1.0
    eps: float = 1.0


class Parametrization(Part):
    """How start, multipliers and learning rates follow the size of the model."""

    slot = "parametrization"

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe that is built. Raises RecipeError where a part does not say how it scales."""
        return recipe

    def scales(self, role: ParamRole, in_layer: bool, family: Family, recipe: Recipe) -> Scales:
        """What a parameter of the written recipe has its settings multiplied by.

        Args:
            family: ``adam``: updates of a size that the gradient's does not change; ``spectral``: orthogonalised, with
                rows over columns in the factor; ``sgd``: proportional to the gradient.
        """
        return Scales()


ParametrizationSlot = Annotated[SerializeAsAny[Parametrization], pick(Parametrization)]


class Standard(Parametrization):
    """The recipe as it is, one learning rate for all."""

    kind: Literal["standard"] = "standard"


STANDARD = Standard()


class Mup(Parametrization):
    """Maximal update parametrisation (Yang et al. 2022, arXiv:2203.03466, table 8, which allows a tied table).

    Hidden matrices: variance of the start 1/m, Adam's rate 1/m. Logits times 1/m. Attention scores scale as 1/head_dim
    from ``base_head_dim`` (``same``: head_dim does not change with the width). Everything else as at the base; with
    SGD, embeddings, head, gains and biases take the rate times m. The rate times the decay stays the same, as in
    arXiv:2505.01618, table 1. Multipliers that the recipe ties to its width (``sqrt_d_model``) stay at the base's.
    """

    kind: Literal["mup"] = "mup"
    base_width: PositiveInt
    base_head_dim: PositiveInt | Literal["same"] = "same"

    def width(self, recipe: Recipe) -> float:
        """m."""
        return recipe.d_model / self.base_width

    def applied(self, recipe: Recipe) -> Recipe:
        m = self.width(recipe)
        for end in ("embedding", "head"):
            if not getattr(recipe, end).projection.is_none:
                raise refuse(f"recipe.{end}.projection", f"{self.kind_name} does not say how it scales", allowed="none")
        roles = tuple(RoleInit(role=e.role, distribution=_start(e, m)) for e in recipe.init.roles)
        embedding, head = recipe.embedding, recipe.head
        if embedding.scale == "sqrt_d_model" and m != 1:
            embedding = embedding.model_copy(update={"scale": math.sqrt(self.base_width)})
        scale = self.base_width**-0.5 if head.scale == "inv_sqrt_d_model" else float(head.scale)
        return Recipe(
            name=recipe.name,
            sources=recipe.sources,
            notes=recipe.notes,
            d_model=recipe.d_model,
            vocab_size=recipe.vocab_size,
            max_seq_len=recipe.max_seq_len,
            embedding=embedding,
            layers=self._layers(recipe),
            head=head if m == 1 else head.model_copy(update={"scale": scale / m}),
            init=Init(roles=roles, depth=recipe.init.depth),
        )

    def _layers(self, recipe: Recipe) -> tuple[Layer, ...]:
        return tuple(layer.model_copy(update={"mixer": self._mixer(layer.mixer)}) for layer in recipe.layers)

    def _mixer(self, mixer: Mixer) -> Mixer:
        """The mixer with its scores' scale; a sum's attentions too."""
        branches = getattr(mixer, "branches", None)
        if branches is not None:
            scaled = tuple(b.model_copy(update={"mixer": self._mixer(b.mixer)}) for b in branches)
            return mixer.model_copy(update={"branches": scaled})
        if not isinstance(mixer, Attention) or self.base_head_dim in ("same", mixer.head_dim):
            return mixer
        if mixer.scale == "inv_head_dim":
            return mixer
        base = int(self.base_head_dim)
        if mixer.scale == "inv_sqrt_head_dim":
            return mixer.model_copy(update={"scale": math.sqrt(base) / mixer.head_dim})
        return mixer.model_copy(update={"scale": float(mixer.scale) * base / mixer.head_dim})

    def scales(self, role: ParamRole, in_layer: bool, family: Family, recipe: Recipe) -> Scales:
        m = self.width(recipe)
        if role.is_hidden_matrix:
            return Scales(1 / m, m) if family == "adam" else Scales()
        return Scales(lr=m) if family == "sgd" else Scales()


class CompleteP(Mup):
    """muP, and transfer over depth (Dey et al. 2025, arXiv:2505.01618, table 1): branches times k^-alpha, the rate of
    what stands in a layer times k^(alpha - 1), Adam's eps times 1/m, in layers times k^-alpha too.

    For pre-norm stacks under Adam-like optimizers.
    """

    kind: Literal["completep"] = "completep"  # type: ignore[assignment]
    base_depth: PositiveInt
    alpha: Annotated[float, Field(ge=0.5, le=1.0)] = 1.0

    def depth(self, recipe: Recipe) -> float:
        """k."""
        return recipe.n_layers / self.base_depth

    def applied(self, recipe: Recipe) -> Recipe:
        if not recipe.init.depth.is_none:
            message = "completep shrinks the branches instead"
            raise refuse("recipe.init.depth", message, recipe.init.depth.kind_name, "none")
        return super().applied(recipe)

    def _layers(self, recipe: Recipe) -> tuple[Layer, ...]:
        factor = self.depth(recipe) ** -self.alpha
        layers = super()._layers(recipe)
        if factor == 1:
            return layers
        return tuple(layer.model_copy(update={"residual": _shrunk(layer, factor, i)}) for i, layer in enumerate(layers))

    def scales(self, role: ParamRole, in_layer: bool, family: Family, recipe: Recipe) -> Scales:
        if family != "adam":
            raise refuse("parametrization", "completep's rules are those of Adam", family, "adamw, adam_l2, soap, muon")
        width, k = super().scales(role, in_layer, family, recipe), self.depth(recipe)
        eps = 1 / self.width(recipe)
        if not in_layer:
            return width._replace(eps=eps)
        return width._replace(lr=width.lr * k ** (self.alpha - 1), eps=eps * k**-self.alpha)


def _start(entry: RoleInit, m: float) -> Distribution:
    """A role's distribution at m times the base's width: variance 1/m for hidden matrices, else as at the base."""
    d, hidden = entry.distribution, entry.role.is_hidden_matrix
    if m == 1 or isinstance(d, Zero):
        return d
    if isinstance(d, Normal | TruncatedNormal):
        return d.model_copy(update={"std": d.std / math.sqrt(m)}) if hidden else d
    if isinstance(d, FanIn):  # a table's fan-in is its width
        return d if hidden else d.model_copy(update={"gain": d.gain * math.sqrt(m)})
    if isinstance(d, Xavier) and hidden:
        return d
    raise refuse(
        f"recipe.init.{entry.role}", "does not say how it scales with the width", d.kind_name, "normal, fan_in"
    )


def _shrunk(layer: Layer, factor: float, depth: int) -> Residual:
    """Both branches times a factor; a sublayer that is left out has none."""
    residual, update = layer.residual, {}
    for side in ("mixer", "ffn"):
        if getattr(layer, side).is_none:
            continue
        rule: Branch = getattr(residual, side)
        if not isinstance(rule.branch, ConstantScale):
            place = f"recipe.layers.{depth}.residual.{side}.branch"
            raise refuse(place, "completep multiplies branches by a constant", rule.branch.kind_name, "a number")
        scale = ConstantScale(value=rule.branch.value * factor)
        update[side] = rule.model_copy(update={"branch": scale})
    return residual.model_copy(update=update)
