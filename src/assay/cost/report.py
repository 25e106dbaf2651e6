"""The parts of a budget beyond counts: memory, intensity, time, plan, scaling, findings."""

from __future__ import annotations

from typing import Any, NamedTuple

from assay.cost.activations import network
from assay.cost.core import stores_scores
from assay.cost.findings import Finding, alignment_findings, alignment_table
from assay.cost.intensity import GROUPS, Row, intensity_report, rows_of, works
from assay.cost.memory import memory_report
from assay.cost.model import count_layers
from assay.cost.parallel import bubble, communication
from assay.cost.rules import Work, rule_of
from assay.cost.scaling import scaling_report
from assay.cost.setting import DTYPE_BYTES, Setting
from assay.cost.timing import bound_of, measured, step_time, training_time
from assay.recipe.mixer import attentions_of
from assay.recipe.recipe import Recipe


class Reports(NamedTuple):
    """What :func:`assay.cost.budget` adds to its counts."""

    flops: dict[str, Any]
    memory: dict[str, Any]
    intensity: dict[str, Any]
    time: dict[str, Any]
    parallel: dict[str, Any]
    scaling: dict[str, Any]
    findings: list[Finding]


def reports(recipe: Recipe, at: Setting, params: int, flops: dict[str, Any]) -> Reports:
    """Every report of a setting, from one trace of training, one of prefill and one of decode."""
    net = network(recipe, at.run)
    work = {"train": net.work(), **works(recipe, at.run, at.replica, at.seq_len)}
    rows = {mode: rows_of(each, at.hardware, at.dtype, backward=mode == "train") for mode, each in work.items()}
    memory = memory_report(recipe, at.run, net, at.plan, at.optimizer, at.replica, DTYPE_BYTES[at.dtype])
    more = _more_flops(recipe, at)
    findings = [*at.findings, *alignment_findings(recipe, at.plan.tp), *_memory_findings(at, memory)]
    if net.unknown():
        named = ", ".join(net.unknown())
        message = f"no trace of {named}: activation memory is a lower bound"
        findings.append(Finding("warning", "memory.activations", named, message, "give its CostRule a trace method"))
    return Reports(
        flops=more,
        memory=memory,
        intensity=intensity_report(rows, recipe, at.run.work.batch, at.seq_len),
        time=_time(at, rows, memory, {**flops, **more}),
        parallel=_parallel(recipe, at, memory),
        scaling=scaling_report(params, at.tokens),
        findings=findings,
    )


def _more_flops(recipe: Recipe, at: Setting) -> dict[str, Any]:
    """Elementwise FLOPs of the whole batch, and what the backward pass runs again."""
    whole = network(
        recipe, at.run._replace(work=Work(at.batch, at.seq_len), tp=1, sequence_parallel=False), train=False
    )
    by_op = {op: each.flops for op, each in whole.work().items() if GROUPS.get(op) != "contraction" and each.flops}
    return {
        "elementwise_forward": sum(by_op.values()),
        "elementwise_by_op": by_op,
        "recomputed_per_token": _recomputed(recipe, at) // (at.run.work.tokens),
    }


def _recomputed(recipe: Recipe, at: Setting) -> int:
    """Forward FLOPs of one micro-batch that run again: layers, or cores."""
    work, total = at.run.work, 0
    for layer, n in count_layers(recipe.layers).items() if at.run.recompute != "none" else ():
        if at.run.recompute == "full":
            for part in (layer.mixer, layer.ffn):
                each = rule_of(part).flops(part, recipe.d_model, work)
                total += n * (each.matmul + each.core_square)
            continue
        for spec in attentions_of(layer.mixer):
            if stores_scores(spec, at.run.numerics.backend):
                total += n * rule_of(spec).flops(spec, recipe.d_model, work).core_square
    return total


def _time(at: Setting, rows: dict[str, list[Row]], memory: dict[str, Any], flops: dict[str, Any]) -> dict[str, Any]:
    if at.hardware is None:
        return {}
    plan, tokens = at.plan, at.batch * at.seq_len
    out: dict[str, Any] = {
        "train": step_time(
            rows["train"],
            at.hardware,
            at.dtype,
            plan,
            state_bytes=memory["train"]["state_bytes"],
            tokens=tokens,
            model_flops=3 * flops["forward_full"],
        ),
        "prefill": bound_of(rows["prefill"], at.hardware, at.dtype),
        "decode": bound_of(rows["decode"], at.hardware, at.dtype),
    }
    out["prefill"]["tokens_per_s"] = at.replica * at.seq_len / out["prefill"]["seconds"]
    out["decode"]["tokens_per_s"] = at.replica / out["decode"]["seconds"]
    full, causal = flops["train_per_token"], flops["train_per_token_causal"]
    if at.tokens is not None:
        out["training"] = training_time(at.tokens, full, at.hardware, at.dtype, plan.devices, at.mfu)
    if at.tokens_per_second is not None:
        counted = {"mfu": full, "mfu_causal": causal, "hfu": full + flops["recomputed_per_token"]}
        out["measured"] = measured(at.tokens_per_second, counted, at.hardware, at.dtype, plan.devices)
    return out


def _parallel(recipe: Recipe, at: Setting, memory: dict[str, Any]) -> dict[str, Any]:
    plan, width = at.plan, at.run.numerics.compute
    params = memory["train"]["params"]
    grads = params * at.optimizer.gradients
    link = None if at.hardware is None else at.hardware.link
    return {
        "plan": plan._asdict(),
        "devices": plan.devices,
        "bubble": bubble(plan),
        "communication": communication(recipe, plan, at.run.work.tokens, width, (grads, params * width), link),
        "alignment": alignment_table(recipe, plan.tp),
    }


def _memory_findings(at: Setting, memory: dict[str, Any]) -> list[Finding]:
    """Whether training and inference fit the device."""
    if at.hardware is None:
        return []
    out, room = [], at.hardware.memory
    fixes = {
        "train": "more devices (tp, pp, zero), recompute, smaller micro-batches, or another ledger",
        "inference": "more devices (tp), a smaller dtype, fewer or shorter sequences",
    }
    for use, key in (("train", "peak_bytes"), ("inference", "total_bytes")):
        need = memory[use][key]
        memory[use]["fits"] = need <= room
        if need > room:
            message = f"one device needs {need / 1e9:,.1f} GB, {at.hardware.name} has {room / 1e9:,.0f}"
            out.append(Finding("warning", f"memory.{use}", need, message, fixes[use]))
    return out
