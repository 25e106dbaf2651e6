"""Lower bounds of time: a step, a prefill, a token, a training run; and utilization against a named peak."""

from __future__ import annotations

from typing import Any

from assay.cost.hardware import Hardware
from assay.cost.intensity import Row
from assay.cost.parallel import ParallelPlan, bubble

DAY = 86_400


def bound_of(rows: list[Row], hardware: Hardware, dtype: str) -> dict[str, Any]:
    """Three bounds of the same work: all compute at peak, all bytes at peak, and each class at its worse one."""
    matrix = sum(r.flops for r in rows if r.group == "contraction")
    rest = sum(r.flops for r in rows if r.group != "contraction")
    compute = matrix / hardware.peak(dtype) + rest / hardware.vector_peak(dtype)
    bandwidth = sum(r.bytes for r in rows) / hardware.bandwidth
    return {
        "compute_s": compute,
        "bandwidth_s": bandwidth,
        "seconds": sum(r.seconds or 0.0 for r in rows),
        "bound": "compute" if compute >= bandwidth else "bandwidth",
    }


def step_time(
    rows: list[Row],
    hardware: Hardware,
    dtype: str,
    plan: ParallelPlan,
    *,
    state_bytes: int,
    tokens: int,
    model_flops: int,
) -> dict[str, Any]:
    """The least time of a training step on one device of the plan.

    Args:
        rows: one micro-batch's forward and backward on a device that held every layer; a stage has its share.
        state_bytes: weights, gradients, master copy and optimizer state, read and written once by the update.
        tokens: of a step, over all replicas.
        model_flops: of a step, forward and backward without recomputation, full square.
    """
    one = bound_of(rows, hardware, dtype)
    share = plan.microbatches / plan.pp
    work = one["seconds"] * share
    pipelined = work / (1 - bubble(plan))
    update = 2 * state_bytes / hardware.bandwidth
    seconds = pipelined + update
    return {
        "compute_s": one["compute_s"] * share,
        "bandwidth_s": one["bandwidth_s"] * share + update,
        "bubble_s": pipelined - work,
        "update_s": update,
        "seconds": seconds,
        "bound": one["bound"],
        "tokens_per_s": tokens / seconds,
        "mfu_at_bound": model_flops / (seconds * plan.devices * hardware.peak(dtype)),
    }


def measured(
    tokens_per_s: float, flops: dict[str, int], hardware: Hardware, dtype: str, devices: int
) -> dict[str, Any]:
    """Utilization of a measured rate over the dense peak of all devices.

    MFU counts forward and backward without recomputation (Chowdhery et al. 2022, arXiv:2204.02311, appendix B: the full
    square; ``mfu_causal`` the legal pairs only), HFU what is recomputed too.
    """
    peak = hardware.peak(dtype) * devices
    out: dict[str, Any] = {key: tokens_per_s * n / peak for key, n in flops.items()}
    return {"tokens_per_s": tokens_per_s, **out, "peak": f"{hardware.name} {dtype} dense, {devices} devices"}


def training_time(
    tokens: float, flops_per_token: float, hardware: Hardware, dtype: str, devices: int, utilization: float | None
) -> dict[str, Any]:
    """``tokens x FLOPs a token / (devices x peak x utilization)``; at the peak itself nothing can be faster."""
    total = tokens * flops_per_token
    at_peak = total / (devices * hardware.peak(dtype))
    out: dict[str, Any] = {"tokens": tokens, "flops": total, "devices": devices, "seconds_at_peak": at_peak}
    out["days_at_peak"] = at_peak / DAY
    if utilization is not None:
        seconds = at_peak / utilization
        out |= {"mfu": utilization, "seconds": seconds, "days": seconds / DAY}
        out["device_hours"] = devices * seconds / 3600
    return out
