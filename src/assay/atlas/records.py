"""What is known of one real model: a frozen record, each value as its source states it.

Three words of absence: ``None`` was not found in a source that was read, ``"none"`` is known to be absent, ``"na"``
does not apply. ``d_ff`` is per matrix; ``norm_eps`` and ``context_length`` are as shipped in the released config where
one was read. ``params.precision``: ``exact`` (published or counted), ``rounded`` (a name or a rounded figure) or
``computed`` (from these fields only).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Absent = Literal["none", "na"]


@dataclass(frozen=True, slots=True)
class OtherCount:
    """A second published parameter count, and the rows of the token table that it counts."""

    total: int
    vocab_size: int
    source: str


@dataclass(frozen=True, slots=True)
class ModelParams:
    """Published parameter counts; ``active`` by the publisher's own convention."""

    total: int | None = None
    precision: Literal["exact", "rounded", "computed"] | None = None
    active: int | None = None
    active_precision: Literal["exact", "rounded", "computed"] | None = None
    non_embedding: int | None = None
    note: str | None = None
    also: tuple[OtherCount, ...] = ()


@dataclass(frozen=True, slots=True)
class QkNormFact:
    """The norm of queries and keys."""

    norm: str
    over: Literal["head", "width"]
    gain: bool
    gain_per: Literal["shared", "head"]
    zero_centred: bool
    order: Literal["before_rope", "after_rope"]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """How the model was pretrained; what a paper does not say is None."""

    tokens: int | None = None
    tokens_note: str | None = None
    batch_tokens: int | None = None
    batch_note: str | None = None
    seq_len: int | None = None
    steps: int | None = None
    peak_lr: float | None = None
    min_lr: float | None = None
    schedule: str | None = None
    warmup: str | None = None
    optimizer: str | None = None
    beta1: float | None = None
    beta2: float | str | None = None
    opt_eps: float | None = None
    weight_decay: float | str | None = None
    wd_note: str | None = None
    dropout: float | None = None
    dropout_note: str | None = None
    dropout_on: tuple[str, ...] = ()  # embedding, residual, attention
    grad_clip: float | None = None
    z_loss: float | str | None = None
    init: str | None = None
    note: str | None = None

    @property
    def warmup_steps(self) -> int | None:
        """The warmup as a number of steps, where it is stated in steps."""
        head = (self.warmup or "").split(" ")
        return int(head[0]) if len(head) > 1 and head[0].isdigit() and head[1] in ("steps", "updates") else None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the facts were read: architecture, parameter count, training."""

    arch: tuple[str, ...] = ()
    count: tuple[str, ...] = ()
    training: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.arch, *self.count, *self.training)))


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One real model; there is one object a model. ``moe``, ``mla``, ``hybrid``, ``rope_scaling`` ... are mappings."""

    id: str
    name: str
    org: str
    date: str | None
    date_basis: str | None
    family: str
    kind: Literal["dense", "moe", "hybrid-dense", "hybrid-moe", "encoder", "encoder-decoder"]
    params: ModelParams
    n_layers: int | None
    d_model: int | None
    n_heads: int | None
    n_kv_heads: int | None
    head_dim: int | None
    d_ff: int | Absent | None
    gated: bool | None
    activation: str | None
    activation_note: str | None
    norm_kind: str | None
    norm_placement: str | None
    norm_final: bool | None
    norm_eps: float | None
    norm_zero_centred: bool | None
    norm_bias: bool | None
    norm_note: str | None
    position: str | None
    rope_theta: float | Absent | None
    rope_theta_local: float | Absent | None
    rope_scaling: Mapping[str, Any] | Absent | None
    partial_rotary: float | Absent | None
    rope_layout: str | None
    nope_layers: str | None
    attention: str | None
    attention_pattern: str | None
    sliding_window: int | Absent | None
    local_to_global: tuple[int, int] | Absent | None
    attention_note: str | None
    qk_norm: QkNormFact | Absent | None
    attn_softcap: float | Absent | None
    final_softcap: float | Absent | None
    attn_scale: float | Literal["default"] | None
    attn_scale_note: str | None
    logit_scale: float | Literal["none", "inv_sqrt_d_model"] | None
    residual_scale: float | str | None
    sinks: Literal["none", "per_head"]
    output_gate: Literal["none", "channel"]
    biases: tuple[str, ...] | None
    block: Literal["serial", "parallel"] | None
    parallel_norms: int | Absent | None
    tied_embeddings: bool | None
    embedding_norm: bool
    embedding_width: int | Absent | None  # columns of the token table, where it is narrower than the model
    position_offset: int  # unused rows before a learned position table
    embedding_scale: float | Literal["none", "sqrt_d_model"] | None
    vocab_size: int | None
    vocab_note: str | None
    context_length: int | Absent | None
    context_pretrain: int | None
    moe: Mapping[str, Any] | Absent | None
    mla: Mapping[str, Any] | Absent | None
    hybrid: Mapping[str, Any] | Absent | None
    layer_overrides: Mapping[str, Any] | Absent | None
    n_encoder_layers: int | Absent | None
    extra_params: tuple[Mapping[str, Any], ...]
    training: Training
    source: ModelSource
    disagreements: tuple[str, ...]
    notes: tuple[str, ...]
    hf_model_type: str | None
    hf_note: str | None
    hf_id: str | None
    recipe: Mapping[str, Any] = field(default_factory=dict)  # values that a recipe takes where published ones differ
    preset: str | None = None  # the shipped recipe of this model, where it is not named like ``id``

    @property
    def year(self) -> int | None:
        return int(self.date[:4]) if self.date else None

    @property
    def ffn_ratio(self) -> float | None:
        """d_ff / d_model, per matrix."""
        return self.d_ff / self.d_model if isinstance(self.d_ff, int) and self.d_model else None

    @property
    def attention_ratio(self) -> float | None:
        """heads x head_dim / d_model; with MLA, of the query-key size."""
        if self.n_heads is None or self.head_dim is None or not self.d_model:
            return None
        return self.n_heads * self.head_dim / self.d_model

    @property
    def aspect_ratio(self) -> float | None:
        """d_model / n_layers."""
        return self.d_model / self.n_layers if self.d_model and self.n_layers else None

    @property
    def kv_group(self) -> int | None:
        """Query heads that share one key and value head."""
        if self.n_heads is None or not self.n_kv_heads or self.attention == "mla":
            return None
        return self.n_heads // self.n_kv_heads

    @property
    def is_decoder(self) -> bool:
        return self.kind not in ("encoder", "encoder-decoder")

    @property
    def is_moe(self) -> bool:
        return self.kind in ("moe", "hybrid-moe")

    @property
    def linear_bias(self) -> bool | None:
        """A bias in any linear layer of the stack."""
        if self.biases is None:
            return None
        return bool({"attn_qkv", "attn_out", "ffn", "experts"} & set(self.biases))
