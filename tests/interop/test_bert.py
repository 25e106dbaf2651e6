"""BERT as it was published: older names of norms, a sentence classifier beside the language model, other classes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from assay.interop import DamagedFolder, UnsupportedArchitecture, from_hf, read_recipe, to_hf
from tests.interop.support import distance, logits_of, reference

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(bench: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bench("bert").folder, tmp_path / "bert"))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], **config: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, **config}))


def as_of_2018(tensors: dict[str, torch.Tensor]) -> None:
    """The names of bert-base-uncased's first files."""
    leaves = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for name in list(tensors):
        for new, old in leaves.items():
            if name.endswith(new):
                tensors[name.replace(new, old)] = tensors.pop(name)
    d = tensors["bert.embeddings.word_embeddings.weight"].shape[1]
    tensors["bert.pooler.dense.weight"] = torch.ones(d, d)
    tensors["bert.pooler.dense.bias"] = torch.ones(d)
    tensors["cls.seq_relationship.weight"] = torch.ones(2, d)
    tensors["cls.seq_relationship.bias"] = torch.ones(2)
    tensors["bert.embeddings.position_ids"] = torch.arange(64).unsqueeze(0)
    tensors.setdefault("cls.predictions.bias", tensors.pop("cls.predictions.decoder.bias", None))  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel"])
def test_a_file_of_2018(head: str, folder: Path, bench: Any) -> None:
    told = {"architectures": [head], "position_embedding_type": "absolute", "gradient_checkpointing": False}
    edit(folder, as_of_2018, **told)
    b = bench("bert")
    with torch.no_grad():
        assert torch.equal(from_hf(folder)(b.ids), from_hf(b.folder)(b.ids))


def test_relative_positions_are_refused(folder: Path) -> None:
    edit(folder, lambda t: None, position_embedding_type="relative_key")
    with pytest.raises(UnsupportedArchitecture, match="position_embedding_type = 'relative_key'"):
        read_recipe(folder)


def test_an_encoder_alone_lacks_a_head(folder: Path) -> None:
    edit(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith("cls.")])
    with pytest.raises(DamagedFolder, match=r"missing cls.predictions"):
        from_hf(folder)
    edit(folder, lambda t: None, architectures=["BertForSequenceClassification"])
    with pytest.raises(UnsupportedArchitecture, match="only a language model"):
        from_hf(folder)


def test_the_classes_for_both_ways_and_for_masked_tokens(bench: Any, tmp_path: Path) -> None:
    """A masked model's folder loads as one; every place reads every other; pads change nothing."""
    import transformers

    b = bench("bert")
    folder = to_hf(from_hf(b.folder), tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    masked = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        assert distance(masked(b.ids).logits, b.logits) < 1e-5
    decoder, other = from_hf(b.folder), b.ids.clone()
    other[:, -1] = (other[:, -1] + 1) % 41
    with torch.no_grad():
        assert distance(decoder(other)[:, :1], decoder(b.ids)[:, :1]) > 1e-3
        short = torch.cat((b.ids[:, :20], torch.zeros(2, 5, dtype=torch.long)), dim=1)
        mask = torch.ones(2, 25)
        mask[:, 20:] = 0
        alone = logits_of(reference(b.case), b.ids[:, :20])
        assert distance(decoder(short, padding_mask=mask)[:, :20], alone) < 1e-5
        theirs = reference(b.case)(short, attention_mask=mask.long()).logits[:, :20]
        assert distance(theirs, alone) < 1e-5
