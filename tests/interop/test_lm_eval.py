"""AssayLM beside lm-eval's own ``hf`` model on the exported folder, on tasks in local files.

Needs lm-eval, which is no part of the test environment for its many dependencies: pip install 'assay-lm[eval]'. What it
asks of the scores is tested without it in ``tests/decoding/test_scoring.py``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from assay.cli.app import app

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'assay-lm[eval]' accelerate peft")
transformers = pytest.importorskip("transformers")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.evaluator import simple_evaluate  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from assay.decoding import DecodingError  # noqa: E402
from assay.interop.lm_eval import AssayLM  # noqa: E402
from tests.cli.test_generate import TEMPLATE, tokenizer_of  # noqa: E402
from tests.interop.support import quiet  # noqa: E402

quiet()
NOUNS = ["cat", "dog", "door", "roof", "rain", "house", "mat", "moon"]
TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "The {{a}} is on the",
        "doc_to_choice": "options",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "bare": {  # an empty context
        "output_type": "multiple_choice",
        "doc_to_text": "",
        "doc_to_choice": "options",
        "doc_to_target": "gold",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "byte_perplexity"}, {"metric": "word_perplexity"}],
    },
    "writing": {
        "output_type": "generate_until",
        "doc_to_text": "{{a}} and {{a}} and",
        "doc_to_target": "a",
        "generation_kwargs": {"until": ["th", "\n"], "max_gen_toks": 9, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four local tasks over one file of made-up sentences; the longest text is several contexts long."""
    yaml = pytest.importorskip("yaml")
    folder = tmp_path_factory.mktemp("tasks")
    rng = random.Random(0)
    rows = []
    for n in range(12):
        options = rng.sample(NOUNS, 3)
        text = " ".join(rng.choices(NOUNS, k=3 + 9 * n))
        rows.append(
            {"a": rng.choice(NOUNS), "options": [f"{o}{'s' * (n % 3)}" for o in options], "gold": n % 3, "text": text}
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, body in TASKS.items():
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **data, "test_split": "test", **body}))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        import datasets

        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        yield


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a small BPE that adds no start token."""
    return _llama(tmp_path_factory.mktemp("hf"), starts=False)


def _llama(folder: Path, *, starts: bool) -> Path:
    vocab = tokenizer_of(folder)
    if not starts:
        told = json.loads((folder / "tokenizer.json").read_text())
        told["post_processor"] = None
        (folder / "tokenizer.json").write_text(json.dumps(told))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=40, bos_token_id=0, eos_token_id=1, initializer_range=0.3,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on bytes."""
    from assay import RunConfig, load, train

    folder = tmp_path_factory.mktemp("run")
    (folder / "words.txt").write_text("\n\n".join(f"{' '.join(NOUNS)} {n}" for n in range(300)))
    config = RunConfig.from_dict(
        {
            "recipe": load("tiny/base", ["max_seq_len=40"]),
            "seq_len": 32,
            "batch_size": 4,
            "steps": 8,
            "data": {"corpus": str(folder / "words.txt"), "val_bytes": 2048},
            "schedule": {"kind": "cosine", "lr": 3e-3},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(folder / "cache"))
        train(config, folder / "run")
    return folder / "run"


def theirs(folder: Path, **more: Any) -> Any:
    return HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=3, **more)


def evaluated(model: Any, tasks: Path) -> Any:
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    return simple_evaluate(model=model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)


def same(ours: Any, other: Any) -> None:
    """Every metric to the last digit but perplexities; every log-likelihood to 1e-4; every text."""
    for name in TASKS:
        for ours_, other_ in zip(ours["samples"][name], other["samples"][name], strict=True):
            for a, b in zip(ours_["resps"], other_["resps"], strict=True):
                (a,), (b,) = (a, b)
                if name == "writing":
                    assert a == b
                elif name == "rolling":
                    assert float(a) == pytest.approx(float(b), abs=1e-4)
                else:
                    assert float(a[0]) == pytest.approx(float(b[0]), abs=1e-4)
                    assert str(a[1]) == str(b[1])
        for key, value in other["results"][name].items():
            exact = "acc" in key or "exact_match" in key
            if isinstance(value, float):
                found = ours["results"][name][key]
                assert found == value if exact else found == pytest.approx(value, rel=1e-5)


