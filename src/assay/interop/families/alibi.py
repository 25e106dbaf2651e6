"""Bloom and MPT: no positions but a penalty that grows with distance."""

from __future__ import annotations

from assay.interop.families.gpt import EVERY_BIAS, UP_DOWN, full_attention
from assay.interop.families.parts import SIZES, TIED, ends, layernorm, norms, pre, quotient, two
from assay.interop.family import Family
from assay.interop.holes import Derived, Key, OrNone, Rate, SameAs, Scale, Start, Switch
from assay.interop.layouts import Grouped, Rows
from assay.interop.tensors import linear, norm

QKV = tuple(f"layers.{{i}}.mixer.{p}" for p in "qkv")
LN = layernorm("layer_norm_epsilon")
HIDDEN = Rate("hidden_dropout")
SKIP_NORMED = {"input_norm": LN, "skip_from": "normed", "dropout": HIDDEN}
B = "transformer.h.{i}."

BLOOM = Family(
    "bloom",
    "BloomForCausalLM",
    {
        **SIZES,
        "max_seq_len": Key("seq_length", otherwise=lambda cfg: 2048),
        "embedding": {"tied": TIED, "norm": LN},
        "block": {
            "mixer": full_attention(
                {"kind": "alibi"},
                Key("n_head"),
                Derived(quotient("hidden_size", "n_head")),
                bias=EVERY_BIAS,
                dropout=Rate("attention_dropout"),
            ),
            "ffn": {
                "kind": "mlp",
                "d_ff": Derived(lambda cfg: 4 * cfg.integer("hidden_size")),
                "activation": "gelu_tanh",
                "bias": UP_DOWN,
            },
            "residual": Switch(
                "apply_residual_connection_post_layernorm",
                {True: {"form": "serial", "mixer": SKIP_NORMED, "ffn": SKIP_NORMED}, False: pre(LN, dropout=HIDDEN)},
            ),
        },
        "head": {"norm": LN},
    },
    (
        *ends("transformer.word_embeddings", "transformer.ln_f"),
        norm("transformer.word_embeddings_layernorm", "embedding.norm"),
        linear(B + "self_attention.query_key_value", *QKV, layout=Grouped()),
        linear(B + "self_attention.dense", "layers.{i}.mixer.o"),
        *two("dense_h_to_4h", "dense_4h_to_h", B + "mlp."),
        *norms(B, input_layernorm="mixer__input_norm", post_attention_layernorm="ffn__input_norm"),
    ),
    n_layers="n_layer",
    ignored={
        "slow_but_exact": "how to sum over that split",
        "attention_softmax_in_fp32": "precision",
        "bias_dropout_fusion": "execution",
        "masked_softmax_fusion": "execution",
        "skip_bias_add": "execution",
        "skip_bias_add_qkv": "execution",
        "offset_alibi": "a constant that the softmax takes out",
    },
    prefix="transformer.",
    aliases={"n_embed": "hidden_size"},
)

BARE_LN = layernorm("layer_norm_epsilon", bias=False)
M = "transformer.blocks.{i}."
UNREAD = "read by no released code"
MPT = Family(
    "mpt",
    "MptForCausalLM",
    {
        "d_model": Key("d_model"),
        "vocab_size": Key("vocab_size"),
        "max_seq_len": Key("max_seq_len"),
        "init": {"weights": Start()},
        "embedding": {"tied": TIED},
        "block": {
            "mixer": {
                "kind": "attention",
                "n_heads": Key("n_heads"),
                "n_kv_heads": SameAs("n_heads", "n_heads"),
                "head_dim": Derived(quotient("d_model", "n_heads")),
                "position": {"kind": "alibi"},
                "scale": Scale("attn_config.softmax_scale"),
                "clip_qkv": OrNone("attn_config.clip_qkv"),
            },
            "ffn": {"kind": "mlp", "d_ff": Derived(lambda cfg: 4 * cfg.integer("d_model")), "activation": "gelu"},
            "residual": pre(BARE_LN),
        },
        "head": {"norm": BARE_LN},
    },
    (
        *ends("transformer.wte", "transformer.norm_f"),
        linear(M + "attn.Wqkv", *QKV, layout=Rows()),
        linear(M + "attn.out_proj", "layers.{i}.mixer.o"),
        *two("up_proj", "down_proj", M + "ffn."),
        *norms(M, norm_1="mixer__input_norm", norm_2="ffn__input_norm"),
    ),
    n_layers="n_layers",
    # transformers reads none of these: it computes what the first value of each says
    fixed={
        "expansion_ratio": (4,),
        "no_bias": (True,),
        "logit_scale": (),
        "embedding_fraction": (1.0, 1),
        "norm_type": ("low_precision_layernorm", "layernorm"),
        "attn_config.attn_type": ("multihead_attention",),
        "attn_config.attn_pdrop": (0, 0.0),
        "attn_config.prefix_lm": (False,),
        "attn_config.qk_ln": (False,),
        "attn_config.attn_uses_sequence_id": (False,),
        "attn_config.alibi": (True,),
        "attn_config.alibi_bias_max": (8,),
    },
    ignored={
        "attn_config.attn_impl": "execution",
        "init_device": "execution",
        "init_config": "how training started",
        "emb_pdrop": UNREAD,
        "resid_pdrop": UNREAD,
        "learned_pos_emb": "overruled by ALiBi",
        "verbose": "execution",
        "tokenizer_name": "belongs to the tokenizer",
    },
    prefix="transformer.",
    nested=("attn_config",),
)
ALIBIS = (BLOOM, MPT)
