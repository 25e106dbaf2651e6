"""Tokenizers as files that transformers and the ``tokenizers`` library read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.decoding.tokenizer import Pieces, Tokenizer

END = "<|end|>"  # id 0, the byte between documents; text holds none


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> Path:
    """A tokenizer's files in a folder that exists: itself, its special tokens and chat template, its stop ids."""
    if not isinstance(tokenizer, Pieces):
        return write_byte_tokenizer(folder)
    (folder / "tokenizer.json").write_text(tokenizer.library.to_str(), encoding="utf-8")
    template = {} if tokenizer.chat_template is None else {"chat_template": tokenizer.chat_template}
    told = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.specials, **template}
    write_json(folder / "tokenizer_config.json", {**told, "clean_up_tokenization_spaces": False})
    write_json(folder / "generation_config.json", {"eos_token_id": list(tokenizer.stop_ids)})
    return folder


def token_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Its special ids in the words of :func:`assay.interop.to_hf`."""
    if not isinstance(tokenizer, Pieces):
        return {"eos": 0, "pad": 0}
    named = {
        word: tokenizer.library.token_to_id(tokenizer.specials.get(f"{word}_token", "")) for word in ("bos", "pad")
    }
    stops = tokenizer.stop_ids
    return {**named, "eos": stops[0] if len(stops) == 1 else list(stops) or None}


def write_byte_tokenizer(folder: Path) -> Path:
    """The tokenizer of a run on bytes: token i is byte i, and 0 the end of a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = _letters()
    vocabulary = {END: 0, **{letters[i]: i for i in range(1, 256)}}
    made: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END, normalized=False)])
    (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    told: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", told)
    return folder


def write_json(path: Path, value: Any) -> None:
    """As transformers lays out its files."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _letters() -> list[str]:
    """The character that byte-level tokenizers write for each byte (GPT-2's table): itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(i) if i in printable else chr(next(others)) for i in range(256)]
