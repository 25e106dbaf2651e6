"""``assay import`` and ``assay export`` on a checkpoint that transformers wrote, and back into transformers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from assay.cli.app import app


def run(*argv: str, code: int = 0) -> str:
    out = CliRunner().invoke(app, list(argv), prog_name="assay")
    assert out.exit_code == code, out.output
    return out.stdout if code == 0 else out.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("hf")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_in_and_out_again(checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert 'kind = "glu"' in run("import", str(checkpoint))
    found = json.loads(run("import", str(checkpoint), str(tmp_path / "ours"), "--json"))
    assert sorted(p.name for p in (tmp_path / "ours").iterdir()) == ["model.safetensors", "recipe.toml"]
    out = json.loads(run("export", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--json"))
    assert out["digest"] == found["digest"]
    ids = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(1))
    want = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)(ids).logits
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)(ids).logits
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_tokenizer_comes_along(checkpoint: Path, tmp_path: Path) -> None:
    """In and out again, its special tokens, template and stop ids too; a text is written on from each folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from assay.decoding import read_tokenizer
    from tests.cli.test_generate import TEMPLATE, tokenizer_of

    source = tmp_path / "source"
    source.mkdir()
    vocab = tokenizer_of(source)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    model.resize_token_embeddings(vocab)
    model.to(torch.bfloat16)
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id = 0, [1, 7]
    model.save_pretrained(source)
    run("import", str(source), str(tmp_path / "ours"))
    run("export", str(tmp_path / "ours"), str(tmp_path / "theirs"))
    want = json.loads(run("generate", str(source), "the cat", "--max-new-tokens", "5", "--json"))["text"]
    for folder in (tmp_path / "ours", tmp_path / "theirs"):
        found = read_tokenizer(folder)
        assert (found.stop_ids, found.prefix_id, found.chat_template) == ((1, 7), 0, TEMPLATE)
        assert found.encode("the cat") == read_tokenizer(source).encode("the cat")
        assert json.loads(run("generate", str(folder), "the cat", "--max-new-tokens", "5", "--json"))["text"] == want
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").dtype == torch.bfloat16
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert theirs.encode("the cat") == read_tokenizer(source).encode("the cat")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").generation_config.eos_token_id == [1, 7]


def test_faults(checkpoint: Path, tmp_path: Path) -> None:
    assert "not empty" in run("import", str(checkpoint), str(checkpoint), code=2)
    assert "config.json" in run("import", str(tmp_path), code=2)
    run("import", str(checkpoint), str(tmp_path / "ours"))
    recipe = tmp_path / "ours" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('output_gate = "none"', 'output_gate = "head"'))
    assert "gate" in run("export", str(tmp_path / "ours"), str(tmp_path / "x"), code=2)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("verb", ["import", "export"])
def test_help_has_examples(verb: str) -> None:
    examples = [line.strip() for line in run(verb, "--help").splitlines() if line.strip().startswith("assay ")]
    assert len(examples) >= 2
    assert all(shlex.split(example)[1] == verb for example in examples)
