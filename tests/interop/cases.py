"""Tiny models of every family, as transformers' own configs. Several settings a family where its config has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

D, VOCAB, WINDOW, CONTEXT, LENGTH = 24, 41, 6, 32, 43
LONG = 64  # of families whose positions are a table: they end there
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LOCAL_GLOBAL = ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Case:
    """One config. ``attention`` is the implementation under which transformers is a reference."""

    model_type: str
    config: dict[str, Any]
    attention: str = "eager"
    by_length: bool = False  # the frequencies depend on the length of the row
    both_ways: bool = False  # a token sees those after it


def sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": D,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        **NO_TOKENS,
        **more,
    }


def n_sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "n_embd": D,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": LONG,
        "layer_norm_epsilon": 1e-3,
        **NO_TOKENS,
        **more,
    }


def theta(value: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": value, **more}


def llama(**more: Any) -> dict[str, Any]:
    return sizes(**{"rms_norm_eps": 1e-3, "rope_parameters": theta(), **more})


YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 2.0, "beta_slow": 0.5,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}

CASES: dict[str, Case] = {}


def case(name: str, model_type: str, config: dict[str, Any], **more: Any) -> None:
    CASES[name] = Case(model_type, config, **more)


case("llama", "llama", llama())
case("llama, biases", "llama", llama(attention_bias=True, mlp_bias=True, head_dim=8))
case("llama, MQA, tied", "llama", llama(num_key_value_heads=1, tie_word_embeddings=True))
case("llama, linear", "llama", llama(rope_parameters=LINEAR))
case("llama, llama3", "llama", llama(rope_parameters=LLAMA3, head_dim=8))
case("llama, YaRN", "llama", llama(rope_parameters=YARN))
case("llama, YaRN, all options", "llama", llama(rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}))
case("llama, YaRN, factor given", "llama", llama(rope_parameters={**YARN, "attention_factor": 1.3, "truncate": False}))
DYNAMIC = theta(rope_type="dynamic", factor=3.0)
LONG_ROPE = theta(
    rope_type="longrope", short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 4.0, 9.0], original_max_position_embeddings=16
)
case("llama, dynamic", "llama", llama(rope_parameters=DYNAMIC), by_length=True)
case("llama, longrope", "llama", llama(rope_parameters=LONG_ROPE), by_length=True)
case("llama, longrope, factor given", "llama", llama(rope_parameters={**LONG_ROPE, "factor": 7.0}), by_length=True)
case("mistral", "mistral", llama(sliding_window=WINDOW, head_dim=8))
case("mistral, no window", "mistral", llama(sliding_window=None))
case("ministral", "ministral", llama(head_dim=6, sliding_window=WINDOW, layer_types=LOCAL_GLOBAL))
case("ministral, all slide", "ministral", llama(head_dim=6, sliding_window=WINDOW))
case("qwen2", "qwen2", llama())
case("qwen2, windows", "qwen2", llama(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1))
case("qwen2, YaRN", "qwen2", llama(rope_parameters=YARN))
case("qwen3", "qwen3", llama(head_dim=8, tie_word_embeddings=True))
case("qwen3, biases, windows", "qwen3",
     llama(head_dim=8, attention_bias=True, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2)
     )  # fmt: skip
case("smollm3", "smollm3", llama(no_rope_layers=[1, 0, 1]))
case("smollm3, windows", "smollm3",
     llama(no_rope_layer_interval=2, use_sliding_window=True, sliding_window=WINDOW, attention_bias=True))  # fmt: skip
case("phi3", "phi3", llama(rope_parameters=theta(partial_rotary_factor=0.65), head_dim=10))
case("phi3, window", "phi3", llama(sliding_window=WINDOW))
case("phi3, longrope", "phi3",
     llama(rope_parameters=LONG_ROPE, original_max_position_embeddings=16), by_length=True)  # fmt: skip
case("granite", "granite",
     llama(embedding_multiplier=3.0, logits_scaling=7.0, residual_multiplier=0.4, attention_multiplier=0.2,
           attention_bias=True, mlp_bias=True, tie_word_embeddings=True))  # fmt: skip
case("hyperclovax", "hyperclovax",
     llama(embedding_multiplier=3.0, logits_scaling=0.7, residual_multiplier=0.4, attention_multiplier=0.2)
     )  # fmt: skip
case("hyperclovax, no post-norm", "hyperclovax", llama(use_post_norm=False, attention_bias=True))
case("exaone", "exaone", llama(mlp_bias=True))
case("iquestcoder", "iquestcoder", llama(head_dim=8))
case("internlm3", "internlm3", llama(head_dim=6, attention_bias=True, mlp_bias=True))
case("internlm3, dynamic", "internlm3", llama(head_dim=6, rope_parameters=DYNAMIC), by_length=True)
case("apertus", "apertus", llama(head_dim=8, rope_parameters=LLAMA3))
case("apertus, biases", "apertus", llama(attention_bias=True, tie_word_embeddings=True))
case("helium", "helium", llama(head_dim=6))
case("helium, biases", "helium", llama(head_dim=6, attention_bias=True, mlp_bias=True, num_key_value_heads=4))
case("arcee", "arcee", llama(mlp_bias=True))
case("arcee, YaRN", "arcee", llama(rope_parameters=YARN, attention_bias=True))
case("seed_oss", "seed_oss", llama(head_dim=8))
case("seed_oss, output bias", "seed_oss", llama(head_dim=8, attention_out_bias=True, mlp_bias=True))
case(
    "cwm",
    "cwm",
    llama(bos_token_id=1, head_dim=8, sliding_window=WINDOW, rope_parameters=LLAMA3, layer_types=LOCAL_GLOBAL),
)
case("ernie4_5", "ernie4_5", llama(head_dim=8, tie_word_embeddings=True))
case("ernie4_5, biases", "ernie4_5", llama(head_dim=8, use_bias=True))
case("hunyuan_v1_dense", "hunyuan_v1_dense", llama(head_dim=8))
case("hunyuan_v1_dense, alpha", "hunyuan_v1_dense",
     llama(head_dim=8, attention_bias=True, rope_parameters=theta(rope_type="dynamic", alpha=50.0, factor=1.0))
     )  # fmt: skip
case("glm", "glm", llama(head_dim=8, eos_token_id=2, rope_parameters=theta(partial_rotary_factor=0.5)))
case("glm4", "glm4", llama(head_dim=8, eos_token_id=2, rope_parameters=theta(partial_rotary_factor=0.5)))

GEMMA = llama(head_dim=8)
LAYERS = {"sliding_window": WINDOW, "layer_types": LOCAL_GLOBAL}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
case("gemma", "gemma", GEMMA)
case("gemma, MQA, biases", "gemma", {**GEMMA, "num_key_value_heads": 1, "attention_bias": True, "hidden_act": "gelu"})
case("gemma2", "gemma2", {**GEMMA, **LAYERS, **CAPS, "query_pre_attn_scalar": 12})
case("gemma2, no caps", "gemma2",
     {**GEMMA, "sliding_window": WINDOW, "attn_logit_softcapping": None, "final_logit_softcapping": None})  # fmt: skip
TWO_BASES = {"sliding_attention": theta(50.0), "full_attention": {**LINEAR, "rope_theta": 300.0}}
case("gemma3_text", "gemma3_text", {**GEMMA, **LAYERS, "query_pre_attn_scalar": 12, "rope_parameters": TWO_BASES})
case("vaultgemma", "vaultgemma", {**GEMMA, **LAYERS, **CAPS, "query_pre_attn_scalar": 12})
OLMO = sizes(rope_parameters=theta(), tie_word_embeddings=False)
case("olmo", "olmo", OLMO)
case("olmo, clip, biases", "olmo", {**OLMO, "clip_qkv": 0.5, "attention_bias": True})
case("olmo2", "olmo2", llama())
case("olmo2, biases", "olmo2", llama(attention_bias=True))
YARN_ON_FULL = {"sliding_attention": theta(), "full_attention": YARN}
case("olmo3", "olmo3", llama(**LAYERS, rope_parameters=YARN_ON_FULL))
COHERE = sizes(layer_norm_eps=1e-3, logit_scale=0.3, rope_parameters=theta())
case("cohere", "cohere", COHERE)
case("cohere, QK-norm, biases", "cohere", {**COHERE, "use_qk_norm": True, "attention_bias": True})
case("cohere2", "cohere2", {**COHERE, **LAYERS})
case("exaone4", "exaone4", llama(head_dim=8, **LAYERS))
case("exaone4, no window", "exaone4",
     llama(head_dim=8, sliding_window=None, layer_types=["full_attention"] * 3))  # fmt: skip

case("gpt2", "gpt2", n_sizes())
case("gpt2, unusual", "gpt2",
     n_sizes(n_inner=40, activation_function="relu", scale_attn_weights=False, tie_word_embeddings=False))  # fmt: skip
case("gpt2, scaled by layer", "gpt2", n_sizes(scale_attn_by_inverse_layer_idx=True))
case("openai-gpt", "openai-gpt", n_sizes())
case("gptj", "gptj", n_sizes(rotary_dim=4, n_inner=40))
case("gptj, whole heads", "gptj", n_sizes(rotary_dim=6))
case("codegen", "codegen", n_sizes(n_embd=32, rotary_dim=4))
case("gpt_neo", "gpt_neo",
     {"vocab_size": VOCAB, "hidden_size": D, "num_layers": 3, "num_heads": 4, "window_size": WINDOW,
      "max_position_embeddings": LONG, "attention_types": [[["global", "local"], 1], [["local"], 1]],
      "layer_norm_epsilon": 1e-3, **NO_TOKENS})  # fmt: skip
case("gpt_bigcode", "gpt_bigcode", n_sizes())
case("gpt_bigcode, MHA", "gpt_bigcode", n_sizes(multi_query=False))
case("ctrl", "ctrl", {**n_sizes(dff=40), "tie_word_embeddings": False})
NEOX = sizes(layer_norm_eps=1e-3, hidden_act="gelu", rope_parameters=theta(partial_rotary_factor=0.34))
del NEOX["num_key_value_heads"]
case("gpt_neox", "gpt_neox", NEOX)
case("gpt_neox, serial, no bias", "gpt_neox", {**NEOX, "use_parallel_residual": False, "attention_bias": False})
FALCON = {**NEOX, "rope_parameters": theta(), "layer_norm_epsilon": 1e-3}
for key in ("layer_norm_eps", "hidden_act", "intermediate_size"):
    del FALCON[key]
case("falcon, as 7b", "falcon", FALCON)
case("falcon, as 40b", "falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True})
case("falcon, as 2-11b", "falcon",
     {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1})  # fmt: skip
case("falcon, MHA, serial", "falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True})
# eager attention adds the bias twice; its bfloat16 slopes are exact for these heads and lengths
case("falcon, ALiBi", "falcon", {**FALCON, "alibi": True, "bias": True}, attention="sdpa")
case("falcon, ALiBi, serial", "falcon",
     {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False}, attention="sdpa")  # fmt: skip
BLOOM = {
    "vocab_size": VOCAB, "hidden_size": D, "n_layer": 3, "n_head": 4, "layer_norm_epsilon": 1e-3, "seq_length": CONTEXT,
    **NO_TOKENS,
}  # fmt: skip
case("bloom", "bloom", BLOOM)
case("bloom, six heads, skip from the norm", "bloom",
     {**BLOOM, "n_head": 6, "apply_residual_connection_post_layernorm": True, "tie_word_embeddings": False}
     )  # fmt: skip
MPT = {
    "vocab_size": VOCAB, "d_model": D, "n_layers": 3, "n_heads": 4, "max_seq_len": LONG, "layer_norm_epsilon": 1e-3,
    **NO_TOKENS,
}  # fmt: skip
case("mpt", "mpt", MPT)
case("mpt, six heads, clip, scale", "mpt",
     {**MPT, "n_heads": 6, "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.3}})  # fmt: skip
PHI = sizes(layer_norm_eps=1e-3, hidden_act="gelu_new", rope_parameters=theta(partial_rotary_factor=0.67))
case("phi", "phi", PHI)
case("phi, QK-norm", "phi", {**PHI, "qk_layernorm": True})
PERSIMMON = {**PHI, "hidden_act": "relu2"}
del PERSIMMON["num_key_value_heads"]
case("persimmon", "persimmon", PERSIMMON)
case("persimmon, no QK-norm", "persimmon", {**PERSIMMON, "qk_layernorm": False})
STABLE = {**PHI, "hidden_act": "silu"}
case("stablelm", "stablelm", STABLE)
case("stablelm, QK-norm, parallel", "stablelm",
     {**STABLE, "qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True})  # fmt: skip
NEMOTRON = sizes(norm_eps=1e-3, head_dim=8, rope_parameters=theta(partial_rotary_factor=0.5))
case("nemotron", "nemotron", NEMOTRON)
case("nemotron, biases", "nemotron", {**NEMOTRON, "attention_bias": True, "mlp_bias": True})
CODER = sizes(norm_epsilon=1e-3, rope_parameters=theta())
case("starcoder2", "starcoder2", {**CODER, "sliding_window": WINDOW})
case("starcoder2, no bias", "starcoder2", {**CODER, "use_bias": False, "tie_word_embeddings": False})
case("jais2", "jais2", sizes(layer_norm_eps=1e-3, rope_parameters=theta(), head_dim=8))
case("nanochat", "nanochat", llama(final_logit_softcapping=3.0))
case("nanochat, biases", "nanochat", llama(final_logit_softcapping=None, attention_bias=True))

OPT = {
    "vocab_size": VOCAB, "hidden_size": D, "ffn_dim": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": LONG, **NO_TOKENS,
}  # fmt: skip
case("opt, as 125m", "opt", OPT)
case("opt, as 350m", "opt", {**OPT, "word_embed_proj_dim": 10, "do_layer_norm_before": False})
case("opt, bare", "opt",
     {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False})  # fmt: skip
BIO = {**OPT, "intermediate_size": 40}
del BIO["ffn_dim"]
case("biogpt", "biogpt", BIO)
case("biogpt, unscaled", "biogpt", {**BIO, "scale_embedding": False, "hidden_act": "gelu_new"})
XGLM = {
    "vocab_size": VOCAB, "d_model": D, "ffn_dim": 40, "num_layers": 3, "attention_heads": 4,
    "max_position_embeddings": CONTEXT, **NO_TOKENS,
}  # fmt: skip
case("xglm", "xglm", XGLM)
case("xglm, untied, unscaled", "xglm", {**XGLM, "scale_embedding": False, "tie_word_embeddings": False})

case("diffllama", "diffllama", llama())
case("diffllama, biases, MHA", "diffllama", llama(num_key_value_heads=4, attention_bias=True, head_dim=8))
STEPS = {**YARN, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 8}
case("ministral3", "ministral3", llama(head_dim=8, rope_parameters=STEPS))
case("ministral3, window", "ministral3", llama(head_dim=8, sliding_window=WINDOW, rope_parameters=STEPS))
case("ministral3, not scaled", "ministral3",
     llama(head_dim=6, rope_parameters={**STEPS, "llama_4_scaling_beta": 0.0}))  # fmt: skip

BERT = {
    "vocab_size": VOCAB, "hidden_size": D, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": LONG, "layer_norm_eps": 1e-3, **NO_TOKENS,
}  # fmt: skip
case("bert", "bert", BERT, both_ways=True)
case("bert, causal, untied", "bert", {**BERT, "is_decoder": True, "tie_word_embeddings": False})
MODERN = {
    "vocab_size": VOCAB, "hidden_size": D, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT, "norm_eps": 1e-3, "local_attention": 2 * WINDOW, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2,
    "rope_parameters": {"sliding_attention": {**LINEAR, "rope_theta": 50.0}, "full_attention": LINEAR},
}  # fmt: skip
case("modernbert-decoder", "modernbert-decoder", MODERN)
case("modernbert-decoder, biases", "modernbert-decoder",
     {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
      "decoder_bias": False, "tie_word_embeddings": False, "classifier_activation": "relu",
      "rope_parameters": {"sliding_attention": theta(50.0), "full_attention": theta(300.0)},
      "layer_types": [*LOCAL_GLOBAL, "full_attention"]})  # fmt: skip
