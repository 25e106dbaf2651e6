"""``assay convert gqa`` on a run's folder and a Hugging Face folder: losses, cache, what is written, faults."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from assay.cli.app import app
from tests.cli.test_generate import WORDS, easy_text, tokenizer_of


def run(*argv: str, code: int = 0) -> str:
    out = CliRunner().invoke(app, list(argv), prog_name="assay")
    assert out.exit_code == code, out.output
    return out.stdout if code == 0 else out.stderr


def convert(*argv: str) -> Any:
    return json.loads(run("convert", "gqa", *argv, "--json"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A multi-head run on bytes that has learned something; its record too."""
    from assay import RunConfig, load, train

    folder = tmp_path_factory.mktemp("run")
    (folder / "words.txt").write_text(easy_text())
    table = {
        "recipe": load("tiny/base", ["n_layers=2"]),
        "seq_len": 32,
        "batch_size": 8,
        "steps": 60,
        "data": {"corpus": str(folder / "words.txt"), "val_bytes": 2048},
        "schedule": {"kind": "cosine", "lr": 5e-3},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(folder / "cache"))
        yield train(RunConfig.from_dict(table), folder / "run")


def test_a_run(trained: Any, tmp_path: Path) -> None:
    """The loss before is the run's own; pooling costs, training repairs; the cache shrinks by the share of heads."""
    from assay import from_hf, load
    from assay.interop import open_folder, pool_heads

    folder = str(trained.folder)
    told = convert(folder, str(tmp_path / "two"), "--groups", "2", "--uptrain-steps", "15")
    loss = told["loss"]
    assert loss["before"] == pytest.approx(trained.final["val_loss"], rel=1e-5)
    assert loss["before"] < loss["after"] - 0.01
    assert loss["uptrained"] < loss["after"] - 0.01
    assert told["n_kv_heads"] == {"before": 4, "after": 2}
    assert told["cache"]["saved"] == 0.5
    assert (
        told["cache"]["after"]["bytes"] == 2 * 2 * 2 * 16 * 4 * 128
    )  # K and V, layers, heads, channels, bytes, tokens
    assert told["uptrain"]["tokens"] == 15 * 8 * 32
    assert json.loads((tmp_path / "two" / "convert.json").read_text())["loss"] == loss
    assert load(tmp_path / "two" / "recipe.toml").layers[0].mixer.n_kv_heads == 2
    text = json.loads(run("generate", str(tmp_path / "two"), "the cat", "--max-new-tokens", "9", "--json"))
    assert text["new_tokens"] > 0
    plain = convert(folder, str(tmp_path / "one"), "--groups", "1", "--uptrain-steps", "0")
    assert plain["loss"]["uptrained"] is None
    made, want = open_folder(tmp_path / "one").decoder, pool_heads(open_folder(folder).decoder, 1)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), want.parameters(), strict=True))
    assert convert(folder, str(tmp_path / "dflt"), "--groups", "2")["uptrain"]["steps"] == 3  # 5% of 60
    again = convert(folder, str(tmp_path / "again"), "--groups", "2", "--uptrain-steps", "15")
    assert again["loss"] == loss
    run("export", str(tmp_path / "two"), str(tmp_path / "hf"))
    assert from_hf(tmp_path / "hf").recipe.layers[1].mixer.n_kv_heads == 2


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    """Tokenizer and special tokens come along; transformers reads the result; bfloat16 stays bfloat16."""
    transformers = pytest.importorskip("transformers")
    source = tmp_path / "mha"
    source.mkdir()
    vocab = tokenizer_of(source)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, dtype="bfloat16",
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(source)
    (source / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 60))
    out = tmp_path / "gqa"
    more = ("--uptrain-steps", "10", "--uptrain-lr", "3e-3", "--seq-len", "24", "--batch", "4")
    told = convert(str(source), str(out), "--groups", "2", "--data", str(tmp_path / "text.txt"), *more)
    assert told["loss"]["uptrained"] < told["loss"]["after"]
    assert told["cache"]["dtype"] == "bf16"
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert (model.config.num_key_value_heads, model.config.bos_token_id, model.dtype) == (2, 0, torch.bfloat16)
    assert model.generation_config.eos_token_id == [1, 2]
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    bare = run("convert", "gqa", str(source), str(tmp_path / "bare"), "--groups", "2")
    assert "not measured: give a text with --data" in bare
    assert "50.0% less" in bare


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (("gqa", "RUN", "OUT", "--groups", "3"), ("groups = 3", "layer 0: 4", "1, 2")),
        (("gqa", "RUN", "OUT", "--groups", "4"), ("nothing to pool", "4 key/value heads already")),
        (("gqa", "RUN", "OUT", "--groups", "0"), ("--groups", "greater than or equal to 1")),
        (("mla", "RUN", "OUT", "--groups", "2"), ("'mla'", "gqa")),
        (("gqa", "RUN", "HERE", "--groups", "2"), ("not empty",)),
        (("gqa", "HERE", "OUT", "--groups", "2"), ("neither recipe.toml nor config.json",)),
        (("gqa", "RUN", "OUT", "--groups", "2", "--data", "none.txt"), ("none.txt", "cannot be read")),
        (("gqa", "RUN", "OUT", "--groups", "2", "--data", "short.txt"), ("train text: 9 tokens", "longer")),
        (("gqa", "RUN", "OUT", "--groups", "2", "--uptrain-lr", "-1"), ("--uptrain-lr", "-1")),
        (("gqa", "RUN", "OUT", "--groups", "2", "--uptrain-lr", "inf"), ("--uptrain-lr", "inf")),
        (
            ("gqa", "RUN", "OUT", "--groups", "2", "--uptrain-lr", "1e30", "--uptrain-steps", "3"),
            ("loss after training is nan", "--uptrain-lr below 1e+30"),
        ),
        (("gqa", "no.gguf", "OUT", "--groups", "2"), ("no.gguf", "no such file")),
    ],
)
def test_faults(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("too short")
    places = {"RUN": str(trained.folder), "OUT": str(tmp_path / "out"), "HERE": str(tmp_path)}
    told = run("convert", *(places.get(arg, arg) for arg in argv), code=2)
    for part in parts:
        assert part in told
    assert not (tmp_path / "out").exists()


def test_a_changed_corpus_is_told(trained: Any, tmp_path: Path) -> None:
    corpus = trained.folder.parent / "words.txt"
    text = corpus.read_text()
    try:
        corpus.write_text(text.replace("cat", "cow"))
        assert "not what it was" in run(
            "convert", "gqa", str(trained.folder), str(tmp_path / "o"), "--groups", "2", code=2
        )
    finally:
        corpus.write_text(text)


def test_a_place_that_cannot_be_written_is_told_before_the_work(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.cli import uptrain

    (tmp_path / "file").write_text("a")
    monkeypatch.setattr(uptrain.Course, "run", lambda *_: pytest.fail("it worked for nothing"))
    told = run("convert", "gqa", str(trained.folder), str(tmp_path / "file" / "out"), "--groups", "2", code=2)
    assert f"{tmp_path / 'file' / 'out'}: cannot be written" in told


def test_help_has_examples() -> None:
    examples = [line.strip() for line in run("convert", "--help").splitlines() if line.strip().startswith("assay ")]
    assert len(examples) >= 2
    assert all(shlex.split(example)[:3] == ["assay", "convert", "gqa"] for example in examples)
