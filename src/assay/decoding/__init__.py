"""Writing with a model: the cached engine, sampling, text as it comes, scores of given text."""

from assay.decoding.checks import check_finite, check_prompt, too_long
from assay.decoding.errors import DecodingError, fault
from assay.decoding.generate import Completion, Decoding, Step, complete, generate
from assay.decoding.sampling import Sampling, choose, filtered, uniform
from assay.decoding.text import TextStream
from assay.decoding.tokenizer import Bytes, Pieces, Tokenizer, check_vocabulary, read_tokenizer

__all__ = [
    "Bytes",
    "Completion",
    "Decoding",
    "DecodingError",
    "Pieces",
    "Sampling",
    "Step",
    "TextStream",
    "Tokenizer",
    "check_finite",
    "check_prompt",
    "check_vocabulary",
    "choose",
    "complete",
    "fault",
    "filtered",
    "generate",
    "read_tokenizer",
    "too_long",
    "uniform",
]
