"""LayerNorm with RoPE: GPT-NeoX, Falcon, Phi, Persimmon, StableLM, Nemotron, StarCoder 2; and nanochat, all bare."""

from __future__ import annotations

from typing import Any

from assay.interop.families.gpt import EVERY_BIAS, UP_DOWN, full_attention
from assay.interop.families.llama import PLAIN_ROPE
from assay.interop.families.parts import (
    ALL_BIAS,
    HEADS,
    LAYER,
    PRE,
    SIZES,
    TIED,
    Template,
    attention,
    ends,
    gated,
    glu,
    layernorm,
    mlp,
    norms,
    parallel,
    pre,
    qk_norms,
    qkvo,
    quotient,
    rms,
    shared,
    times,
    two,
)
from assay.interop.family import WHOLE_HEADS as DIVIDED
from assay.interop.family import Family
from assay.interop.holes import Biases, Derived, Key, OrNone, Rate, SameAs, Switch, Window
from assay.interop.layouts import Grouped, PerHead, SwappedHalves
from assay.interop.rope import rope
from assay.interop.tensors import linear, norm, table

EPS_LN = layernorm("layer_norm_eps")
WHOLE_HEADS = Derived(quotient("hidden_size", "num_attention_heads"))
QKV = tuple(f"layers.{{i}}.mixer.{p}" for p in "qkv")


def model(mixer: Template, ffn: Template, residual: Any, head: Template, **top: Any) -> Template:
    block = {"mixer": mixer, "ffn": ffn, "residual": residual}
    return {**SIZES, "embedding": {"tied": TIED}, "block": block, "head": head, **top}


# GPT-NeoX

NEOX_ROPE = rope(theta_key="rotary_emb_base", fraction_key="rotary_pct", fraction=0.25, partial=True)
HIDDEN = Rate("hidden_dropout")
NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    model(
        full_attention(NEOX_ROPE, HEADS, WHOLE_HEADS, bias=ALL_BIAS, dropout=Rate("attention_dropout")),
        mlp(UP_DOWN),
        Switch("use_parallel_residual", {True: parallel(EPS_LN, dropout=HIDDEN), False: pre(EPS_LN, dropout=HIDDEN)}),
        {"norm": EPS_LN},
        embedding={"tied": TIED, "dropout": HIDDEN},
    ),
    (
        table("gpt_neox.embed_in", "embedding"),
        norm("gpt_neox.final_layer_norm", "head.norm"),
        table("embed_out", "head"),
        table("lm_head", "head"),
        linear("gpt_neox.layers.{i}.attention.query_key_value", *QKV, layout=Grouped()),
        linear("gpt_neox.layers.{i}.attention.dense", "layers.{i}.mixer.o"),
        *two("dense_h_to_4h", "dense_4h_to_h", "gpt_neox.layers.{i}.mlp."),
        *norms(
            "gpt_neox.layers.{i}.",
            input_layernorm="mixer__input_norm",
            post_attention_layernorm="ffn__input_norm",
        ),
    ),
    dropped={
        r"\.attention\.(masked_)?bias$": "the causal mask, computed here",
        r"\.attention\.rotary_emb\.": "rotary tables, computed here",
    },
    prefix="gpt_neox.",
    aliases={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
)

# Falcon

FALCON_LN = layernorm("layer_norm_epsilon")
FALCON_BIAS = Biases({"bias": ("q", "k", "v", "o")})
FALCON_FFN = mlp(
    Biases({"bias": ("up", "down")}), "activation", Key("ffn_hidden_size", otherwise=times(4, "hidden_size"))
)


FALCON_ALIBI = {"kind": "alibi", "multiplier": Derived(lambda cfg: float(WHOLE_HEADS.rule(cfg)) ** -0.5)}
FALCON_ORDER = Switch("alibi", {False: PLAIN_ROPE, True: FALCON_ALIBI, None: PLAIN_ROPE})


def falcon(kv: Any, residual: Any) -> Template:
    mixer = full_attention(FALCON_ORDER, HEADS, WHOLE_HEADS, kv, bias=FALCON_BIAS, dropout=Rate("attention_dropout"))
    return {"mixer": mixer, "ffn": FALCON_FFN, "residual": residual}


