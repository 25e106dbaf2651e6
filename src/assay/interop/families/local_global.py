"""Gemma, OLMo, Cohere and EXAONE: norms in other places, layers that slide and layers that see all."""

from __future__ import annotations

from typing import Any

from assay.interop.config import Config
from assay.interop.families.llama import PLAIN_ROPE, like_llama
from assay.interop.families.parts import (
    ALL_BIAS,
    HEAD_DIM,
    LAYER,
    LLAMA_TENSORS,
    REORDERED,
    SANDWICH,
    SHARED,
    TANH,
    TIED,
    WORDS,
    Template,
    attention,
    ends,
    every,
    gated,
    glu,
    layernorm,
    norms,
    pre,
    qk_norms,
    qkvo,
    reordered,
    rms,
    sandwich,
    shared,
    sliding,
)
from assay.interop.family import WHOLE_HEADS, Family
from assay.interop.holes import Key, OrNone, Scale, Switch
from assay.interop.rope import rope
from assay.interop.template import OMIT

# Gemma

ONE_PLUS = rms(gain="one_plus")
# the first release wrote "gelu" and meant its tanh approximation
GEMMA_WORDS = {**WORDS, "gelu": TANH}
GEMMA_ENDS: Template = {"tied": TIED, "scale": "sqrt_d_model"}
PRE_ATTN_SCALAR = Scale("query_pre_attn_scalar", lambda v: float(v**-0.5), lambda s: s**-2)
CAP = OrNone("attn_logit_softcapping")
CAPPED_HEAD: Template = {"norm": ONE_PLUS, "soft_cap": OrNone("final_logit_softcapping")}
CAUSAL: dict[str, tuple[Any, ...]] = {"use_bidirectional_attention": (False,)}
GEMMA_SANDWICH = (*ends(), *qkvo(), *gated(), *SANDWICH)


def gemma_attention(position: Any, **more: Any) -> Template:
    return attention(position, bias=ALL_BIAS, **more)


def pattern(default: int) -> Any:
    """Every n-th layer is full; n was once a key of its own."""

    def rule(cfg: Config, n: int) -> list[str]:
        period = cfg.get("sliding_window_pattern") or cfg.get("_sliding_window_pattern") or default
        return [str(case) for case in every(int(period))(cfg, n)]

    return rule


GEMMA3_ROPE = rope(
    by="layer_types",
    theta=1e6,
    local_theta=1e4,
    local_theta_key="rope_local_base_freq",
    scaled=("full_attention",),
)
PATTERN_KEYS = ("sliding_window_pattern", "_sliding_window_pattern")

GEMMAS = (
    Family(
        "gemma",
        "GemmaForCausalLM",
        like_llama(
            gemma_attention(PLAIN_ROPE),
            glu(words=GEMMA_WORDS),
            pre(ONE_PLUS),
            embedding=GEMMA_ENDS,
            head={"norm": ONE_PLUS},
        ),
        LLAMA_TENSORS,
        fixed={**CAUSAL, "hidden_activation": ("gelu_pytorch_tanh",)},
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        like_llama(
            gemma_attention(PLAIN_ROPE, scale=PRE_ATTN_SCALAR, soft_cap=CAP),
            glu(act="hidden_activation"),
            sandwich(ONE_PLUS),
            embedding=GEMMA_ENDS,
            head=CAPPED_HEAD,
        ),
        GEMMA_SANDWICH,
        axes=(sliding(otherwise=every(2)),),
        fixed=CAUSAL,
        limits=(WHOLE_HEADS,),
        ignored={
            "hidden_act": "hidden_activation is what the model reads",
            "sliding_window_size": "repeats sliding_window",
        },
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        like_llama(
            gemma_attention(
                GEMMA3_ROPE,
                scale=PRE_ATTN_SCALAR,
                soft_cap=CAP,
                qk_norm={"over": "head", "norm": ONE_PLUS},
            ),
            glu(act="hidden_activation"),
            sandwich(ONE_PLUS),
            embedding=GEMMA_ENDS,
            head=CAPPED_HEAD,
        ),
        (*GEMMA_SANDWICH, *qk_norms()),
        axes=(sliding(otherwise=pattern(6), keys=PATTERN_KEYS),),
        fixed=CAUSAL,
        limits=(WHOLE_HEADS,),
    ),
    Family(
        "vaultgemma",
        "VaultGemmaForCausalLM",
        like_llama(
            gemma_attention(PLAIN_ROPE, scale=PRE_ATTN_SCALAR, soft_cap=CAP),
            glu(act="hidden_activation"),
            pre(ONE_PLUS),
            embedding=GEMMA_ENDS,
            head=CAPPED_HEAD,
        ),
        (
            *ends(),
            *qkvo(),
            *gated(),
            *norms(input_layernorm="mixer__input_norm", pre_feedforward_layernorm="ffn__input_norm"),
        ),
        axes=(sliding(otherwise=every(2)),),
        limits=(WHOLE_HEADS,),
    ),
)

