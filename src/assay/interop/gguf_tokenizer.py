"""The tokenizer inside a GGUF file, rebuilt with the ``tokenizers`` library.

Only byte-level BPE (``tokenizer.ggml.model = gpt2``) is: its metadata says everything, the pre-tokenizer by a name
whose meaning is llama.cpp's. Others need their own ``tokenizer.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.decoding.errors import fault
from assay.decoding.tokenizer import Pieces
from assay.interop.errors import shown

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER = 3, 4  # token_type: special, and written as it stands

# name -> the expression that cuts text before merges; None: GPT-2's own, which the library holds
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_EXPRESSIONS = {"gpt-2": None, "smollm": None, "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2}
_SINGLE_DIGITS = {"smollm"}
_COMPOSED = {"qwen2"}  # text is put in Unicode's composed form first


def gguf_tokenizer(path: Path) -> Pieces:
    """The tokenizer of a GGUF file.

    Raises:
        DecodingError: no tokenizer in the file, or one of a kind that is not rebuilt here.
    """
    from assay.interop.gguf import open_reader

    fields = {
        name.removeprefix("tokenizer."): field.contents()
        for name, field in open_reader(path).fields.items()
        if name.startswith("tokenizer.")
    }
    told = {name.removeprefix("ggml."): value for name, value in fields.items() if name.startswith("ggml.")}
    kind, pre = told.get("model"), str(told.get("pre", "gpt-2"))
    if kind != "gpt2" or "merges" not in told:
        raise _refuse(path, "model", kind, "gpt2 (byte-level BPE with its merges)")
    if pre not in _EXPRESSIONS:
        raise _refuse(path, "pre", pre, shown(_EXPRESSIONS))
    tokens = [str(token) for token in told["tokens"]]
    library = _library(tokens, list(told["merges"]), list(told.get("token_type", [])), pre)
    return _with_ends(path, library, tokens, told, fields.get("chat_template"))


def _library(tokens: list[str], merges: list[str], types: list[int], pre: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, fuse_unk=False, ignore_merges=pre == "llama-bpe"))
    library.normalizer = normalizers.NFC() if pre in _COMPOSED else None
    library.pre_tokenizer = _pre_tokenizer(pre)
    library.decoder = decoders.ByteLevel()
    marked = [(tokens[i], kind) for i, kind in enumerate(types) if kind in (_CONTROL, _USER)]
    library.add_special_tokens([AddedToken(t, normalized=False) for t, kind in marked if kind == _CONTROL])
    library.add_tokens([AddedToken(t, normalized=False) for t, kind in marked if kind == _USER])
    return library


def _pre_tokenizer(pre: str) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    expression = _EXPRESSIONS[pre]
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre in _SINGLE_DIGITS else []
    if expression is not None:
        steps.append(pre_tokenizers.Split(Regex(expression), behavior="isolated", invert=False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=expression is None))
    return pre_tokenizers.Sequence(steps)


def _with_ends(path: Path, library: Any, tokens: list[str], told: dict[str, Any], template: Any) -> Pieces:
    """Start and end tokens, and the start token put before a text where the file says so."""
    from tokenizers import processors

    def number(name: str) -> int | None:
        value = told.get(f"{name}_token_id")
        return int(value) if value is not None and 0 <= int(value) < len(tokens) else None

    start, end = number("bos"), number("eos")
    stops = tuple(sorted({i for i in (end, number("eot"), number("eom")) if i is not None}))
    if told.get("add_bos_token") and start is not None:
        library.post_processor = processors.TemplateProcessing(
            single=f"{tokens[start]} $A", special_tokens=[(tokens[start], start)]
        )
    names = {"bos_token": start, "eos_token": end, "unk_token": number("unknown"), "pad_token": number("padding")}
    specials = {name: tokens[i] for name, i in names.items() if i is not None}
    prefix = start if start is not None else end
    return Pieces(str(path), library, stops, prefix, template if isinstance(template, str) else None, specials)


def _refuse(path: Path, key: str, value: Any, allowed: str) -> Exception:
    message = f"{path}: {_PREFIX}{key} = {value!r} is not rebuilt; name the model's own with --tokenizer FOLDER"
    return fault("tokenizer", message, allowed=allowed, where="tokenizer")
