"""``assay generate`` from a run's folder and a Hugging Face folder: texts, files of prompts, going on, faults."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from assay.cli.app import app

WORDS = "the cat sat on the mat and the dog lay by the door while rain fell on the roof of the house"


def easy_text(n_lines: int = 300) -> str:
    """Lines of few words in random order, always the same: soon learned, and no two alike."""
    rng = random.Random(0)
    return "\n\n".join(" ".join(rng.choices(WORDS.split(), k=20)) for _ in range(n_lines))


def run(*argv: str, code: int = 0, stdin: str | None = None) -> str:
    out = CliRunner().invoke(app, ["generate", *argv], input=stdin, prog_name="assay")
    assert out.exit_code == code, out.output
    return out.stdout if code == 0 else out.stderr


def as_json(*argv: str) -> Any:
    return json.loads(run(*argv, "--json"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on bytes."""
    from assay import RunConfig, load, train

    folder = tmp_path_factory.mktemp("run")
    (folder / "words.txt").write_text(easy_text())
    config = RunConfig.from_dict(
        {
            "recipe": load("tiny/base", ["max_seq_len=96"]),
            "seq_len": 32,
            "batch_size": 4,
            "steps": 12,
            "data": {"corpus": str(folder / "words.txt"), "val_bytes": 2048},
            "schedule": {"kind": "cosine", "lr": 3e-3},
            "checkpoint_every": 6,
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(folder / "cache"))
        train(config, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a small BPE, a start token that the tokenizer adds itself, and a chat template."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hf")
    vocab = tokenizer_of(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab + 6, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, initializer_range=0.4,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"


def tokenizer_of(folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        [WORDS], trainers.BpeTrainer(vocab_size=290, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(folder / "tokenizer.json"))
    told = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return int(made.get_vocab_size())


def test_a_run_writes_on(trained: Path) -> None:
    """Greedy text equals the plain loop over the newest checkpoint's weights; what is shown is what --json tells."""
    from assay import build, load
    from assay.model import load_weights

    told = as_json(str(trained), "the cat", "--max-new-tokens", "20")
    newest = sorted((trained / "checkpoints").glob("step-*"))[-1]
    decoder = load_weights(build(load(trained / "recipe.toml")), newest / "model.safetensors").eval()
    ids = list(b"the cat")
    with torch.no_grad():
        for _ in range(20):
            ids.append(int(decoder(torch.tensor([ids]))[0, -1].argmax()))
    want = bytes(ids[7:]).partition(b"\0")[0].decode("utf-8", errors="replace")
    assert told["text"] == want
    assert (told["prompt_tokens"], told["seed"], told["chat"]) == (7, 0, False)
    assert told["finish"] in ("length", "stop_id")
    assert told["prefill"]["tokens_per_s"] > 0 < told["decode"]["tokens_per_s"]
    assert told["setup"]["seconds"] > 0
    assert told["decode"]["tokens"] == told["new_tokens"] - 1
    assert run(str(trained), "the cat", "--max-new-tokens", "20") == want + "\n"
    assert run(str(trained), "-", "--max-new-tokens", "20", stdin="the cat") == want + "\n"


def test_sampling_options_reach_the_draw(trained: Path) -> None:
    base = (str(trained), "the", "--temperature", "1.5", "--max-new-tokens", "24")
    first = as_json(*base, "--seed", "1")
    assert as_json(*base, "--seed", "1")["text"] == first["text"]
    assert as_json(*base, "--seed", "2")["text"] != first["text"]
    for option in (("--top-k", "1"), ("--top-p", "1e-9"), ("--min-p", "1")):
        assert as_json(*base, *option)["text"] == as_json(str(trained), "the", "--max-new-tokens", "24")["text"]
    assert as_json(*base, "--seed", "1", "--repetition-penalty", "5")["text"] != first["text"]
    stop = first["text"][5:7]
    cut = as_json(*base, "--seed", "1", "--stop", stop, "--stop", "never there")
    assert (cut["text"], cut["finish"]) == (first["text"].partition(stop)[0], "stop")


def test_log_probabilities(trained: Path, tmp_path: Path) -> None:
    """Of the model's own softmax, one a token; the same in a file of prompts."""
    from assay.interop import open_folder

    options = ("--max-new-tokens", "6", "--temperature", "2", "--logprobs")
    told = as_json(str(trained), "the cat", *options)
    whole = torch.tensor([[*b"the cat", *told["ids"]]])
    want = torch.log_softmax(open_folder(trained).decoder(whole), dim=-1)[0, 6:-1]
    got = torch.tensor(told["logprobs"])
    torch.testing.assert_close(got, want.gather(-1, whole[0, 7:, None]).squeeze(-1).detach(), rtol=1e-4, atol=1e-5)
    (tmp_path / "in.jsonl").write_text('{"prompt": "the cat"}\n{"prompt": "a"}\n')
    run(str(trained), "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"), *options)
    rows = texts(tmp_path / "out.jsonl")
    assert rows[0]["ids"] == told["ids"]
    assert rows[0]["logprobs"] == pytest.approx(told["logprobs"], abs=1e-5)
    assert [len(row["logprobs"]) for row in rows] == [row["tokens"] for row in rows]
    assert "--json" in run(str(trained), "the cat", *options, code=2)


def test_the_context_ends_a_text(trained: Path) -> None:
    told = as_json(str(trained), "x" * 90, "--max-new-tokens", "20", "--temperature", "1", "--top-k", "40")
    assert (told["finish"], told["new_tokens"]) in [("context", 6), ("stop_id", told["new_tokens"])]
    more = as_json(str(trained), "x" * 90, "--max-new-tokens", "20", "--beyond-context")
    assert more["finish"] != "context"


def test_a_hugging_face_folder_with_a_chat_template(hf: Path) -> None:
    """The same ids as transformers' template and tokenizer, one start token, and its greedy text."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32)
    theirs = PreTrainedTokenizerFast.from_pretrained(hf)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the cat"}]
    for chat in (True, False):
        if chat:
            ids = theirs.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
            told = as_json(str(hf), "the cat", "--system", "Be brief.", "--max-new-tokens", "9")
        else:
            ids = theirs("the cat", return_tensors="pt")
            told = as_json(str(hf), "the cat", "--no-chat", "--max-new-tokens", "9")
        assert ids["input_ids"][0].tolist().count(0) == 1
        assert told["prompt_tokens"] == ids["input_ids"].shape[1]
        new = model.generate(
            input_ids=ids["input_ids"], max_new_tokens=9, do_sample=False, pad_token_id=1, suppress_tokens=None
        )[0, ids["input_ids"].shape[1] :]
        assert told["text"] == theirs.decode(new, skip_special_tokens=True)
        assert told["chat"] is chat


def prompts(place: Path, n: int = 7) -> Path:
    rows: list[dict[str, Any]] = [{"prompt": WORDS[: 3 + 5 * i], "id": f"p{i}"} for i in range(n)]
    rows[2]["seed"] = 99
    (place / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place / "in.jsonl"


def texts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_many_prompts_whatever_the_batch(trained: Path, tmp_path: Path) -> None:
    """Each line is what the prompt alone would give with its seed, at any batch size."""
    source = prompts(tmp_path)
    options = ("--temperature", "1.1", "--max-new-tokens", "12", "--seed", "5")
    told = {}
    for batch in (1, 3, 16):
        out = tmp_path / f"out-{batch}.jsonl"
        told[batch] = as_json(
            str(trained), "--input", str(source), "--output", str(out), "--batch", str(batch), *options
        )
        assert out.read_bytes() == (tmp_path / "out-1.jsonl").read_bytes()
    rows = texts(tmp_path / "out-3.jsonl")
    assert [row["id"] for row in rows] == [f"p{i}" for i in range(7)]
    assert [row["seed"] for row in rows] == [5, 6, 99, 8, 9, 10, 11]
    for row in (rows[2], rows[6]):
        alone = as_json(str(trained), row["prompt"], *options[:4], "--seed", str(row["seed"]))
        assert (alone["text"], alone["new_tokens"], alone["finish"]) == (row["text"], row["tokens"], row["finish"])
    assert told[3]["new_tokens"] == sum(row["tokens"] for row in rows)
    assert told[3]["lines"] == told[3]["new"] == 7


def test_going_on_after_a_stop(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C keeps whole batches; half a line is cut; the rest is made once, and the file is the uninterrupted one."""
    from assay.decoding import Decoding

    source, out, whole = prompts(tmp_path), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    argv = (str(trained), "--input", str(source), "--batch", "2", "--max-new-tokens", "8", "--output")
    run(*argv, str(whole))
    made = 0
    steps = Decoding._steps

    def pressed(self: Decoding) -> Any:
        nonlocal made
        made += 1
        if made == 3:
            raise KeyboardInterrupt
        yield from steps(self)

    with monkeypatch.context() as patch:
        patch.setattr(Decoding, "_steps", pressed)
        told = run(*argv, str(out), code=130)
    assert "stopped: 4 of 7 kept" in told
    assert out.read_bytes() == b"".join(whole.read_bytes().splitlines(keepends=True)[:4])
    out.write_bytes(out.read_bytes()[:-9])  # the fourth line cut short by a kill
    again = as_json(*argv, str(out))
    assert (again["found"], again["new"]) == (3, 4)
    assert out.read_bytes() == whole.read_bytes()
    assert as_json(*argv, str(out))["new"] == 0
    assert "another prompt, model or setting" in run(*argv, str(out), "--seed", "1", code=2)
    assert "another prompt, model or setting" in run(*argv, str(out), "--stop", "a", code=2)
    assert out.read_bytes() == whole.read_bytes()


def test_text_is_shown_as_it_comes(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece a token, before the next token is made; what Ctrl-C finds is there."""
    from assay.decoding import Decoding

    shown: list[tuple[int, str]] = []
    made = 0
    steps = Decoding._steps

    def counted(self: Decoding) -> Any:
        nonlocal made
        for step in steps(self):
            made += 1
            if made == 6:
                raise KeyboardInterrupt
            yield step

    echo = typer.echo
    monkeypatch.setattr(Decoding, "_steps", counted)
    monkeypatch.setattr(
        "assay.cli.generate.typer.echo", lambda text="", **k: (shown.append((made, text)), echo(text, **k))[1]
    )
    want = run(str(trained), "the cat", "--max-new-tokens", "12", code=130)
    assert "Traceback" not in want
    pieces = [(n, text) for n, text in shown if text]
    assert [n for n, _ in pieces] == [1, 2, 3, 4, 5]
    assert all(len(text) == 1 for _, text in pieces)


def test_ctrl_c_of_a_real_process(trained: Path, tmp_path: Path) -> None:
    """Whole lines only, exit code 130, and the same command ends with the file of an uninterrupted one."""
    rows = [{"prompt": WORDS[: 5 + i]} for i in range(12)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    argv = (str(trained), "--input", str(tmp_path / "in.jsonl"), "--batch", "1", "--temperature", "1", "--output")
    # as in the foreground: a shell's background jobs ignore the signal
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; from assay.cli.app import main; main()"
    command = [sys.executable, "-c", code, "generate", *argv, str(out), "--max-new-tokens", "30"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None and not (out.exists() and out.stat().st_size):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    kept = out.read_bytes()
    assert kept.endswith(b"\n")
    n = kept.count(b"\n")
    assert f"stopped: {n} of 12 kept" in " ".join(told.split())
    again = as_json(*argv, str(out), "--max-new-tokens", "30")
    assert again["found"] == n < 12
    whole = tmp_path / "whole.jsonl"
    run(*argv, str(whole), "--max-new-tokens", "30")
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (("RUN", ""), ("prompt", "empty")),
        (("RUN", "x" * 200), ("200 tokens", "max_seq_len = 96", "at most 95", "--beyond-context")),
        (("RUN",), ("PROMPT",)),
        (("RUN", "a", "--chat"), ("chat", "bytes has no chat template", "--no-chat")),
        (("RUN", "a", "--system", "b"), ("system", "--chat")),
        (("RUN", "a", "--top-p", "0.5"), ("top_p", "temperature")),
        (("RUN", "a", "--temperature", "-1"), ("temperature", "-1")),
        (("RUN", "a", "--dtype", "fp4"), ("--dtype", "fp4", "bf16")),
        (("RUN", "a", "--device", "tpu"), ("--device", "tpu")),
        (("RUN", "a", "--device", "cuda:99"), ("--device", "CUDA", "cuda:99")),
        (("RUN", "a", "--device", "cpu:a"), ("--device", "cpu:a")),
        (("RUN", "a", "--stop", ""), ("stop", "empty string")),
        (("RUN", "a", "--tokenizer", "HF"), ("tokenizer.json has 290 tokens", "256")),
        (("HF", "a", "--tokenizer", "nowhere"), ("tokenizer", "nowhere", "bytes")),
        (("HF", "a", "--tokenizer", "bytes"), ("bytes has 256 tokens", "296")),
        (("HERE", "a"), ("neither recipe.toml nor config.json",)),
        (("nowhere", "a"), ("nowhere", "no such folder")),
        (("nowhere.gguf", "a"), ("nowhere.gguf", "no such file")),
        (("RUN", "--input", "none.jsonl"), ("--input and --output",)),
        (("RUN", "--input", "none.jsonl", "--output", "o"), ("none.jsonl", "cannot be read")),
        (("RUN", "--input", "bad.jsonl", "--output", "o"), ("bad.jsonl: line 2", "prompt")),
        (("RUN", "--input", "long.jsonl", "--output", "o"), ("long.jsonl: line 1", "max_seq_len = 96")),
    ],
)
def test_faults(
    trained: Path,
    hf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: tuple[str, ...],
    parts: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "a" * 99}) + "\n")
    places = {"RUN": str(trained), "HF": str(hf), "HERE": str(tmp_path)}
    told = run(*(places.get(arg, arg) for arg in argv), code=2)
    for part in parts:
        assert part in told
    assert "Traceback" not in told
    assert not (tmp_path / "o").exists()


def test_a_tensor_that_is_no_number_is_named(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text((trained / "recipe.toml").read_text())
    newest = sorted((trained / "checkpoints").glob("step-*"))[-1]
    tensors = load_file(newest / "model.safetensors")
    name = next(n for n in tensors if n.endswith("ffn.down.weight"))
    tensors[name][1, 2] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    told = run(str(tmp_path), "a", "--tokenizer", "bytes", code=2)
    assert f"not finite in {name} (1 of " in told


def test_a_damaged_checkpoint_is_passed_over(trained: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(trained, tmp_path / "run")
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)
    out = CliRunner().invoke(app, ["generate", str(tmp_path / "run"), "the", "--max-new-tokens", "4"])
    assert out.exit_code == 0
    assert f"warning: {file}: not what was written" in out.stderr
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert "no sound checkpoint" in run(str(tmp_path / "run"), "the", code=2)


def test_help_has_examples() -> None:
    examples = [line.strip() for line in run("--help").splitlines() if line.strip().startswith("assay ")]
    assert len(examples) >= 3
    assert all(shlex.split(example)[:2] == ["assay", "generate"] for example in examples)