# OLMo

PLAIN_LN = layernorm(1e-5, gain="none", bias=False)
WIDE_NORM: Template = {"over": "width", "norm": rms()}
OLMO2_TENSORS = (*ends(), *qkvo(), *gated(), *REORDERED, *qk_norms())
OLMO3_ROPE = rope(by="layer_types", theta=5e5, local_theta=5e5, scaled=("full_attention",))

OLMOS = (
    Family(
        "olmo",
        "OlmoForCausalLM",
        like_llama(
            attention(PLAIN_ROPE, bias=ALL_BIAS, clip_qkv=OrNone("clip_qkv")),
            glu(),
            pre(PLAIN_LN),
            head={"norm": PLAIN_LN},
        ),
        (*ends(), *qkvo(), *gated()),
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        like_llama(attention(PLAIN_ROPE, bias=ALL_BIAS, qk_norm=WIDE_NORM), glu(), reordered(rms())),
        OLMO2_TENSORS,
    ),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        like_llama(attention(OLMO3_ROPE, bias=ALL_BIAS, qk_norm=WIDE_NORM), glu(), reordered(rms())),
        OLMO2_TENSORS,
        axes=(sliding(otherwise=every(4)),),
    ),
)

# Cohere

COHERE_LN = layernorm("layer_norm_eps", bias=False)
COHERE_QK = {"over": "head", "gain_per": "head", "norm": COHERE_LN}
COHERE_HEAD: Template = {"norm": COHERE_LN, "scale": Key("logit_scale")}
COHERE_TENSORS = (*ends(), *qkvo(), *gated(), *SHARED)
# what transformers computes, whatever these say
COHERE_FIXED: dict[str, tuple[Any, ...]] = {
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (False,),
    "use_embedding_sharing": (True,),
}


def cohere(position: Any, **more: Any) -> Template:
    return like_llama(attention(position, bias=ALL_BIAS, **more), glu(), shared(COHERE_LN), head=COHERE_HEAD)


COHERE2_ROPE = rope("interleaved")
COHERES = (
    Family(
        "cohere",
        "CohereForCausalLM",
        cohere(
            rope("interleaved", theta=5e5),
            qk_norm=Switch("use_qk_norm", {False: "none", True: COHERE_QK, None: "none"}),
        ),
        (*COHERE_TENSORS, *qk_norms()),
        fixed=COHERE_FIXED,
    ),
    Family(
        "cohere2",
        "Cohere2ForCausalLM",
        cohere(COHERE2_ROPE),
        COHERE_TENSORS,
        axes=(
            sliding(
                otherwise=pattern(4),
                keys=PATTERN_KEYS,
                local={"position": COHERE2_ROPE},
                full={"position": "none"},
            ),
        ),
        fixed={
            **COHERE_FIXED,
            "use_qk_norm": (False,),
            "rotary_pct": (1.0, 1),
            "order_of_interleaved_layers": ("local_attn_first",),
            "position_embedding_type": ("rope_gptj",),
            "layer_switch": (4,),
        },
    ),
)

# EXAONE 4


def exaone_layers(cfg: Config, n: int) -> list[str]:
    """Every fourth layer is full, or as a word of L and G says; without a window all are."""
    period = cfg.get("sliding_window_pattern")
    if cfg.get("sliding_window") is None or not period:
        return ["full_attention"] * n
    if isinstance(period, str):
        return ["sliding_attention" if period[i % len(period)] == "L" else "full_attention" for i in range(n)]
    return [str(case) for case in every(int(period))(cfg, n)]


# where some layers slide, the full ones are not rotated
EXAONE_FULL = Switch(
    "sliding_window",
    {False: PLAIN_ROPE, True: "none"},
    by=lambda window: window is not None,
    values={False: None, True: OMIT},
)
EXAONES = (
    Family(
        "exaone4",
        "Exaone4ForCausalLM",
        like_llama(
            attention(PLAIN_ROPE, head_dim=HEAD_DIM, qk_norm={"over": "head", "norm": rms()}),
            glu(),
            reordered(rms()),
        ),
        (*ends(), *qkvo(), *gated(), *REORDERED, *qk_norms(at=LAYER + "self_attn.")),
        axes=(
            sliding(
                otherwise=exaone_layers,
                keys=("sliding_window_pattern",),
                local={"position": PLAIN_ROPE},
                full={"position": EXAONE_FULL},
            ),
        ),
    ),
)
LOCAL_GLOBAL = (*GEMMAS, *OLMOS, *COHERES, *EXAONES)
