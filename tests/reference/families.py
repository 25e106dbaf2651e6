"""Tiny models of transformers' families, and the same models as authored recipes.

Each side is written from its own documentation: the config is the one its library reads, the recipe says in this
library's words what that config means. Weights go over by name, module by module; nothing may be left on either side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

D, VOCAB, WINDOW, CONTEXT = 24, 37, 6, 64

# transformers' modules -> ours; {i} is the depth
ATTENTION = {
    "self_attn.q_proj": "mixer.q",
    "self_attn.k_proj": "mixer.k",
    "self_attn.v_proj": "mixer.v",
    "self_attn.o_proj": "mixer.o",
    "self_attn.q_norm": "mixer.q_norm",
    "self_attn.k_norm": "mixer.k_norm",
}
GATED = {"mlp.gate_proj": "ffn.gate", "mlp.up_proj": "ffn.up", "mlp.down_proj": "ffn.down"}
PRE = {
    "input_layernorm": "residual.mixer.input_norm",
    "post_attention_layernorm": "residual.ffn.input_norm",
}
SANDWICH = {
    "input_layernorm": "residual.mixer.input_norm",
    "post_attention_layernorm": "residual.mixer.output_norm",
    "pre_feedforward_layernorm": "residual.ffn.input_norm",
    "post_feedforward_layernorm": "residual.ffn.output_norm",
}
REORDERED = {
    "post_attention_layernorm": "residual.mixer.output_norm",
    "post_feedforward_layernorm": "residual.ffn.output_norm",
}
SHARED = {"input_layernorm": "residual.input_norm"}


def modules(norms: Mapping[str, str], ffn: Mapping[str, str] = GATED, **other: str) -> dict[str, str]:
    """The names of a Llama-like family."""
    layer = {f"model.layers.{{i}}.{a}": f"layers.{{i}}.{b}" for a, b in {**ATTENTION, **ffn, **norms, **other}.items()}
    return {"model.embed_tokens": "embedding", "model.norm": "head.norm", "lm_head": "head", **layer}


Params = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """One model on both sides.

    ``flips``: changes of the recipe, as ``key.path=value``, that must break the agreement.
    """

    kind: str
    config: dict[str, Any]
    recipe: dict[str, Any]
    names: dict[str, str]
    flips: tuple[str, ...]
    prepare: Callable[[Params], Params] = field(default=lambda params: params)

    def translate(self, params: Params) -> Params:
        """Parameters under our names. Raises KeyError for one that has no place."""
        out: Params = {}
        for name, value in self.prepare(params).items():
            module, _, leaf = name.rpartition(".")
            depth = re.search(r"\.(\d+)\.", module)
            target = self.names[module if depth is None else module.replace(depth[0], ".{i}.", 1)]
            target = target if depth is None else target.replace("{i}", depth[1])
            if leaf == "weight" and target.endswith("norm"):
                leaf = "gain"
            elif leaf == "weight" and target in ("embedding", "embedding.position", "head"):
                leaf = "table"
            out[f"{target}.{leaf}"] = value
        if self.recipe["embedding"]["tied"]:
            assert torch.equal(out.pop("head.table"), out["embedding.table"])
        return out


def recipe(mixer: dict[str, Any], ffn: dict[str, Any], residual: dict[str, Any], **more: Any) -> dict[str, Any]:
    block = {"mixer": {"kind": "attention", **mixer}, "ffn": ffn, "residual": residual}
    base = {"d_model": D, "vocab_size": VOCAB, "max_seq_len": CONTEXT, "n_layers": 3, "block": block}
    return {**base, "embedding": {"tied": False}, **more}


def sizes(**more: Any) -> dict[str, Any]:
    """The sizes as most configs call them."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": D,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        **more,
    }


