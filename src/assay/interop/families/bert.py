"""BERT, and ModernBERT as a decoder: a dense layer, an activation and a norm before the output table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.interop.config import Config
from assay.interop.families.gpt import EVERY_BIAS, UP_DOWN, full_attention
from assay.interop.families.layernorm import WHOLE_HEADS
from assay.interop.families.parts import HEADS, SIZES, TIED, WORDS, every, glu, layernorm, mlp, norms, post, two
from assay.interop.family import Axis, Family
from assay.interop.holes import Biases, Key, Rate, Word
from assay.interop.layouts import FirstRowAdded, Rows, Twins
from assay.interop.rope import rope
from assay.interop.template import At, Entries, Hole, Spot, collect, matches, put
from assay.interop.tensors import Move, linear, norm, table

# BERT

LN = layernorm("layer_norm_eps")
HIDDEN = Rate("hidden_dropout_prob")
E, B, P = "bert.embeddings.", "bert.encoder.layer.{i}.", "cls.predictions."
TYPES = E + "token_type_embeddings.weight"
FIRST_FILES = {"gamma": "gain", "beta": "bias"}  # the norms' names in files of 2018


def either(theirs: str, ours: str) -> tuple[Move, Move]:
    """A norm under its newer leaves and its older ones."""
    return norm(theirs, ours), Move(theirs, (ours,), FIRST_FILES)


BERT = Family(
    "bert",
    "BertLMHeadModel",
    {
        **SIZES,
        "embedding": {"tied": TIED, "position": "learned", "norm": LN, "dropout": HIDDEN},
        "block": {
            "mixer": full_attention(
                "none",
                HEADS,
                WHOLE_HEADS,
                bias=EVERY_BIAS,
                span={"kind": "full", "causal": Key("is_decoder", otherwise=lambda cfg: False)},
                dropout=Rate("attention_probs_dropout_prob"),
            ),
            "ffn": mlp(UP_DOWN),
            "residual": post(LN, dropout=HIDDEN),
        },
        "head": {
            "norm": "none",
            "bias": True,
            "transform": {"kind": "dense", "activation": Word("hidden_act", WORDS), "norm": LN, "bias": True},
        },
    },
    (
        table(E + "word_embeddings", "embedding"),
        Move(E + "position_embeddings", ("embedding.position",), {"weight": "table"}, FirstRowAdded(TYPES)),
        *either(E + "LayerNorm", "embedding.norm"),
        linear(B + "attention.self.query", "layers.{i}.mixer.q"),
        linear(B + "attention.self.key", "layers.{i}.mixer.k"),
        linear(B + "attention.self.value", "layers.{i}.mixer.v"),
        linear(B + "attention.output.dense", "layers.{i}.mixer.o"),
        *either(B + "attention.output.LayerNorm", "layers.{i}.residual.mixer.stream_norm"),
        *two("intermediate.dense", "output.dense", B),
        *either(B + "output.LayerNorm", "layers.{i}.residual.ffn.stream_norm"),
        linear(P + "transform.dense", "head.transform.dense"),
        *either(P + "transform.LayerNorm", "head.transform.norm"),
        # transformers adds the decoder's bias, and ties the other to it where the table is tied
        Move(P + "decoder", ("head",), {"bias": "bias"}, Twins(P + "bias")),
        Move(P + "decoder", ("head",), {"bias": "bias"}, spare=True),
        Move(P.rstrip("."), ("head",), {"bias": "bias"}, spare=True),
        Move(P + "decoder", ("head",), {"weight": "table"}),
    ),
    ignored={"type_vocab_size": "the row of the first segment is added to every position; the others are not read"},
    dropped={
        r"^bert\.pooler\.": "of the sentence classifier, not of the language model",
        r"^cls\.seq_relationship\.": "of the sentence classifier, not of the language model",
        r"^bert\.embeddings\.position_ids$": "the numbers of the positions",
    },
    fixed={"position_embedding_type": ("absolute",)},
    prefix="bert.",
    masked="BertForMaskedLM",
)

# ModernBERT as a decoder


@dataclass(frozen=True)
class ButFirst(Hole):
    """A norm in every layer but the first, which reads the embedding as its norm left it."""

    norm: Mapping[str, Any]

    def read(self, cfg: Config, at: At) -> Any:
        return "none" if at.depth == 0 else self.norm

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return matches("none", node) or matches(self.norm, node, parent)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        collect(self.norm, node, spot, out)

    def inside(self) -> Any:
        return iter((self.norm,))


class HalfWindow(Hole):
    """``local_attention`` counts both sides of an encoder's window: a decoder sees half of it."""

    keys = ("local_attention",)

    def read(self, cfg: Config, at: At) -> Any:
        both = cfg.integer("local_attention")
        if both < 2:
            raise cfg.fault("local_attention", both, "2 or more")
        return {"kind": "window", "size": both // 2}

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return matches({"kind": "window", "causal": True}, node)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        put(out, "local_attention", 2 * node["size"])


class CutStart(Hole):
    """A normal cut at so many standard deviations; ``smaller`` by 1/√(2 layers), as what ends a branch is."""

    keys = ("initializer_range", "initializer_cutoff_factor")

    def __init__(self, smaller: bool = False) -> None:
        self.smaller = smaller

    def read(self, cfg: Config, at: At) -> Any:
        cut = cfg["initializer_cutoff_factor"]
        std = float(cfg["initializer_range"]) * ((2 * cfg.integer("num_hidden_layers")) ** -0.5 if self.smaller else 1)
        return {"kind": "truncated_normal", "std": std, "cutoff": 3.0 if cut is None else float(cut)}

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        if matches("truncated_normal", node) and not self.smaller:
            put(out, "initializer_range", node["std"])
            put(out, "initializer_cutoff_factor", node["cutoff"])


def full_first(cfg: Config, n: int) -> list[str]:
    """Every third layer is full, from the first on; the period was once a key of its own."""
    return [str(case) for case in every(int(cfg.get("global_attn_every_n_layers") or 3), first=True)(cfg, n)]


MODERN_LN = layernorm("norm_eps", bias=Key("norm_bias"))  # type: ignore[arg-type]
MODERN_ROPE = rope(
    by="layer_types",
    theta=160_000.0,
    theta_key="global_rope_theta",
    local_theta=10_000.0,
    local_theta_key="local_rope_theta",
)
MODERN_DROP = Rate("attention_dropout")
M = "model.layers.{i}."
MODERNBERT_DECODER = Family(
    "modernbert-decoder",
    "ModernBertDecoderForCausalLM",
    {
        **SIZES,
        "init": {"weights": CutStart(), "projection": CutStart(smaller=True), "depth": "total_depth"},
        "embedding": {"tied": TIED, "norm": MODERN_LN, "dropout": Rate("embedding_dropout")},
        "block": {
            "mixer": full_attention(
                MODERN_ROPE,
                HEADS,
                WHOLE_HEADS,
                bias=Biases({"attention_bias": ("q", "k", "v", "o")}),
                dropout=MODERN_DROP,
            ),
            "ffn": {
                **glu(Biases({"mlp_bias": ("gate", "up", "down")}), act="hidden_activation"),
                "dropout": Rate("mlp_dropout"),
            },
            "residual": {
                "form": "serial",
                "mixer": {"input_norm": ButFirst(MODERN_LN), "dropout": MODERN_DROP},
                "ffn": {"input_norm": MODERN_LN},
            },
        },
        "head": {
            "norm": MODERN_LN,
            "bias": Key("decoder_bias"),
            "transform": {
                "kind": "dense",
                "activation": Word("classifier_activation", WORDS),
                "norm": MODERN_LN,
                "bias": Key("classifier_bias"),
            },
        },
    },
    (
        table("model.embeddings.tok_embeddings", "embedding"),
        norm("model.embeddings.norm", "embedding.norm"),
        *(linear(f"{M}attn.{p}_proj", f"layers.{{i}}.mixer.{p}") for p in "qkv"),
        linear(M + "attn.Wo", "layers.{i}.mixer.o"),
        linear(M + "mlp.Wi", "layers.{i}.ffn.gate", "layers.{i}.ffn.up", layout=Rows()),
        linear(M + "mlp.Wo", "layers.{i}.ffn.down"),
        *norms(M, attn_norm="mixer__input_norm", mlp_norm="ffn__input_norm"),
        norm("model.final_norm", "head.norm"),
        linear("lm_head.dense", "head.transform.dense"),
        norm("lm_head.norm", "head.transform.norm"),
        table("decoder", "head"),
    ),
    axes=(
        Axis(
            "layer_types",
            {
                "sliding_attention": ("local", {"mixer": {"span": HalfWindow()}}),
                "full_attention": ("global", {"mixer": {"span": "full"}}),
            },
            otherwise=full_first,
            keys=("global_attn_every_n_layers",),
        ),
    ),
    told_tokens=("bos_token_id", "pad_token_id"),
    ignored={
        "sliding_window": "half of local_attention, worked out anew",
        **dict.fromkeys(("classifier_pooling", "sparse_prediction", "sparse_pred_ignore_index"), "of other heads"),
        **dict.fromkeys(("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"), "execution"),
        **dict.fromkeys(("causal_mask", "layer_norm_eps", "position_embedding_type"), "read by no released code"),
    },
)
BERTS = (BERT, MODERNBERT_DECODER)
