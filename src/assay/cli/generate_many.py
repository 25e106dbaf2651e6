"""Many prompts from a file: each batch is written as it comes, so that the same command goes on where it stopped."""

from __future__ import annotations

import fcntl
import hashlib
import json as json_
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from assay.cli.common import print_json, writing
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.cli.generate import Writer
    from assay.decoding import Decoding

OURS = (
    "text",
    "tokens",
    "finish",
    "seed",
    "key",
    "ids",
    "logprobs",
)  # what a line of the output adds to its line of the input


@dataclass(frozen=True)
class Line:
    """A prompt: its line of the input, its ids, its seed, and a digest of everything that decides its text."""

    given: dict[str, Any]
    ids: list[int]
    seed: int
    key: str


def many(writer: Writer, source: Path, out: Path, batch: int, seed: int, json: bool) -> None:
    """Write the text of every line of ``source`` that ``out`` does not hold yet."""
    from assay.cli.generate import rates

    lines = _lines(writer, source, seed)
    if out.exists() and (not out.is_file() or out.samefile(source)):
        raise UserError(f"{out}: {'the input itself' if out.is_file() else 'not a file'}; choose another --output")
    works: list[Decoding] = []
    ends: dict[str, int] = {}
    with _opened(out) as file:
        done = _resumed(file, out, lines)
        try:
            for work, rows in _batches(writer, lines, batch, done):
                works.append(work)
                for row in rows:
                    ends[row["finish"]] = ends.get(row["finish"], 0) + 1
                file.write("".join(json_.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
                file.flush()
        except KeyboardInterrupt:
            kept = done + sum(len(work.seeds) for work in works)
            typer.echo(f"stopped: {kept} of {len(lines)} kept in {out}; the same command goes on", err=True)
            raise
    told = {"output": str(out), "lines": len(lines), "found": done, "new": len(lines) - done, "finish": ends}
    if json:
        print_json({**told, **rates(*works)})
    else:
        typer.echo(f"written: {out} ({len(lines):,} lines, {done:,} of them from before)")


def _lines(writer: Writer, source: Path, seed: int) -> list[Line]:
    """Every prompt, checked before anything is written; line n has seed ``--seed`` + n unless it names its own."""
    from assay.decoding import DecodingError
    from assay.interop.identity import fingerprint

    try:
        data = source.read_bytes()
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error}") from None
    texts = data.removesuffix(b"\n").split(b"\n") if data else []  # a text may hold other ends of line, as U+2028
    opened = writer.opened
    sampling = writer.sampling.model_dump(mode="json")
    settings = [
        fingerprint(opened.decoder),
        sampling,
        writer.max_new_tokens,
        writer.stop,
        writer.beyond,
        writer.logprobs,
    ]
    settings += [writer.tokenizer.size, writer.tokenizer.stop_ids]
    out = []
    for n, text in enumerate(texts):
        given = _table(text, f"{source}: line {n + 1}")
        try:
            ids = writer.prompt(given["prompt"], given.get("system"))
        except DecodingError as error:
            raise UserError(f"{source}: line {n + 1}: {error}") from None
        own = given.get("seed", seed + n)
        body = json_.dumps([settings, given, ids, own], sort_keys=True, ensure_ascii=False)
        out.append(Line(given, ids, own, hashlib.sha256(body.encode()).hexdigest()[:16]))
    return out


def _table(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json_.loads(text.decode("utf-8"))
        json_.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:  # half of a surrogate pair is no text either
        raise UserError(f"{where}: no UTF-8: {error}") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        raise UserError(f'{where}: no text under "prompt"; a line is like {{"prompt": "Once upon a time"}}')
    for key, kind in (("system", str), ("seed", int)):
        if key in value and (not isinstance(value[key], kind) or isinstance(value[key], bool)):
            raise UserError(f"{where}: {key} = {value[key]!r}: expected {'text' if kind is str else 'a whole number'}")
    taken = [key for key in OURS if key in value and key != "seed"]
    if taken:
        raise UserError(f"{where}: {taken[0]!r} is a key of the output; call it otherwise")
    return value


@contextmanager
def _opened(out: Path) -> Iterator[IO[bytes]]:
    """The output, to read and to append to, by one process at a time."""
    with writing(out), out.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{out}: another process is writing there") from None
        yield file


def _resumed(file: IO[bytes], out: Path, lines: list[Line]) -> int:
    """How many lines are there already; a last one that was cut short is taken away."""
    file.seek(0)
    data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    rows = whole.splitlines()
    other = "remove it, or choose another --output"
    if len(rows) > len(lines):
        raise UserError(f"{out}: has {len(rows)} lines, the input {len(lines)}; {other}")
    for n, (row, line) in enumerate(zip(rows, lines, strict=False), 1):
        try:
            key = json_.loads(row)["key"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{out}: line {n} is damaged; {other}") from None
        if key != line.key:
            raise UserError(f"{out}: line {n} is of another prompt, model or setting; {other}")
    if not _begins(data[len(whole) :], lines[len(rows) :]):
        raise UserError(f"{out}: line {len(rows) + 1} is damaged; {other}")
    file.truncate(len(whole))
    return len(rows)


def _begins(tail: bytes, left: list[Line]) -> bool:
    """True where a last line without an end is the beginning of the next text's: nothing else is taken away."""
    if not tail or not left:
        return not tail
    start = json_.dumps(left[0].given, ensure_ascii=False).encode()[:-1]
    return tail.startswith(start) or start.startswith(tail)


def _batches(
    writer: Writer, lines: list[Line], batch: int, done: int
) -> Iterator[tuple[Decoding, list[dict[str, Any]]]]:
    """Each batch, finished, with its rows for the output; a progress bar meanwhile."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from assay.cli.generate import finish_of, scored
    from assay.decoding import Kept, Writing

    # of all lines, whatever the batch: a RoPE that depends on the length then has one
    longest = max((len(line.ids) + writer.room(len(line.ids)) for line in lines), default=0)
    engine = Kept(longest)
    columns = (TextColumn("prompt"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(lines), completed=done)
        for group in _grouped(writer, lines[done:], batch):
            work = writer.decoding(
                [line.ids for line in group], [line.seed for line in group], rope_length=longest, engine=engine
            )
            writing = Writing(work, writer.tokenizer, writer.stop)
            steps = [step for step, _ in writing]
            rows = [
                {
                    **line.given,
                    "text": writing.texts[i],
                    "tokens": work.lengths[i],
                    "finish": finish_of(writer, work, i, len(line.ids)),
                    "seed": line.seed,
                    "key": line.key,
                    **(scored(steps, i) if writer.logprobs else {}),
                }
                for i, line in enumerate(group)
            ]
            yield work, rows
            bar.update(task, advance=len(group))


def _grouped(writer: Writer, lines: list[Line], batch: int) -> Iterator[list[Line]]:
    """Lines in their order, ``batch`` at once; a batch never leaves a row less room than it would have alone."""
    group: list[Line] = []
    for line in lines:
        longest = max(len(other.ids) for other in [*group, line])
        shortest = min(len(other.ids) for other in [*group, line])
        if group and (len(group) == batch or writer.room(longest) != writer.room(shortest)):
            yield group
            group = []
        group.append(line)
    if group:
        yield group
