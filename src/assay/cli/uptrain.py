"""Measuring and shortly training a converted model, on its run's own corpus or on a text that is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.interop import Opened
    from assay.model import Decoder
    from assay.training import RunConfig
    from assay.training.data.batches import Batch

SHARE = 0.05  # of the run's updates (Ainslie et al. 2023, arXiv:2305.13245, §2.2)
VAL_TOKENS = 65_536  # at most, of a text that is given; a tenth of a shorter one


@dataclass(frozen=True)
class Text:
    """What to train on, by global sample, and the tokens to measure on."""

    size: int  # tokens to train on
    read: Callable[[range, int, int], Batch]  # samples, seq_len, seed
    val: NDArray[Any]


@dataclass(frozen=True)
class Course:
    """What to measure on and how to train; ``text`` is None where nothing is measured.

    Attributes:
        first: global index of the first window: a run's own windows are not seen again before all others are.
    """

    text: Text | None
    seq_len: int
    batch: int
    steps: int
    lr: float
    seed: int
    first: int
    config: RunConfig | None

    def run(self, before: Decoder, after: Decoder) -> dict[str, Any]:
        """The losses of both, ``after`` trained in place, and its loss then."""
        if self.text is None:
            empty = dict.fromkeys(("before", "after", "uptrained"))
            return {"loss": empty, "uptrain": {"steps": 0, "tokens": 0, "lr": self.lr}}
        loss = {"before": self.measured(before), "after": self.measured(after), "uptrained": None}
        if self.steps:
            self.train(after)
            loss["uptrained"] = found = self.measured(after)
            if not math.isfinite(found):
                raise UserError(f"the loss after training is {found}; take an --uptrain-lr below {self.lr:g}")
        done = {"steps": self.steps, "tokens": self.steps * self.batch * self.seq_len, "lr": self.lr}
        return {"loss": loss, "uptrain": {**done, "seq_len": self.seq_len, "batch": self.batch}}

    def measured(self, decoder: Decoder) -> float:
        """Nats a token over every window of the validation part, none overlapping."""
        import numpy as np
        import torch

        assert self.text is not None
        val = self.text.val
        starts = np.arange((len(val) - 1) // self.seq_len, dtype=np.int64) * self.seq_len
        total, count = 0.0, 0
        decoder.eval()
        with torch.inference_mode():
            for i in range(0, len(starts), 32):
                found = decoder.loss(*_windows(val, starts[i : i + 32], self.seq_len, decoder))
                total, count = total + float(found.sum.double()), count + int(found.count)
        return total / count

    def train(self, decoder: Decoder) -> None:
        """The updates, in float32 whatever is stored, under a progress bar."""
        import torch
        from rich.console import Console
        from rich.progress import Progress

        from assay.recipe.parametrization import STANDARD
        from assay.training import AdamW, accumulate_gradients, optimizer_groups
        from assay.training.optim.groups import set_rates
        from assay.training.schedule import cosine

        assert self.text is not None
        spec = AdamW() if self.config is None else self.config.optimizer
        stored = decoder.embedding.table.dtype
        decoder.to(torch.promote_types(stored, torch.float32)).train()
        rule = STANDARD if self.config is None else self.config.parametrization
        optimizer = spec.make(optimizer_groups(decoder, spec, decoder.recipe, rule), self.lr)
        precision = "fp32" if self.config is None else self.config.precision
        limit = 1.0 if self.config is None or self.config.clip == "none" else self.config.clip
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("uptraining", total=self.steps)
            for step in range(1, self.steps + 1):
                first = self.first + (step - 1) * self.batch
                rows = self.text.read(range(first, first + self.batch), self.seq_len, self.seed)
                rows = rows.to(decoder.embedding.table.device)
                accumulate_gradients(decoder, [rows], precision=precision)
                torch.nn.utils.clip_grad_norm_(decoder.parameters(), limit)
                lr = cosine(step, peak=self.lr, floor=self.lr / 10, warmup=self.steps // 10, total=self.steps)
                set_rates(optimizer, lr, self.lr, spec.decay_by)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                bar.update(task, advance=1)
        decoder.to(stored).eval()


def _windows(tokens: NDArray[Any], starts: NDArray[np.int64], seq_len: int, decoder: Decoder) -> tuple[Any, Any]:
    """Inputs and next-token targets, (k, seq_len) each, where the model is."""
    from assay.training.data.batches import windows

    ids, targets = windows(tokens, starts, seq_len)
    device = decoder.embedding.table.device
    return ids.to(device), targets.to(device)


def course_of(
    opened: Opened,
    data: Path | None,
    *,
    steps: int | None,
    lr: float | None,
    seq_len: int | None,
    batch: int | None,
    seed: int,
) -> Course:
    """What to train with: the run's corpus and settings, or a text cut by the folder's own tokenizer."""
    config = _config(opened) if opened.kind == "run" else None
    text: Text | None = None
    if data is not None:
        text = _text(opened, data)
    elif config is not None:
        text = _corpus(opened.source, config)
    if text is None and steps:
        raise UserError(f"--uptrain-steps: {opened.source} names no corpus; give a text with --data FILE")
    if lr is not None and not 0 < lr < math.inf:
        raise UserError(f"--uptrain-lr: {lr}: expected a number above 0")
    length = seq_len or (config.seq_len if config is not None else min(256, opened.decoder.recipe.max_seq_len))
    rows = batch or (config.batch_size if config is not None else 8)
    for part, found in (("train", text.size), ("validation", len(text.val))) if text is not None else ():
        if found < length + 1:
            raise UserError(f"{part} text: {found} tokens, no window of {length} + 1; take a longer text")
    own = data is None and config is not None
    default = max(1, round(SHARE * config.steps)) if own and config is not None else 0
    peak = lr if lr is not None else float(getattr(config.schedule, "lr", 1e-4)) if config is not None else 1e-4
    first = config.steps * config.batch_size if own and config is not None else 0
    number = config.data_seed if own and config is not None else seed
    return Course(text, length, rows, default if steps is None else steps, peak, number, first, config)


def _config(opened: Opened) -> RunConfig:
    from assay.training import load_record

    return load_record(opened.source).config


def _corpus(folder: Path, config: RunConfig) -> Text:
    import json
    from functools import partial

    from assay.training import open_data
    from assay.training.data.batches import samples_of

    corpus = open_data(config.data)
    told = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["corpus"]["sha256"]
    if corpus.sha256 != told:
        raise UserError(f"{folder}: its corpus {config.data.corpus!r} is not what it was; give a text with --data FILE")
    return Text(corpus.train_tokens, partial(samples_of, corpus, packing=config.data.packing), corpus.val)


def _text(opened: Opened, path: Path) -> Text:
    """A text's tokens: the last tenth, ``VAL_TOKENS`` at most, is for validation."""
    import numpy as np

    from assay.training.data import window_starts
    from assay.training.data.batches import rows_of
    from assay.training.data.stream import Stream

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--data: {path}: cannot be read: {error}") from None
    ids = np.array(opened.tokenizer().encode(text, special=False), dtype=np.int64)
    cut = len(ids) - min(VAL_TOKENS, len(ids) // 10)
    train = Stream.of(ids[:cut])

    def read(samples: range, seq_len: int, seed: int) -> Batch:
        starts = window_starts(np.asarray(samples, dtype=np.int64), train.size, seq_len, seed)
        return rows_of(train, starts, seq_len, isolated=False)

    return Text(train.size, read, ids[cut:])
