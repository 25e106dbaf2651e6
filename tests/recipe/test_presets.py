"""The shipped recipes: they load, survive every written form, name their sources and count the published parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.atlas import model
from assay.cost import starts_of, tensors_of
from assay.recipe import Recipe, load, preset_names, resolve
from assay.recipe.roles import ParamRole

PRESETS = preset_names()
MODELS = [name for name in PRESETS if not name.startswith("tiny/")]
TINY = [name for name in PRESETS if name.startswith("tiny/")]

# Published or counted from the released shapes with another library, but for transformer-2017 (a half of a published
# model: counted by hand below) and palm-540b (540.35B published).
PARAMETERS = {
    "bert-base": 109_514_298 - 2 * 768,  # of the masked language model, less its two segments
    "command-a": 111_057_580_032,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma3-4b": 3_880_263_168,
    "gpt-neox-20b": 20_554_567_680,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "gptj-6b": 6_050_882_784,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "opt-350m": 331_196_416,
    "palm-540b": 540_356_474_880,
    "pythia-70m": 70_426_624,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
    "transformer-2017": 37_000 * 512 + 6 * (4 * 512**2 + 2 * 512 * 2048 + 2048 + 512 + 4 * 512),
}


@cache
def preset(name: str) -> Recipe:
    return load(name)


def parameters(recipe: Recipe) -> int:
    return sum(tensor.numel for tensor in tensors_of(recipe))


@pytest.mark.parametrize("name", PRESETS)
class TestEveryPreset:
    def test_is_called_what_it_is_found_as(self, name: str) -> None:
        assert preset(name).name == name

    def test_resolves_again_from_its_own_dict(self, name: str) -> None:
        again = resolve(preset(name).to_dict())
        assert again.digest == preset(name).digest
        assert again.to_dict() == preset(name).to_dict()

    @pytest.mark.parametrize("form", ["toml", "json"])
    def test_is_the_same_when_written_and_read(self, name: str, form: str, tmp_path: Path) -> None:
        path = tmp_path / f"recipe.{form}"
        recipe = preset(name)
        path.write_text(recipe.to_toml() if form == "toml" else recipe.to_json(), encoding="utf-8")
        again = load(path)
        assert again.digest == recipe.digest
        assert (again.name, again.sources, again.notes) == (recipe.name, recipe.sources, recipe.notes)


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_names_its_sources(name: str) -> None:
    sources = preset(name).sources
    assert sources
    assert all(source.strip() for source in sources)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_are_the_published_number(name: str) -> None:
    assert parameters(preset(name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(PARAMETERS)))
def test_other_presets_are_real_models_of_the_published_size(name: str) -> None:
    # the exact counts are held with the atlas, tests/atlas/test_recipes.py; some are published as "7B" only
    assert parameters(preset(name)) == pytest.approx(model(name).params.total, rel=0.1)


def test_no_published_number_lacks_its_preset() -> None:
    assert set(PARAMETERS) <= set(MODELS)


def test_presets_of_one_architecture_are_known() -> None:
    names: dict[str, list[str]] = {}
    for name in PRESETS:
        names.setdefault(preset(name).digest, []).append(name)
    assert sorted(group for group in names.values() if len(group) > 1) == [
        ["qwen2-0.5b", "qwen2.5-0.5b"],
        ["qwen2-1.5b", "qwen2.5-1.5b"],
    ]


@pytest.mark.parametrize("name", TINY)
def test_the_tiny_family_shares_its_sizes(name: str) -> None:
    base, recipe = preset("tiny/base"), preset(name)
    assert recipe.vocab_size == 256
    assert (recipe.d_model, recipe.max_seq_len, recipe.n_layers) == (base.d_model, base.max_seq_len, base.n_layers)
    free = {"tiny/gqa": 0.08, "tiny/scalenorm": 0.08}  # fewer key/value heads; a tied table
    assert parameters(recipe) == pytest.approx(parameters(base), rel=free.get(name, 0.005))


# --- against transformers, built from shapes written here and not from a recipe ---


def _llama(vocab: int, d: int, ff: int, layers: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": d,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


def _gpt2(d: int, layers: int, heads: int, positions: int = 1024) -> dict[str, Any]:
    return {"vocab_size": 50257, "n_positions": positions, "n_embd": d, "n_layer": layers, "n_head": heads}


def _neox(vocab: int, d: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": d,
        "intermediate_size": 4 * d,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": False,
    }


_OPT = {
    "vocab_size": 50272,
    "hidden_size": 1024,
    "ffn_dim": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": False,
}
_GPTJ = {"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64}

TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("bert", {"type_vocab_size": 0}),
    "gpt2": ("gpt2", _gpt2(768, 12, 12)),
    "gpt2-medium": ("gpt2", _gpt2(1024, 24, 16)),
    "gpt2-large": ("gpt2", _gpt2(1280, 36, 20)),
    "gpt2-xl": ("gpt2", _gpt2(1600, 48, 25)),
    "gpt3-175b": ("gpt2", _gpt2(12288, 96, 96, positions=2048)),
    "opt-350m": ("opt", _OPT),
    "gptj-6b": ("gptj", {**_GPTJ, "tie_word_embeddings": False}),
    "gpt-neox-20b": ("gpt_neox", _neox(50432, 6144, 44, 64)),
    "pythia-70m": ("gpt_neox", _neox(50304, 512, 6, 8)),
    "llama-7b": ("llama", _llama(32000, 4096, 11008, 32, 32, 32)),
    "llama-2-7b": ("llama", _llama(32000, 4096, 11008, 32, 32, 32)),
    "llama-2-70b": ("llama", _llama(32000, 8192, 28672, 80, 64, 8)),
    "llama-3-8b": ("llama", _llama(128256, 4096, 14336, 32, 32, 8)),
    "llama-3-70b": ("llama", _llama(128256, 8192, 28672, 80, 64, 8)),
    "llama-3.1-8b": ("llama", _llama(128256, 4096, 14336, 32, 32, 8)),
    "llama-3.1-70b": ("llama", _llama(128256, 8192, 28672, 80, 64, 8)),
    "llama-3.1-405b": ("llama", _llama(128256, 16384, 53248, 126, 128, 8)),
    "llama-3.2-1b": ("llama", _llama(128256, 2048, 8192, 16, 32, 8, tie_word_embeddings=True)),
    "smollm2-135m": ("llama", _llama(49152, 576, 1536, 30, 9, 3, tie_word_embeddings=True)),
    "mistral-7b": ("mistral", _llama(32000, 4096, 14336, 32, 32, 8)),
    "qwen2.5-7b": ("qwen2", _llama(152064, 3584, 18944, 28, 28, 4)),
    "qwen3-0.6b": ("qwen3", _llama(151936, 1024, 3072, 28, 16, 8, head_dim=128, tie_word_embeddings=True)),
    "qwen3-8b": ("qwen3", _llama(151936, 4096, 12288, 36, 32, 8, head_dim=128)),
    "qwen3-32b": ("qwen3", _llama(151936, 5120, 25600, 64, 64, 8, head_dim=128)),
    "gemma-2b": ("gemma", _llama(256000, 2048, 16384, 18, 8, 1, head_dim=256)),
    "gemma-2-9b": ("gemma2", _llama(256000, 3584, 14336, 42, 16, 8, head_dim=256)),
    "gemma3-4b": ("gemma3_text", _llama(262208, 2560, 10240, 34, 8, 4, head_dim=256, sliding_window=1024)),
    "olmo-2-7b": ("olmo2", _llama(100352, 4096, 11008, 32, 32, 32)),
    "olmo-3-7b": ("olmo3", _llama(100278, 4096, 11008, 32, 32, 32)),
    "command-a": ("cohere2", _llama(256000, 12288, 36864, 64, 96, 8)),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_counts_the_same(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, shapes = TRANSFORMERS[name]
    config = transformers.AutoConfig.for_model(kind, **shapes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == parameters(preset(name))


@pytest.mark.parametrize("name", ["gemma-2-9b", "gemma3-4b", "olmo-3-7b", "command-a"])
def test_windows_stand_at_the_depths_where_transformers_has_them(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind, shapes = TRANSFORMERS[name]
    config = transformers.AutoConfig.for_model(kind, **shapes)
    spans = [layer.mixer.span for layer in preset(name).layers]
    assert ["sliding_attention" if span.kind == "window" else "full_attention" for span in spans] == config.layer_types
    assert {span.size for span in spans if span.kind == "window"} == {config.sliding_window}


# --- facts that a parameter count cannot see ---

FACTS: dict[str, Callable[[Recipe], bool]] = {
    "bert-base": lambda r: not any(layer.mixer.span.is_causal for layer in r.layers) and r.head.norm.is_none,
    "gptj-6b": lambda r: r.layers[0].mixer.position.rotary_dim(256) == 64,
    "gpt-neox-20b": lambda r: r.layers[0].mixer.position.rotary_dim(96) == 24,
    "llama-7b": lambda r: r.head.norm.eps == 1e-6,
    "llama-3.1-8b": lambda r: r.head.norm.eps == 1e-5,
    "gemma-2-9b": lambda r: {layer.mixer.scale_value for layer in r.layers} == {0.0625},
    "mistral-7b": lambda r: {layer.mixer.span.size for layer in r.layers} == {4096},
    "palm-540b": lambda r: not any(t.role is ParamRole.BIAS for t in tensors_of(r)),
    "tiny/no-norm": lambda r: not any(t.role is ParamRole.NORM_GAIN for t in tensors_of(r)),
    "opt-350m": lambda r: r.embedding_width == r.head_width == 512 and r.head.norm.is_none,
}


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str) -> None:
    assert FACTS[name](preset(name))


@pytest.mark.parametrize("name", ["olmo-3-7b", "gemma3-4b", "command-a"])
def test_local_and_global_layers_have_positions_of_their_own(name: str) -> None:
    layers = {layer.name: layer.mixer.position for layer in preset(name).layers}
    local, everywhere = layers["local"], layers["global"]
    assert local.scaling.is_none
    assert everywhere.is_none or not everywhere.scaling.is_none


# std of a matrix at the depth of layer 0, by role
STARTS = {
    "bert-base": {"embedding": 0.02, "projection": 0.02, "ffn_out": 0.02},
    "gpt2": {
        "embedding": 0.02,
        "position": 0.02,
        "attn_in": 0.02,
        "attn_out": 0.02 / 24**0.5,
        "ffn_out": 0.02 / 24**0.5,
    },
    "opt-350m": {"embedding": 0.006, "ffn_in": 0.006, "ffn_out": 0.006 / 48**0.5, "projection": 0.006},
    "gptj-6b": {"embedding": 50400**-0.5, "attn_in": 4096**-0.5, "attn_out": 2 / 28 / 64, "ffn_out": 2 / 28 / 64},
    "gpt-neox-20b": {"attn_in": (2 / 5 / 6144) ** 0.5, "attn_out": 2 / 44 / 6144**0.5, "ffn_out": 2 / 44 / 6144**0.5},
    "pythia-70m": {"embedding": (2 / 5 / 512) ** 0.5, "attn_out": 2 / 6 / 512**0.5, "ffn_out": 2 / 6 / 512**0.5},
    "olmo-2-7b": {"embedding": 0.02, "head": 0.02, "ffn_out": 0.02},
    "palm-540b": {"embedding": 1.0, "attn_in": 18432**-0.5, "attn_out": 12288**-0.5, "ffn_out": 73728**-0.5},
    "tiny/base": {"embedding": 1.0, "head": 0.02, "ffn_out": 0.02},
    "tiny/fixup": {"head": 0.0, "attn_out": 0.0, "ffn_out": 0.0, "ffn_in": (2 / 64 / 8) ** 0.5},
}


@pytest.mark.parametrize("name", STARTS)
def test_published_start(name: str) -> None:
    first: dict[str, float] = {}
    for start in starts_of(preset(name)):
        if start.draw is not None:
            first.setdefault(str(start.tensor.role), start.draw.std)
    for role, std in STARTS[name].items():
        assert math.isclose(first[role], std, rel_tol=1e-6), role
