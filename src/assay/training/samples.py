"""Texts that a run writes on its way: ``samples.jsonl``, a row a prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from assay.model import Decoder
from assay.training.config import RunConfig
from assay.training.folder import add_lines, cut_lines

SAMPLES = "samples.jsonl"

# the model in eval mode -> (prompt, what it wrote on) of every prompt
Sampler = Callable[[Decoder], list[tuple[str, str]]]


class Writer:
    """Calls a run's sampler when a sample is due. One that fails is not asked again; no number of the run changes."""

    def __init__(self, config: RunConfig, folder: Path, sampler: Sampler | None, step: int) -> None:
        self.every, self.last = config.samples.every, config.steps
        self.path, self.sampler = folder / SAMPLES, sampler
        cut_lines(self.path, step)

    def due(self, step: int) -> bool:
        return self.sampler is not None and self.every > 0 and (step % self.every == 0 or step == self.last)

    def write(self, step: int, decoder: Decoder) -> tuple[list[dict[str, Any]], str | None]:
        """The rows of this update's texts, and why there are none."""
        assert self.sampler is not None
        training = decoder.training
        decoder.eval()
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        try:
            with torch.no_grad(), torch.random.fork_rng(devices):
                texts = self.sampler(decoder)
        except Exception as error:
            self.sampler = None
            return [], f"step {step}: no more samples: {type(error).__name__}: {error}"
        finally:
            decoder.train(training)
        rows = [{"step": step, "prompt": prompt, "text": text} for prompt, text in texts]
        add_lines(self.path, rows)
        return rows, None
