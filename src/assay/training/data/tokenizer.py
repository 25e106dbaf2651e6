"""Text to tokens: bytes, or any ``tokenizer.json``; and a byte-level BPE trained on a text of one's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.training.data.errors import CorpusError

if TYPE_CHECKING:
    import tokenizers

END = "<|endoftext|>"  # the end of a document in a tokenizer trained here
_ENDS = (END, "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>", "[EOS]", "[SEP]")

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """A document's tokens, without BOS and EOS; ``spans``: bytes of text each stands for, None where its id tells."""

    ids: Ids
    spans: NDArray[np.int64] | None = None


class Tokenizer(Protocol):
    """What turns documents into ids below ``vocab_size``.

    Attributes:
        name: ``bytes``, or the file's name with its vocabulary.
        sha256: of whatever decides the ids.
        bos, eos: what stands before and after each document, once; None for nothing.
        token_bytes: (vocab_size,) bytes of text that an id stands for; None where that depends on the text around it.
        file: the tokenizer.json; None for bytes.
    """

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def token_bytes(self) -> NDArray[np.int64] | None: ...
    @property
    def file(self) -> Path | None: ...

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """The tokens of each text."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """A token a byte of UTF-8; 0 ends a document, and a NUL in the text becomes a space."""

    name: str = "bytes"
    vocab_size: int = 256
    bos: int | None = None
    eos: int | None = 0
    file: Path | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(b"assay bytes, 0 ends a document").hexdigest()

    @property
    def token_bytes(self) -> NDArray[np.int64] | None:
        return np.array([0] + [1] * 255, dtype=np.int64)

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        blobs = (text.encode().replace(b"\x00", b" ") for text in texts)
        return [Encoded(np.frombuffer(blob, dtype=np.uint8).astype(np.int64)) for blob in blobs]


@dataclass(frozen=True)
class FileTokenizer:
    """A ``tokenizer.json`` of the ``tokenizers`` library.

    Special tokens that are spelt out in a text are text: only BOS and EOS of whole documents are special here.
    """

    path: Path
    bos: int | None
    eos: int | None

    @cached_property
    def _raw(self) -> bytes:
        return _read(self.path)

    @cached_property
    def _table(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(self._raw)
        return table

    @cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        made: tokenizers.Tokenizer = _made(self.path, self._raw)
        made.no_padding()
        made.no_truncation()
        made.encode_special_tokens = True
        return made

    @property
    def file(self) -> Path | None:
        return self.path

    @property
    def name(self) -> str:
        stem = self.path.stem if self.path.stem != "tokenizer" else self.path.absolute().parent.name
        return f"{stem} ({self.vocab_size:,})"

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self._raw).hexdigest()

    @cached_property
    def vocab_size(self) -> int:
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def _lengths(self) -> NDArray[np.int64] | None:
        """Bytes of text by id, right wherever the tokenizer can spell the whole text; None where spelling varies."""
        if not _is_byte_level(self._table):
            return None
        out = np.zeros(self.vocab_size, dtype=np.int64)
        for text, token in self._tokenizer.get_vocab(with_added_tokens=False).items():
            out[token] = len(text)  # a character stands for a byte
        for token, added in self._tokenizer.get_added_tokens_decoder().items():
            out[token] = len(added.content.encode())
        out[[each for each in (self.bos, self.eos) if each is not None]] = 0
        return out

    @cached_property
    def token_bytes(self) -> NDArray[np.int64] | None:
        vocab = self._tokenizer.get_vocab()
        return self._lengths if all(byte in vocab for byte in _alphabet()) else None

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        if self._lengths is None:
            return self._with_spans(texts)
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [np.array(each.ids, dtype=np.int64) for each in found]
        if self.token_bytes is not None:
            return [Encoded(each) for each in ids]
        out = []
        for text, each in zip(texts, ids, strict=True):
            spans = self._lengths[each]
            whole = int(spans.sum()) == len(text.encode())  # else a byte has no token, and is lost
            out.append(Encoded(each, spans) if whole else self._with_spans([text])[0])
        return out

    def _with_spans(self, texts: Sequence[str]) -> list[Encoded]:
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            Encoded(np.array(each.ids, dtype=np.int64), _spans(text, each.offsets))
            for text, each in zip(texts, found, strict=True)
        ]


def open_tokenizer(name: str | Path, bos: str | None = None, eos: str | None = None) -> Tokenizer:
    """``bytes``, or the tokenizer of a ``tokenizer.json`` (or of a folder that holds one).

    Args:
        bos, eos: the tokens before and after each document; ``none`` for none. By default what the tokenizer's own
            template adds, then what ``tokenizer_config.json`` beside it names; an EOS is needed, a BOS is not.

    Raises:
        CorpusError: no such file, not a tokenizer, no such token, or no EOS to be found.
    """
    if str(name) == "bytes":
        if bos is not None or eos is not None:
            raise CorpusError("tokenizer bytes: its documents end with byte 0; BOS and EOS cannot be chosen")
        return ByteTokenizer()
    path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    made = _made(path, _read(path))
    first, last = _template(made)
    beside = _config(path)
    begin = _token(made, path, bos) if bos is not None else first
    if eos is not None:
        return FileTokenizer(path, begin, _token(made, path, eos))
    named = [made.token_to_id(text) for text in (beside.get("eos_token"), *_ENDS) if isinstance(text, str)]
    end = next((each for each in (last, *named) if each is not None), None)
    if end is None:
        raise CorpusError(f"{path}: names no end of a document; say which token is one, or none")
    return FileTokenizer(path, begin, end)


def train_bpe(documents: Iterable[str], vocab_size: int, out: Path) -> FileTokenizer:
    """A byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909, on bytes as GPT-2 does), written to ``out`` whole.

    Every text can be encoded and comes back as it was. Id 0 is ``<|endoftext|>``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    least = 257
    if vocab_size < least:
        raise CorpusError(f"vocab size {vocab_size}: 256 bytes and {END} are {least} tokens already")
    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_chunks(documents), trainer=trainer)
    found = made.get_vocab_size()
    if found < vocab_size:
        raise CorpusError(f"vocab size {vocab_size:,}: the text holds no more than {found:,} tokens; ask for fewer")
    _write(made.to_str(), out)
    return FileTokenizer(out, None, made.token_to_id(END))


