"""Keys of config.json that every family of transformers shares, and what becomes of them."""

from __future__ import annotations

_TOKENS = "belongs to the tokenizer, not to the architecture"
_EXECUTION = "how to run, not what to compute"
_RECORD = "a record of how the file came to be"
_GENERATION = "a default of generation"
_OTHER_HEADS = "belongs to heads other than the language model's"

SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")

# key -> why it is ignored
COMMON: dict[str, str] = {
    **dict.fromkeys(
        (
            *SPECIAL_TOKENS, "sep_token_id", "cls_token_id", "unk_token_id", "mask_token_id", "eod_token_id",
            "decoder_start_token_id",
            "forced_bos_token_id", "forced_eos_token_id", "tokenizer_class", "prefix", "model_max_length",
        ),
        _TOKENS,
    ),
    **dict.fromkeys(
        (
            "use_cache", "output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "torchscript",
            "use_bfloat16", "chunk_size_feed_forward", "attn_implementation", "gradient_checkpointing",
            "low_cpu_mem_usage", "attention_implementation", "use_flash_attn", "tp_plan", "device_map",
            "pretraining_tp",
        ),
        _EXECUTION,
    ),
    **dict.fromkeys(
        (
            "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "name_or_path",
            "auto_map", "license", "tf_legacy_loss", "finetuning_task", "is_decoder", "unsloth_version",
            "unsloth_fixed",
        ),
        _RECORD,
    ),
    **dict.fromkeys(
        (
            "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams",
            "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p",
            "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
            "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
            "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
            "cache_implementation", "task_specific_params",
        ),
        _GENERATION,
    ),
    **dict.fromkeys(
        ("id2label", "label2id", "num_labels", "problem_type", "classifier_dropout", "classifier_bias"), _OTHER_HEADS
    ),
}  # fmt: skip

# key -> the values under which the model is a plain decoder with plain weights; null is always one
REQUIRED: dict[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "quantization_config": (),
    "per_layer_config": ({},),
}

GPT_HEADS = dict.fromkeys(
    (
        "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    ),
    _OTHER_HEADS,
)  # fmt: skip
