"""A model's parameters from its fields alone, part by part, to hold against what is published.

One generic formula for every kind in the atlas: attention (MHA, GQA, MQA, MLA), feed-forward or experts, norms by
placement, tables, and ``extra_params`` for what the fields cannot say. What it cannot count it names in ``missing``.
"Active parameters" is three conventions in the field: everything that a token uses (Mixtral, Qwen3), without the input
table (gpt-oss, DeepSeek-V3), without any table (GLM-4.5, MiniMax); all three are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from assay.atlas.records import Model, QkNormFact

_NORMS = {"pre": 2, "post": 2, "reordered": 2, "deepnorm-post": 2, "sandwich": 4}  # norms a serial layer
# recurrent mixers without a count here
_UNCOUNTED = {"kda": "KDA", "mamba1": "Mamba", "mamba2": "Mamba-2", "lightning": "lightning-attention"}


@dataclass(frozen=True)
class Recount:
    """Parameters by the generic formula; zero where ``missing`` says why they cannot be counted."""

    total: int = 0
    active: int = 0
    active_without_input_embedding: int = 0
    non_embedding: int = 0  # active, without any token table or learned position
    parts: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def counted(self) -> bool:
        return not self.missing


def recount(model: Model) -> Recount:
    """The parameters of a model from its fields, or what is missing to count them."""
    missing = tuple(_missing(model))
    if missing:
        return Recount(missing=missing)
    d, tables = model.d_model or 0, _tables(model)
    idle = _idle_experts(model)
    extra = {str(item["what"]): int(item["count"]) for item in model.extra_params}
    positions = sum(n for what, n in extra.items() if "positions" in what)
    parts = {**tables, **_layers(model), "final norm": _norm(model, d) * _final_norms(model), **extra}
    total = sum(parts.values())
    active = total - idle
    input_table = 0 if model.tied_embeddings else tables["token table"]
    return Recount(
        total=total,
        active=active,
        active_without_input_embedding=active - input_table,
        non_embedding=active - tables["token table"] - tables["head table"] - positions,
        parts={name: n for name, n in parts.items() if n},
    )


def _missing(m: Model) -> Iterator[str]:
    for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "tied_embeddings", "biases"):
        if getattr(m, name) is None:
            yield f"{name} was not found"
    if m.d_ff is None and m.moe == "na":
        yield "d_ff was not found"
    if m.norm_kind is None:
        yield "the kind of norm was not found"
    if isinstance(m.hybrid, str | None) or m.hybrid["kind"] == "gated_deltanet":
        pass
    else:
        yield f"no count of {_UNCOUNTED.get(m.hybrid['kind'], m.hybrid['kind'])} layers"
    if m.attention == "mqa-shared-kv":
        yield "no count of compressed shared-KV attention"
    if not isinstance(m.moe, str | None) and (m.moe.get("experts") is None or m.moe.get("moe_every") is None):
        yield "the experts were not found"
    if not isinstance(m.moe, str | None) and "latent" in m.moe:
        yield "no count of experts in a latent width"
    if not isinstance(m.layer_overrides, str | None) and "per_layer_embedding" in m.layer_overrides:
        yield "no count of per-layer embeddings and shared KV layers"
    if m.residual_scale is not None and "streams" in str(m.residual_scale):
        yield "no count of hyper-connections"


def _norm(m: Model, width: int) -> int:
    """One norm over ``width`` channels."""
    if m.norm_kind == "layernorm_nonparametric":
        return 0
    return width * (2 if m.norm_bias else 1)


def _final_norms(m: Model) -> int:
    stacks = 2 if m.kind == "encoder-decoder" else 1
    return stacks if m.norm_final else 0


def _tables(m: Model) -> dict[str, int]:
    table = (m.vocab_size or 0) * (m.d_model or 0)
    return {
        "token table": table,
        "head table": 0 if m.tied_embeddings else table,
        "head bias": (m.vocab_size or 0) if "lm_head" in (m.biases or ()) else 0,
    }


def _layers(m: Model) -> dict[str, int]:
    """Attention, feed-forward and norms over all layers."""
    d, n = m.d_model or 0, m.n_layers or 0
    if m.kind == "encoder-decoder":
        encoder = m.n_encoder_layers if isinstance(m.n_encoder_layers, int) else 0
        return {
            "attention": (encoder + 2 * n) * _attention(m, m.head_dim or 0, m.n_kv_heads or 0),
            "feed-forward": (encoder + n) * _ffn(m, m.d_ff),
            "norms": (2 * encoder + 3 * n) * _norm(m, d),
        }
    per_layer = _NORMS.get(m.norm_placement or "pre", 2)
    if m.block == "parallel" and isinstance(m.parallel_norms, int):
        per_layer = m.parallel_norms
    full, other = _layer_counts(m)
    attention = other * _other_mixer(m) + full * _full_attention(m)
    return {"attention": attention, "feed-forward": _feed_forward(m), "norms": n * per_layer * _norm(m, d)}


def _layer_counts(m: Model) -> tuple[int, int]:
    """Layers of the last kind in a period (full attention), and the others."""
    n = m.n_layers or 0
    table = m.hybrid if not isinstance(m.hybrid, str | None) else m.layer_overrides
    if isinstance(table, str | None):
        return n, 0
    full = n // int(table.get("full_every") or table.get("every") or 1)
    return full, n - full


def _full_attention(m: Model) -> int:
    if isinstance(m.layer_overrides, str | None):
        return _attention(m, m.head_dim or 0, m.n_kv_heads or 0)
    over = m.layer_overrides
    head_dim = int(over.get("head_dim", m.head_dim))
    n_kv = int(over.get("n_kv_heads", m.n_kv_heads))
    return _attention(m, head_dim, n_kv, values=not over.get("k_eq_v"))


def _other_mixer(m: Model) -> int:
    if isinstance(m.hybrid, str | None):
        return _attention(m, m.head_dim or 0, m.n_kv_heads or 0)
    return _gated_deltanet(m)


def _gated_deltanet(m: Model) -> int:
    """Query, key, value and output-gate projection, beta and decay, a short convolution, output norm and projection."""
    assert not isinstance(m.hybrid, str | None)
    h, d = m.hybrid, m.d_model or 0
    keys = h["n_k_heads"] * h["k_head_dim"]
    values = h["n_v_heads"] * h["v_head_dim"]
    inner = 2 * keys + values
    scalars = 2 * h["n_v_heads"] + h["v_head_dim"]
    return int(d * (inner + values) + d * 2 * h["n_v_heads"] + inner * h["conv"] + scalars + values * d)


def _attention(m: Model, head_dim: int, n_kv: int, *, values: bool = True) -> int:
    if not isinstance(m.mla, str | None):
        return _mla(m)
    d, heads, biases = m.d_model or 0, m.n_heads or 0, m.biases or ()
    q, kv = heads * head_dim, n_kv * head_dim * (2 if values else 1)
    gate = q if m.output_gate == "channel" else 0
    total = d * (q + gate + kv) + q * d
    total += (q + kv if "attn_qkv" in biases else 0) + (d if "attn_out" in biases else 0)
    total += heads if m.sinks == "per_head" else 0
    return total + _qk_norm(m.qk_norm, head_dim, heads + n_kv)


def _qk_norm(fact: QkNormFact | str | None, head_dim: int, heads: int) -> int:
    if not isinstance(fact, QkNormFact) or not fact.gain:
        return 0
    shared = fact.over == "head" and fact.gain_per == "shared"
    return 2 * head_dim if shared else heads * head_dim


def _mla(m: Model) -> int:
    """Low-rank queries (or full), one latent for keys and values with its norm, the shared rotary key, the output."""
    assert not isinstance(m.mla, str | None)
    d, heads, a = m.d_model or 0, m.n_heads or 0, m.mla
    qk = a["qk_nope"] + a["qk_rope"]
    rank = a["q_lora"]
    query = d * heads * qk if rank == "none" else d * rank + rank + rank * heads * qk
    latent = d * (a["kv_lora"] + a["qk_rope"]) + a["kv_lora"]
    expand = a["kv_lora"] * heads * (a["qk_nope"] + a["v_head"])
    return int(query + latent + expand + heads * a["v_head"] * d)


def _ffn(m: Model, width: int | str | None, *, bias: bool | None = None) -> int:
    if not isinstance(width, int):
        return 0
    d, inner = m.d_model or 0, 2 if m.gated else 1
    biased = "ffn" in (m.biases or ()) if bias is None else bias
    return (inner + 1) * d * width + ((inner * width + d) if biased else 0)


def _feed_forward(m: Model) -> int:
    n = m.n_layers or 0
    if isinstance(m.moe, str | None):
        return n * _ffn(m, m.d_ff)
    sparse = _moe_layers(m)
    beside = n if m.moe.get("parallel_dense") else n - sparse
    return sparse * _experts(m) + beside * _ffn(m, m.d_ff)


def _moe_layers(m: Model) -> int:
    assert not isinstance(m.moe, str | None)
    return ((m.n_layers or 0) - int(m.moe.get("dense_first") or 0)) // int(m.moe["moe_every"])


def _experts(m: Model) -> int:
    """Router (with its bias), every expert, the shared expert and its gate: one layer."""
    assert not isinstance(m.moe, str | None)
    t, d, biases = m.moe, m.d_model or 0, m.biases or ()
    router = d * t["experts"] + (t["experts"] if "router" in biases or "bias-corrected" in str(t["router"]) else 0)
    shared = _ffn(m, t.get("d_shared")) if t.get("shared") else 0
    gate = d if t.get("shared_gate") else 0
    return int(router + t["experts"] * _ffn(m, t["d_expert"], bias="experts" in biases) + shared + gate)


def _idle_experts(m: Model) -> int:
    """Experts that a token does not pass through, over all layers."""
    if isinstance(m.moe, str | None):
        return 0
    one = _ffn(m, m.moe["d_expert"], bias="experts" in (m.biases or ()))
    return int(_moe_layers(m) * (m.moe["experts"] - m.moe["top_k"]) * one)
