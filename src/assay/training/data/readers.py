"""Files as documents, read a piece at a time: text, JSON lines, Parquet, plain or compressed; datasets on disk.

Every fault names the file and the line or row.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from assay.training.data.errors import CorpusError

TEXT = (".txt", ".md", ".rst", ".py", ".text", ".tex", ".html")
LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
PACKED = (".gz", ".zst")

_BLOCK = 1 << 20  # bytes read at once
_PIECE = 4096  # a long text is cut at the first blank line after this many bytes
_LONGEST = 1 << 20  # and at the end of a line, or anywhere, at this many
_WHOLE = 1 << 24  # a file of a folder is one document up to this size


class Document(NamedTuple):
    """One text, and where it came from."""

    text: str
    place: str


def kind_of(path: Path) -> str:
    """``text``, ``lines`` or ``parquet``, by the name; what is unknown is text."""
    name = path.name.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    return "lines" if name.endswith(LINES) else "parquet" if name.endswith(PARQUET) else "text"


def is_known(path: Path) -> bool:
    """Whether a file of a folder is read without being asked for."""
    name = path.name.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    return name.endswith((*TEXT, *LINES, *PARQUET))


def read(path: Path, field: str, alone: bool) -> Iterator[Document]:
    """The documents of a file. A text file that stands ``alone`` is cut into pieces, one of a folder is a document."""
    kind = kind_of(path)
    if kind == "parquet":
        yield from _parquet(path, field)
    elif kind == "lines":
        yield from _json_lines(path, field)
    else:
        yield from _text(path, alone)


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked, in blocks."""
    try:
        with closing(_opened(path)) as f:
            while block := f.read(_BLOCK):
                yield block
    except (OSError, EOFError, ValueError, zlib.error) as error:  # gzip's and zstd's, too
        reason = getattr(error, "strerror", None) or str(error)
        raise CorpusError(f"{path}: cannot be read: {reason}") from None


def _opened(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        return extra("pyarrow", path).input_stream(str(path), compression="zstd")
    return path.open("rb")


def extra(module: str, path: Path) -> Any:
    """A library of the extra ``data``; raises CorpusError saying how to get it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        message = f"{path}: {module} reads this and is not installed: pip install 'assay-lm[data]'"
        raise CorpusError(message) from None


def _decoded(raw: bytes, path: Path, line: int) -> str:
    """UTF-8, or a fault that names the line; ``line`` is the first one's number."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        at = line + raw[: error.start].count(b"\n")
        found = raw[error.start : error.start + 1].hex()
        raise CorpusError(f"{path}, line {at}: not UTF-8: byte 0x{found}, {error.reason}") from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, with their ends."""
    left, number = b"", 0
    for block in _blocks(path):
        lines = _split(left + block)
        left = b"" if lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            number += 1
            yield number, line
    if left:
        yield number + 1, left


def _split(raw: bytes) -> list[bytes]:
    """Lines that end with a newline only: a lone carriage return ends none."""
    parts = raw.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _text(path: Path, alone: bool) -> Iterator[Document]:
    line, buffer = 1, b""
    least = _PIECE if alone else _WHOLE
    first = not alone
    for block in _blocks(path):
        buffer += block
        start = 0
        while (end := _cut(buffer, start, least)) is not None:
            yield Document(_decoded(buffer[start:end], path, line), f"{path}, line {line}")
            line += buffer.count(b"\n", start, end)
            start, least, first = end, _PIECE, False
        buffer = buffer[start:]
    if buffer:
        place = str(path) if first else f"{path}, line {line}"
        yield Document(_decoded(buffer, path, line), place)


def _cut(buffer: bytes, start: int, least: int) -> int | None:
    """Where the piece that begins at ``start`` ends; None while more has to be read."""
    if len(buffer) - start < least:
        return None
    blank = buffer.find(b"\n\n", start + least - 2)
    if blank >= 0:
        return blank + 2
    if len(buffer) - start <= max(_LONGEST, least):  # the byte after it tells whether a character ends there
        return None
    line = buffer.rfind(b"\n", start + _PIECE, start + _LONGEST)
    if line >= 0:
        return line + 1
    end = start + _LONGEST
    while buffer[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return end


def _json_lines(path: Path, field: str) -> Iterator[Document]:
    for number, raw in _lines(path):
        if not raw.strip():
            continue
        place = f"{path}, line {number}"
        text = _decoded(raw, path, number)
        try:
            record = json.loads(text)
        except ValueError as error:
            raise CorpusError(f"{place}: not JSON: {error}") from None
        if not isinstance(record, dict):
            raise CorpusError(f"{place}: a record is needed, found {_short(record)}")
        if field not in record:
            raise CorpusError(f"{place}: has no field {field!r}; found {', '.join(map(repr, record)) or 'none'}")
        yield Document(_checked(record[field], field, place), place)


def _parquet(path: Path, field: str) -> Iterator[Document]:
    arrow, parquet = extra("pyarrow", path), extra("pyarrow.parquet", path)
    try:
        file = parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from None
    with closing(file):
        _column(file.schema_arrow, field, path)
        yield from _rows(file.iter_batches(batch_size=1024, columns=[field]), field, path)


def dataset_files(folder: Path) -> tuple[Path, ...]:
    """The Arrow files of a Hugging Face dataset that was saved to disk, in their order."""
    path = folder / "state.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        names = [Path(entry["filename"]).name for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{path}: cannot be read: {type(error).__name__}: {error}") from None
    if state.get("_indices_files"):
        raise CorpusError(f"{path}: rows are chosen by an index beside the data; flatten_indices() and save it again")
    return tuple(folder / name for name in names)


def arrow_stream(path: Path, field: str) -> Iterator[Document]:
    """The rows of one Arrow file of a dataset, mapped, a batch at a time."""
    arrow, ipc = extra("pyarrow", path), extra("pyarrow.ipc", path)
    try:
        mapped = arrow.memory_map(str(path))
        reader = ipc.open_stream(mapped)
    except (OSError, arrow.ArrowException) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from None
    with closing(mapped):
        _column(reader.schema, field, path)
        yield from _rows((batch.select([field]) for batch in reader), field, path)


def _column(schema: Any, field: str, path: Path) -> None:
    """The column is there and holds text: numbers, NaN among them, are refused before anything is read."""
    arrow = extra("pyarrow", path)
    if field not in schema.names:
        raise CorpusError(f"{path}: has no column {field!r}; found {', '.join(map(repr, schema.names)) or 'none'}")
    kind = schema.field(field).type
    held = kind.value_type if arrow.types.is_dictionary(kind) else kind
    if not any(of(held) for of in (arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_string_view)):
        raise CorpusError(f"{path}: column {field!r} holds {kind}, not text")


def _rows(batches: Iterator[Any], field: str, path: Path) -> Iterator[Document]:
    arrow, row = extra("pyarrow", path), 0
    try:
        for batch in batches:
            for value in batch.column(0).to_pylist():
                row += 1
                place = f"{path}, row {row}"
                yield Document(_checked(value, field, place), place)
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}, after row {row}: cannot be read: {error}") from None


def _checked(value: Any, field: str, place: str) -> str:
    if not isinstance(value, str):
        raise CorpusError(f"{place}: field {field!r} holds {_short(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON may spell half a surrogate pair
        raise CorpusError(f"{place}: field {field!r} holds half a character: {value[error.start]!r}") from None
    return value


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