def _write(text: str, out: Path) -> None:
    partial = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise CorpusError(f"{out}: cannot be written: {error.strerror or error}") from None


def _chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for text in documents:
        batch.append(text)
        size += len(text)
        if size > 1 << 20:
            yield batch
            batch, size = [], 0
    yield batch


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(f"tokenizer {str(path)!r}: cannot be read: {error.strerror or error}; or say bytes") from None


def _made(path: Path, raw: bytes) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(raw.decode())
    except Exception as error:  # the library raises Exception itself
        raise CorpusError(f"tokenizer {str(path)!r}: not a tokenizer.json: {error}") from None


def _token(made: Any, path: Path, text: str) -> int | None:
    if text == "none":
        return None
    found = made.token_to_id(text)
    if found is None:
        raise CorpusError(f"{path}: has no token {text!r}")
    return int(found)


def _template(made: Any) -> tuple[int | None, int | None]:
    """The specials that the tokenizer itself puts around a text."""
    plain, full = (made.encode("a", add_special_tokens=special).ids for special in (False, True))
    if len(full) == len(plain):
        return None, None
    at = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    return (full[0] if at else None), (full[-1] if at + len(plain) < len(full) else None)


def _config(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    eos = table.get("eos_token")
    return {"eos_token": eos.get("content") if isinstance(eos, dict) else eos}


def _is_byte_level(table: dict[str, Any]) -> bool:
    """A BPE over the bytes of the text as it is: the characters of a token are then its bytes."""

    def parts(node: Any) -> list[dict[str, Any]]:
        node = node or {}
        return [part for each in node["pretokenizers"] for part in parts(each)] if "pretokenizers" in node else [node]

    pre = parts(table.get("pre_tokenizer"))
    levels = [part for part in pre if part.get("type") == "ByteLevel"]
    return (
        table["model"].get("type") == "BPE"
        and table.get("normalizer") is None
        and len(levels) == 1
        and not levels[0].get("add_prefix_space", True)
        and all(part.get("type") in ("ByteLevel", "Split", "Digits") for part in pre)
        and all(part.get("behavior") != "Removed" for part in pre)
        and not any(added.get("lstrip") or added.get("rstrip") for added in table.get("added_tokens", ()))
    )


def _alphabet() -> set[str]:
    """The bytes that occur in UTF-8, as a byte-level tokenizer spells them."""
    from tokenizers.pre_tokenizers import ByteLevel

    spell = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    leads = (*range(0x80, 0x800, 0x40), *range(0x800, 0xD800, 0x800), *range(0xE000, 0x110000, 0x1000))
    each = "".join(map(chr, (*range(0xC0), *leads)))
    return {byte for text, _ in spell(each) for byte in text}


def _spans(text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Bytes of text a token stands for: from the end of the token before to its own; what is left is the last one's."""
    if not offsets:
        return np.zeros(0, dtype=np.int64)
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    at = np.concatenate(([0], np.cumsum(1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF))))
    ends = np.maximum.accumulate(np.array([end for _, end in offsets], dtype=np.int64))
    ends[-1] = len(points)
    return np.diff(at[ends], prepend=0)
