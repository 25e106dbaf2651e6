"""A recipe's tensors, FLOPs and cache: the sum of its embedding, its layers and its head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from assay.cost.parts import ProjectionCost, TransformCost
from assay.cost.rules import CacheSize, Flops, Named, Tensor, Work, rule_of
from assay.recipe.embedding import DenseTransform, LinearProjection, Projection
from assay.recipe.init import Draw, Place
from assay.recipe.layer import Layer
from assay.recipe.position import LearnedPosition
from assay.recipe.recipe import Recipe
from assay.recipe.residual import Branch, ParallelSharedNorm, Serial, Sublayer
from assay.recipe.roles import ParamRole


def count_layers(layers: Sequence[Layer]) -> dict[Layer, int]:
    """Distinct layers in order of depth, each with how often it stands there. A layer is hashed once an object."""
    objects: dict[int, Layer] = {}
    times: dict[int, int] = {}
    for layer in layers:
        key = id(layer)
        objects[key] = layer
        times[key] = times.get(key, 0) + 1
    out: dict[Layer, int] = {}
    for key, layer in objects.items():
        out[layer] = out.get(layer, 0) + times[key]
    return out


@lru_cache(maxsize=4096)
def layer_tensors(layer: Layer, d: int) -> tuple[Tensor, ...]:
    """The parameters of one layer, named from the layer down."""
    named = Named("")
    named.add("mixer", layer.mixer, d)
    named.add("ffn", layer.ffn, d)
    residual = Named("residual")
    for side in ("mixer", "ffn"):
        rule: Branch = getattr(layer.residual, side)
        residual.add(f"{side}.input_norm", rule.input_norm, d)
        residual.add(f"{side}.output_norm", rule.output_norm, d)
        residual.add(f"{side}.branch", rule.branch, d)
        if isinstance(rule, Sublayer):
            residual.add(f"{side}.stream_norm", rule.stream_norm, d)
            residual.add(f"{side}.skip", rule.skip, d)
    if isinstance(layer.residual, ParallelSharedNorm):
        residual.add("input_norm", layer.residual.input_norm, d)
    if not isinstance(layer.residual, Serial):
        residual.add("stream_norm", layer.residual.stream_norm, d)  # type: ignore[attr-defined]
        residual.add("skip", layer.residual.skip, d)  # type: ignore[attr-defined]
    return tuple(named.found + residual.found)


def embedding_tensors(recipe: Recipe) -> list[Tensor]:
    """Token table, projection, positions and norm of the embedding."""
    embedding, d = recipe.embedding, recipe.d_model
    out = [Tensor("table", (recipe.vocab_size, recipe.embedding_width), ParamRole.EMBEDDING)]
    out += _projection("projection", embedding.projection, d, wide_out=True)
    if isinstance(embedding.position, LearnedPosition):
        rows = recipe.max_seq_len + embedding.position.offset
        out.append(Tensor("position.table", (rows, d), ParamRole.POSITION))
    named = Named("")
    named.add("norm", embedding.norm, d)
    return [t.under("embedding") for t in out + named.found]


def head_tensors(recipe: Recipe) -> list[Tensor]:
    """Final norm, transform, projection, output table (unless tied) and bias."""
    head, d = recipe.head, recipe.d_model
    named = Named("")
    named.add("norm", head.norm, d)
    out = list(named.found)
    if isinstance(head.transform, DenseTransform):
        out += [t.under("transform") for t in TransformCost().tensors(head.transform, d)]
    out += _projection("projection", head.projection, d, wide_out=False)
    if not recipe.embedding.tied:
        out.append(Tensor("table", (recipe.vocab_size, recipe.head_width), ParamRole.HEAD))
    if head.bias:
        out.append(Tensor("bias", (recipe.vocab_size,), ParamRole.BIAS, 0.0))
    return [t.under("head") for t in out]


def _projection(name: str, projection: Projection, d: int, *, wide_out: bool) -> list[Tensor]:
    if not isinstance(projection, LinearProjection):
        return []
    return [t.under(name) for t in ProjectionCost().matrix(projection, d, wide_out=wide_out)]


def tensors_of(recipe: Recipe) -> tuple[Tensor, ...]:
    """Every parameter of the built model: its name, shape, role and starting constant. A tied table is named once."""
    out = embedding_tensors(recipe)
    for i, layer in enumerate(recipe.layers):
        out += [t.under(f"layers.{i}") for t in layer_tensors(layer, recipe.d_model)]
    return tuple(out + head_tensors(recipe))


def layer_of(name: str) -> int:
    """The depth in a tensor's name, or -1 outside the stack."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "layers" else -1


@dataclass(frozen=True)
class Start:
    """How one tensor starts: a constant, or a draw."""

    tensor: Tensor
    draw: Draw | None

    def __str__(self) -> str:
        return f"{self.tensor.start:.6g}" if self.draw is None else str(self.draw)


def starts_of(recipe: Recipe) -> tuple[Start, ...]:
    """How every parameter starts, in the order of :func:`tensors_of`."""
    out = []
    for t in tensors_of(recipe):
        if t.start is not None:
            out.append(Start(t, None))
            continue
        place = Place(t.role, layer_of(t.name), recipe.n_branches, recipe.n_layers)
        out.append(Start(t, recipe.init.draw(place, fan_in=t.shape[-1], fan_out=t.shape[0])))
    return tuple(out)


@dataclass(frozen=True)
class LayerCosts:
    """FLOPs of a forward pass of the whole recipe, by component."""

    mixer: Flops
    ffn: Flops
    embedding: Flops
    head: Flops

    @property
    def total(self) -> Flops:
        return self.mixer + self.ffn + self.embedding + self.head


def flops_of(recipe: Recipe, work: Work, *, logits_for: int | None = None) -> LayerCosts:
    """Forward FLOPs of every layer, the embedding's projection and the head.

    Args:
        work: batch, new tokens and past tokens.
        logits_for: positions a sequence whose logits are computed; all new ones when None.
    """
    d = recipe.d_model
    mixer = ffn = Flops()
    for layer, n in count_layers(recipe.layers).items():
        mixer += rule_of(layer.mixer).flops(layer.mixer, d, work).times(n)
        ffn += rule_of(layer.ffn).flops(layer.ffn, d, work).times(n)
    embedding, head = recipe.embedding.projection, recipe.head.projection
    at_head = work if logits_for is None else replace(work, new=logits_for)
    transform = recipe.head.transform
    out = rule_of(head).flops(head, d, at_head) + rule_of(transform).flops(transform, d, at_head)
    out += Flops(matmul=2 * at_head.tokens * recipe.head_width * recipe.vocab_size)
    return LayerCosts(mixer, ffn, rule_of(embedding).flops(embedding, d, work), out)


def cache_of(recipe: Recipe, length: int) -> CacheSize:
    """Elements kept for one sequence of ``length`` tokens, over all layers."""
    total = CacheSize()
    for layer, n in count_layers(recipe.layers).items():
        for part in (layer.mixer, layer.ffn):
            total += rule_of(part).cache(part, recipe.d_model, length).times(n)
    return total
