"""Rows of tokens as rows of text, a step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.decoding.loop import Decoding, Step
from assay.decoding.text import Decodes, TextStream


class Writing:
    """A :class:`Decoding` read as text; a stop string ends its row.

    Iterating gives each step and what every row can show for good with it; the last pieces come with None for a step.
    ``texts`` holds each row's whole text, without a stop string or a stop id.
    """

    def __init__(self, work: Decoding, tokenizer: Decodes, stop: Sequence[str] = ()) -> None:
        self.work = work
        self.streams = [TextStream(tokenizer, stop) for _ in work.seeds]

    @property
    def texts(self) -> list[str]:
        return [stream.text for stream in self.streams]

    def __iter__(self) -> Iterator[tuple[Step | None, list[str]]]:
        work = self.work
        for step in work:
            pieces = []
            for row, (token, live) in enumerate(zip(step.ids.tolist(), step.live.tolist(), strict=True)):
                shown = ""
                if live and work.finish[row] != "stop_id":
                    shown = self.streams[row].push(token)
                    if self.streams[row].stopped is not None:
                        work.stop(row)
                pieces.append(shown)
            yield step, pieces
        yield None, [stream.close() for stream in self.streams]
