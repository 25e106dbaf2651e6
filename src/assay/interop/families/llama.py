"""Llama and its near kin: RMSNorm before each sublayer, RoPE, gated feed-forward."""

from __future__ import annotations

from typing import Any

from assay.interop.config import Config
from assay.interop.families.parts import (
    ALL_BIAS,
    HEAD_DIM,
    LAYER,
    LLAMA_TENSORS,
    PRE,
    QKV_BIAS,
    SIZES,
    TIED,
    WORDS,
    Template,
    attention,
    ends,
    every,
    fused_gate,
    glu,
    mlp,
    norms,
    pre,
    qk_norms,
    qkvo,
    rms,
    sandwich,
    sliding,
    two,
)
from assay.interop.family import WHOLE_HEADS, Axis, Constant, Family, Limit
from assay.interop.holes import Biases, Inverse, Key, Rate, Scale, Switch, Window
from assay.interop.layouts import Rows
from assay.interop.rope import RopeHole, rope
from assay.interop.tensors import Move, linear
from assay.recipe import Layer
from assay.recipe.ffn import XIelu

PLAIN_ROPE = rope()


def like_llama(mixer: Template, ffn: Template, residual: Any = None, **top: Any) -> Template:
    """A Llama-like recipe: untold parts are Llama's."""
    block = {"mixer": mixer, "ffn": ffn, "residual": pre(rms()) if residual is None else residual}
    return {**SIZES, "embedding": {"tied": TIED}, "head": {"norm": rms()}, "block": block, **top}


MLP_BIAS = Biases({"mlp_bias": ("gate", "up", "down")})


def full_or_sliding(cfg: Config, n: int) -> list[str]:
    """Ministral: all layers slide where there is a window."""
    return ["full_attention" if cfg.get("sliding_window") is None else "sliding_attention"] * n


def from_layer(cfg: Config, n: int) -> list[str]:
    """Qwen: layers slide from ``max_window_layers`` on, if any do."""
    on = cfg.get("use_sliding_window") and cfg.get("sliding_window") is not None
    first = cfg["max_window_layers"] if on else n
    return ["sliding_attention" if i >= first else "full_attention" for i in range(n)]


def window_flags(cases: list[str]) -> dict[str, Any]:
    """Qwen's older keys for a list of layer types."""
    slides = [case == "sliding_attention" for case in cases]
    return {"use_sliding_window": any(slides), "max_window_layers": slides.index(True) if any(slides) else len(cases)}


QWEN_AXIS = sliding(
    otherwise=from_layer,
    also=window_flags,
    keys=("use_sliding_window", "max_window_layers", "sliding_window"),
)


def nope_layers(cfg: Config, n: int) -> list[int]:
    """SmolLM3: every fourth layer has no rotation."""
    return [int((i + 1) % cfg.integer("no_rope_layer_interval") != 0) for i in range(n)]


def slides_without_rope(cfg: Config, n: int) -> list[str]:
    """SmolLM3: its unrotated layers slide where windows are on."""
    rotated = cfg.get("no_rope_layers") or nope_layers(cfg, n)
    on = cfg.get("use_sliding_window") and cfg.get("sliding_window") is not None
    return ["sliding_attention" if on and not r else "full_attention" for r in rotated]


UNREAD_WINDOW = {"max_window_layers": "read by no released code"}


def smol(position: RopeHole) -> Family:
    axes = (
        Axis(
            "no_rope_layers",
            {1: ("", {"mixer": {"position": position}}), 0: ("nope", {"mixer": {"position": "none"}})},
            otherwise=nope_layers,
            keys=("no_rope_layer_interval",),
        ),
        sliding(
            otherwise=slides_without_rope,
            also=lambda cases: {"use_sliding_window": "sliding_attention" in cases},
            keys=("use_sliding_window",),
        ),
    )
    recipe = like_llama(attention(position, bias=ALL_BIAS), glu(MLP_BIAS))
    return Family("smollm3", "SmolLM3ForCausalLM", recipe, LLAMA_TENSORS, axes=axes, ignored=UNREAD_WINDOW)


ONE_BIAS = Limit("layers.*.ffn.bias", "must be as attention's", lambda c: bool(c["attention_bias"] == c["mlp_bias"]))
SQUARE = Limit(
    "layers.*.mixer.head_dim",
    "n_heads times head_dim must be d_model",
    lambda c: bool(c["num_attention_heads"] * c["head_dim"] == c["hidden_size"]),
)


def renamed(model_type: str, tensors: tuple[Move, ...] = LLAMA_TENSORS, **more: Any) -> Family:
    """A family that transformers runs as Llama under another ``model_type``."""
    recipe = like_llama(attention(more.pop("position", PLAIN_ROPE), bias=ALL_BIAS), glu(MLP_BIAS))
    limits = (WHOLE_HEADS, *more.pop("limits", ()))
    return Family(model_type, "LlamaForCausalLM", recipe, tensors, limits=limits, **more)