# the two first decoder layers have one key/value head or one a query head; the newer one any number
FALCON_OLD = falcon(
    Switch("multi_query", {True: 1, False: SameAs("n_heads", "num_attention_heads")}),
    Switch("parallel_attn", {True: shared(FALCON_LN, dropout=HIDDEN), False: pre(FALCON_LN, dropout=HIDDEN)}),
)
FALCON_NEW = falcon(
    Key("num_kv_heads", otherwise=lambda cfg: cfg["num_attention_heads"]),
    Switch(
        "num_ln_in_parallel_attn",
        {2: parallel(FALCON_LN, dropout=HIDDEN), 1: shared(FALCON_LN, dropout=HIDDEN)},
        by=lambda n: 2 if n is None else n,
    ),
)
FH = "transformer.h.{i}."
FALCON = Family(
    "falcon",
    "FalconForCausalLM",
    {
        **SIZES,
        "embedding": {"tied": TIED},
        "block": Switch("new_decoder_architecture", {False: FALCON_OLD, True: FALCON_NEW, None: FALCON_OLD}),
        "head": {"norm": FALCON_LN},
    },
    (
        *ends("transformer.word_embeddings", "transformer.ln_f"),
        linear(FH + "self_attention.query_key_value", *QKV, layout=Grouped()),
        linear(FH + "self_attention.dense", "layers.{i}.mixer.o"),
        *two("dense_h_to_4h", "dense_4h_to_h", FH + "mlp."),
        norm(FH + "ln_attn", "layers.{i}.residual.mixer.input_norm", form="parallel"),
        norm(FH + "ln_mlp", "layers.{i}.residual.ffn.input_norm", form="parallel"),
        norm(FH + "input_layernorm", "layers.{i}.residual.input_norm"),
        norm(FH + "input_layernorm", "layers.{i}.residual.mixer.input_norm", form="serial"),
        norm(FH + "post_attention_layernorm", "layers.{i}.residual.ffn.input_norm", form="serial"),
    ),
    fixed={"apply_residual_connection_post_layernorm": (False,)},
    prefix="transformer.",
    aliases={"n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_embed": "hidden_size",
             "n_head_kv": "num_kv_heads"},
)  # fmt: skip

# Phi, Persimmon, StableLM, Nemotron, StarCoder 2

