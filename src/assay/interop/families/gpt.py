"""GPT-2 and what came before Llama: LayerNorm, biases, learned positions, fused projections."""

from __future__ import annotations

from typing import Any

from assay.interop.common import GPT_HEADS
from assay.interop.config import Config
from assay.interop.families.parts import (
    TIED,
    WORDS,
    Template,
    ends,
    layernorm,
    mlp,
    norms,
    post,
    pre,
    qkvo,
    quotient,
    shared,
    times,
    two,
)
from assay.interop.family import Axis, Family
from assay.interop.holes import Derived, Key, Rate, SameAs, Start, Switch, Window
from assay.interop.layouts import Grouped, Rows, Shards, Transposed
from assay.interop.rope import RotarySize
from assay.interop.template import At, Entries, Hole, Spot, put
from assay.interop.tensors import linear, table

N_SIZES: Template = {
    "d_model": Key("n_embd"),
    "vocab_size": Key("vocab_size"),
    "max_seq_len": Key("n_positions"),
    "init": {"weights": Start()},
}
N_HEADS = Key("n_head")
N_HEAD_DIM = Derived(quotient("n_embd", "n_head"))
N_INNER = Key("n_inner", otherwise=times(4, "n_embd"))
UP_DOWN = ["up", "down"]
EVERY_BIAS = ["q", "k", "v", "o"]
N_LN = layernorm("layer_norm_epsilon")
DROP = Rate("resid_pdrop")
GPT_IGNORED = {**GPT_HEADS, "n_ctx": "the old name of n_positions", "reorder_and_upcast_attn": "execution"}
CONV = Transposed()
MASKS = {
    r"\.attn\.(masked_)?bias$": "the causal mask, computed here",
    r"\.attn\.attention\.(masked_)?bias$": "the causal mask, computed here",
    r"\.attn\.causal_mask$": "the causal mask, computed here",
    r"\.attn\.embed_positions$": "rotary tables, computed here",
}
# OpenAI's first release wrote "gelu" for the tanh approximation
FIRST_WORDS = {**WORDS, "gelu": "gelu_tanh"}
GPT2_INIT = {"weights": Start(), "depth": "total_depth"}


class LayerScale(Hole):
    """GPT-2's factor on q·k: 1/√head_dim, or 1, each perhaps divided by the layer's number (Mistral's GPT-2s)."""

    keys = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx")

    def read(self, cfg: Config, at: At) -> Any:
        plain = cfg["scale_attn_weights"]
        if not cfg["scale_attn_by_inverse_layer_idx"]:
            return "inv_sqrt_head_dim" if plain else 1.0
        base = float(quotient("n_embd", "n_head")(cfg)) ** -0.5 if plain else 1.0
        return base / (at.depth + 1)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        plain, depth = spot.parent["head_dim"] ** -0.5, spot.at.depth + 1
        for scaled, base in ((True, plain), (False, 1.0)):
            if node == ("inv_sqrt_head_dim" if scaled else base) or node == base / depth:
                # the first layer is divided by 1: whether layers are is only seen from the second on
                layered = depth > 1 and node == base / depth
                put(out, "scale_attn_weights", scaled)
                if depth > 1 or len(spot.top["layers"]) == 1:
                    put(out, "scale_attn_by_inverse_layer_idx", layered)
                return


def full_attention(position: Any, heads: Key, head_dim: Hole, kv: Any = None, **more: Any) -> Template:
    """Attention with as many key/value heads as query heads, unless ``kv`` says otherwise."""
    return {
        "kind": "attention",
        "n_heads": heads,
        "n_kv_heads": SameAs("n_heads", heads.name) if kv is None else kv,
        "head_dim": head_dim,
        "position": position,
        **more,
    }


def gpt(mixer: Template, ffn: Template, residual: Template, sizes: Template = N_SIZES, **top: Any) -> Template:
    return {**sizes, "block": {"mixer": mixer, "ffn": ffn, "residual": residual}, **top}


