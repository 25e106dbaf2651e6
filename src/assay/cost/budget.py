"""The budget: what a recipe costs, each number with its convention beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assay.cost.conventions import CONVENTIONS
from assay.cost.model import cache_of, count_layers, embedding_tensors, flops_of, head_tensors, layer_tensors
from assay.cost.rules import Tensor, Work, rule_of
from assay.cost.setting import DTYPE_BYTES, check_setting, tables_of
from assay.recipe.recipe import Recipe
from assay.recipe.roles import ParamRole


@dataclass(frozen=True)
class Params:
    """Parameter counts."""

    total: int
    active: int
    active_without_input_embedding: int
    non_embedding: int
    embedding: int
    by_component: dict[str, int]
    by_role: dict[str, int]


@dataclass(frozen=True)
class FlopCounts:
    """FLOPs; conventions in :data:`CONVENTIONS`."""

    forward_full: int
    forward_causal: int
    train_per_token: int
    train_per_token_causal: int
    decode_per_token: int
    prefill: int
    six_n: int
    by_op: dict[str, int]
    elementwise_forward: int = 0
    elementwise_by_op: dict[str, int] = field(default_factory=dict)
    recomputed_per_token: int = 0


@dataclass(frozen=True)
class Cache:
    """Bytes of keys, values and states."""

    bytes: int
    bytes_per_token: int
    by_layer: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Memory:
    """Bytes of what must be held: all weights; and the ledgers of training and inference on one device."""

    weights_bytes: int
    train: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, Any] = field(default_factory=dict)
    inference: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """What a recipe costs at a batch, a length and a dtype, on a device and under a plan where these are given.

    Attributes:
        hardware: the device with its peak and source; None where none is given, and ``time`` is empty then.
        intensity: FLOPs and bytes of every operation class in training, prefill and decode.
        time: lower bounds; the length of a training run where ``tokens`` are given.
        parallel: the plan, its bubble and communication, the alignment of every dimension.
        findings: what the shape, the plan or the device make worse than it need be, each with its fix.
    """

    name: str
    digest: str
    batch: int
    seq_len: int
    dtype: str
    params: Params
    flops: FlopCounts
    cache: Cache
    memory: Memory
    hardware: dict[str, Any] | None = None
    intensity: dict[str, Any] = field(default_factory=dict)
    time: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    scaling: dict[str, Any] = field(default_factory=dict)
    findings: tuple[dict[str, Any], ...] = ()
    conventions: dict[str, str] = field(default_factory=lambda: dict(CONVENTIONS))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts: what ``assay budget --json`` prints."""
        return asdict(self)


def budget(
    recipe: Recipe,
    batch: int = 1,
    seq_len: int | None = None,
    dtype: str = "bf16",
    *,
    hardware: str | Path | None = None,
    parallel: str | None = None,
    optimizer: str | None = None,
    tokens: float | None = None,
    devices: int | None = None,
    recompute: str = "none",
    backend: str = "auto",
    mfu: float | None = None,
    tokens_per_second: float | None = None,
) -> Budget:
    """Parameters, FLOPs, cache, memory, intensity, time and findings of a recipe.

    Args:
        batch: sequences of a step, over all replicas.
        seq_len: tokens a sequence; the recipe's ``max_seq_len`` when None.
        dtype: of weights, activations and cache: fp32, bf16, fp16 or fp8 (which keeps activations in 16 bits).
        hardware: a device of the table, or a TOML file; decides times, and which kernels keep activations.
        parallel: ``tp=8,pp=2,dp=64,zero=1,sp=1,microbatches=16``; see :func:`assay.cost.parallel.parse_plan`.
        optimizer: ``adamw``, ``muon``, ``sgd``, ..., alone or with a ledger: ``adamw-megatron``.
        tokens: of a whole training run. devices: of the cluster, for ``dp=auto`` or to check the plan.
        recompute: ``none``, ``selective`` (attention's core) or ``full`` (each layer) in the backward pass.
        backend: attention kernel: ``auto``, ``sdpa`` or ``reference``.
        mfu: assumed utilization of a training run. tokens_per_second: a measured rate, to be told as one.

    Raises:
        ValueError: names the argument, its value and what is allowed; a plan that does not divide is told whole.
    """
    at = check_setting(
        recipe, batch, seq_len, dtype, hardware=hardware, parallel=parallel, optimizer=optimizer, devices=devices,
        recompute=recompute, backend=backend, tokens=tokens, mfu=mfu, tokens_per_second=tokens_per_second,
    )  # fmt: skip
    from assay.cost.report import reports

    params = count_params(recipe)
    flops = count_flops(recipe, at.batch, at.seq_len, params)
    more = reports(recipe, at, params.total, asdict(flops))
    return Budget(
        name=recipe.name,
        digest=recipe.digest,
        batch=at.batch,
        seq_len=at.seq_len,
        dtype=dtype,
        params=params,
        flops=FlopCounts(**{**vars(flops), **more.flops}),
        cache=_cache(recipe, at.batch, at.seq_len, DTYPE_BYTES[dtype]),
        memory=Memory(weights_bytes=params.total * DTYPE_BYTES[dtype], **more.memory),
        hardware=None if at.hardware is None else at.hardware.to_dict(dtype),
        intensity=more.intensity,
        time=more.time,
        parallel=more.parallel,
        scaling=more.scaling,
        findings=tables_of(more.findings),
    )