PHI_ROPE = rope(partial=True, fraction=0.5)
RESID = Rate("resid_pdrop")
PHI = Family(
    "phi",
    "PhiForCausalLM",
    model(
        attention(
            PHI_ROPE,
            bias=EVERY_BIAS,
            qk_norm=Switch("qk_layernorm", {False: "none", True: {"over": "head", "norm": EPS_LN}}),
        ),
        mlp(UP_DOWN),
        shared(EPS_LN, dropout=RESID),
        {"norm": EPS_LN, "bias": True},
        embedding={"tied": TIED, "dropout": Rate("embd_pdrop")},
    ),
    (
        *ends(final="model.final_layernorm"),
        *qkvo(o="dense"),
        *two("fc1", "fc2"),
        *norms(input_layernorm="input_norm"),
        *qk_norms("q_layernorm", "k_layernorm"),
    ),
)
PERSIMMON = Family(
    "persimmon",
    "PersimmonForCausalLM",
    model(
        full_attention(
            PHI_ROPE,
            HEADS,
            WHOLE_HEADS,
            bias=EVERY_BIAS,
            qk_norm=Switch("qk_layernorm", {True: {"over": "head", "norm": EPS_LN}, False: "none"}),
            dropout=Rate("attention_dropout"),
        ),
        mlp(UP_DOWN),
        {
            "form": "serial",
            "mixer": {"input_norm": EPS_LN},
            "ffn": {"input_norm": EPS_LN, "dropout": HIDDEN},
        },
        {"norm": EPS_LN},
    ),
    (
        *ends(final="model.final_layernorm"),
        linear(LAYER + "self_attn.query_key_value", *QKV, layout=Grouped()),
        linear(LAYER + "self_attn.dense", "layers.{i}.mixer.o"),
        *two("dense_h_to_4h", "dense_4h_to_h"),
        *PRE,
        *qk_norms("q_layernorm", "k_layernorm"),
    ),
)
STABLE_QK = {"over": "head", "gain_per": "head", "norm": layernorm("layer_norm_eps", bias=False)}
STABLELM = Family(
    "stablelm",
    "StableLmForCausalLM",
    model(
        attention(
            rope(partial=True, fraction=0.25),
            head_dim=WHOLE_HEADS,
            bias=Biases({"use_qkv_bias": ("q", "k", "v")}),
            qk_norm=Switch("qk_layernorm", {False: "none", True: STABLE_QK}),
        ),
        glu(),
        Switch(
            "use_parallel_residual",
            {
                False: {
                    "form": "serial",
                    "mixer": {"input_norm": EPS_LN},
                    "ffn": {"input_norm": EPS_LN, "dropout": HIDDEN},
                },
                True: {
                    "form": "parallel_shared_norm",
                    "input_norm": EPS_LN,
                    "mixer": {},
                    "ffn": {"dropout": HIDDEN},
                },
            },
        ),
        {"norm": EPS_LN},
    ),
    (
        *ends(),
        *qkvo(),
        *gated(),
        *PRE,
        norm(LAYER + "input_layernorm", "layers.{i}.residual.input_norm"),
        *qk_norms("q_layernorm.norms.{h}", "k_layernorm.norms.{h}", layout=PerHead()),
    ),
    fixed={"rope_pct": (), "norm_eps": ()},
)
LN_1P = layernorm("norm_eps", gain="one_plus")
NEMOTRON = Family(
    "nemotron",
    "NemotronForCausalLM",
    model(
        attention(PHI_ROPE, bias=ALL_BIAS),
        mlp(Biases({"mlp_bias": ("up", "down")})),
        pre(LN_1P),
        {"norm": LN_1P},
    ),
    (*ends(), *qkvo(), *two("up_proj", "down_proj"), *PRE),
)
CODER_LN = layernorm("norm_epsilon")
CODER_DROP = Rate("residual_dropout")
STARCODER2 = Family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    model(
        attention(PLAIN_ROPE, span=Window(), bias=Biases({"use_bias": ("q", "k", "v", "o")})),
        mlp(Biases({"use_bias": ("up", "down")})),
        pre(CODER_LN, dropout=CODER_DROP),
        {"norm": CODER_LN},
        embedding={"tied": TIED, "dropout": Rate("embedding_dropout")},
    ),
    (*ends(), *qkvo(), *two("c_fc", "c_proj"), *PRE),
    fixed={"mlp_type": ("default",), "norm_type": ("layer_norm",), "scale_attn_weights": (True,)},
    ignored={
        "activation_function": "hidden_act is what the model reads",
        "layer_norm_epsilon": "norm_epsilon is what the model reads",
        "attention_softmax_in_fp32": "precision",
        "scale_attention_softmax_in_fp32": "precision",
    },
)
JAIS2 = Family(
    "jais2",
    "Jais2ForCausalLM",
    model(
        attention(PLAIN_ROPE, bias=ALL_BIAS),
        mlp(Biases({"mlp_bias": ("up", "down")})),
        pre(EPS_LN),
        {"norm": EPS_LN},
    ),
    (*ends(), *qkvo(), *two("up_proj", "down_proj"), *PRE),
    limits=(DIVIDED,),
)

# nanochat: no gains at all, and rotations the other way round

BARE = rms(gain="none")
BACKWARDS = SwappedHalves()
NANOCHAT = Family(
    "nanochat",
    "NanoChatForCausalLM",
    model(
        attention(PLAIN_ROPE, bias=ALL_BIAS, qk_norm={"over": "head", "norm": BARE}),
        mlp([]),
        pre(BARE),
        {"norm": BARE, "soft_cap": OrNone("final_logit_softcapping")},
        embedding={"tied": TIED, "norm": BARE},
    ),
    (*ends(), *qkvo(qk=BACKWARDS), *two("fc1", "fc2")),
)

LAYERNORM = (NEOX, FALCON, PHI, PERSIMMON, STABLELM, NEMOTRON, STARCODER2, JAIS2, NANOCHAT)