def theta(value: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": value, **more}


GQA = {"n_heads": 4, "n_kv_heads": 2, "position": {"kind": "rope", "theta": 100.0}}
SWIGLU = {"kind": "glu", "d_ff": 40, "activation": "silu"}
RMS = {"kind": "rmsnorm", "eps": 1e-3}
RMS_1P = {**RMS, "gain": "one_plus"}
LN = {"kind": "layernorm", "eps": 1e-3}
LN_NO_BIAS = {**LN, "bias": False}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LOCAL_GLOBAL = ["sliding_attention", "full_attention", "sliding_attention"]
STACK = ["local", "global", "local"]
WINDOWED = {"mixer": {"span": {"kind": "window", "size": WINDOW}}}

FAMILIES: dict[str, Family] = {}

# an original context of 16 puts bands of all three kinds within four pairs
FAMILIES["llama"] = Family(
    "llama",
    sizes(
        head_dim=8,
        rms_norm_eps=1e-3,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=theta(100.0, **LLAMA3, original_max_position_embeddings=16) | {"rope_type": "llama3"},
    ),
    recipe(
        {
            **GQA,
            "head_dim": 8,
            "bias": "all",
            "position": {
                "kind": "rope",
                "theta": 100.0,
                "scaling": {"kind": "llama3", **LLAMA3, "original_seq_len": 16},
            },
        },
        {**SWIGLU, "bias": "all"},
        {"rule": "pre", "norm": RMS},
        head={"norm": RMS},
    ),
    modules(PRE),
    ("block.mixer.position.scaling=none", "block.mixer.position.scaling.factor=4", "block.residual.norm.eps=2e-3"),
)
FAMILIES["llama, tied, YaRN"] = Family(
    "llama",
    sizes(
        rms_norm_eps=1e-3,
        num_key_value_heads=1,
        num_attention_heads=3,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 2.0,
            "beta_slow": 0.5,
        },
    ),
    recipe(
        {
            "n_heads": 3,
            "n_kv_heads": 1,
            "position": {
                "kind": "rope",
                "theta": 100.0,
                "scaling": {"kind": "yarn", "factor": 4, "original_seq_len": 16, "beta_fast": 2, "beta_slow": 0.5},
            },
        },
        SWIGLU,
        {"rule": "pre", "norm": RMS},
        embedding={"tied": True},
        head={"norm": RMS},
    ),
    modules(PRE),
    ("block.mixer.position.scaling.attention_factor=1", "block.mixer.position.scaling.rounded=false"),
)
FAMILIES["mistral"] = Family(
    "mistral",
    sizes(head_dim=8, rms_norm_eps=1e-3, sliding_window=WINDOW, rope_parameters=theta(100.0)),
    recipe(
        {**GQA, "head_dim": 8, "span": {"kind": "window", "size": WINDOW}},
        SWIGLU,
        {"rule": "pre", "norm": RMS},
        head={"norm": RMS},
    ),
    modules(PRE),
    (f"block.mixer.span.size={WINDOW + 1}", f"block.mixer.span.size={WINDOW - 1}", "block.mixer.span=full"),
)
FAMILIES["qwen2"] = Family(
    "qwen2",
    sizes(rms_norm_eps=1e-3, rope_parameters=theta(100.0)),
    recipe({**GQA, "bias": ["q", "k", "v"]}, SWIGLU, {"rule": "pre", "norm": RMS}, head={"norm": RMS}),
    modules(PRE),
    ("block.mixer.position.theta=200", "block.ffn.activation=gelu"),
)
FAMILIES["qwen3"] = Family(
    "qwen3",
    sizes(head_dim=8, rms_norm_eps=1e-3, tie_word_embeddings=True, rope_parameters=theta(100.0)),
    recipe(
        {**GQA, "head_dim": 8, "qk_norm": {"over": "head", "norm": RMS}},
        SWIGLU,
        {"rule": "pre", "norm": RMS},
        embedding={"tied": True},
        head={"norm": RMS},
    ),
    modules(PRE),
    ("block.mixer.qk_norm.order=after_rope", "block.mixer.qk_norm.norm.eps=2e-3"),
)
FAMILIES["gemma"] = Family(
    "gemma",
    sizes(
        head_dim=8,
        num_key_value_heads=1,
        rms_norm_eps=1e-3,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        rope_parameters=theta(100.0),
    ),
    recipe(
        {**GQA, "n_kv_heads": 1, "head_dim": 8},
        {**SWIGLU, "activation": "gelu_tanh"},
        {"rule": "pre", "norm": RMS_1P},
        embedding={"tied": True, "scale": "sqrt_d_model"},
        head={"norm": RMS_1P},
    ),
    modules(PRE),
    ("embedding.scale=1.0", "block.ffn.activation=silu"),
)
FAMILIES["gemma2"] = Family(
    "gemma2",
    sizes(
        head_dim=8,
        rms_norm_eps=1e-3,
        tie_word_embeddings=True,
        query_pre_attn_scalar=12,
        sliding_window=WINDOW,
        layer_types=LOCAL_GLOBAL,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        rope_parameters=theta(100.0),
    ),
    recipe(
        {**GQA, "head_dim": 8, "scale": 12**-0.5, "soft_cap": 2.0},
        {**SWIGLU, "activation": "gelu_tanh"},
        {"rule": "sandwich", "norm": RMS_1P},
        embedding={"tied": True, "scale": "sqrt_d_model"},
        stack=STACK,
        layers={"local": WINDOWED, "global": {}},
        head={"norm": RMS_1P, "soft_cap": 3.0},
    ),
    modules(SANDWICH),
    (
        "block.mixer.soft_cap=none",
        "head.soft_cap=none",
        "block.mixer.scale=inv_sqrt_head_dim",
        "block.ffn.activation=gelu",
        f"layers.local.mixer.span.size={WINDOW + 1}",
        'stack=["global", "local", "local"]',
    ),
)
FAMILIES["gemma3"] = Family(
    "gemma3_text",
    sizes(
        head_dim=8,
        rms_norm_eps=1e-3,
        tie_word_embeddings=True,
        query_pre_attn_scalar=12,
        sliding_window=WINDOW,
        layer_types=LOCAL_GLOBAL,
        rope_parameters={
            "sliding_attention": theta(50.0),
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
        },
    ),
    recipe(
        {
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 8,
            "scale": 12**-0.5,
            "qk_norm": {"over": "head", "norm": RMS_1P},
        },
        {**SWIGLU, "activation": "gelu_tanh"},
        {"rule": "sandwich", "norm": RMS_1P},
        embedding={"tied": True, "scale": "sqrt_d_model"},
        stack=STACK,
        layers={
            "local": {"mixer": {**WINDOWED["mixer"], "position": {"kind": "rope", "theta": 50.0}}},
            "global": {
                "mixer": {"position": {"kind": "rope", "theta": 300.0, "scaling": {"kind": "linear", "factor": 8}}}
            },
        },
        head={"norm": RMS_1P},
    ),
    modules(SANDWICH),
    (
        'layers.local.mixer.position.scaling={kind = "linear", factor = 8}',
        "layers.global.mixer.position.scaling=none",
        "layers.global.mixer.position.theta=50",
    ),
)
FAMILIES["olmo2"] = Family(
    "olmo2",
    sizes(rms_norm_eps=1e-3, rope_parameters=theta(100.0)),
    recipe(
        {**GQA, "qk_norm": {"over": "width", "norm": RMS}},
        SWIGLU,
        {"rule": "reordered", "norm": RMS},
        head={"norm": RMS},
    ),
    modules(REORDERED),
    ("block.mixer.qk_norm.norm.eps=2e-3", "block.mixer.qk_norm.order=after_rope"),
)
FAMILIES["olmo3"] = Family(
    "olmo3",
    sizes(
        rms_norm_eps=1e-3,
        sliding_window=WINDOW,
        layer_types=LOCAL_GLOBAL,
        rope_parameters={
            "sliding_attention": theta(100.0),
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 2.0,
                "beta_slow": 0.5,
            },
        },
    ),
    recipe(
        {**GQA, "qk_norm": {"over": "width", "norm": RMS}},
        SWIGLU,
        {"rule": "reordered", "norm": RMS},
        stack=STACK,
        layers={
            "local": WINDOWED,
            "global": {
                "mixer": {
                    "position": {
                        "scaling": {
                            "kind": "yarn",
                            "factor": 4,
                            "original_seq_len": 16,
                            "beta_fast": 2,
                            "beta_slow": 0.5,
                        }
                    }
                }
            },
        },
        head={"norm": RMS},
    ),
    modules(REORDERED),
    ("layers.global.mixer.position.scaling=none", f"layers.local.mixer.span.size={WINDOW - 1}"),
)
FAMILIES["granite"] = Family(
    "granite",
    sizes(
        rms_norm_eps=1e-3,
        tie_word_embeddings=True,
        embedding_multiplier=3.0,
        logits_scaling=4.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        rope_parameters=theta(100.0),
    ),
    recipe(
        {**GQA, "scale": 0.2},
        SWIGLU,
        {"rule": "pre", "norm": RMS, "branch": 0.4},
        embedding={"tied": True, "scale": 3.0},
        head={"norm": RMS, "scale": 0.25},
    ),
    modules(PRE),
    ("block.residual.branch=1.0", "embedding.scale=1.0", "head.scale=1.0", "block.mixer.scale=inv_sqrt_head_dim"),
)
COHERE = sizes(
    layer_norm_eps=1e-3, tie_word_embeddings=True, logit_scale=0.3, attention_bias=True, rope_parameters=theta(100.0)
)
COHERE_ENDS = {"embedding": {"tied": True}, "head": {"norm": LN_NO_BIAS, "scale": 0.3}}
COHERE_MIXER = {**GQA, "bias": "all", "position": {"kind": "rope", "theta": 100.0, "layout": "interleaved"}}
COHERE_RESIDUAL = {"form": "parallel_shared_norm", "rule": "pre", "norm": LN_NO_BIAS}
FAMILIES["cohere"] = Family(
    "cohere",
    {**COHERE, "use_qk_norm": True},
    recipe(
        {**COHERE_MIXER, "qk_norm": {"over": "head", "gain_per": "head", "norm": LN_NO_BIAS}},
        SWIGLU,
        COHERE_RESIDUAL,
        **COHERE_ENDS,
    ),
    modules(SHARED),
    ("block.mixer.position.layout=half", "head.scale=1.0", "block.mixer.qk_norm.order=after_rope"),
)
FAMILIES["cohere2"] = Family(
    "cohere2",
    {**COHERE, "sliding_window": WINDOW, "layer_types": LOCAL_GLOBAL},
    recipe(
        COHERE_MIXER,
        SWIGLU,
        COHERE_RESIDUAL,
        **COHERE_ENDS,
        stack=STACK,
        layers={"local": WINDOWED, "global": {"mixer": {"position": "none"}}},
    ),
    modules(SHARED),
    ('layers.global.mixer.position={kind = "rope", theta = 100.0, layout = "interleaved"}', "head.scale=1.0"),
)
FAMILIES["nemotron"] = Family(
    "nemotron",
    sizes(
        head_dim=8,
        norm_eps=1e-3,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=theta(100.0, partial_rotary_factor=0.5),
    ),
    recipe(
        {**GQA, "head_dim": 8, "bias": "all", "position": {"kind": "rope", "theta": 100.0, "fraction": 0.5}},
        {"kind": "mlp", "d_ff": 40, "activation": "relu2", "bias": "all"},
        {"rule": "pre", "norm": {**LN, "gain": "one_plus"}},
        head={"norm": {**LN, "gain": "one_plus"}},
    ),
    modules(PRE, {"mlp.up_proj": "ffn.up", "mlp.down_proj": "ffn.down"}),
    ("block.mixer.position.fraction=1.0", "block.ffn.activation=relu"),
)
FAMILIES["phi"] = Family(
    "phi",
    sizes(
        num_attention_heads=3,
        num_key_value_heads=3,
        layer_norm_eps=1e-3,
        hidden_act="gelu_new",
        qk_layernorm=True,
        rope_parameters=theta(100.0, partial_rotary_factor=0.5),
    ),
    recipe(
        {
            "n_heads": 3,
            "bias": "all",
            "position": {"kind": "rope", "theta": 100.0, "fraction": 0.5},
            "qk_norm": {"over": "head", "norm": LN},
        },
        {"kind": "mlp", "d_ff": 40, "activation": "gelu_tanh", "bias": "all"},
        {"form": "parallel_shared_norm", "rule": "pre", "norm": LN},
        head={"norm": LN, "bias": True},
    ),
    {
        **modules(SHARED, {"mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down"}),
        "model.layers.{i}.self_attn.dense": "layers.{i}.mixer.o",
        "model.layers.{i}.self_attn.q_layernorm": "layers.{i}.mixer.q_norm",
        "model.layers.{i}.self_attn.k_layernorm": "layers.{i}.mixer.k_norm",
        "model.final_layernorm": "head.norm",
    },
    ("block.mixer.position.fraction=1.0", "block.ffn.activation=gelu"),
)