@pytest.mark.usefixtures("cache")
def test_a_hugging_face_folder_equals_hf(hf: Path, tasks: Path) -> None:
    ours = evaluated(AssayLM(pretrained=str(hf), batch_size=5), tasks)
    same(ours, evaluated(theirs(hf), tasks))
    lengths = [len(row["resps"][0][0]) for row in ours["samples"]["writing"]]
    assert max(lengths) > 0


@pytest.mark.usefixtures("cache")
def test_a_run_equals_hf_on_the_exported_folder(run: Path, tasks: Path, tmp_path: Path) -> None:
    """The run's byte tokenizer goes along with the export."""
    out = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out")])
    assert out.exit_code == 0, out.output
    ours = evaluated(AssayLM(pretrained=str(run), batch_size=4), tasks)
    same(ours, evaluated(theirs(tmp_path / "out"), tasks))
    assert AssayLM(pretrained=str(tmp_path / "out")).scorer.encode("é\n中") == list("é\n中".encode())


def instances(kind: str, args: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(args)]


def test_borders_equal_hf(hf: Path) -> None:
    """Contexts cut from the left, empty ones, spaces at the border, a start token written in the text."""
    words = " ".join(NOUNS)
    pairs = [
        (words * 4, " roof"), (words * 4, f" {words}"), ("", "cat dog"), ("", "<s>cat"), ("cat ", "dog"),
        ("cat", "dogs"),
        ("<s>cat", " dog"), (words, " the moon"),
    ]  # fmt: skip
    asked = instances("loglikelihood", pairs)
    other = theirs(hf)
    # hf is asked one by one: in a batch it mixes up the last two of the same ids, "" + "cat dog" and "<s>cat" + " dog"
    for one, a in zip(asked, AssayLM(str(hf)).loglikelihood(asked), strict=True):
        (b,) = other.loglikelihood([one])
        assert a[0] == pytest.approx(b[0], abs=1e-4)
        assert a[1] == b[1]


def test_a_special_token_among_stop_strings_ends_a_text(tmp_path: Path) -> None:
    """No text shows it, so the id is what is looked for; as hf has it."""
    from safetensors.torch import load_file, save_file

    folder = _llama(tmp_path, starts=False)
    tensors = load_file(folder / "model.safetensors")
    asked = [("cat", {"until": [], "max_gen_toks": 12})]
    free = AssayLM(str(folder)).generate_until(instances("generate_until", asked))[0]
    often = AssayLM(str(folder)).scorer.tokenizer.encode(free)[3]
    tensors["lm_head.weight"][0] = 1.5 * tensors["lm_head.weight"][often]  # <s> comes where that token came
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ours, other = AssayLM(str(folder)), theirs(folder)
    found = []
    for until in ([], ["<s>"]):
        asked = [("cat", {"until": until, "max_gen_toks": 12})]
        found += ours.generate_until(instances("generate_until", asked))
        assert found[-1:] == other.generate_until(instances("generate_until", asked))
    assert found[0].startswith(found[1])
    assert found[0] != found[1]


def test_one_start_token_where_the_tokenizer_adds_its_own(tmp_path: Path) -> None:
    """Pairs as hf; rolling windows start with one, where hf reads two."""
    folder = _llama(tmp_path, starts=True)
    ours, other = AssayLM(str(folder)), theirs(folder)
    pairs = instances("loglikelihood", [("cat", " dog"), ("", "dog"), ("<s>cat", " dog")])
    for a, b in zip(ours.loglikelihood(pairs), other.loglikelihood(pairs), strict=True):
        assert a[0] == pytest.approx(b[0], abs=1e-4)
    forced = AssayLM(str(folder), add_bos_token=False)
    (bare,) = forced.loglikelihood(pairs[:1])
    (want,) = theirs(folder, add_bos_token=False).loglikelihood(pairs[:1])
    assert bare[0] == pytest.approx(want[0], abs=1e-4)
    assert abs(bare[0] - ours.loglikelihood(pairs[:1])[0][0]) > 1e-3
    text = "cat dog door"
    (rolled,) = ours.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,)]))
    (after_start,) = ours.loglikelihood(instances("loglikelihood", [("", text)]))
    assert rolled == pytest.approx(after_start[0], abs=1e-5)
    (doubled,) = other.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,)]))
    assert abs(doubled - rolled) > 1e-3


