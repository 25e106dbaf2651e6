"""Folders that are cut short, incomplete or at odds with themselves: an error that names the file and the tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from assay.interop import DamagedFolder, InteropError, from_hf, to_hf
from assay.interop.store import Store

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(bench: Any, tmp_path: Path) -> Path:
    """A whole folder, one weights file."""
    return Path(shutil.copytree(bench("llama").folder, tmp_path / "whole"))


@pytest.fixture
def sharded(bench: Any, tmp_path: Path) -> Path:
    """The same model in several files."""
    bench("llama").model.save_pretrained(tmp_path / "sharded", max_shard_size="12KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    return tmp_path / "sharded"


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def refuses(folder: Path, *words: str) -> None:
    with pytest.raises(InteropError) as caught:
        from_hf(folder)
    for word in words:
        assert word in str(caught.value)


def test_no_folder_no_config_no_weights(folder: Path) -> None:
    refuses(folder / "nowhere", "config.json: no such file")
    (folder / WEIGHTS).unlink()
    refuses(folder, "no weights: neither model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"')
    refuses(folder, "config.json: cannot be read")
    (folder / "config.json").write_text("[1]")
    refuses(folder, "config.json: not a JSON object")


@pytest.mark.parametrize("kept", [0, 4, 100, -1, -500])
def test_a_file_cut_short(folder: Path, kept: int) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:kept])
    refuses(folder, f"{WEIGHTS}: cannot be read")


def test_a_missing_tensor(folder: Path) -> None:
    edit(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    refuses(folder, "missing model.layers.1.mlp.up_proj.weight")


def test_a_tensor_without_a_rule(folder: Path) -> None:
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(24)}))
    refuses(folder, WEIGHTS, "tensors without a rule", "model.layers.0.self_attn.q_proj.bias")


def test_a_layer_too_many(folder: Path) -> None:
    edit(folder, lambda t: t.update({k.replace(".2.", ".3."): v.clone() for k, v in t.items() if ".layers.2." in k}))
    refuses(folder, "tensors without a rule", "model.layers.3.")


def test_a_buffer_is_let_through(folder: Path) -> None:
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}))
    assert from_hf(folder)


def test_a_wrong_shape(folder: Path) -> None:
    edit(folder, lambda t: t.update({"model.layers.0.mlp.down_proj.weight": torch.zeros(24, 41)}))
    refuses(folder, WEIGHTS, "model.layers.0.mlp.down_proj.weight", "(24, 41)", "the config needs (24, 40)")


def test_a_wrong_width_of_a_fused_tensor(bench: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bench("phi3, window").folder, tmp_path / "phi3"))
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.qkv_proj.weight": torch.zeros(47, 24)}))
    refuses(folder, "qkv_proj.weight has shape (47, 24), the config needs 48 rows")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn, torch.bool])
def test_an_unknown_dtype(folder: Path, dtype: torch.dtype) -> None:
    edit(folder, lambda t: t.update({"model.norm.weight": torch.ones(24).to(dtype)}))
    refuses(folder, WEIGHTS, "model.norm.weight has dtype", "F64, F32, F16, BF16")


def test_a_head_that_is_not_the_table_it_is_tied_to(bench: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bench("llama, MQA, tied").folder, tmp_path / "tied"))
    edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert from_hf(folder)
    edit(folder, lambda t: t["lm_head.weight"].mul_(2))
    refuses(folder, "the config ties lm_head.weight to model.embed_tokens.weight, but they differ")


# shards


def test_shards_are_read_one_after_another(sharded: Path, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal logits, one open file at a time, each opened once for its tensors."""
    opened: list[str] = []
    get = Store.get

    def watched(self: Store, name: str) -> torch.Tensor:
        value = get(self, name)
        assert len(self._open) == 1
        file = self.files[name].name
        if not opened or opened[-1] != file:
            opened.append(file)
        return value

    monkeypatch.setattr(Store, "get", watched)
    decoder = from_hf(sharded)
    assert opened == sorted(set(opened))
    b = bench("llama")
    with torch.no_grad():
        assert torch.equal(decoder(b.ids), from_hf(b.folder)(b.ids))


def test_a_missing_shard(sharded: Path) -> None:
    second = sorted(sharded.glob("model-*.safetensors"))[1]
    second.unlink()
    refuses(sharded, f"missing {second.name}", INDEX)


def test_an_index_at_odds_with_its_shards(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    first = sorted(set(index["weight_map"].values()))[0]
    name = next(n for n, f in index["weight_map"].items() if f == first)
    less = {k: v for k, v in index["weight_map"].items() if k != name}
    (sharded / INDEX).write_text(json.dumps({**index, "weight_map": less}))
    refuses(sharded, first, name, "does not name")
    (sharded / INDEX).write_text(json.dumps({**index, "weight_map": {**index["weight_map"], "ghost": first}}))
    refuses(sharded, first, "lacks ghost")
    (sharded / INDEX).write_text(json.dumps({"metadata": {}}))
    refuses(sharded, INDEX, "no weight_map")


def test_shards_stay_inside_the_folder(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "../outside.safetensors"
    (sharded / INDEX).write_text(json.dumps(index))
    refuses(sharded, INDEX, "'../outside.safetensors' is not a plain file name")


# .bin


def test_a_bin_file_is_read_without_pickle(folder: Path, bench: Any) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    b = bench("llama")
    with torch.no_grad():
        assert torch.equal(from_hf(folder)(b.ids), from_hf(b.folder)(b.ids))


class Payload:
    """What a pickle must never get to do."""

    def __reduce__(self) -> Any:
        raise_it = "import pathlib; pathlib.Path('pwned').touch()"
        return (exec, (raise_it,))


def test_a_bin_file_with_code_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    torch.save({**load_file(folder / WEIGHTS), "extra": Payload()}, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    refuses(folder, "pytorch_model.bin: cannot be read")
    assert not (folder / "pwned").exists()


# base-model names, and what to_hf adds


@pytest.mark.parametrize("name", ["gpt2", "opt, as 125m", "llama, MQA, tied"])
def test_files_of_the_base_model_lack_its_prefix(name: str, bench: Any, tmp_path: Path) -> None:
    """The published GPT-2 has ``wte.weight``, not ``transformer.wte.weight``."""
    b = bench(name)
    b.model.base_model.save_pretrained(tmp_path / "base")
    names = load_file(tmp_path / "base" / WEIGHTS)
    assert not any(n.startswith(b.model.base_model_prefix + ".") for n in names)
    with torch.no_grad():
        assert torch.equal(from_hf(tmp_path / "base")(b.ids), from_hf(b.folder)(b.ids))


def test_a_sidecar_at_odds_with_the_config(bench: Any, tmp_path: Path) -> None:
    folder = to_hf(from_hf(bench("llama").folder), tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    with pytest.raises(DamagedFolder, match=r"assay_recipe.json: describes another model.*input_norm.eps"):
        from_hf(folder)
