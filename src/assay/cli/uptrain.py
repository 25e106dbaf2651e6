"""Measuring and shortly training a converted model, on its run's own corpus or on a text that is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.cli.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.interop import Opened
    from assay.model import Decoder
    from assay.training import RunConfig

SHARE = 0.05  # of the run's updates (Ainslie et al. 2023, arXiv:2305.13245, §2.2)
VAL_TOKENS = 65_536  # at most, of a text that is given; a tenth of a shorter one


class Tokens(Protocol):
    """A split's tokens: how many, and the windows of n that begin at ``starts``, (k, n)."""

    @property
    def size(self) -> int: ...

    def windows(self, starts: NDArray[np.int64], n: int) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Held:
    """The same of an array."""

    ids: NDArray[Any]

    @property
    def size(self) -> int:
        return len(self.ids)

    def windows(self, starts: NDArray[np.int64], n: int) -> NDArray[Any]:
        import numpy as np

        found: NDArray[Any] = self.ids[starts[:, None] + np.arange(n)]
        return found


@dataclass(frozen=True)
class Course:
    """What to measure on and how to train; ``tokens`` is None where nothing is measured.

    Attributes:
        first: global index of the first window: a run's own windows are not seen again before all others are.
    """

    tokens: tuple[Tokens, Tokens] | None  # train, validation
    seq_len: int
    batch: int
    steps: int
    lr: float
    seed: int
    first: int
    config: RunConfig | None

    def run(self, before: Decoder, after: Decoder) -> dict[str, Any]:
        """The losses of both, ``after`` trained in place, and its loss then."""
        if self.tokens is None:
            empty = dict.fromkeys(("before", "after", "uptrained"))
            return {"loss": empty, "uptrain": {"steps": 0, "tokens": 0, "lr": self.lr}}
        loss = {"before": self.measured(before), "after": self.measured(after), "uptrained": None}
        if self.steps:
            self.train(after)
            loss["uptrained"] = self.measured(after)
        done = {"steps": self.steps, "tokens": self.steps * self.batch * self.seq_len, "lr": self.lr}
        return {"loss": loss, "uptrain": {**done, "seq_len": self.seq_len, "batch": self.batch}}

    def measured(self, decoder: Decoder) -> float:
        """Nats a token over every window of the validation part, none overlapping."""
        import numpy as np
        import torch

        assert self.tokens is not None
        val = self.tokens[1]
        starts = np.arange((val.size - 1) // self.seq_len, dtype=np.int64) * self.seq_len
        total, count = 0.0, 0
        decoder.eval()
        with torch.inference_mode():
            for i in range(0, len(starts), 32):
                found = decoder.loss(*_windows(val, starts[i : i + 32], self.seq_len, decoder))
                total, count = total + float(found.sum.double()), count + int(found.count)
        return total / count

    def train(self, decoder: Decoder) -> None:
        """The updates, in float32 whatever is stored, under a progress bar."""
        import numpy as np
        import torch
        from rich.console import Console
        from rich.progress import Progress

        from assay.training import AdamW, accumulate_gradients, decay_groups
        from assay.training.data import window_starts
        from assay.training.schedule import cosine

        assert self.tokens is not None
        spec = AdamW() if self.config is None else self.config.optimizer
        stored = decoder.embedding.table.dtype
        decoder.to(torch.promote_types(stored, torch.float32)).train()
        optimizer = spec.make(decay_groups(decoder, spec.weight_decay), self.lr)
        precision = "fp32" if self.config is None else self.config.precision
        limit = 1.0 if self.config is None or self.config.clip == "none" else self.config.clip
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("uptraining", total=self.steps)
            for step in range(1, self.steps + 1):
                samples = self.first + np.arange((step - 1) * self.batch, step * self.batch, dtype=np.int64)
                starts = window_starts(samples, self.tokens[0].size, self.seq_len, self.seed)
                rows = _windows(self.tokens[0], starts, self.seq_len, decoder)
                accumulate_gradients(decoder, [rows], precision=precision)
                torch.nn.utils.clip_grad_norm_(decoder.parameters(), limit)
                lr = cosine(step, peak=self.lr, floor=self.lr / 10, warmup=self.steps // 10, total=self.steps)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                bar.update(task, advance=1)
        decoder.to(stored).eval()


def _windows(tokens: Tokens, starts: NDArray[np.int64], seq_len: int, decoder: Decoder) -> tuple[Any, Any]:
    """Inputs and next-token targets, (k, seq_len) each, where the model is."""
    import numpy as np
    import torch

    block = torch.from_numpy(tokens.windows(starts, seq_len + 1).astype(np.int64)).to(decoder.embedding.table.device)
    return block[:, :-1].contiguous(), block[:, 1:].contiguous()


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
    tokens: tuple[Tokens, Tokens] | None = None
    if data is not None:
        tokens = _text(opened, data)
    elif config is not None:
        tokens = _corpus(opened.source, config)
    if tokens is None and steps:
        raise UserError(f"--uptrain-steps: {opened.source} names no corpus; give a text with --data FILE")
    if lr is not None and not lr > 0:
        raise UserError(f"--uptrain-lr: {lr}: expected a number above 0")
    length = seq_len or (config.seq_len if config is not None else min(256, opened.decoder.recipe.max_seq_len))
    rows = batch or (config.batch_size if config is not None else 8)
    for part, found in zip(("train", "validation"), tokens or (), strict=False):
        if found.size < length + 1:
            raise UserError(f"{part} text: {found.size} tokens, no window of {length} + 1; take a longer text")
    own = data is None and config is not None
    default = max(1, round(SHARE * config.steps)) if own and config is not None else 0
    peak = lr if lr is not None else float(getattr(config.schedule, "lr", 1e-4)) if config is not None else 1e-4
    first = config.steps * config.batch_size if own and config is not None else 0
    number = config.data_seed if own and config is not None else seed
    return Course(tokens, length, rows, default if steps is None else steps, peak, number, first, config)


def _config(opened: Opened) -> RunConfig:
    from assay.training import load_record

    return load_record(opened.source).config


def _corpus(folder: Path, config: RunConfig) -> tuple[Tokens, Tokens]:
    import json

    from assay.training import open_corpus

    corpus = open_corpus(config.data.corpus, config.data.val_bytes)
    told = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["corpus"]["sha256"]
    if corpus.sha256 != told:
        raise UserError(f"{folder}: its corpus {config.data.corpus!r} is not what it was; give a text with --data FILE")
    return Held(corpus.train), Held(corpus.val)


def _text(opened: Opened, path: Path) -> tuple[Tokens, Tokens]:
    """A text's tokens: the last tenth, ``VAL_TOKENS`` at most, is for validation."""
    import numpy as np

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--data: {path}: cannot be read: {error}") from None
    ids = np.array(opened.tokenizer().encode(text, special=False), dtype=np.int64)
    cut = len(ids) - min(VAL_TOKENS, len(ids) // 10)
    return Held(ids[:cut]), Held(ids[cut:])