LEARNED: Template = {"tied": TIED, "position": "learned", "dropout": Rate("embd_pdrop")}
H = "transformer.h.{i}."
QKV = tuple(f"layers.{{i}}.mixer.{p}" for p in "qkv")
CONV_TENSORS = (
    linear(H + "attn.c_attn", *QKV, layout=Transposed(Rows())),
    linear(H + "attn.c_proj", "layers.{i}.mixer.o", layout=CONV),
    *two("c_fc", "c_proj", H + "mlp.", CONV),
)
POSITIONS = table("transformer.wpe", "embedding.position")
PRE_H = norms(H, ln_1="mixer__input_norm", ln_2="ffn__input_norm")
ATTN_DROP = Rate("attn_pdrop")

GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    gpt(
        full_attention("none", N_HEADS, N_HEAD_DIM, bias=EVERY_BIAS, dropout=ATTN_DROP, scale=LayerScale()),
        mlp(UP_DOWN, "activation_function", N_INNER),
        pre(N_LN, dropout=DROP),
        embedding=LEARNED,
        head={"norm": N_LN},
        init=GPT2_INIT,
    ),
    (*ends("transformer.wte", "transformer.ln_f"), POSITIONS, *CONV_TENSORS, *PRE_H),
    n_layers="n_layer",
    ignored=GPT_IGNORED,
    dropped=MASKS,
    prefix="transformer.",
)

OPENAI_GPT = Family(
    "openai-gpt",
    "OpenAIGPTLMHeadModel",
    gpt(
        full_attention("none", N_HEADS, N_HEAD_DIM, bias=EVERY_BIAS, dropout=ATTN_DROP),
        mlp(UP_DOWN, "afn", Derived(times(4, "n_embd")), FIRST_WORDS),
        post(N_LN, dropout=DROP),
        embedding=LEARNED,
        head={"norm": "none"},
    ),
    (
        table("transformer.tokens_embed", "embedding"),
        table("transformer.positions_embed", "embedding.position"),
        table("lm_head", "head"),
        *CONV_TENSORS,
        *norms(H, ln_1="mixer__stream_norm", ln_2="ffn__stream_norm"),
    ),
    n_layers="n_layer",
    ignored=GPT_IGNORED,
    dropped=MASKS,
    prefix="transformer.",
)

J_RECIPE = gpt(
    full_attention(RotarySize(), N_HEADS, N_HEAD_DIM, dropout=ATTN_DROP),
    mlp(UP_DOWN, "activation_function", N_INNER),
    shared(N_LN, dropout=DROP),
    embedding={"tied": TIED, "dropout": Rate("embd_pdrop")},
    head={"norm": N_LN, "bias": True},
)
J_FIXED: dict[str, tuple[Any, ...]] = {"rotary": (True,), "scale_attn_weights": (True,)}

GPTJ = Family(
    "gptj",
    "GPTJForCausalLM",
    J_RECIPE,
    (
        *ends("transformer.wte", "transformer.ln_f"),
        *qkvo(H + "attn.", "out_proj"),
        *two("fc_in", "fc_out", H + "mlp."),
        *norms(H, ln_1="input_norm"),
    ),
    n_layers="n_layer",
    ignored=GPT_IGNORED,
    fixed=J_FIXED,
    dropped=MASKS,
    prefix="transformer.",
)

CODEGEN = Family(
    "codegen",
    "CodeGenForCausalLM",
    J_RECIPE,
    (
        *ends("transformer.wte", "transformer.ln_f"),
        linear(H + "attn.qkv_proj", *QKV, layout=Shards(4, (0, 2, 1))),
        linear(H + "attn.out_proj", "layers.{i}.mixer.o"),
        *two("fc_in", "fc_out", H + "mlp."),
        *norms(H, ln_1="input_norm"),
    ),
    n_layers="n_layer",
    ignored=GPT_IGNORED,
    fixed=J_FIXED,
    dropped=MASKS,
    prefix="transformer.",
)


def expanded(value: list[Any]) -> list[str]:
    """``[[["global", "local"], 12]]`` written out."""
    return [str(kind) for kinds, times in value for _ in range(times) for kind in kinds]


