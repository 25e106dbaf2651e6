"""What becomes of every key of a foreign config: mapped, fixed or ignored for a reason; anything else is an error."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.interop import InteropError, UnsupportedArchitecture, families, read_recipe
from assay.interop.config import defaults_of
from assay.recipe import Recipe
from tests.interop.cases import CASES, LLAMA3, WINDOW, YARN, llama, theta

FIRST = {case.model_type: case for case in reversed(CASES.values())}  # the first case of each family


def recipe_of(model_type: str, config: dict[str, Any], folder: Path, **more: Any) -> Recipe:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **config}))
    return read_recipe(folder, **more)


def test_recorded_defaults_are_those_of_transformers() -> None:
    """The data file says of every key what transformers' config classes say now."""
    pytest.importorskip("transformers", minversion="5.24", reason="the release the defaults were read from")
    from tests.interop.regen_defaults import TARGET, recorded

    ours, theirs = json.loads(TARGET.read_text(encoding="utf-8")), recorded()
    assert set(ours["families"]) == set(families())
    if ours["transformers_version"] == theirs["transformers_version"]:
        assert ours == json.loads(json.dumps(theirs))
    else:  # a later release may add keys; what it has in common must not have moved
        for name, entry in ours["families"].items():
            now = json.loads(json.dumps(theirs["families"][name]["defaults"]))
            moved = {k: (v, now[k]) for k, v in entry["defaults"].items() if k in now and now[k] != v}
            assert not moved, name


@pytest.mark.parametrize("model_type", list(families()))
def test_every_key_of_a_family_is_dealt_with(model_type: str) -> None:
    claims = families()[model_type].claims()
    assert set(defaults_of(model_type)) <= set(claims)
    assert all(claims.values()), "a key without a reason"


# keys that are read, but change nothing under the settings of the first case: another key decides
IDLE = {
    ("qwen2", "use_sliding_window"), ("qwen2", "max_window_layers"), ("qwen2", "sliding_window"),
    ("qwen3", "use_sliding_window"), ("qwen3", "max_window_layers"), ("qwen3", "sliding_window"),
    ("smollm3", "use_sliding_window"), ("smollm3", "no_rope_layer_interval"), ("smollm3", "sliding_window"),
    ("exaone4", "sliding_window_pattern"), ("phi3", "original_max_position_embeddings"),
    ("falcon", "num_kv_heads"), ("falcon", "num_ln_in_parallel_attn"),
}  # fmt: skip
COUNTED = [(t, key) for t, f in families().items() for key in defaults_of(t) if f.claims()[key] == "maps"]


def changed(value: Any, key: str) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2
    if isinstance(value, float):
        return value / 2 + 0.125 if value < 1 else value * 2
    if isinstance(value, str):
        return {"relu": "gelu"}.get(value, "relu")
    if isinstance(value, list):
        return [*value[1:], value[0]]
    if isinstance(value, dict):
        return (
            {k: changed(v, k) for k, v in value.items()} if "rope_theta" not in value else {**value, "rope_theta": 77.0}
        )
    return {"head_dim": 4, "n_inner": 12, "intermediate_size": 12, "clip_qkv": 0.5, "word_embed_proj_dim": 4}.get(
        key, 2
    )


@pytest.mark.parametrize(("model_type", "key"), COUNTED)
def test_every_mapped_key_counts(model_type: str, key: str, tmp_path: Path) -> None:
    """Another value of a mapped key gives another recipe, or an error; never the same recipe."""
    config = FIRST[model_type].config
    before = recipe_of(model_type, config, tmp_path)
    value = config.get(key, defaults_of(model_type)[key])
    try:
        after = recipe_of(model_type, {**config, key: changed(value, key)}, tmp_path)
    except InteropError:
        return
    assert (after.digest == before.digest) == ((model_type, key) in IDLE)


IGNORED = [
    (t, key) for t, f in families().items() for key in defaults_of(t) if f.claims()[key] not in ("maps", "fixed")
]


@pytest.mark.parametrize(("model_type", "key"), IGNORED)
def test_ignored_keys_change_nothing(model_type: str, key: str, tmp_path: Path) -> None:
    config = FIRST[model_type].config
    before = recipe_of(model_type, config, tmp_path)
    value = changed(defaults_of(model_type)[key], key)
    assert recipe_of(model_type, {**config, key: value}, tmp_path).digest == before.digest


