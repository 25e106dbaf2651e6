"""The facts of a real model as a reader wants them: named, grouped, each group with its sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Row = tuple[str, str]  # what it is, and its value as text

# title -> which sources it was read from, and its facts: path in the model's record, name
GROUPS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "Parameters": (
        "count",
        (
            ("params.total", "published"),
            ("params.precision", "precision"),
            ("params.active", "active"),
            ("params.active_precision", "precision of active"),
            ("params.non_embedding", "without embeddings"),
            ("params.note", "note"),
            ("params.also", "published too"),
        ),
    ),
    "Shape": (
        "arch",
        (
            ("n_layers", "layers"),
            ("n_encoder_layers", "encoder layers"),
            ("d_model", "d_model"),
            ("n_heads", "query heads"),
            ("n_kv_heads", "KV heads"),
            ("head_dim", "head size"),
            ("d_ff", "d_ff (per matrix)"),
            ("ratios.ffn", "d_ff / d_model"),
            ("ratios.attention", "heads x head size / d_model"),
            ("ratios.aspect", "d_model / layers"),
            ("ratios.kv_group", "query heads a KV head"),
            ("vocab_size", "rows of the token table"),
            ("vocab_note", "vocabulary, note"),
            ("context_length", "context as shipped"),
            ("context_pretrain", "context of pretraining"),
        ),
    ),
    "Attention": (
        "arch",
        (
            ("attention", "kind"),
            ("attention_pattern", "pattern"),
            ("sliding_window", "window"),
            ("local_to_global", "local : global"),
            ("attention_note", "note"),
            ("qk_norm", "QK-norm"),
            ("attn_softcap", "soft-cap"),
            ("attn_scale", "scale"),
            ("attn_scale_note", "scale, note"),
            ("sinks", "sinks"),
            ("output_gate", "output gate"),
            ("mla", "MLA"),
        ),
    ),
    "Positions": (
        "arch",
        (
            ("position", "kind"),
            ("rope_theta", "RoPE theta"),
            ("rope_theta_local", "RoPE theta, local layers"),
            ("rope_scaling", "RoPE scaling"),
            ("partial_rotary", "rotated fraction"),
            ("rope_layout", "RoPE layout"),
            ("nope_layers", "layers without positions"),
            ("position_offset", "unused rows"),
        ),
    ),
    "Feed-forward": (
        "arch",
        (
            ("activation", "activation"),
            ("gated", "gated"),
            ("activation_note", "note"),
            ("moe", "experts"),
        ),
    ),
    "Norms and residual": (
        "arch",
        (
            ("norm_kind", "norm"),
            ("norm_placement", "placement"),
            ("norm_final", "before the head"),
            ("norm_eps", "epsilon"),
            ("norm_zero_centred", "gain is 1 + g"),
            ("norm_bias", "bias of norms"),
            ("norm_note", "note"),
            ("block", "block"),
            ("parallel_norms", "norms a parallel block"),
            ("residual_scale", "residual scale"),
            ("biases", "biases of linear layers"),
        ),
    ),
    "The two ends": (
        "arch",
        (
            ("tied_embeddings", "tied"),
            ("embedding_scale", "embedding scale"),
            ("embedding_norm", "embedding norm"),
            ("embedding_width", "width of the token table"),
            ("final_softcap", "output soft-cap"),
            ("logit_scale", "logit scale"),
        ),
    ),
    "Other layers": (
        "arch",
        (
            ("hybrid", "hybrid"),
            ("layer_overrides", "layers that differ"),
            ("extra_params", "further parameters"),
        ),
    ),
    "Training": (
        "training",
        (
            ("training.tokens", "tokens"),
            ("training.tokens_note", "tokens, note"),
            ("training.batch_tokens", "tokens a step"),
            ("training.batch_note", "batch, note"),
            ("training.seq_len", "sequence"),
            ("training.steps", "steps"),
            ("training.peak_lr", "peak learning rate"),
            ("training.min_lr", "lowest learning rate"),
            ("training.schedule", "schedule"),
            ("training.warmup", "warmup"),
            ("training.optimizer", "optimizer"),
            ("training.beta1", "beta 1"),
            ("training.beta2", "beta 2"),
            ("training.opt_eps", "epsilon"),
            ("training.weight_decay", "weight decay"),
            ("training.wd_note", "weight decay, note"),
            ("training.dropout", "dropout"),
            ("training.dropout_note", "dropout, note"),
            ("training.grad_clip", "gradient norm clipped to"),
            ("training.z_loss", "z-loss"),
            ("training.init", "start of the weights"),
            ("training.note", "note"),
        ),
    ),
}
_QUIET = ("note", "published too", "further parameters", "query heads a KV head")  # their absence is not news


def facts_of(model: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The facts of a model's record, group by group; what is absent, and what was not found, in a row each."""
    return {title: list(_rows(model, facts)) for title, (_, facts) in GROUPS.items()}


def sources_of(model: Mapping[str, Any], title: str) -> list[str]:
    """Where a group's facts were read."""
    return list(model["source"][GROUPS[title][0]])


def recount_words(model: Mapping[str, Any]) -> str:
    """The count of the fields beside the published one."""
    published, counted = model["params"]["total"], model["recount"]["total"]
    missing = "; ".join(model["recount"]["missing"])
    if not counted:
        return f"not recounted: {missing}" if missing else "not recounted"
    if not published:
        return f"{counted:,} from the fields"
    off = counted / published - 1
    words = f"{counted:,} from the fields, {'the same' if off == 0 else f'{100 * off:+.3g}%'}"
    return f"{words} (without {missing})" if missing else words


def _rows(model: Mapping[str, Any], facts: tuple[tuple[str, str], ...]) -> Iterator[Row]:
    absent, unknown = [], []
    for path, name in facts:
        value: Any = model
        for key in path.split("."):
            value = value[key]
        quiet = name.endswith(_QUIET)
        if value == "na" or (quiet and value in (None, [])):
            continue
        if value is None:
            unknown.append(name)
        elif value in ("none", [], 0) and not isinstance(value, bool):
            absent.append(name)
        else:
            yield name, " : ".join(map(str, value)) if path == "local_to_global" else said(value)
    if absent:
        yield "none", ", ".join(absent)
    if unknown:
        yield "not found", ", ".join(unknown)


def said(value: Any) -> str:
    """A fact in words: tables key by key, lists with commas."""
    from assay.atlas.cells import shown

    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {said(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        joint = "; " if any(isinstance(item, Mapping) for item in value) else ", "
        return joint.join(said(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1_000_000:
        from assay.cli.numbers import count

        return count(value)
    return shown(value)