NEO = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    gpt(
        full_attention(
            "none",
            Key("num_heads"),
            Derived(quotient("hidden_size", "num_heads")),
            scale=1.0,
            bias=["o"],
            dropout=Rate("attention_dropout"),
        ),
        mlp(UP_DOWN, "activation_function", Key("intermediate_size", otherwise=times(4, "hidden_size"))),
        pre(N_LN, dropout=Rate("resid_dropout")),
        {
            "d_model": Key("hidden_size"),
            "vocab_size": Key("vocab_size"),
            "max_seq_len": Key("max_position_embeddings"),
            "init": {"weights": Start()},
        },
        embedding={"tied": TIED, "position": "learned", "dropout": Rate("embed_dropout")},
        head={"norm": N_LN},
    ),
    (
        *ends("transformer.wte", "transformer.ln_f"),
        POSITIONS,
        *qkvo(H + "attn.attention.", "out_proj"),
        *two("c_fc", "c_proj", H + "mlp."),
        *PRE_H,
    ),
    n_layers="num_layers",
    axes=(
        Axis(
            "attention_types",
            {
                "local": ("local", {"mixer": {"span": Window("window_size", required=True)}}),
                "global": ("global", {"mixer": {"span": "full"}}),
            },
            otherwise=lambda cfg, n: ["global", "local"] * 12,
            also=lambda cases: {"attention_layers": cases},
            keys=("attention_layers",),
            unpack=expanded,
            pack=lambda cases: [[cases, 1]],
        ),
    ),
    ignored=GPT_IGNORED,
    dropped=MASKS,
    prefix="transformer.",
)

BIGCODE = Family(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    gpt(
        full_attention(
            "none",
            N_HEADS,
            N_HEAD_DIM,
            kv=Switch("multi_query", {True: 1, False: SameAs("n_heads", "n_head")}),
            bias=EVERY_BIAS,
            dropout=ATTN_DROP,
            scale=Switch("scale_attn_weights", {True: "inv_sqrt_head_dim", False: 1.0}),
        ),
        mlp(UP_DOWN, "activation_function", N_INNER),
        pre(N_LN, dropout=DROP),
        embedding=LEARNED,
        head={"norm": N_LN},
        init=GPT2_INIT,
    ),
    (
        *ends("transformer.wte", "transformer.ln_f"),
        POSITIONS,
        # several heads share their one key and value head, or each has its own: both are groups
        linear(H + "attn.c_attn", *QKV, layout=Grouped()),
        linear(H + "attn.c_proj", "layers.{i}.mixer.o"),
        *two("c_fc", "c_proj", H + "mlp."),
        *PRE_H,
    ),
    n_layers="n_layer",
    ignored={
        **GPT_IGNORED,
        "attention_softmax_in_fp32": "precision",
        "scale_attention_softmax_in_fp32": "precision",
        "num_key_value_heads": "follows from multi_query",
        "inference_runner": "execution",
        "validate_runner_input": "execution",
        "pre_allocate_kv_cache": "execution",
        "max_batch_size": "execution",
        "max_sequence_length": "execution",
    },
    dropped=MASKS,
    prefix="transformer.",
)

CTRL = Family(
    "ctrl",
    "CTRLLMHeadModel",
    gpt(
        full_attention("none", N_HEADS, N_HEAD_DIM, bias=EVERY_BIAS),
        {**mlp(UP_DOWN, "afn", Key("dff")), "activation": "relu"},
        pre(layernorm(1e-6), dropout=DROP),
        embedding={
            "tied": TIED,
            "scale": "sqrt_d_model",
            "position": {"kind": "sinusoidal", "layout": "half"},
            "dropout": Rate("embd_pdrop"),
        },
        head={"norm": N_LN, "bias": True},
    ),
    (
        *ends("transformer.w", "transformer.layernorm"),
        linear(H + "multi_head_attention.Wq", "layers.{i}.mixer.q"),
        linear(H + "multi_head_attention.Wk", "layers.{i}.mixer.k"),
        linear(H + "multi_head_attention.Wv", "layers.{i}.mixer.v"),
        linear(H + "multi_head_attention.dense", "layers.{i}.mixer.o"),
        *two("0", "2", H + "ffn."),
        *norms(H, layernorm1="mixer__input_norm", layernorm2="ffn__input_norm"),
    ),
    n_layers="n_layer",
    ignored={**GPT_IGNORED, "attn_pdrop": "read by no released code", "from_tf": "where the weights came from"},
    prefix="transformer.",
)

GPTS = (GPT2, OPENAI_GPT, GPTJ, CODEGEN, NEO, BIGCODE, CTRL)
