"""Writing with a model: the cached engine, sampling, text as it comes, scores of given text.

The names below are loaded when they are first used: a tokenizer or an error needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.decoding.chat import chat_text, prompt_ids
    from assay.decoding.checks import check_finite, check_prompt, too_long
    from assay.decoding.engine import Engine
    from assay.decoding.errors import DecodingError, fault
    from assay.decoding.loop import Completion, Decoding, Kept, Step, complete, generate
    from assay.decoding.sampling import Sampling, choose, filtered, uniform
    from assay.decoding.scoring import Scorer
    from assay.decoding.text import TextStream
    from assay.decoding.tokenizer import Bytes, Pieces, Tokenizer, check_vocabulary, read_tokenizer
    from assay.decoding.write import Writing

__all__ = [
    "Bytes",
    "Completion",
    "Decoding",
    "DecodingError",
    "Engine",
    "Kept",
    "Pieces",
    "Sampling",
    "Scorer",
    "Step",
    "TextStream",
    "Tokenizer",
    "Writing",
    "chat_text",
    "check_finite",
    "check_prompt",
    "check_vocabulary",
    "choose",
    "complete",
    "fault",
    "filtered",
    "generate",
    "prompt_ids",
    "read_tokenizer",
    "too_long",
    "uniform",
]

_HOMES = {
    "chat": ("chat_text", "prompt_ids"),
    "checks": ("check_finite", "check_prompt", "too_long"),
    "engine": ("Engine",),
    "errors": ("DecodingError", "fault"),
    "loop": ("Completion", "Decoding", "Kept", "Step", "complete", "generate"),
    "sampling": ("Sampling", "choose", "filtered", "uniform"),
    "scoring": ("Scorer",),
    "text": ("TextStream",),
    "tokenizer": ("Bytes", "Pieces", "Tokenizer", "check_vocabulary", "read_tokenizer"),
    "write": ("Writing",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"assay.decoding.{module}"), name)
            globals()[name] = value  # found once
            return value
    raise AttributeError(f"module 'assay.decoding' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
