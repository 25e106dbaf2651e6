"""OPT, BioGPT and XGLM: positions that start at row 2, learned or sinusoidal."""

from __future__ import annotations

from typing import Any

from assay.interop.config import Config
from assay.interop.families.gpt import EVERY_BIAS, UP_DOWN, full_attention
from assay.interop.families.layernorm import WHOLE_HEADS
from assay.interop.families.parts import (
    HEADS,
    LAYER,
    SIZES,
    TIED,
    ends,
    layernorm,
    mlp,
    norms,
    post,
    pre,
    qkvo,
    quotient,
    two,
)
from assay.interop.family import Family
from assay.interop.holes import Biases, Derived, Key, Rate, Start, Switch
from assay.interop.template import At, Entries, Hole, Spot, put
from assay.interop.tensors import linear, norm, table


class NarrowTable(Hole):
    """OPT-350m: a token table narrower than the model, with a matrix at each end."""

    keys = ("word_embed_proj_dim",)

    def read(self, cfg: Config, at: At) -> Any:
        dim = cfg.get("word_embed_proj_dim")
        return "none" if dim in (None, cfg["hidden_size"]) else {"kind": "linear", "dim": dim}

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        put(out, "word_embed_proj_dim", node["dim"] if node["kind"] == "linear" else spot.top["d_model"])


def by_flag(name: str, on: Any, off: Any) -> Switch:
    return Switch(name, {True: on, False: off})


AFFINE = "layer_norm_elementwise_affine"
OPT_LN = {
    **layernorm(1e-5),
    "gain": by_flag(AFFINE, "one", "none"),
    "bias": by_flag(AFFINE, True, False),
}
BEFORE = "do_layer_norm_before"
DROP = Rate("dropout")
LEARNED = {"kind": "learned", "offset": 2}
NO_LAYERDROP: dict[str, tuple[Any, ...]] = {"layerdrop": (0.0, 0)}
O = "model.decoder."
L = O + "layers.{i}."

OPT = Family(
    "opt",
    "OPTForCausalLM",
    {
        **SIZES,
        "init": {"weights": Start("init_std")},
        "embedding": {"tied": TIED, "projection": NarrowTable(), "position": LEARNED},
        "block": {
            "mixer": full_attention(
                "none",
                HEADS,
                WHOLE_HEADS,
                bias=Biases({"enable_bias": ("q", "k", "v", "o")}),
                dropout=Rate("attention_dropout"),
            ),
            "ffn": mlp(Biases({"enable_bias": ("up", "down")}), "activation_function", Key("ffn_dim")),
            "residual": by_flag(BEFORE, pre(OPT_LN, dropout=DROP), post(OPT_LN, dropout=DROP)),
        },
        "head": {
            "norm": by_flag(BEFORE, by_flag("_remove_final_layer_norm", "none", OPT_LN), "none"),
            "projection": NarrowTable(),
        },
    },
    (
        table(O + "embed_tokens", "embedding"),
        table(O + "embed_positions", "embedding.position"),
        linear(O + "project_in", "embedding.projection"),
        linear(O + "project_out", "head.projection"),
        norm(O + "final_layer_norm", "head.norm"),
        table("lm_head", "head"),
        *qkvo(L + "self_attn.", "out_proj"),
        *two("fc1", "fc2", L),
        *norms(L, self_attn_layer_norm="mixer__input_norm", final_layer_norm="ffn__input_norm"),
        *norms(L, self_attn_layer_norm="mixer__stream_norm", final_layer_norm="ffn__stream_norm"),
    ),
    fixed={**NO_LAYERDROP, "activation_dropout": (0.0, 0)},
)

B = "biogpt."
BL = B + "layers.{i}."
BIO_LN = layernorm(1e-5)
BIO_DROP = Rate("hidden_dropout_prob")
BIOGPT = Family(
    "biogpt",
    "BioGptForCausalLM",
    {
        **SIZES,
        "embedding": {
            "tied": TIED,
            "scale": by_flag("scale_embedding", "sqrt_d_model", 1.0),
            "position": LEARNED,
            "dropout": BIO_DROP,
        },
        "block": {
            "mixer": full_attention(
                "none", HEADS, WHOLE_HEADS, bias=EVERY_BIAS, dropout=Rate("attention_probs_dropout_prob")
            ),
            "ffn": {**mlp(UP_DOWN), "dropout": Rate("activation_dropout")},
            "residual": pre(BIO_LN, dropout=BIO_DROP),
        },
        "head": {"norm": BIO_LN},
    },
    (
        table(B + "embed_tokens", "embedding"),
        table(B + "embed_positions", "embedding.position"),
        norm(B + "layer_norm", "head.norm"),
        table("output_projection", "head"),
        *qkvo(BL + "self_attn.", "out_proj"),
        *two("fc1", "fc2", BL),
        *norms(BL, self_attn_layer_norm="mixer__input_norm", final_layer_norm="ffn__input_norm"),
    ),
    fixed=NO_LAYERDROP,
    ignored={"layer_norm_eps": "read by no released code: every norm has torch's 1e-5"},
    prefix=B,
)

X_LN = layernorm(1e-5)
XGLM = Family(
    "xglm",
    "XGLMForCausalLM",
    {
        "d_model": Key("d_model"),
        "vocab_size": Key("vocab_size"),
        "max_seq_len": Key("max_position_embeddings"),
        "init": {"weights": Start("init_std")},
        "embedding": {
            "tied": TIED,
            "scale": by_flag("scale_embedding", "sqrt_d_model", 1.0),
            "position": {"kind": "sinusoidal", "layout": "half", "spacing": "inclusive", "offset": 2},
            "dropout": DROP,
        },
        "block": {
            "mixer": full_attention(
                "none",
                Key("attention_heads"),
                Derived(quotient("d_model", "attention_heads")),
                bias=EVERY_BIAS,
                dropout=Rate("attention_dropout"),
            ),
            "ffn": {
                **mlp(UP_DOWN, "activation_function", Key("ffn_dim")),
                "dropout": Rate("activation_dropout"),
            },
            "residual": pre(X_LN, dropout=DROP),
        },
        "head": {"norm": X_LN},
    },
    (
        *ends(final="model.layer_norm"),
        *qkvo(o="out_proj"),
        *two("fc1", "fc2", LAYER),
        *norms(self_attn_layer_norm="mixer__input_norm", final_layer_norm="ffn__input_norm"),
    ),
    n_layers="num_layers",
    # transformers zeroes the row of this number in the table of positions; those before 2 are never read
    fixed={**NO_LAYERDROP, "pad_token_id": (0, 1)},
    dropped={r"^model\.embed_positions\.weights$": "sines, computed here"},
)
OPTS = (OPT, BIOGPT, XGLM)
