"""Writing a folder: what is refused and why, where the files land, and what is in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from assay.interop import CannotExport, UnsupportedArchitecture, families, from_hf, lost_fields, to_hf
from assay.interop.export import choose
from assay.model import build
from assay.recipe import Recipe, load, resolve
from tests.interop.support import distance, logits_of


def small(**block: Any) -> Recipe:
    """A Llama-like recipe; ``block`` is laid over it with double underscores for dots."""
    table: dict[str, Any] = {
        "name": "small",
        "d_model": 24,
        "vocab_size": 41,
        "max_seq_len": 32,
        "n_layers": 2,
        "embedding": {"tied": True},
        "block": {
            "mixer": {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "position": {"kind": "rope"}},
            "ffn": {"kind": "glu", "d_ff": 40, "activation": "silu"},
            "residual": {"rule": "pre", "norm": "rmsnorm"},
        },
        "head": {"norm": "rmsnorm"},
    }
    for path, value in block.items():
        *parts, last = path.split("__")
        node = table
        for part in parts:
            node = node[part]
        node[last] = value
    return resolve(table)


# which family, and which fields are in the way


@pytest.mark.parametrize(
    ("model_type", "change", "fields"),
    [
        ("llama", {"block__mixer__soft_cap": 5.0}, ["layers.*.mixer.soft_cap"]),
        ("llama", {"block__mixer__qk_norm": {"over": "head", "norm": "rmsnorm"}}, ["layers.*.mixer.qk_norm"]),
        ("llama", {"block__mixer__bias": ["q"]}, ["layers.*.mixer.bias"]),
        ("llama", {"block__mixer__query_scale": {"kind": "by_position", "beta": 0.1, "period": 8}},
         ["layers.*.mixer.query_scale"]),
        ("llama", {"block__mixer__differential": {"norm": "rmsnorm"}}, ["layers.*.mixer.differential"]),
        ("diffllama", {"block__mixer__differential": {"norm": {"kind": "rmsnorm", "gain": "none"}, "start": 0.5}},
         ["layers.*.mixer.differential.start"]),
        ("llama", {"head__transform": {"kind": "dense", "activation": "gelu", "norm": "layernorm"}},
         ["head.transform"]),
        ("llama", {"block__mixer__span": {"kind": "window", "size": 4}}, ["layers.*.mixer.span"]),
        ("llama", {"block__residual": {"rule": "sandwich", "norm": "rmsnorm"}},
         ["layers.*.residual.mixer.output_norm", "layers.*.residual.ffn.output_norm"]),
        ("llama", {"head__norm": {"kind": "rmsnorm", "eps": 1e-3}}, ["head.norm.eps"]),
        ("llama", {"embedding__scale": "sqrt_d_model", "head__soft_cap": 3.0}, ["embedding.scale", "head.soft_cap"]),
        ("llama", {"block__ffn__dropout": 0.1}, ["layers.*.ffn.dropout"]),
        ("llama", {"block__mixer__n_heads": 5, "block__mixer__n_kv_heads": 5, "block__mixer__head_dim": 4},
         ["layers.*.mixer.n_heads (must divide d_model)"]),
        ("gpt2", {"block__ffn": {"kind": "mlp", "d_ff": 40, "activation": "gelu"}},
         ["embedding.position", "head.norm", "layers.*.mixer.n_kv_heads", "layers.*.mixer.position",
          "layers.*.mixer.bias", "layers.*.ffn.bias", "layers.*.residual.mixer.input_norm",
          "layers.*.residual.ffn.input_norm"]),
        ("helium", {"block__mixer__head_dim": 8, "block__mixer__position": {"kind": "rope", "layout": "interleaved"}},
         ["layers.*.mixer.head_dim (n_heads times head_dim must be d_model)"]),
        ("phi3", {"block__mixer__position": {"kind": "rope", "scaling": {"kind": "linear", "factor": 2.0}}}, None),
    ],
)  # fmt: skip
def test_a_refusal_lists_the_fields(model_type: str, change: dict[str, Any], fields: list[str] | None) -> None:
    recipe = small(**change)
    with pytest.raises(CannotExport, match=f"{model_type} cannot express") as caught:
        choose(recipe, model_type)
    if fields is not None:
        assert sorted(caught.value.fields) == sorted(fields)
    assert caught.value.fields == tuple(lost_fields(recipe, families()[model_type]))


def test_layers_that_differ_are_named_by_depth() -> None:
    from assay.recipe.merge import apply_overrides

    table = apply_overrides(small().to_dict(), [])
    name = next(iter(table["layers"]))
    table["layers"]["odd"] = {**table["layers"][name], "ffn": {**table["layers"][name]["ffn"], "d_ff": 48}}
    table["stack"] = [name, "odd"]
    with pytest.raises(CannotExport) as caught:
        choose(resolve(table), "llama")
    assert caught.value.fields == ("layers.1.ffn.d_ff",)


@pytest.mark.parametrize(
    "name", ["transformer-2017", "tiny/deepnorm", "tiny/rezero", "tiny/layerscale", "tiny/scalenorm"]
)
def test_presets_that_no_family_expresses(name: str) -> None:
    with pytest.raises(
        CannotExport, match="no model type of transformers expresses this recipe; the nearest, "
    ) as caught:
        choose(load(name))
    assert caught.value.fields


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("gpt2", "gpt2"), ("gptj-6b", "gptj"), ("gpt-neox-20b", "gpt_neox"), ("pythia-70m", "gpt_neox"),
        ("opt-350m", "opt"), ("llama-2-7b", "llama"), ("llama-3.1-8b", "llama"), ("qwen2.5-7b", "qwen2"),
        ("qwen3-0.6b", "qwen3"), ("gemma-2b", "gemma"), ("gemma-2-9b", "gemma2"), ("gemma3-4b", "gemma3_text"),
        ("olmo-2-7b", "olmo2"), ("olmo-3-7b", "olmo3"), ("mistral-7b", "mistral"), ("command-a", "cohere2"),
        ("smollm2-135m", "llama"), ("bert-base", "bert"),
    ],
)  # fmt: skip
def test_shipped_recipes_find_their_family(name: str, model_type: str) -> None:
    """By what they say, not by what they are called."""
    assert choose(load(name))[0].model_type == model_type


def test_the_origin_is_preferred_where_several_families_fit() -> None:
    assert choose(small())[0].model_type == "llama"
    origin = small().model_copy(update={"sources": ("hf:mistral",)})
    assert choose(origin)[0].model_type == "mistral"
    assert choose(origin, "llama")[0].model_type == "llama"
    lost = small(block__mixer__soft_cap=5.0).model_copy(update={"sources": ("hf:mistral",)})
    with pytest.raises(CannotExport):  # an origin that no longer fits is no reason to drop a field
        choose(lost)
    with pytest.raises(UnsupportedArchitecture, match="'lama' is not supported; nearest: llama"):
        choose(small(), "lama")


def test_every_family_expresses_what_it_reads() -> None:
    """The default config of every family comes back as itself."""
    for name, family in families().items():
        recipe = family.read(family.config({"model_type": name}))
        assert not lost_fields(recipe, family), name


# files


def test_a_training_init_survives_here(tmp_path: Path) -> None:
    """A foreign config knows one standard deviation; the folder keeps the whole init, name and sources beside it."""
    recipe = load("tiny/pre-ln")
    decoder = build(recipe)
    folder = to_hf(decoder, tmp_path / "out")
    again = from_hf(folder)
    assert again.recipe.digest == recipe.digest
    assert again.recipe.init == recipe.init
    assert (again.recipe.name, again.recipe.sources) == (recipe.name, recipe.sources)


def test_shards(bench: Any, tmp_path: Path) -> None:
    import transformers

    b = bench("gemma2")
    decoder = from_hf(b.folder)
    folder = to_hf(decoder, tmp_path / "out", shard_bytes=8_000)
    files = sorted(folder.glob("model-*.safetensors"))
    assert len(files) > 2
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    stored = {name: path.name for path in files for name in load_file(path)}
    assert index["weight_map"] == stored
    assert index["metadata"]["total_size"] == sum(t.nbytes for path in files for t in load_file(path).values())
    assert all(sum(t.nbytes for t in load_file(path).values()) <= 8_000 for path in files)
    back = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert distance(logits_of(back, b.ids), b.logits) < 1e-5
    with torch.no_grad():
        assert torch.equal(from_hf(folder)(b.ids), decoder(b.ids))


def test_a_tied_table_is_written_once(bench: Any, tmp_path: Path) -> None:
    folder = to_hf(from_hf(bench("llama, MQA, tied").folder), tmp_path / "out")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True


def test_no_field_is_left_to_a_default(bench: Any, tmp_path: Path) -> None:
    """Every key of the config class is written out, token ids too: none may fall back on another model's."""
    from assay.interop.config import defaults_of

    for name in ("llama", "gpt2", "gemma3_text"):
        folder = to_hf(from_hf(bench(name).folder), tmp_path / name)
        config = json.loads((folder / "config.json").read_text())
        assert set(defaults_of(bench(name).case.model_type)) <= set(config)
        assert config["bos_token_id"] is config["eos_token_id"] is config["pad_token_id"] is None
    told = json.loads((tmp_path / "llama" / "config.json").read_text())
    assert told["rope_theta"] == told["rope_parameters"]["rope_theta"] == 100.0  # readers of either dialect