# what is refused


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(InteropError, match=r"config.json: intermediate_sizes = \[40\].*nearest: intermediate_size\b"):
        recipe_of("llama", llama(intermediate_sizes=[40]), tmp_path)
    with pytest.raises(InteropError, match="attention_chunk_size = 64"):
        recipe_of("llama", llama(attention_chunk_size=64), tmp_path)
    # null says nothing; a key that is named is let through
    assert recipe_of("llama", llama(attention_chunk_size=None), tmp_path)
    assert recipe_of("llama", llama(attention_chunk_size=64), tmp_path, ignore=["attention_chunk_size"])


@pytest.mark.parametrize(
    ("model_type", "more", "message"),
    [
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"is_encoder_decoder": True}, "is_encoder_decoder = True"),
        ("llama", {"hidden_act": "mish"}, r"hidden_act = 'mish' has no kind in a recipe"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "only a language model"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ("gemma2", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "'chunked_attention'"),
        ("opt", {"layerdrop": 0.1}, "layerdrop = 0.1"),
        ("mpt", {"attn_config": {"qk_ln": True}}, r"attn_config.qk_ln = True"),
        ("mpt", {"expansion_ratio": 2}, r"expansion_ratio = 2"),
        ("llama", {"rope_parameters": theta(rope_type="proportional", factor=2.0)}, "rope_scaling kind 'proportional'"),
        ("llama", {"rope_parameters": theta(rope_type="spiral")}, "unknown rope type 'spiral'"),
        ("phi3", {"rope_parameters": LLAMA3}, "phi3 reads default, longrope"),
    ],
)
def test_what_no_recipe_expresses_is_refused(
    model_type: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedArchitecture, match=message):
        recipe_of(model_type, {**FIRST[model_type].config, **more}, tmp_path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"hidden_size": "24"}, "hidden_size = '24': expected a positive whole number"),
        ({"intermediate_size": -3}, "block.ffn.d_ff"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0: expected a positive whole number"),
        ({"num_attention_heads": 5}, "n_kv_heads"),
        ({"vocab_size": None}, "vocab_size = None: expected a value"),
        ({"rope_parameters": {**LLAMA3, "spin": 2}}, "'llama3' does not know spin = 2"),
        ({"rope_parameters": {**LLAMA3, "factor": "8"}}, "rope factor = '8': expected a number"),
        (
            {"rope_parameters": theta(rope_type="longrope", short_factor=[1.0, 2.0, 3.0], long_factor=4.0)},
            "rope long_factor = 4.0: expected a list of numbers",
        ),
        (
            {"rope_parameters": theta(rope_type="longrope", short_factor=[1.0, 2.0, 3.0], long_factor=[1.0])},
            "long_factor: 1 factors, short_factor has 3",
        ),
        ({"rope_parameters": theta(partial_rotary_factor=0.5)}, "llama rotates whole heads"),
        ({"rope_theta": 5.0}, "rope_parameters says rope_theta = 100.0, the older keys say 5.0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'default', the older keys say 'linear'"),
        ({"rope_parameters": {"full_attention": theta()}}, "one table for all layers"),
        ({"rope_parameters": {**YARN, "type": "linear"}}, "rope_type = 'yarn' and type = 'linear'"),
    ],
)
def test_wrong_values_are_named(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InteropError, match="(?s)config.json.*" + message):
        recipe_of("llama", llama(**more), tmp_path)


def test_wrong_lists_are_named(tmp_path: Path) -> None:
    gemma = FIRST["gemma2"].config
    for value in (["full_attention"] * 2, "full_attention", 7):
        with pytest.raises(InteropError, match=r"layer_types = .*one entry"):
            recipe_of("gemma2", {**gemma, "layer_types": value}, tmp_path)
    with pytest.raises(InteropError, match="sliding_window = None: expected a window"):
        recipe_of("gemma2", {**gemma, "sliding_window": None}, tmp_path)
    with pytest.raises(InteropError, match="one table a layer type"):
        recipe_of("gemma3_text", {**FIRST["gemma3_text"].config, "rope_parameters": theta()}, tmp_path)


def test_unknown_model_types_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="'qwen3_next' is not supported; nearest: qwen3"):
        recipe_of("qwen3_next", {}, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InteropError, match="no model_type"):
        read_recipe(tmp_path)


# dialects and defaults of published files


