"""Parallel plans: parsing ``tp=8,pp=2,dp=64``, what does not divide and how to mend it, bubbles and communication."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from assay.cost.findings import Finding, ffns_of
from assay.cost.model import count_layers
from assay.recipe.errors import nearest
from assay.recipe.mixer import attentions_of
from assay.recipe.recipe import Recipe
from assay.recipe.residual import Serial

_SCHEDULES = ("1f1b", "gpipe")
_ALIASES = {"mb": "microbatches", "vpp": "interleave", "sequence_parallel": "sp"}
_LARGEST = 1 << 20  # devices an axis


class ParallelPlan(NamedTuple):
    """Devices by axis, and how they work together.

    Attributes:
        tp: tensor parallel; pp: pipeline stages; dp: data-parallel replicas.
        zero: ZeRO stage of the replicas, 0 to 3 (3 is FSDP).
        sp: sequence parallelism within tp (Megatron): norms and residuals split over tokens.
        microbatches: parts that a replica's batch is run in.
        interleave: model chunks a pipeline stage (virtual stages).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    zero: int = 0
    sp: bool = False
    microbatches: int = 1
    interleave: int = 1
    schedule: str = "1f1b"

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        return ",".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in self._asdict().items())


def parse_plan(text: str | ParallelPlan | None, batch: int = 1, devices: int | None = None) -> ParallelPlan:
    """A plan from ``tp=8,pp=2,dp=64,zero=1,sp=1,microbatches=16,interleave=2,schedule=1f1b``.

    ``fsdp=64`` is ``dp=64,zero=3``. ``dp=auto`` takes what ``devices`` leaves. Without ``microbatches`` a replica's
    batch is run whole, or, in a pipeline, one sequence at a time.

    Raises:
        ValueError: an unknown or repeated key, or a value that is no positive integer.
    """
    if isinstance(text, ParallelPlan):
        return text
    values: dict[str, Any] = {}
    for item in re.split(r"[,\s]+", text.strip()) if text else ():
        key, equals, raw = item.partition("=")
        key = _ALIASES.get(key, key)
        if key == "fsdp":
            _put(values, "zero", 3, item)
            key = "dp"
        if not equals or key not in ParallelPlan._fields:
            close = nearest(key, ParallelPlan._fields)
            hint = f" (nearest: {close})" if close and equals else ""
            known = ", ".join((*ParallelPlan._fields, "fsdp"))
            raise ValueError(
                f"parallel: not a part of a plan: {item!r}{hint}; allowed: key=value with key one of {known}"
            )
        _put(values, key, _value(key, raw), item)
    if values.get("dp") == "auto":
        values["dp"] = _rest(values, devices)
    if "microbatches" not in values and values.get("pp", 1) > 1:
        values["microbatches"] = max(1, batch // values.get("dp", 1))
    plan = ParallelPlan(**values)
    if devices is not None and plan.devices != devices:
        raise ValueError(f"parallel: tp x pp x dp = {plan.devices}, but there are {devices} devices; try dp=auto")
    return plan


def _put(values: dict[str, Any], key: str, value: Any, item: str) -> None:
    if key in values:
        raise ValueError(f"parallel: {key} is given twice (at {item!r}); allowed: once")
    values[key] = value


def _value(key: str, raw: str) -> Any:
    if key == "schedule":
        if raw not in _SCHEDULES:
            raise ValueError(f"parallel.schedule: no such schedule {raw!r}; allowed: {', '.join(_SCHEDULES)}")
        return raw
    if key == "dp" and raw == "auto":
        return raw
    if key == "sp" and raw in ("on", "off", "true", "false"):
        return raw in ("on", "true")
    low, high = {"zero": (0, 3), "sp": (0, 1)}.get(key, (1, _LARGEST))
    if not raw.isascii() or not raw.isdigit() or not low <= int(raw) <= high:
        also = ", or auto" if key == "dp" else ""
        raise ValueError(f"parallel.{key}: not an integer from {low} to {high}{also}: {raw!r}")
    return bool(int(raw)) if key == "sp" else int(raw)


def _rest(values: dict[str, Any], devices: int | None) -> int:
    if devices is None:
        raise ValueError("parallel.dp: auto needs the number of devices; allowed: a number, or devices=N")
    taken: int = values.get("tp", 1) * values.get("pp", 1)
    if devices % taken:
        raise ValueError(f"parallel.dp: {devices} devices do not divide by tp x pp = {taken}")
    return devices // taken


def plan_findings(recipe: Recipe, plan: ParallelPlan, batch: int, seq_len: int) -> Iterator[Finding]:
    """What of a plan does not divide (errors), and what divides at a cost (warnings)."""
    yield from _batch_findings(plan, batch)
    yield from _stack_findings(recipe, plan)
    if plan.tp == 1:
        if plan.sp:
            yield Finding(
                "error", "parallel.sp", 1, "sequence parallelism splits tokens over tp", "take tp > 1, or sp=0"
            )
        return
    if plan.sp and seq_len % plan.tp:
        yield Finding("error", "seq_len", seq_len, f"sp splits it over tp = {plan.tp}", _multiples(seq_len, plan.tp))
    for layer in count_layers(recipe.layers):
        place = f"layers.{layer.name}"
        for spec in attentions_of(layer.mixer):
            yield from _head_findings(f"{place}.mixer", spec.n_heads, spec.n_kv_heads, plan.tp)
        for ffn in ffns_of(layer.ffn):
            if ffn.d_ff % plan.tp:
                fix = _multiples(ffn.d_ff, plan.tp)
                yield Finding("error", f"{place}.ffn.d_ff", ffn.d_ff, f"tp = {plan.tp} does not divide {ffn.d_ff}", fix)
    vocab, step = recipe.vocab_size, 128 * plan.tp
    if vocab % plan.tp:
        padded = -(-vocab // step) * step
        message = f"tp = {plan.tp} does not divide {vocab:,}; the table is padded"
        fix = f"pad to {padded:,}, a multiple of 128 x tp, for {(padded - vocab) * recipe.d_model:,} parameters a table"
        yield Finding("warning", "vocab_size", vocab, message, fix)


def _batch_findings(plan: ParallelPlan, batch: int) -> Iterator[Finding]:
    if batch % plan.dp:
        message = f"{batch} sequences cannot be split over dp = {plan.dp}"
        yield Finding("error", "batch", batch, message, _multiples(batch, plan.dp))
    elif (batch // plan.dp) % plan.microbatches:
        own = batch // plan.dp
        message = f"a replica's {own} sequences cannot be split into {plan.microbatches} micro-batches"
        yield Finding("error", "parallel.microbatches", plan.microbatches, message, "take one of " + _divisors(own))


def _stack_findings(recipe: Recipe, plan: ParallelPlan) -> Iterator[Finding]:
    layers, stages = recipe.n_layers, plan.pp * plan.interleave
    if plan.interleave > 1 and (plan.pp == 1 or plan.microbatches % plan.pp):
        message = "interleaving needs pp > 1 and micro-batches that pp divides"
        fix = "take interleave=1, or microbatches a multiple of pp"
        yield Finding("error", "parallel.interleave", plan.interleave, message, fix)
    if stages > layers:
        message = f"{stages} pipeline stages, but only {layers} layers"
        yield Finding("error", "parallel.pp", plan.pp, message, f"take at most {layers // plan.interleave}")
    elif layers % stages:
        longest = -(-layers // stages)
        message = (
            f"{layers} layers do not divide by {stages}: the longest stage has {longest}, the shortest {longest - 1}"
        )
        yield Finding("warning", "n_layers", layers, message, "take one of " + _divisors(layers) + " stages")
    yield from _source_findings(recipe, plan)
    if plan.pp > 1 and plan.microbatches < plan.pp:
        message = f"{plan.microbatches} micro-batches leave {bubble(plan):.0%} of the pipeline idle"
        fix = f"take microbatches >= {4 * plan.pp}, or fewer stages"
        yield Finding("warning", "parallel.microbatches", plan.microbatches, message, fix)


def _source_findings(recipe: Recipe, plan: ParallelPlan) -> Iterator[Finding]:
    """Keys are read in the stage that makes them; no plan sends them on."""
    if plan.pp > recipe.n_layers:
        return
    stage = [i for i, n in enumerate(stage_layers(recipe.n_layers, plan.pp)) for _ in range(n)]
    for depth, (layer, source) in enumerate(zip(recipe.layers, recipe.kv_sources, strict=True)):
        if source is not None and stage[source] != stage[depth]:
            message = f"pp = {plan.pp} parts layer {depth} from layer {source}, whose keys it reads"
            fix = "take fewer stages, or sources of its own in each"
            yield Finding("error", f"layers.{layer.name}.mixer.kv", source, message, fix)
            return


def _head_findings(place: str, n_heads: int, n_kv_heads: int, tp: int) -> Iterator[Finding]:
    if n_heads % tp:
        message = f"tp = {tp} does not divide {n_heads}"
        yield Finding("error", f"{place}.n_heads", n_heads, message, "take tp one of " + _divisors(n_heads))
    if n_kv_heads % tp and tp % n_kv_heads:
        message = f"tp = {tp} neither divides {n_kv_heads} nor is a multiple of it"
        yield Finding("error", f"{place}.n_kv_heads", n_kv_heads, message, "take tp one of " + _divisors(n_kv_heads))
    elif n_kv_heads % tp:
        message = f"fewer than tp = {tp}: each is held on {tp // n_kv_heads} devices, weights and cache with it"
        fix = f"take n_kv_heads >= {tp}, or tp <= {n_kv_heads}"
        yield Finding("warning", f"{place}.n_kv_heads", n_kv_heads, message, fix)


def _multiples(n: int, step: int) -> str:
    low, high = n // step * step, -(-n // step) * step
    return f"take {low:,} or {high:,}" if low else f"take {high:,}"


def _divisors(n: int) -> str:
    return ", ".join(str(k) for k in range(1, n + 1) if n % k == 0)


def bubble(plan: ParallelPlan) -> float:
    """Share of a step in which a pipeline stage waits: ``(p - 1) / (v m + p - 1)``.

    The same for GPipe (Huang et al. 2019, arXiv:1811.06965) and 1F1B; v model chunks a stage divide it (Narayanan et
    al. 2021, arXiv:2104.04473, section 2.2, where it is given over the ideal time, ``(p - 1) / (v m)``).
    """
    return (plan.pp - 1) / (plan.interleave * plan.microbatches + plan.pp - 1)


def stage_layers(n_layers: int, stages: int) -> list[int]:
    """Layers of each pipeline stage; where they do not divide, the last and the first stages are the shorter ones."""
    low, extra = divmod(n_layers, stages)
    sizes = [low + 1] * stages
    order = [i for pair in zip(range(stages - 1, -1, -1), range(stages), strict=True) for i in pair]
    for i in list(dict.fromkeys(order))[: stages - extra]:
        sizes[i] = low
    return sizes


def in_flight(plan: ParallelPlan, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once.

    1F1B: the stages after it and itself, at most all; GPipe: all; interleaved: the first stage's
    ``p + (p - 1) / v`` (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3), one less a stage.
    """
    if plan.schedule == "gpipe":
        return plan.microbatches
    held = plan.pp - stage
    if plan.interleave == 1:
        return min(plan.microbatches, held)
    return min(plan.microbatches, held + (plan.pp - 1) / plan.interleave)


def communication(
    recipe: Recipe, plan: ParallelPlan, tokens: int, width: int, params: tuple[int, int], link: float | None
) -> dict[str, Any]:
    """Bytes that one device must send in a step at least, an axis at a time, and the seconds on its link.

    An all-reduce of n bytes over t devices sends 2 (t-1)/t n from each, a gather or a reduce-scatter half of that.

    Args:
        tokens: of one micro-batch.
        width: bytes of an activation.
        params: bytes of this device's whole gradients and of its whole 16-bit weights, before ZeRO divides them.
    """
    stream = tokens * recipe.d_model * width
    layers = max(stage_layers(recipe.n_layers, plan.pp))
    reduces = sum(layer.n_branches if isinstance(layer.residual, Serial) else 1 for layer in recipe.layers)
    reduces = 2 * (-(-reduces * layers // recipe.n_layers)) + 2  # forward and backward; embedding and head
    tensor = round(2 * (plan.tp - 1) / plan.tp * stream * reduces) * plan.microbatches
    gradients, weights = params
    share = (plan.dp - 1) / plan.dp
    # zero 0: gradients all-reduced; 1, 2: gradients scattered, weights gathered once; 3: gathered in both passes
    gathers = {0: gradients, 1: weights, 2: weights, 3: 2 * plan.microbatches * weights}[plan.zero]
    data = round(share * (gradients + gathers))
    pipe = 2 * stream * plan.microbatches * plan.interleave if plan.pp > 1 else 0
    volumes = {"tensor_bytes": tensor, "data_bytes": data, "pipeline_bytes": pipe}
    out: dict[str, Any] = {**volumes, "all_reduces_per_microbatch": reduces if plan.tp > 1 else 0}
    if link is not None:
        one_way = link / 2
        out["seconds_at_link_peak"] = {key.removesuffix("_bytes"): n / one_way for key, n in volumes.items()}
    return out
