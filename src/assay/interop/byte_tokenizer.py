"""The tokenizer of a run on bytes as files that transformers and ``tokenizers`` read: token i is byte i."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

END = "<|end|>"  # id 0, the byte between documents; text holds none


def write_byte_tokenizer(folder: Path) -> Path:
    """``tokenizer.json`` and ``tokenizer_config.json`` in a folder that exists."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = _letters()
    vocabulary = {END: 0, **{letters[i]: i for i in range(1, 256)}}
    made: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END, normalized=False)])
    (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return folder


def _letters() -> list[str]:
    """The character that byte-level tokenizers write for each byte (GPT-2's table): itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(i) if i in printable else chr(next(others)) for i in range(256)]
