"""Arithmetic intensity of every operation class, on the roofline of a device.

Bytes are those of one fused kernel a class: each reads its inputs and its weights once and writes its outputs once.
A kernel that fuses less moves more, so intensities are upper bounds and times lower bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from assay.cost.activations import Execution, network
from assay.cost.hardware import Hardware
from assay.cost.model import count_layers
from assay.cost.rules import Work
from assay.cost.tape import OpWork
from assay.recipe.mixer import attentions_of
from assay.recipe.recipe import Recipe
from assay.recipe.span import WindowSpan

# class -> kind of work, in the words of Ivanov et al. 2020 (arXiv:2007.00072)
GROUPS = {
    "attention_projections": "contraction",
    "attention_core": "contraction",
    "ffn": "contraction",
    "unembedding": "contraction",
    "embedding_projection": "contraction",
    "norms": "normalization",
    "softmax": "normalization",
    "loss": "normalization",
}
MODES = ("train", "prefill", "decode")


class Row(NamedTuple):
    """One operation class in one mode."""

    op: str
    group: str
    flops: int
    bytes: int
    seconds: float | None
    bound: str | None

    def to_dict(self, flops: int, moved: int) -> dict[str, Any]:
        return {
            "op": self.op,
            "group": self.group,
            "flops": self.flops,
            "bytes": self.bytes,
            "intensity": self.flops / self.bytes if self.bytes else None,
            "flops_share": self.flops / flops if flops else 0.0,
            "bytes_share": self.bytes / moved if moved else 0.0,
            "seconds": self.seconds,
            "bound": self.bound,
        }


def rows_of(work: dict[str, OpWork], hardware: Hardware | None, dtype: str, *, backward: bool) -> list[Row]:
    """Every class with its work and the least time it takes."""
    rows = []
    for op, each in work.items():
        flops = each.flops + (each.backward_flops if backward else 0)
        moved = each.bytes + (each.backward_bytes if backward else 0)
        if not flops and not moved:
            continue
        group = GROUPS.get(op, "elementwise")
        rows.append(Row(op, group, flops, moved, *_least(flops, moved, group, hardware, dtype)))
    return rows


def _least(
    flops: int, moved: int, group: str, hardware: Hardware | None, dtype: str
) -> tuple[float | None, str | None]:
    if hardware is None:
        return None, None
    peak = hardware.peak(dtype) if group == "contraction" else hardware.vector_peak(dtype)
    compute, bandwidth = flops / peak, moved / hardware.bandwidth
    return max(compute, bandwidth), "compute" if compute >= bandwidth else "bandwidth"


def works(recipe: Recipe, run: Execution, batch: int, seq_len: int) -> dict[str, dict[str, OpWork]]:
    """The work of prefill (whole sequences) and of decode (one token each, after seq_len - 1 others)."""
    prefill = network(recipe, run._replace(work=Work(batch, seq_len)), train=False, logits_for=1)
    decode = network(recipe, run._replace(work=Work(batch, 1, seq_len - 1)), train=False)
    return {"prefill": prefill.work(), "decode": decode.work()}


def intensity_report(rows: dict[str, list[Row]], recipe: Recipe, batch: int, seq_len: int) -> dict[str, Any]:
    """``intensity`` of a budget: every class in every mode, the whole, the groups' shares, the texts' orders."""
    out: dict[str, Any] = {}
    for mode, each in rows.items():
        flops, moved = sum(r.flops for r in each), sum(r.bytes for r in each)
        groups: dict[str, dict[str, float]] = {}
        for r in each:
            entry = groups.setdefault(r.group, {"flops_share": 0.0, "bytes_share": 0.0})
            entry["flops_share"] += r.flops / flops
            entry["bytes_share"] += r.bytes / moved
        out[mode] = {
            "flops": flops,
            "bytes": moved,
            "intensity": flops / moved,
            "by_op": [r.to_dict(flops, moved) for r in each],
            "by_group": groups,
        }
    out["attention_order"] = attention_order(recipe, batch, seq_len)
    return out


def attention_order(recipe: Recipe, batch: int, seq_len: int) -> list[dict[str, Any]]:
    """The orders of an attention layer's intensity, constants dropped (Shazeer 2019, arXiv:1911.02150, sections 2-3).

    Training: ``1 / (1/k + 1/(b n))``. Decoding: ``1 / (n/d + 1/b)`` with all heads their own keys; with ``g`` KV heads
    of ``h``, ``n/d`` shrinks to ``n g/(d h)``. A window counts as n where it is shorter.
    """
    out = []
    for layer in count_layers(recipe.layers):
        for spec in attentions_of(layer.mixer):
            n = min(seq_len, spec.span.size) if isinstance(spec.span, WindowSpan) else seq_len
            d = recipe.d_model
            out.append(
                {
                    "layer": layer.name,
                    "train": 1 / (1 / spec.head_dim + 1 / (batch * n)),
                    "decode": 1 / (n * spec.kv_width / (d * spec.q_width) + 1 / batch),
                    "decode_if_every_head_had_its_own": 1 / (n / d + 1 / batch),
                }
            )
    return out