def test_what_hf_cannot_answer(hf: Path) -> None:
    """An empty continuation, one whose border vanishes into a token, one longer than the context, an empty prompt."""
    ours = AssayLM(str(hf))
    long = " ".join(NOUNS * 9)
    pairs = instances("loglikelihood", [("cat", ""), ("cat", f" {long}"), ("c", "at")])
    empty, whole, merged = ours.loglikelihood(pairs)
    assert ours.scorer.encode("cat")[1:] == []
    assert merged[0] < -1
    assert empty == (0.0, True)
    assert whole[0] < -50
    assert ours.generate_until(instances("generate_until", [("", {"max_gen_toks": 3})]))


def test_chat_templates_equal_hf(hf: Path) -> None:
    talk = [{"role": "user", "content": "cat?"}, {"role": "assistant", "content": "dog"}]
    ours, other = AssayLM(str(hf)), theirs(hf)
    assert ours.chat_template(True) == TEMPLATE
    for answer in (True, False):
        assert ours.apply_chat_template(talk, answer) == other.apply_chat_template(talk, answer)


def test_faults(hf: Path, tmp_path: Path) -> None:
    from assay import build, load
    from assay.model import save_weights

    learned = build(
        load("tiny/base", ["max_seq_len=16", "block.mixer.position.kind=none", "embedding.position.kind=learned"])
    )
    save_weights(learned, tmp_path / "model.safetensors")
    (tmp_path / "recipe.toml").write_text(learned.recipe.to_toml())
    with pytest.raises(DecodingError, match="max_length: the learned positions end before"):
        AssayLM(str(tmp_path), tokenizer="bytes", max_length=17)
    for options, part in (
        ({"batch_size": "auto"}, "batch_size"),
        ({"max_length": "0"}, "max_length: too small"),
        ({"max_length": "long"}, "max_length: not a whole number"),
        ({"add_bos_token": "yes"}, "add_bos_token"),
        ({"dtype": "fp8"}, "dtype"),
        ({"peft": "x"}, "peft"),
    ):
        with pytest.raises(DecodingError, match=part):
            AssayLM(str(hf), **options)
    ours = AssayLM(str(hf))
    with pytest.raises(DecodingError, match="num_beams"):
        ours.generate_until(instances("generate_until", [("a", {"num_beams": 4})]))
    for key in ("temperature", "max_gen_toks"):
        with pytest.raises(DecodingError, match=f"generation_kwargs.{key}: not a"):
            ours.generate_until(instances("generate_until", [("a", {key: "abc"})]))
    with pytest.raises(DecodingError, match="max_gen_toks: 256 new tokens"):
        ours.generate_until(instances("generate_until", [("a", {})]))


@pytest.mark.usefixtures("cache")
def test_the_verb(run: Path, tasks: Path) -> None:
    def told(*argv: str, code: int = 0) -> str:
        out = CliRunner().invoke(app, ["eval", *argv], prog_name="assay")
        assert out.exit_code == code, out.output
        return out.stdout if code == 0 else out.stderr

    asked = (str(run), "--tasks", "choices,rolling", "--include-path", str(tasks))
    found = json.loads(told(*asked, "--limit", "5", "--json"))
    assert 0 <= found["tasks"]["choices"]["acc"] <= 1
    assert found["documents"] == {"choices": 5, "rolling": 5}
    assert "acc_norm" in told(*asked, "--limit", "2")
    writing = (str(run), "--tasks", "writing", "--include-path", str(tasks), "--limit", "2", "--json")
    assert json.loads(told(*writing, "--gen-kwargs", "max_gen_toks=3"))["gen_kwargs"] == "max_gen_toks=3"
    assert "max_gen_toks: 99 new tokens" in told(*writing, "--gen-kwargs", "max_gen_toks=99", code=2)
    missing = told(str(run), "--tasks", "choises", "--include-path", str(tasks), code=2)
    assert "choises" in missing
    assert "choices" in missing
    (tasks / "absent.yaml").write_text(
        "task: absent\ndataset_path: json\ndataset_kwargs: {data_files: {test: absent.jsonl}}\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: a\ndoc_to_target: b\n"
    )
    assert "absent.jsonl" in told(str(run), "--tasks", "absent", "--include-path", str(tasks), code=2)
    assert "no such folder" in told(str(run), "--tasks", "a", "--include-path", "nowhere", code=2)
    assert "neither recipe.toml" in told(str(tasks), "--tasks", "choices", "--include-path", str(tasks), code=2)
