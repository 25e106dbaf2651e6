"""Pieces that descriptions of families are put together from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.interop.config import Config
from assay.interop.family import Axis
from assay.interop.holes import Biases, Key, Rate, Start, Window, Word
from assay.interop.layouts import SAME, Layout, Rows
from assay.interop.template import Hole
from assay.interop.tensors import Move, linear, norm, table

Template = Mapping[str, Any]

TANH = "gelu_tanh"
WORDS: dict[str, Any] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": TANH,
    "gelu_pytorch_tanh": TANH,
    "gelu_fast": TANH,
    "gelu_accurate": TANH,
    "quick_gelu": {"kind": "swish", "beta": 1.702},
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
    "relu_squared": "relu2",
    "sigmoid": "sigmoid",
    "linear": "identity",
}


def rms(eps: Any = None, gain: str = "one") -> Template:
    """RMSNorm with its epsilon from a key."""
    return {"kind": "rmsnorm", "eps": Key("rms_norm_eps") if eps is None else eps, "gain": gain}


def layernorm(eps: Any, gain: str = "one", bias: bool = True) -> Template:
    return {"kind": "layernorm", "eps": Key(eps) if isinstance(eps, str) else eps, "gain": gain, "bias": bias}


def quotient(over: str, by: str) -> Any:
    """One key divided by another, whole."""

    def rule(cfg: Config) -> int:
        whole, parts = cfg.integer(over), cfg.integer(by)
        return whole // parts

    return rule


def times(factor: int, key: str) -> Any:
    return lambda cfg: factor * cfg.integer(key)


HEADS = Key("num_attention_heads")
KV_HEADS = Key("num_key_value_heads", otherwise=lambda cfg: cfg["num_attention_heads"])
HEAD_DIM = Key("head_dim", otherwise=quotient("hidden_size", "num_attention_heads"), implied=True)
TIED = Key("tie_word_embeddings")
SIZES: Template = {
    "d_model": Key("hidden_size"),
    "vocab_size": Key("vocab_size"),
    "max_seq_len": Key("max_position_embeddings"),
    "init": {"weights": Start()},
}
QKV_BIAS = Biases({"attention_bias": ("q", "k", "v")})
ALL_BIAS = Biases({"attention_bias": ("q", "k", "v", "o")})


def attention(position: Hole, **more: Any) -> Template:
    """Grouped-query attention under the names of Llama."""
    heads = {"n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    return {
        "kind": "attention",
        **heads,
        "position": position,
        "bias": [],
        "dropout": Rate("attention_dropout"),
        **more,
    }


def glu(bias: Any = (), act: str = "hidden_act", d_ff: str = "intermediate_size", words: Any = None) -> Template:
    word = Word(act, WORDS if words is None else words)
    return {"kind": "glu", "d_ff": Key(d_ff), "activation": word, "bias": list(bias) if bias == () else bias}


def mlp(bias: Any, act: str = "hidden_act", d_ff: Any = None, words: Any = None) -> Template:
    return {
        "kind": "mlp",
        "d_ff": Key("intermediate_size") if d_ff is None else d_ff,
        "activation": Word(act, WORDS if words is None else words),
        "bias": bias,
    }


def pre(n: Template, **branch: Any) -> Template:
    """Norm before each sublayer."""
    return {"form": "serial", "mixer": {"input_norm": n, **branch}, "ffn": {"input_norm": n, **branch}}


def post(n: Template, **branch: Any) -> Template:
    """Norm after each addition (2017)."""
    return {"form": "serial", "mixer": {"stream_norm": n, **branch}, "ffn": {"stream_norm": n, **branch}}


def sandwich(n: Template) -> Template:
    both = {"input_norm": n, "output_norm": n}
    return {"form": "serial", "mixer": both, "ffn": both}


def reordered(n: Template) -> Template:
    """Norm of what a sublayer gives (OLMo 2)."""
    return {"form": "serial", "mixer": {"output_norm": n}, "ffn": {"output_norm": n}}


def parallel(n: Template, **branch: Any) -> Template:
    return {"form": "parallel", "mixer": {"input_norm": n, **branch}, "ffn": {"input_norm": n, **branch}}


def shared(n: Template, **branch: Any) -> Template:
    """One norm feeds both sublayers."""
    return {"form": "parallel_shared_norm", "input_norm": n, "mixer": dict(branch), "ffn": dict(branch)}


def sliding(*, local: Template | None = None, full: Template | None = None, **axis: Any) -> Axis:
    """``layer_types``; ``local`` and ``full`` are laid over the mixers of the two kinds."""
    window = axis.pop("window", Window(required=True))
    return Axis(
        "layer_types",
        {
            "sliding_attention": ("local", {"mixer": {"span": window, **(local or {})}}),
            "full_attention": ("global", {"mixer": {"span": "full", **(full or {})}}),
        },
        **axis,
    )


def every(period: int | str, first: bool = False) -> Any:
    """Layer types that repeat: every ``period``-th layer is full. A text names the key that holds the period."""

    def rule(cfg: Config, n: int) -> list[str]:
        p = cfg.integer(period) if isinstance(period, str) else period
        at = 0 if first else p - 1
        return ["full_attention" if i % p == at else "sliding_attention" for i in range(n)]

    return rule


# tensors under the names of Llama

LAYER = "model.layers.{i}."


def ends(embed: str = "model.embed_tokens", final: str = "model.norm", head: str = "lm_head") -> tuple[Move, ...]:
    return (table(embed, "embedding"), norm(final, "head.norm"), table(head, "head"))


def qkvo(at: str = LAYER + "self_attn.", o: str = "o_proj", qk: Layout = SAME) -> tuple[Move, ...]:
    return (
        linear(f"{at}q_proj", "layers.{i}.mixer.q", layout=qk),
        linear(f"{at}k_proj", "layers.{i}.mixer.k", layout=qk),
        linear(f"{at}v_proj", "layers.{i}.mixer.v"),
        linear(f"{at}{o}", "layers.{i}.mixer.o"),
    )


def qk_norms(q: str = "q_norm", k: str = "k_norm", at: str = LAYER + "self_attn.", **more: Any) -> tuple[Move, ...]:
    return (norm(f"{at}{q}", "layers.{i}.mixer.q_norm", **more), norm(f"{at}{k}", "layers.{i}.mixer.k_norm", **more))


def gated(at: str = LAYER + "mlp.") -> tuple[Move, ...]:
    return (
        linear(f"{at}gate_proj", "layers.{i}.ffn.gate"),
        linear(f"{at}up_proj", "layers.{i}.ffn.up"),
        linear(f"{at}down_proj", "layers.{i}.ffn.down"),
    )


def fused_gate(at: str = LAYER + "mlp.") -> tuple[Move, ...]:
    return (
        linear(f"{at}gate_up_proj", "layers.{i}.ffn.gate", "layers.{i}.ffn.up", layout=Rows()),
        linear(f"{at}down_proj", "layers.{i}.ffn.down"),
    )


def two(up: str, down: str, at: str = LAYER + "mlp.", layout: Layout = SAME) -> tuple[Move, ...]:
    return (
        linear(f"{at}{up}", "layers.{i}.ffn.up", layout=layout),
        linear(f"{at}{down}", "layers.{i}.ffn.down", layout=layout),
    )


def norms(at: str = LAYER, **places: str) -> tuple[Move, ...]:
    """Layer norms: foreign name = place in the residual, with a double underscore for the dot."""
    return tuple(norm(at + name, "layers.{i}.residual." + place.replace("__", ".")) for name, place in places.items())


PRE = norms(input_layernorm="mixer__input_norm", post_attention_layernorm="ffn__input_norm")
SHARED = norms(input_layernorm="input_norm")
SANDWICH = norms(
    input_layernorm="mixer__input_norm",
    post_attention_layernorm="mixer__output_norm",
    pre_feedforward_layernorm="ffn__input_norm",
    post_feedforward_layernorm="ffn__output_norm",
)
REORDERED = norms(post_attention_layernorm="mixer__output_norm", post_feedforward_layernorm="ffn__output_norm")
LLAMA_TENSORS = (*ends(), *qkvo(), *gated(), *PRE)
