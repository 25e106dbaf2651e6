"""Tables for the terminal. rich is imported only when a page is printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

WIDE = 100  # columns from which a remark stands beside its number rather than below it


def console() -> Console:
    """Where pages go: no guessing of what is a number or a path, no markup in anybody's text."""
    import os
    import sys

    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(highlight=False, markup=False, emoji=False, width=width)


def heading(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="bold")


def dim(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="dim")


def indented(what: RenderableType, by: int = 2) -> RenderableType:
    from rich.padding import Padding

    return Padding(what, (0, 0, 0, by), expand=False)


def pairs(rows: Iterable[tuple[str, str | Sequence[str]]], width: int = 0) -> Table:
    """Names and texts in two columns; several texts of one name stand below each other.

    ``width``: of the first column, so that tables of one page line up.
    """
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=width, no_wrap=True)
    table.add_column()
    for name, texts in rows:
        for i, text in enumerate([texts] if isinstance(texts, str) else texts):
            table.add_row("" if i else name, text)
    return table


def remarked(rows: Iterable[tuple[str, str, str]], columns: int) -> Table:
    """Names, numbers and what they count: beside the number where there is room, else below it."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=columns >= WIDE)
    if columns >= WIDE:
        table.add_column()
    for name, number, remark in rows:
        if columns >= WIDE:
            table.add_row(name, number, dim(remark))
        else:
            table.add_row(name, number)
            table.add_row("", dim(remark))
    return table


def ruled(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> Table:
    """A table with a ruled head; columns in ``right`` are flush right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for i, name in enumerate(headings):
        flush = i in set(right)
        table.add_column(name, justify="right" if flush else "left", no_wrap=flush or i == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
