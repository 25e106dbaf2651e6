"""Text to ids and back: bytes, or a ``tokenizer.json`` read by the ``tokenizers`` library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.decoding.errors import fault
from assay.recipe.recipe import Recipe

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

NEAR = 0.9  # a table is padded beyond its tokenizer by less than this share leaves


class Tokenizer(Protocol):
    """What reading and writing text need.

    Attributes:
        name: for messages.
        size: ids are 0 .. size - 1.
        stop_ids: ids that end a text.
        prefix_id: what stands before a text's first token where something must: the start token, else the end token;
            None where there is neither.
        chat_template: a Jinja template of a conversation; None without one.
        specials: texts of special tokens by their customary names (``bos_token``), for the template.
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    @property
    def prefix_id(self) -> int | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def specials(self) -> dict[str, str]: ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text; ``special``: with the start token of a tokenizer that adds one by itself."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """Text of ids, special tokens left out; what is no UTF-8 becomes U+FFFD."""
        ...

    def stops_at(self, stop: Sequence[str]) -> tuple[int, ...]:
        """``stop_ids`` and those of special tokens among stop strings: no text shows them."""
        ...


@dataclass(frozen=True)
class Bytes:
    """A byte a token, 0 to 255. A zero byte stands between documents, so it ends a text and precedes one."""

    name: str = "bytes"
    size: int = 256
    stop_ids: tuple[int, ...] = (0,)
    prefix_id: int | None = 0
    chat_template: str | None = None
    specials: dict[str, str] = field(default_factory=dict)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int], /) -> str:
        return bytes(i for i in ids if 0 < i < 256).decode("utf-8", errors="replace")

    def stops_at(self, stop: Sequence[str]) -> tuple[int, ...]:
        return self.stop_ids


@dataclass(frozen=True)
class Pieces:
    """A tokenizer of the ``tokenizers`` library with what stands beside it in a model's folder."""

    name: str
    library: Library
    stop_ids: tuple[int, ...] = ()
    prefix_id: int | None = None
    chat_template: str | None = None
    specials: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return max(self.library.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        ids: list[int] = self.library.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], /) -> str:
        text: str = self.library.decode(list(ids), skip_special_tokens=True)
        return text

    def stops_at(self, stop: Sequence[str]) -> tuple[int, ...]:
        named = [i for text in stop if (i := self.library.token_to_id(text)) is not None]
        return tuple(sorted({*self.stop_ids, *(i for i in named if not self.decode([i]))}))


def read_tokenizer(path: Path, config: dict[str, Any] | None = None) -> Pieces:
    """The tokenizer of a folder with ``tokenizer.json``, or of such a file.

    Stop ids: those of ``generation_config.json``, else of ``config.json``; and the end token of
    ``tokenizer_config.json``. An empty context is its start token, else its end token, else the model's.

    Args:
        config: what ``config.json`` says, if it is read already.
    """
    from tokenizers import Tokenizer as Library

    file = path / "tokenizer.json" if path.is_dir() else path
    folder = file.parent
    try:
        library = Library.from_file(str(file))
    except Exception as error:  # the library raises bare Exceptions
        reason = "no such file" if not file.is_file() else f"cannot be read: {error}"
        allowed = "a tokenizer.json in the folder, or --tokenizer FILE, FOLDER or bytes"
        raise fault("tokenizer", f"{file}: {reason}", allowed=allowed, where="tokenizer") from None
    told = json_if_there(folder / "tokenizer_config.json")
    config = json_if_there(folder / "config.json") if config is None else config
    specials = {name: _content(value) for name, value in told.items() if name.endswith("_token") and value}
    ends = _ids(json_if_there(folder / "generation_config.json").get("eos_token_id")) or _ids(
        config.get("eos_token_id")
    )
    stops = set(ends)
    named = {name: library.token_to_id(text) for name, text in specials.items() if isinstance(text, str)}
    end = named.get("eos_token")
    if end is not None:
        stops.add(end)
    before = [named.get("bos_token"), end, *_ids(config.get("bos_token_id")), *sorted(stops)]
    prefix = next((i for i in before if i is not None), None)
    texts = {name: text for name, text in specials.items() if isinstance(text, str)}
    return Pieces(str(file), library, tuple(sorted(stops)), prefix, _template(folder, told), texts)


def check_vocabulary(tokenizer: Tokenizer, recipe: Recipe, *, exact: bool = False) -> None:
    """Refuse a tokenizer that is not this model's: ids beyond the table, or a table far larger than it.

    Args:
        exact: the model is known to be trained with it, so a larger table is its own choice.
    """
    size, rows = tokenizer.size, recipe.vocab_size
    if size > rows or (not exact and size < NEAR * rows):
        message = f"{tokenizer.name} has {size:,} tokens, the model's vocabulary {rows:,}: not the one it was made for"
        raise fault("tokenizer", message, allowed=f"{round(NEAR * rows):,} to {rows:,} tokens", where="tokenizer")


def json_if_there(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise fault("tokenizer", f"{path}: cannot be read: {error}", where="tokenizer") from None
    return value if isinstance(value, dict) else {}


def _ids(value: Any) -> list[int]:
    return [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]


def _content(value: Any) -> Any:
    """A special token's text: written as it is, or as a table with its ``content``."""
    return value.get("content") if isinstance(value, dict) else value


def _template(folder: Path, told: dict[str, Any]) -> str | None:
    """The chat template beside a tokenizer: a file of its own, or an entry of its configuration."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise fault("chat_template", f"{file}: cannot be read: {error}", where="tokenizer") from None
    value = told.get("chat_template")
    if isinstance(value, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
