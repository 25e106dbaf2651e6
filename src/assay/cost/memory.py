"""The memory ledger of training and of inference: what one device holds, by tensor class, and how high it rises."""

from __future__ import annotations

from typing import Any, NamedTuple

from assay.cost.activations import (
    Execution,
    Network,
    Profile,
    activation_report,
    backward_peak,
    highest_rise,
    network,
)
from assay.cost.model import count_layers, embedding_tensors, head_tensors, layer_tensors
from assay.cost.optimizers import Held, OptimizerPlan, held_of, sharded
from assay.cost.parallel import ParallelPlan, in_flight, stage_layers
from assay.cost.rules import Work, rule_of
from assay.recipe.layer import Layer
from assay.recipe.mixer import Attention, attentions_of
from assay.recipe.recipe import Recipe


class Stage(NamedTuple):
    """One pipeline stage: its parts in order, and the parameters it holds."""

    number: int
    layers: int
    parts: tuple[Profile, ...]
    held: Held
    largest: int  # parameters of its largest layer


def stages_of(recipe: Recipe, net: Network, plan: ParallelPlan) -> list[Stage]:
    """The stages of a pipeline; the first also holds the embedding, the last the head (and a copy of a tied table)."""
    d, tp = recipe.d_model, plan.tp
    held: dict[Layer, Held] = {}
    for layer in count_layers(recipe.layers):
        rows = min((spec.head_dim for spec in attentions_of(layer.mixer)), default=0)
        held[layer] = held_of(layer_tensors(layer, d), tp, rows if tp > 1 else 0)
    first, last = held_of(embedding_tensors(recipe), tp), held_of(head_tensors(recipe), tp)
    if recipe.embedding.tied and plan.pp > 1:
        last = last.plus(held_of(embedding_tensors(recipe)[:1], tp))
    out, start = [], 0
    for index, n in enumerate(stage_layers(recipe.n_layers, plan.pp)):
        layers, parts = recipe.layers[start : start + n], net.layers[start : start + n]
        total = Held()
        for layer, times in count_layers(layers).items():
            total = total.plus(held[layer], times)
        largest = max(held[layer].params for layer in count_layers(layers))
        if index == 0:
            parts, total = (net.embedding, *parts), total.plus(first)
            largest = max(largest, first.params)
        if index == plan.pp - 1:
            parts, total = (*parts, net.head), total.plus(last)
        out.append(Stage(index, n, parts, total, max(largest, last.params if index == plan.pp - 1 else 0)))
        start += n
    return out


def stage_memory(
    stage: Stage, shared: int, plan: ParallelPlan, optimizer: OptimizerPlan, param_width: int
) -> dict[str, Any]:
    """The ledger of one device of a stage.

    ``peak_bytes`` is the highest of: backward pass (activations fall while gradients rise), and the update. With
    several micro-batches gradients are whole from the first on. ZeRO-3 gathers two layers' weights at a time.
    """
    state = sharded(optimizer, stage.held, plan.dp, plan.zero)
    kept = shared + sum(part.kept for part in stage.parts)
    held_at_once = in_flight(plan, stage.number)
    activations = round(kept * held_at_once)
    standing = state.weights + state.master + state.optimizer
    gathered = 0
    if plan.zero == 3 and plan.dp > 1:
        gathered = 2 * stage.largest * optimizer.weights
    grad_share = plan.dp if plan.zero >= 2 else 1
    if plan.microbatches == 1:
        parts = _with_gradients(stage.parts, optimizer.gradients, param_width)
        rise = backward_peak(parts, shared, grad_share)
    else:
        rise = activations + state.gradients + highest_rise(stage.parts)
    return {
        "stage": stage.number,
        "layers": stage.layers,
        "params": stage.held.params,
        "weights_bytes": state.weights,
        "gradients_bytes": state.gradients,
        "master_bytes": state.master,
        "optimizer_bytes": state.optimizer,
        "state_bytes": state.total,
        "microbatches_in_flight": held_at_once,
        "activations_bytes": activations,
        "gathered_bytes": gathered,
        "total_bytes": state.total + activations + gathered,
        "peak_bytes": standing + gathered + max(rise, state.gradients),
    }


