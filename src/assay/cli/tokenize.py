"""``assay tokenize``: texts to tokens on disk; ``assay tokenize train``: a tokenizer of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, print_json, quantity
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from assay.training.data import Corpus, DataConfig, Source

_TRAIN = "train"

Which = tuple[str, tuple[str, ...]]  # the field of a record, the extensions of a folder


def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="stdlib, english, chinese; a file, a folder, a pattern; or `train`, then these."
        ),
    ],
    target: Annotated[
        str | None, typer.Argument(metavar="OUT", help="The folder to write; after `train`, SOURCE.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="NAME", help="bytes, or a tokenizer.json.  [default: bytes]")
    ] = None,
    field: Annotated[str, typer.Option("--field", metavar="NAME", help="Of a record: which one is text.")] = "text",
    ext: Annotated[
        list[str] | None, typer.Option("--ext", metavar=".EXT", help="Which files of a folder; repeatable.")
    ] = None,
    bos: Annotated[str | None, typer.Option("--bos", metavar="TOKEN", help="Before each document; or none.")] = None,
    eos: Annotated[str | None, typer.Option("--eos", metavar="TOKEN", help="After each document; or none.")] = None,
    shard: Annotated[
        float,
        typer.Option("--shard-tokens", metavar="N", parser=quantity, help="Tokens a file of OUT.", show_default="64M"),
    ] = 64e6,
    vocab_size: Annotated[
        float | None, typer.Option("--vocab-size", metavar="N", parser=quantity, help="Tokens to train.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The tokenizer.json to write.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Texts to tokens on disk, or to a tokenizer of your own.

    A run names the tokens as data.corpus. SOURCE is .txt, .md, .py, .jsonl or .parquet (plain, .gz or .zst), a folder
    or a quoted pattern of them, or a Hugging Face dataset saved to disk. OUT appears when it is whole; the same command
    goes on with what was cut short. After `train`, a byte-level BPE is learned from SOURCE.

    \b
    Examples:
      assay tokenize train english --vocab-size 4096 -o tok.json
      assay tokenize english tokens/english --tokenizer tok.json
      assay tokenize "texts/**/*.jsonl.gz" tokens/web --tokenizer tok.json --field content --json
    """
    options = {"--tokenizer": tokenizer, "--bos": bos, "--eos": eos}
    which = (field, tuple(ext or ()))
    with data_faults():
        if source == _TRAIN:
            _train(target, which, options, vocab_size, out, json)
        elif target is None:
            raise UserError("OUT is missing: the folder to write")
        elif vocab_size is not None or out is not None:
            raise UserError(f"{'--vocab-size' if out is None else '--out'}: only after `tokenize train`")
        else:
            _tokenize(source, which, Path(target), options, int(shard), json)


@contextmanager
def data_faults() -> Iterator[None]:
    """What is wrong with the texts is the user's fault."""
    from assay.training.data import CorpusError

    try:
        yield
    except CorpusError as error:
        raise UserError(str(error)) from None


def _tokenize(name: str, which: Which, out: Path, options: dict[str, str | None], shard: int, json: bool) -> None:
    from assay.training.data import open_bins, open_source, open_tokenizer, write_bins

    if shard < 1:
        raise UserError(f"--shard-tokens: at least 1, found {shard}")
    source = open_source(name, *which)
    tokenizer = open_tokenizer(options["--tokenizer"] or "bytes", options["--bos"], options["--eos"])
    _apart(source, out)
    with _bar("tokenizing", source) as tell:
        write_bins(source, tokenizer, out, shard_tokens=shard, on_progress=tell)
    bins = open_bins(out)
    counts = bins.counts
    found: dict[str, Any] = {
        "folder": str(out),
        "sha256": bins.sha256,
        "tokenizer": bins.tokenizer,
        "dtype": bins.manifest["dtype"],
        "shards": len(bins.shards),
        **counts,
        "bytes_per_token": counts["bytes"] / counts["tokens"],
        "source": bins.manifest["source"],
    }
    if json:
        print_json(found)
        return
    from assay.cli.tables import console, pairs

    left_out = f"{counts['empty']:,} blank, {counts['duplicates']:,} there already"
    rows = [
        ("folder", str(out)),
        ("documents", f"{counts['documents']:,} (left out: {left_out})"),
        ("text", f"{counts['bytes']:,} bytes"),
        ("tokens", f"{counts['tokens']:,} of {bins.tokenizer['name']}; {found['bytes_per_token']:.3f} bytes a token"),
        ("shards", f"{len(bins.shards)}"),
        ("SHA-256", bins.sha256),
        ("to train on it", f'data = {{corpus = "{out}"}}, vocab_size = {bins.tokenizer["vocab_size"]}'),
    ]
    console().print(pairs(rows))