def test_every_file_has_the_same_mode(bench: Any, tmp_path: Path) -> None:
    folder = to_hf(from_hf(bench("llama").folder), tmp_path / "out")
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_tokens_and_tokenizer(bench: Any, tmp_path: Path) -> None:
    decoder = from_hf(bench("llama").folder)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    folder = to_hf(decoder, tmp_path / "out", tokens={"bos": 1, "eos": [2, 3]}, tokenizer=tmp_path / "words")
    for file in ("config.json", "generation_config.json"):
        told = json.loads((folder / file).read_text())
        assert (told["bos_token_id"], told["eos_token_id"], told["pad_token_id"]) == (1, [2, 3], None)
    assert (folder / "tokenizer.json").read_text() == "{}"
    with pytest.raises(FileNotFoundError, match="no tokenizer files"):
        to_hf(decoder, tmp_path / "other", tokenizer=tmp_path)
    with pytest.raises(ValueError, match="unknown 'bis'"):
        to_hf(decoder, tmp_path / "other", tokens={"bis": 1})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "words"]


def test_a_folder_with_content_is_not_overwritten(bench: Any, tmp_path: Path) -> None:
    decoder = from_hf(bench("llama").folder)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not empty"):
        to_hf(decoder, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.txt"]
    to_hf(decoder, tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "mine.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("at", ["save_file", "fsync", "rename"])
def test_a_failed_write_leaves_what_was_there(
    at: str, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at any point: the old folder stands whole, and nothing half-written stays behind."""
    b = bench("llama")
    decoder = from_hf(b.folder)
    folder = to_hf(decoder, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    if at == "save_file":
        monkeypatch.setattr("safetensors.torch.save_file", full)
    elif at == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda self, to: full() if "partial" in self.name else rename(self, to))
    other = from_hf(b.folder)
    with torch.no_grad():
        other.embedding.table.zero_()
    with pytest.raises(OSError, match="No space left"):
        to_hf(other, folder, overwrite=True)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_codegen_needs_four_shards(tmp_path: Path) -> None:
    recipe = resolve({
        "name": "odd", "d_model": 6, "vocab_size": 11, "max_seq_len": 8, "n_layers": 1,
        "embedding": {"tied": False}, "head": {"norm": "layernorm", "bias": True},
        "block": {
            "mixer": {"kind": "attention", "n_heads": 1, "position": {"kind": "rope", "layout": "interleaved"}},
            "ffn": {"kind": "mlp", "d_ff": 8, "activation": "gelu_tanh", "bias": "all"},
            "residual": {"form": "parallel_shared_norm", "rule": "pre", "norm": "layernorm"},
        },
    })  # fmt: skip
    with pytest.raises(CannotExport, match="6 rows do not divide into 4 shards"):
        to_hf(build(recipe), tmp_path / "out", model_type="codegen")
    assert list(tmp_path.iterdir()) == []