E = "transformer.h.{i}."
EXAONE_TENSORS = (
    *ends("transformer.wte", "transformer.ln_f"),
    *qkvo(E + "attn.attention.", "out_proj"),
    linear(E + "mlp.c_fc_0", "layers.{i}.ffn.gate"),
    linear(E + "mlp.c_fc_1", "layers.{i}.ffn.up"),
    linear(E + "mlp.c_proj", "layers.{i}.ffn.down"),
    *norms(E, ln_1="mixer__input_norm", ln_2="ffn__input_norm"),
)
EXAONE_IGNORED = {"embed_dropout": "read by no released code"}
BRANCH = {"branch": {"kind": "constant", "value": Key("residual_multiplier")}}


def peri(n: Template) -> Template:
    """HyperCLOVA X: both norms of each branch, and a multiplier."""
    both = {"input_norm": n, "output_norm": n, **BRANCH}
    return {"form": "serial", "mixer": both, "ffn": both}


# "su" was longrope's first name, and in this family transformers takes "yarn" for it too
PHI3_ROPE = rope(
    partial=True,
    original_key="original_max_position_embeddings",
    types=("default", "longrope"),
    renamed=(("su", "longrope"), ("yarn", "longrope")),
)
APERTUS_ROPE = rope(
    theta=12e6,
    silent=(
        ("rope_type", "llama3"),
        ("factor", 8.0),
        ("high_freq_factor", 4.0),
        ("low_freq_factor", 1.0),
        ("original_max_position_embeddings", 8192),
    ),
)
XIELU = {"kind": "xielu", "alpha": 0.8, "beta": 0.5}
CWM_ROPE = rope(
    theta=1e6,
    silent=(
        ("rope_type", "llama3"),
        ("factor", 16.0),
        ("high_freq_factor", 4.0),
        ("low_freq_factor", 1.0),
        ("original_max_position_embeddings", 8192),
    ),
)
QK_NORM = {"over": "head", "norm": rms()}


def _beta(layer: Layer) -> float:
    activation = getattr(layer.ffn, "activation", None)
    return activation.beta if isinstance(activation, XIelu) else 0.5