def _apart(source: Source, out: Path) -> None:
    """The tokens do not go into the folder that is being read."""
    place = out.absolute()
    if source.kind in ("folder", "dataset") and any(place in path.absolute().parents for path in source.files):
        raise UserError(f"{out}: the texts lie there; choose another folder")


def _train(
    name: str | None,
    which: Which,
    options: dict[str, str | None],
    vocab_size: float | None,
    out: Path | None,
    json: bool,
) -> None:
    from assay.training.data import open_source, train_bpe

    if name is None:
        raise UserError("tokenize train: SOURCE is missing (a file called train is given as ./train)")
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise UserError(f"{given[0]}: has no effect on training a tokenizer")
    if vocab_size is None or out is None:
        raise UserError("tokenize train: --vocab-size N and --out FILE are needed")
    source = open_source(name, *which)
    if out.exists():
        raise UserError(f"{out}: exists and is not overwritten; remove it, or write elsewhere with --out")
    read = [0, 0]

    def texts(tell: Callable[[int, int], None]) -> Iterator[str]:
        for document in source.documents():
            read[0] += 1
            read[1] += len(document.text.encode())
            if read[0] % 64 == 0:
                tell(*read)
            yield document.text

    with _bar("reading", source) as tell:
        made = train_bpe(texts(tell), int(vocab_size), out)
    found = {
        "file": str(out),
        "sha256": made.sha256,
        "vocab_size": made.vocab_size,
        "eos": "<|endoftext|>",
        "documents": read[0],
        "bytes": read[1],
        "source": source.describe(),
    }
    if json:
        print_json(found)
        return
    from assay.cli.tables import console, pairs

    rows = [
        ("tokenizer", f"{out}: {made.vocab_size:,} tokens, byte-level BPE"),
        ("trained on", f"{read[1]:,} bytes in {read[0]:,} documents of {source.name}"),
        ("SHA-256", made.sha256),
        ("to use it", f"assay tokenize SOURCE OUT --tokenizer {out}"),
    ]
    console().print(pairs(rows))


@contextmanager
def _bar(verb: str, source: Source) -> Iterator[Callable[[int, int], None]]:
    """A bar over the bytes of the source; one without an end where they are packed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    packed = source.kind in ("embedded", "dataset") or any(
        path.suffix in (".gz", ".zst", ".parquet") for path in source.files
    )
    columns = (
        TextColumn(verb),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None if packed else source.size, numbers="")

        def tell(documents: int, size: int) -> None:
            bar.update(task, completed=size, numbers=f"{documents:,} documents, {size / 1e6:,.1f} MB")

        yield tell


def opened(data: DataConfig) -> Corpus:
    """A run's corpus; what is shown while its texts are tokenized goes away after."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from assay.training.data import open_data

    columns = (TextColumn("tokenizing"), TextColumn("{task.fields[numbers]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: list[TaskID] = []

        def tell(documents: int, size: int) -> None:
            tasks.extend([] if tasks else [bar.add_task("", numbers="")])
            bar.update(tasks[0], numbers=f"{documents:,} documents, {size / 1e6:,.1f} MB")

        return open_data(data, on_progress=tell)