def _counted(recipe: Recipe) -> Iterator[tuple[str, Tensor, int]]:
    """Every distinct parameter with its component, and how many of it there are."""
    for t in embedding_tensors(recipe):
        yield "embedding", t, 1
    for layer, times in count_layers(recipe.layers).items():
        for t in layer_tensors(layer, recipe.d_model):
            yield t.name.partition(".")[0], t, times
    for t in head_tensors(recipe):
        yield "head", t, 1


def count_params(recipe: Recipe) -> Params:
    """Exact counts from the tensors, in the conventions of :data:`CONVENTIONS`.

    Components: ``embedding``, ``mixer``, ``ffn``, ``residual`` (its norms and scales) and ``head``.
    """
    by_role: Counter[str] = Counter()
    by_component: Counter[str] = Counter()
    for component, t, times in _counted(recipe):
        by_role[str(t.role)] += t.numel * times
        by_component[component] += t.numel * times
    total = sum(by_role.values())
    table = by_role[ParamRole.EMBEDDING]
    embedding = table + by_role[ParamRole.POSITION] + by_role[ParamRole.HEAD]
    return Params(
        total=total,
        active=total,
        active_without_input_embedding=total if recipe.embedding.tied else total - table,
        non_embedding=total - embedding,
        embedding=embedding,
        by_component=dict(by_component),
        by_role=dict(by_role),
    )


def count_flops(recipe: Recipe, batch: int, seq_len: int, params: Params) -> FlopCounts:
    """FLOPs of training, prefill and decode; exact integers."""
    whole = flops_of(recipe, Work(batch, seq_len))
    prefill = flops_of(recipe, Work(batch, seq_len), logits_for=1).total
    one = flops_of(recipe, Work(1, 1, seq_len - 1)).total
    total = whole.total
    full, causal = total.matmul + total.core_square, total.matmul + total.core_legal
    tokens = batch * seq_len
    table = params.by_role[ParamRole.EMBEDDING]
    used_tables = table if recipe.embedding.tied else params.by_role[ParamRole.HEAD]
    return FlopCounts(
        forward_full=full,
        forward_causal=causal,
        train_per_token=3 * full // tokens,
        train_per_token_causal=3 * causal // tokens,
        decode_per_token=one.matmul + one.core_legal,
        prefill=prefill.matmul + prefill.core_legal,
        six_n=6 * (params.non_embedding + used_tables),
        by_op={
            "mixer_projections": whole.mixer.matmul,
            "attention_core_legal": total.core_legal,
            "attention_core_square": total.core_square,
            "ffn": whole.ffn.matmul,
            "embedding_projection": whole.embedding.matmul,
            "unembedding": whole.head.matmul,
        },
    )


def _cache(recipe: Recipe, batch: int, seq_len: int, width: int) -> Cache:
    size = cache_of(recipe, seq_len)
    by_layer: dict[str, dict[str, int]] = {}
    for layer, times in count_layers(recipe.layers).items():
        held = rule_of(layer.mixer).cache(layer.mixer, recipe.d_model, seq_len)
        entry = by_layer.setdefault(layer.name, {"layers": 0, "bytes": 0, "bytes_per_token": 0})
        entry["layers"] += times
        entry["bytes"] += batch * held.held * width * times
        entry["bytes_per_token"] += held.per_token * width * times
    return Cache(batch * size.held * width, size.per_token * width, by_layer)


__all__ = ["CONVENTIONS", "DTYPE_BYTES", "Budget", "budget", "count_flops", "count_params"]