def _gpt2(params: Params) -> Params:
    """Conv1D keeps (in, out); queries, keys and values are one matrix."""
    out: Params = {}
    for name, value in params.items():
        if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            value = value.T
        if ".c_attn." in name:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                out[name.replace("c_attn", part)] = rows
        else:
            out[name] = value
    return out


GPT2_NAMES = {
    "transformer.wte": "embedding",
    "transformer.wpe": "embedding.position",
    "transformer.ln_f": "head.norm",
    "lm_head": "head",
    **{f"transformer.h.{{i}}.attn.{p}": f"layers.{{i}}.mixer.{p}" for p in "qkv"},
    "transformer.h.{i}.attn.c_proj": "layers.{i}.mixer.o",
    "transformer.h.{i}.mlp.c_fc": "layers.{i}.ffn.up",
    "transformer.h.{i}.mlp.c_proj": "layers.{i}.ffn.down",
    "transformer.h.{i}.ln_1": "layers.{i}.residual.mixer.input_norm",
    "transformer.h.{i}.ln_2": "layers.{i}.residual.ffn.input_norm",
}
FAMILIES["gpt2"] = Family(
    "gpt2",
    {
        "vocab_size": VOCAB,
        "n_positions": CONTEXT,
        "n_embd": D,
        "n_layer": 3,
        "n_head": 3,
        "layer_norm_epsilon": 1e-3,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    recipe(
        {"n_heads": 3, "position": "none", "bias": "all"},
        {"kind": "mlp", "d_ff": {"ratio": 4}, "activation": "gelu_tanh", "bias": "all"},
        {"rule": "pre", "norm": LN},
        embedding={"tied": True, "position": "learned"},
        head={"norm": LN},
    ),
    GPT2_NAMES,
    ("block.ffn.activation=gelu", "head.norm.eps=2e-3", "block.mixer.scale=inv_head_dim"),
    _gpt2,
)

OPT = {
    "vocab_size": VOCAB,
    "hidden_size": D,
    "ffn_dim": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 1,
    "dropout": 0.0,
}
OPT_NAMES = {
    "model.decoder.embed_tokens": "embedding",
    "model.decoder.embed_positions": "embedding.position",
    "model.decoder.project_in": "embedding.projection",
    "model.decoder.project_out": "head.projection",
    "model.decoder.final_layer_norm": "head.norm",
    "lm_head": "head",
    **{f"model.decoder.layers.{{i}}.self_attn.{p}_proj": f"layers.{{i}}.mixer.{p}" for p in "qkv"},
    "model.decoder.layers.{i}.self_attn.out_proj": "layers.{i}.mixer.o",
    "model.decoder.layers.{i}.fc1": "layers.{i}.ffn.up",
    "model.decoder.layers.{i}.fc2": "layers.{i}.ffn.down",
}
OPT_MIXER = {"n_heads": 3, "position": "none", "bias": "all"}
OPT_FFN = {"kind": "mlp", "d_ff": 40, "activation": "relu", "bias": "all"}
OPT_LN = {"kind": "layernorm", "eps": 1e-5}  # not in the config
OPT_POSITION = {"kind": "learned", "offset": 2}
NARROW = {"kind": "linear", "dim": 10}
FAMILIES["opt, as 350m"] = Family(
    "opt",
    {**OPT, "word_embed_proj_dim": 10, "do_layer_norm_before": False},
    recipe(
        OPT_MIXER,
        OPT_FFN,
        {"rule": "post", "norm": OPT_LN},
        embedding={"tied": True, "projection": NARROW, "position": OPT_POSITION},
        head={"norm": "none", "projection": NARROW},
    ),
    {
        **OPT_NAMES,
        "model.decoder.layers.{i}.self_attn_layer_norm": "layers.{i}.residual.mixer.stream_norm",
        "model.decoder.layers.{i}.final_layer_norm": "layers.{i}.residual.ffn.stream_norm",
    },
    ("block.ffn.activation=gelu", "block.mixer.scale=inv_head_dim"),
)
FAMILIES["opt"] = Family(
    "opt",
    {**OPT, "word_embed_proj_dim": D, "do_layer_norm_before": True},
    recipe(
        OPT_MIXER,
        OPT_FFN,
        {"rule": "pre", "norm": OPT_LN},
        embedding={"tied": True, "position": OPT_POSITION},
        head={"norm": OPT_LN},
    ),
    {
        **OPT_NAMES,
        "model.decoder.layers.{i}.self_attn_layer_norm": "layers.{i}.residual.mixer.input_norm",
        "model.decoder.layers.{i}.final_layer_norm": "layers.{i}.residual.ffn.input_norm",
    },
    ("block.ffn.activation=gelu", "block.mixer.scale=inv_head_dim"),
)
FAMILIES["gptj"] = Family(
    "gptj",
    {
        "vocab_size": VOCAB,
        "n_positions": CONTEXT,
        "n_embd": D,
        "n_layer": 3,
        "n_head": 3,
        "n_inner": 40,
        "rotary_dim": 4,
        "layer_norm_epsilon": 1e-3,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    recipe(
        {"n_heads": 3, "position": {"kind": "rope", "theta": 1e4, "fraction": 0.5, "layout": "interleaved"}},
        {"kind": "mlp", "d_ff": 40, "activation": "gelu_tanh", "bias": "all"},
        {"form": "parallel_shared_norm", "rule": "pre", "norm": LN},
        head={"norm": LN, "bias": True},
    ),
    {
        "transformer.wte": "embedding",
        "transformer.ln_f": "head.norm",
        "lm_head": "head",
        **{f"transformer.h.{{i}}.attn.{p}_proj": f"layers.{{i}}.mixer.{p}" for p in "qkv"},
        "transformer.h.{i}.attn.out_proj": "layers.{i}.mixer.o",
        "transformer.h.{i}.mlp.fc_in": "layers.{i}.ffn.up",
        "transformer.h.{i}.mlp.fc_out": "layers.{i}.ffn.down",
        "transformer.h.{i}.ln_1": "layers.{i}.residual.input_norm",
    },
    ("block.mixer.position.layout=half", "block.mixer.position.fraction=1.0", "block.mixer.position.theta=100"),
)


def _neox(params: Params) -> Params:
    """Queries, keys and values of one head stand together."""
    out: Params = {}
    for name, value in params.items():
        if "query_key_value" not in name:
            out[name] = value
            continue
        by_head = value.unflatten(0, (3, 3, D // 3))  # 3 heads, then q, k, v
        for i, part in enumerate("qkv"):
            out[name.replace("query_key_value", part)] = by_head[:, i].flatten(0, 1)
    return out


NEOX = {
    "vocab_size": VOCAB,
    "hidden_size": D,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": CONTEXT,
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu",
    "tie_word_embeddings": False,
    "rope_parameters": theta(100.0, partial_rotary_factor=0.25),
    "bos_token_id": None,
    "eos_token_id": None,
}
NEOX_NAMES = {
    "gpt_neox.embed_in": "embedding",
    "gpt_neox.final_layer_norm": "head.norm",
    "embed_out": "head",
    "lm_head": "head",
    **{f"gpt_neox.layers.{{i}}.attention.{p}": f"layers.{{i}}.mixer.{p}" for p in "qkv"},
    "gpt_neox.layers.{i}.attention.dense": "layers.{i}.mixer.o",
    "gpt_neox.layers.{i}.mlp.dense_h_to_4h": "layers.{i}.ffn.up",
    "gpt_neox.layers.{i}.mlp.dense_4h_to_h": "layers.{i}.ffn.down",
    "gpt_neox.layers.{i}.input_layernorm": "layers.{i}.residual.mixer.input_norm",
    "gpt_neox.layers.{i}.post_attention_layernorm": "layers.{i}.residual.ffn.input_norm",
}
NEOX_MIXER = {"n_heads": 3, "bias": "all", "position": {"kind": "rope", "theta": 100.0, "fraction": 0.25}}
NEOX_FFN = {"kind": "mlp", "d_ff": 40, "activation": "gelu", "bias": "all"}
FAMILIES["gpt_neox"] = Family(
    "gpt_neox",
    NEOX,
    recipe(NEOX_MIXER, NEOX_FFN, {"form": "parallel", "rule": "pre", "norm": LN}, head={"norm": LN}),
    NEOX_NAMES,
    ("block.residual.form=serial", "block.mixer.position.fraction=0.5", "block.ffn.activation=gelu_tanh"),
    _neox,
)
FAMILIES["gpt_neox, serial"] = Family(
    "gpt_neox",
    {**NEOX, "use_parallel_residual": False},
    recipe(NEOX_MIXER, NEOX_FFN, {"rule": "pre", "norm": LN}, head={"norm": LN}),
    NEOX_NAMES,
    ("block.residual.norm.eps=2e-3",),
    _neox,
)