def _with_gradients(parts: tuple[Profile, ...], wanted: int, traced: int) -> tuple[Profile, ...]:
    """The parts with parameter gradients in the ledger's width instead of the traced one."""
    if wanted == traced:
        return parts
    return tuple(
        part._replace(grads=part.grads * wanted // traced, rise=part.rise + part.grads * (wanted - traced) // traced)
        for part in parts
    )


def training_memory(
    recipe: Recipe, run: Execution, net: Network, plan: ParallelPlan, optimizer: OptimizerPlan
) -> dict[str, Any]:
    """The ledger of the device that needs most, and the totals of every stage."""
    shared = net.shared()
    width = run.numerics.param
    each = [stage_memory(stage, shared, plan, optimizer, width) for stage in stages_of(recipe, net, plan)]
    worst = max(each, key=lambda entry: (entry["peak_bytes"], -entry["stage"]))
    tensors = sum(len(layer_tensors(layer, recipe.d_model)) * n for layer, n in count_layers(recipe.layers).items())
    tensors += len(embedding_tensors(recipe)) + len(head_tensors(recipe))
    return {
        "optimizer": optimizer.name,
        "ledger": optimizer.describe(),
        "bytes_per_param": optimizer.bytes_per_param(),
        "bytes_per_hidden_param": optimizer.bytes_per_param(hidden=True),
        **worst,
        "step_counters_bytes": 4 * tensors,
        "micro_batch": run.work.batch,
        "peak_by_stage": [entry["peak_bytes"] for entry in each],
    }


def inference_memory(
    recipe: Recipe, run: Execution, weights: int, batch: int, seq_len: int, width: int
) -> dict[str, Any]:
    """Weights, cache, and what a prefill of the whole length works in."""
    prefill = network(recipe, run._replace(work=Work(batch, seq_len)), train=False, logits_for=1)
    # the embedding's output stays at hand for layers that read it again
    working = max(stage.forward_rise for stage in prefill.distinct()) + prefill.shared() + prefill.embedding.out.nbytes
    held = sum(_cache_on_device(layer, recipe, seq_len, run.tp) * n for layer, n in count_layers(recipe.layers).items())
    cache = batch * held * width
    return {
        "weights_bytes": weights,
        "cache_bytes": cache,
        "prefill_working_bytes": working,
        "total_bytes": weights + cache + working,
    }


def _cache_on_device(layer: Layer, recipe: Recipe, seq_len: int, tp: int) -> int:
    """Elements of a layer's cache on one of tp devices: KV heads are divided, as long as there are enough."""
    whole = sum(rule_of(part).cache(part, recipe.d_model, seq_len).held for part in (layer.mixer, layer.ffn))
    if tp == 1 or not isinstance(layer.mixer, Attention):
        return whole
    heads = layer.mixer.n_kv_heads  # of which none are kept where they are another layer's
    return whole // heads * -(-heads // tp)


def memory_report(
    recipe: Recipe,
    run: Execution,
    net: Network,
    plan: ParallelPlan,
    optimizer: OptimizerPlan,
    batch: int,
    width: int,
) -> dict[str, Any]:
    """``memory.{train, activations, inference}`` of a budget."""
    held = Held()
    for stage in stages_of(recipe, net, plan._replace(pp=1)):
        held = held.plus(stage.held)
    return {
        "train": training_memory(recipe, run, net, plan, optimizer),
        "activations": activation_report(recipe, run, net),
        "inference": inference_memory(recipe, run, held.params * width, batch, run.work.new, width),
    }


def zero_bytes(params: float, plan: OptimizerPlan, dp: int, zero: int) -> float:
    """Bytes of weights, gradients and state of ``params`` parameters on one of ``dp`` devices."""
    return sharded(plan, Held(params=round(params)), dp, zero).total