LLAMA_LIKE = (
    Family(
        "llama",
        "LlamaForCausalLM",
        like_llama(attention(PLAIN_ROPE, bias=ALL_BIAS), glu(MLP_BIAS)),
        LLAMA_TENSORS,
        ignored={"rope_interleaved": "a leftover of one converter"},
        limits=(WHOLE_HEADS,),
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        like_llama(attention(PLAIN_ROPE, span=Window()), glu()),
        LLAMA_TENSORS,
    ),
    Family(
        "ministral",
        "MinistralForCausalLM",
        like_llama(attention(PLAIN_ROPE, head_dim=Key("head_dim", otherwise=HEAD_DIM.otherwise)), glu()),
        LLAMA_TENSORS,
        axes=(sliding(otherwise=full_or_sliding),),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        like_llama(attention(PLAIN_ROPE, bias=["q", "k", "v"]), glu()),
        LLAMA_TENSORS,
        axes=(QWEN_AXIS,),
        fixed={"use_mrope": (False,)},
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        like_llama(attention(PLAIN_ROPE, bias=ALL_BIAS, qk_norm=QK_NORM), glu()),
        (*LLAMA_TENSORS, *qk_norms()),
        axes=(QWEN_AXIS,),
    ),
    smol(rope(theta=2e6)),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        like_llama(
            attention(PHI3_ROPE, span=Window()),
            glu(),
            pre(rms(), dropout=Rate("resid_pdrop")),
        ),
        (
            *ends(),
            linear(
                "model.layers.{i}.self_attn.qkv_proj",
                *(f"layers.{{i}}.mixer.{p}" for p in "qkv"),
                layout=Rows(),
            ),
            linear("model.layers.{i}.self_attn.o_proj", "layers.{i}.mixer.o"),
            *fused_gate(),
            *PRE,
        ),
        ignored={"embd_pdrop": "read by no released code", "attention_bias": "read by no released code"},
    ),
    Family(
        "granite",
        "GraniteForCausalLM",
        like_llama(
            attention(PLAIN_ROPE, bias=ALL_BIAS, scale=Scale("attention_multiplier")),
            glu(MLP_BIAS),
            pre(rms(), **BRANCH),
            embedding={"tied": TIED, "scale": Key("embedding_multiplier")},
            head={"norm": rms(), "scale": Inverse("logits_scaling")},
        ),
        LLAMA_TENSORS,
    ),
    Family(
        "hyperclovax",
        "HyperCLOVAXForCausalLM",
        like_llama(
            attention(PLAIN_ROPE, bias=ALL_BIAS, scale=Scale("attention_multiplier")),
            glu(MLP_BIAS),
            Switch("use_post_norm", {True: peri(rms()), False: pre(rms(), **BRANCH)}),
            embedding={"tied": TIED, "scale": Key("embedding_multiplier")},
            head={"norm": rms(), "scale": Key("logits_scaling")},
        ),
        (*LLAMA_TENSORS, *norms(post_norm1="mixer__output_norm", post_norm2="ffn__output_norm")),
        limits=(WHOLE_HEADS,),
    ),
    renamed("exaone", EXAONE_TENSORS, position=rope(theta=5e5), ignored=EXAONE_IGNORED, prefix="transformer."),
    renamed("iquestcoder"),
    renamed("internlm3", limits=(ONE_BIAS,)),
    Family(
        "helium",
        "HeliumForCausalLM",
        like_llama(
            attention(rope("interleaved", theta=1e5), bias=QKV_BIAS),
            glu(MLP_BIAS),
        ),
        LLAMA_TENSORS,
        limits=(SQUARE,),
    ),
    Family(
        "arcee",
        "ArceeForCausalLM",
        like_llama(attention(PLAIN_ROPE, bias=ALL_BIAS), mlp(Biases({"mlp_bias": ("up", "down")}))),
        (*ends(), *qkvo(), *two("up_proj", "down_proj"), *PRE),
        limits=(WHOLE_HEADS,),
    ),
    Family(
        "apertus",
        "ApertusForCausalLM",
        like_llama(
            attention(APERTUS_ROPE, bias=ALL_BIAS, qk_norm=QK_NORM),
            mlp([], words={**WORDS, "xielu": XIELU}),
        ),
        (
            *ends(),
            *qkvo(),
            *qk_norms(),
            *two("up_proj", "down_proj"),
            Move(LAYER + "mlp.act_fn", ("layers.{i}.ffn.act",), {"alpha_p": "alpha_p", "alpha_n": "alpha_n"}),
            *norms(attention_layernorm="mixer__input_norm", feedforward_layernorm="ffn__input_norm"),
        ),
        fixed={"mlp_bias": (False,), "post_norm": (False,)},
        constants=(
            Constant(LAYER + "mlp.act_fn.beta", _beta),
            Constant(LAYER + "mlp.act_fn.eps", lambda layer: -1e-6),
        ),
    ),
    Family(
        "seed_oss",
        "SeedOssForCausalLM",
        like_llama(
            attention(PLAIN_ROPE, bias=Biases({"attention_bias": ("q", "k", "v"), "attention_out_bias": ("o",)})),
            glu(MLP_BIAS),
            pre(rms(), dropout=Rate("residual_dropout")),
        ),
        LLAMA_TENSORS,
    ),
    Family(
        "cwm",
        "CwmForCausalLM",
        like_llama(attention(CWM_ROPE), glu(MLP_BIAS)),
        LLAMA_TENSORS,
        axes=(sliding(otherwise=every(4, first=True)),),
        limits=(WHOLE_HEADS,),
        told_tokens=("bos_token_id",),
    ),
    Family(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        like_llama(
            attention(rope("interleaved", theta=5e5), bias=Biases({"use_bias": ("q", "k", "v", "o")}), dropout=0.0),
            glu(Biases({"use_bias": ("gate", "up", "down")})),
        ),
        LLAMA_TENSORS,
    ),
    Family(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        like_llama(
            attention(rope(alpha=True), bias=ALL_BIAS, qk_norm={**QK_NORM, "order": "after_rope"}),
            glu(),
        ),
        (*LLAMA_TENSORS, *qk_norms("query_layernorm", "key_layernorm")),
        # transformers computes what these say, whatever they say
        fixed={
            "use_qk_norm": (True,),
            "use_cla": (False,),
            "num_experts": (1,),
            "norm_type": ("rms",),
            "use_rotary_pos_emb": (True,),
            "position_embedding_xdrope": (False,),
        },
    ),
    Family(
        "glm",
        "GlmForCausalLM",
        like_llama(attention(rope("interleaved", partial=True, fraction=0.5), bias=QKV_BIAS), glu()),
        (*ends(), *qkvo(), *fused_gate(), *PRE),
    ),
    Family(
        "glm4",
        "Glm4ForCausalLM",
        like_llama(attention(rope("interleaved", partial=True, fraction=0.5), bias=QKV_BIAS), glu(), sandwich(rms())),
        (
            *ends(),
            *qkvo(),
            *fused_gate(),
            *norms(
                input_layernorm="mixer__input_norm",
                post_self_attn_layernorm="mixer__output_norm",
                post_attention_layernorm="ffn__input_norm",
                post_mlp_layernorm="ffn__output_norm",
            ),
        ),
    ),
)
