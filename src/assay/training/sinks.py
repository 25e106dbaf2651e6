"""Others who are told a run's numbers as they come: TensorBoard, Weights & Biases, trackio.

Each is imported when it is asked for. A sink that fails is left out from then on; the run goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from assay.recipe.errors import Problem
from assay.training.config import RunConfig, RunError


class Sink(Protocol):
    """Takes plain numbers by name."""

    def log(self, numbers: dict[str, float], step: int) -> None: ...
    def text(self, name: str, text: str, step: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in ``<run>/tensorboard``; those of updates that are done again are hidden."""

    def __init__(self, folder: Path, config: RunConfig, digest: str, step: int) -> None:
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = writer(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def text(self, name: str, text: str, step: int) -> None:
        self.writer.add_text(name, text, step)

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """One W&B run, resumed by the run's digest; offline unless ``WANDB_MODE`` is set (``wandb sync`` sends it)."""

    def __init__(self, folder: Path, config: RunConfig, digest: str, step: int) -> None:
        wandb = import_module("wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "assay"),
            id=digest[:24],
            name=folder.name,
            dir=str(folder),
            config=config.to_dict(),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
        )

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self.run.log({name: text}, step=step)

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """One run of trackio's local database, in the project ``TRACKIO_PROJECT`` or ``assay``."""

    def __init__(self, folder: Path, config: RunConfig, digest: str, step: int) -> None:
        self.trackio = import_module("trackio")
        self.trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "assay"),
            name=f"{folder.name}-{digest[:8]}",
            config=config.to_dict(),
            resume="allow",
        )

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.trackio.log(numbers, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self.trackio.log({name: text}, step=step)

    def close(self) -> None:
        self.trackio.finish()


KINDS: dict[str, type[TensorBoard] | type[Wandb] | type[Trackio]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


class Sinks:
    """The sinks of a run; ``failed`` is how each that failed is told of."""

    def __init__(self, folder: Path, config: RunConfig, digest: str, step: int) -> None:
        self.open: dict[str, Sink] = {}
        self.failed: list[str] = []
        for name in dict.fromkeys(config.log):
            self._try(name, "open", partial(self._begin, name, folder, config, digest, step))

    def log(self, row: dict[str, Any]) -> None:
        """A metrics row; values by layer or by corpus get a name each."""
        numbers = dict(flat((k, v) for k, v in row.items() if k != "step"))
        for name, sink in list(self.open.items()):
            self._try(name, "log", partial(sink.log, numbers, row["step"]))

    def text(self, name: str, text: str, step: int) -> None:
        """A text, such as a sample."""
        for own, sink in list(self.open.items()):
            self._try(own, "log", partial(sink.text, name, text, step))

    def close(self) -> None:
        for name, sink in list(self.open.items()):
            self._try(name, "close", sink.close)
        self.open.clear()

    def _begin(self, name: str, folder: Path, config: RunConfig, digest: str, step: int) -> None:
        self.open[name] = KINDS[name](folder, config, digest, step)

    def _try(self, name: str, what: str, call: Callable[[], object]) -> None:
        try:
            with redirect_stdout(sys.stderr):  # what they say is not a verb's answer
                call()
        except Exception as error:  # of a service that the run does not depend on
            self.open.pop(name, None)
            reason = str(error).splitlines()[0] if str(error) else ""
            self.failed.append(f"{name}: could not {what} and is left out: {type(error).__name__}: {reason}")


def check_installed(names: Iterable[str]) -> None:
    """Raises RunError for a sink whose package is not there, naming the extra that brings it."""
    problems = []
    for name in dict.fromkeys(names):
        try:
            import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
        except ImportError:
            allowed = f'pip install "assay-lm[track]", or pip install {name}'
            problems.append(Problem("log", f"{name} is not installed", name, allowed, "", True))
    if problems:
        raise RunError(problems, "run")


def flat(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, float]]:
    """Numbers by name: ``max_logit`` of layer 3 is ``max_logit/3``; what is no number is left out."""
    for name, value in items:
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, dict):
            yield from flat((f"{name}/{key}", each) for key, each in value.items())
        elif isinstance(value, list | tuple):
            yield from flat((f"{name}/{i}", each) for i, each in enumerate(value))
