"""The arguments of a budget, checked and made one: what is run, in what numbers, on what, divided how."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from assay.cost.activations import RECOMPUTE, Execution
from assay.cost.findings import Finding
from assay.cost.hardware import Hardware, find_hardware
from assay.cost.model import count_layers
from assay.cost.optimizers import OptimizerPlan, find_optimizer
from assay.cost.parallel import ParallelPlan, parse_plan, plan_findings
from assay.cost.rules import Work
from assay.cost.tape import Numerics
from assay.recipe.mixer import attentions_of
from assay.recipe.position import LearnedPosition
from assay.recipe.recipe import Recipe

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
BACKENDS = ("auto", "sdpa", "reference")
_LARGEST = 1 << 31


class Setting(NamedTuple):
    """A checked setting. ``run`` is one device's micro-batch; ``replica`` its sequences of a step."""

    batch: int
    seq_len: int
    dtype: str
    run: Execution
    replica: int
    plan: ParallelPlan
    optimizer: OptimizerPlan
    hardware: Hardware | None
    tokens: float | None
    mfu: float | None
    tokens_per_second: float | None
    findings: tuple[Finding, ...]


def check_setting(
    recipe: Recipe,
    batch: int,
    seq_len: int | None,
    dtype: str,
    *,
    hardware: str | Path | None,
    parallel: str | None,
    optimizer: str | None,
    devices: int | None,
    recompute: str,
    backend: str,
    tokens: float | None,
    mfu: float | None,
    tokens_per_second: float | None,
) -> Setting:
    """The checked arguments of :func:`assay.cost.budget`; raises ValueError at the first fault."""
    seq_len = recipe.max_seq_len if seq_len is None else seq_len
    _check_sizes({"batch": batch, "seq_len": seq_len} | ({} if devices is None else {"devices": devices}))
    _check_numbers({"tokens": tokens, "tokens_per_second": tokens_per_second, "mfu": mfu})
    if mfu is not None and mfu > 1:
        raise ValueError(f"mfu: not a share of the peak: {mfu!r}; allowed: above 0, at most 1")
    _check_choice("dtype", dtype, DTYPE_BYTES)
    _check_choice("recompute", recompute, RECOMPUTE)
    _check_choice("backend", backend, BACKENDS)
    if isinstance(recipe.embedding.position, LearnedPosition) and seq_len > recipe.max_seq_len:
        raise ValueError(
            f"seq_len: {seq_len} tokens, but the learned positions end at max_seq_len = {recipe.max_seq_len}"
        )
    device = None if hardware is None else find_hardware(hardware)
    if device is not None:
        device.peak(dtype)
    if tokens_per_second is not None and device is None:
        raise ValueError(f"tokens_per_second: {tokens_per_second!r} has no effect without a hardware to compare with")
    if mfu is not None and (device is None or tokens is None):
        raise ValueError(f"mfu: {mfu!r} has no effect without hardware and tokens")
    if backend == "sdpa":
        _check_sdpa(recipe)
    compute = max(2, DTYPE_BYTES[dtype])
    ledger = find_optimizer(optimizer, dtype, compute)
    plan = parse_plan(parallel, batch, devices)
    findings = tuple(plan_findings(recipe, plan, batch, seq_len))
    _refuse(plan, findings)
    replica = batch // plan.dp
    numerics = Numerics(
        compute=compute,
        param=4 if ledger.autocast else compute,
        autocast=ledger.autocast,
        fused=device is not None and not device.is_cpu,
        backend=backend,
        stored=DTYPE_BYTES[dtype],
    )
    run = Execution(Work(replica // plan.microbatches, seq_len), numerics, recompute, plan.tp, plan.sp)
    return Setting(
        batch, seq_len, dtype, run, replica, plan, ledger, device, tokens, mfu, tokens_per_second, findings
    )  # fmt: skip


def _check_sizes(sizes: dict[str, Any]) -> None:
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: not a positive integer: {value!r}")
        if value > _LARGEST:
            raise ValueError(f"{name}: beyond any machine: {value:,}; allowed: 1 to {_LARGEST:,}")


def _check_numbers(numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name}: not a positive number: {value!r}")


def _check_choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: no such {name} {value!r}; known: {', '.join(allowed)}")


def _check_sdpa(recipe: Recipe) -> None:
    for layer in count_layers(recipe.layers):
        for spec in attentions_of(layer.mixer):
            if spec.soft_cap != "none" or spec.sinks != "none":
                raise ValueError(
                    f"backend: 'sdpa' cannot honour layers.{layer.name}.mixer, which has a soft-cap or sinks; "
                    "allowed: auto, reference"
                )


def _refuse(plan: ParallelPlan, findings: tuple[Finding, ...]) -> None:
    errors = [str(f) for f in findings if f.severity == "error"]
    if errors:
        raise ValueError("\n  ".join([f"parallel: the plan {plan} does not fit:", *errors]))


def tables_of(findings: Iterable[Finding]) -> tuple[dict[str, Any], ...]:
    """Findings as plain tables, the gravest first."""
    order = {"error": 0, "warning": 1, "note": 2}
    return tuple(f._asdict() for f in sorted(findings, key=lambda f: order[f.severity]))