def test_defaults_are_the_familys_own(tmp_path: Path) -> None:
    """An absent key is what transformers assumes for that family, not what another assumes."""
    config = {k: v for k, v in llama().items() if k not in ("rms_norm_eps", "rope_parameters", "num_key_value_heads")}
    made = recipe_of("llama", config, tmp_path).layers[0]
    assert made.mixer.n_kv_heads == 4
    assert made.mixer.position.theta == 10_000.0
    assert made.residual.mixer.input_norm.eps == 1e-6
    config = {k: v for k, v in FIRST["cohere"].config.items() if k != "rope_parameters"}
    assert recipe_of("cohere", config, tmp_path).layers[0].mixer.position.theta == 500_000.0
    config = {k: v for k, v in FIRST["glm"].config.items() if k != "rope_parameters"}
    assert recipe_of("glm", config, tmp_path).layers[0].mixer.position.fraction == 0.5
    config = {k: v for k, v in FIRST["cwm"].config.items() if k != "rope_parameters"}
    scaling = recipe_of("cwm", config, tmp_path).layers[0].mixer.position.scaling
    assert (scaling.kind, scaling.factor, scaling.original_seq_len) == ("llama3", 16.0, 8192)


def test_gemma3_locals_keep_their_own_base(tmp_path: Path) -> None:
    """Six layers, the sixth global: base and scaling a layer, in the words of published configs."""
    config = {
        **FIRST["gemma3_text"].config,
        "num_hidden_layers": 26, "layer_types": None, "sliding_window_pattern": 6, "rope_parameters": None,
        "rope_theta": 1_000_000, "rope_local_base_freq": 10_000, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    layers = recipe_of("gemma3_text", config, tmp_path).layers
    assert [i for i, layer in enumerate(layers) if layer.mixer.span.kind == "full"] == [5, 11, 17, 23]
    for i, layer in enumerate(layers):
        position = layer.mixer.position
        local = i not in (5, 11, 17, 23)
        assert position.theta == (1e4 if local else 1e6)
        assert position.scaling.kind == ("none" if local else "linear")
        assert layer.mixer.span.kind == ("window" if local else "full")


def test_pythia_names(tmp_path: Path) -> None:
    config = {k: v for k, v in FIRST["gpt_neox"].config.items() if k != "rope_parameters"}
    config.update(rotary_pct=0.34, rotary_emb_base=100, torch_dtype="float16", use_cache=True)
    assert (
        recipe_of("gpt_neox", config, tmp_path).digest
        == recipe_of("gpt_neox", FIRST["gpt_neox"].config, tmp_path).digest
    )


def test_phi3_words_for_longrope(tmp_path: Path) -> None:
    """Its first files said "su"; the multiplier of cos and sin follows from both lengths."""
    config = {k: v for k, v in FIRST["phi3"].config.items() if k not in ("rope_parameters", "head_dim")}
    config.update(rope_theta=100.0, max_position_embeddings=64, original_max_position_embeddings=16)
    scaling = {"short_factor": [1, 1.1, 1.3], "long_factor": [1.5, 4, 9]}
    found = [
        recipe_of("phi3", {**config, "rope_scaling": {"type": word, **scaling}}, tmp_path)
        .layers[0]
        .mixer.position.scaling
        for word in ("su", "longrope", "yarn")
    ]
    assert found[0] == found[1] == found[2]
    assert (found[0].kind, found[0].original_seq_len) == ("longrope", 16)
    assert found[0].attention_factor == pytest.approx((1 + math.log(4) / math.log(16)) ** 0.5)


def test_windows_follow_the_older_qwen_keys(tmp_path: Path) -> None:
    config = llama(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2)
    kinds = [layer.mixer.span.kind for layer in recipe_of("qwen2", config, tmp_path).layers]
    assert kinds == ["full", "full", "window"]
    config["use_sliding_window"] = False
    assert {layer.mixer.span.kind for layer in recipe_of("qwen2", config, tmp_path).layers} == {"full"}


def test_published_configs_give_the_shipped_recipes(tmp_path: Path) -> None:
    """A published config, by its own words, is the preset of that model."""
    from assay.recipe import load

    smollm = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": None, "max_position_embeddings": 8192, "mlp_bias": False,
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
        "vocab_size": 49152,
    }  # fmt: skip
    made, shipped = recipe_of("llama", smollm, tmp_path), load("smollm2-135m")
    assert made.layers == tuple(layer.model_copy(update={"name": made.layers[0].name}) for layer in shipped.layers)
    assert (made.embedding, made.head, made.max_seq_len) == (shipped.embedding, shipped.head, shipped.max_seq_len)


def test_reading_a_recipe_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **llama()}))
    code = (
        "import sys; from assay.interop import read_recipe; "
        f"read_recipe({str(tmp_path)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
