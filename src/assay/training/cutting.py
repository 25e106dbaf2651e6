"""A decayed model cut from any update of a run, in a folder of its own; the run is only read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from assay.recipe.errors import Problem
from assay.training import checkpoint as ckpt
from assay.training.config import RunConfig, RunError
from assay.training.data import Corpus, open_data
from assay.training.folder import FolderError, read_metrics
from assay.training.loop import train
from assay.training.record import MANIFEST, METRICS, RunRecord
from assay.training.schedule import Cut


def cut_config(
    config: RunConfig,
    step: int,
    decay_steps: int,
    *,
    floor: float = 0.0,
    shape: Literal["linear", "1-sqrt", "cosine", "inverse"] = "linear",
) -> RunConfig:
    """The run that is ``config`` up to update ``step`` and then decays over ``decay_steps`` updates.

    A run like any other: trained from its start it gives the same bits as cut from the first one's checkpoint.
    """
    if not 1 <= step <= config.steps:
        raise RunError([Problem("step", "no update of that run", step, f"1 to {config.steps}", "", True)], "cut")
    schedule = {
        "kind": "cut",
        "of": config.schedule.model_dump(mode="json"),
        "total": config.steps,
        "after": step,
        "decay": decay_steps,
        "floor": floor,
        "shape": shape,
    }
    table = {**config.to_dict(), "recipe": config.recipe, "schedule": schedule, "steps": step + decay_steps}
    return RunConfig.from_dict(table, "cut")


def cut(
    run_folder: str | Path,
    step: int,
    decay_steps: int,
    *,
    folder: str | Path | None = None,
    floor: float = 0.0,
    shape: Literal["linear", "1-sqrt", "cosine", "inverse"] = "linear",
    corpus: Corpus | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Decay the model of update ``step`` of a run, finished or still running, and return the record.

    Starts from the run's newest sound checkpoint at or before ``step`` and repeats the updates between, bit for bit.

    Args:
        folder: of the new run; by default ``<run>-cut-<step>-<decay_steps>`` beside the old one.
        floor: where the learning rate ends, as a fraction of the schedule's peak.

    Raises:
        RunError: no such update, or a decay that cannot be.
        FolderError: the run cannot be read, or its data is not what it was.
    """
    source = Path(run_folder)
    target = Path(folder) if folder is not None else source.with_name(f"{source.name}-cut-{step}-{decay_steps}")
    try:
        manifest = json.loads((source / MANIFEST).read_text(encoding="utf-8"))
        main = RunConfig.from_dict(manifest["config"], str(source / MANIFEST))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderError(f"{source}: no readable run here: {error}") from None
    config = cut_config(main, step, decay_steps, floor=floor, shape=shape)
    assert isinstance(config.schedule, Cut)
    corpus = corpus or open_data(main.data)
    if main.digest(corpus.sha256) != manifest["digest"]:
        raise FolderError(f"{source}: its data or plugins are not what they were; a cut would not be of that run")
    if not (target / MANIFEST).exists():
        _borrow(source, target, step)
    return train(config, target, corpus=corpus, on_step=on_step, should_stop=should_stop)


def _borrow(source: Path, target: Path, step: int) -> None:
    """Copy the newest sound checkpoint at or before ``step``, and the rows up to it; nothing where there is none."""
    for found in ckpt.checkpoints(source / "checkpoints"):
        at = int(found.name.removeprefix("step-"))
        if at > step:
            continue
        home = target / "checkpoints"
        home.mkdir(parents=True, exist_ok=True)
        partial = home / f".partial-{found.name}-{os.getpid()}"
        try:
            there = (home / found.name).exists()  # of an earlier try, which was killed
            if not there:
                shutil.copytree(found, partial)
            if not there and ckpt.problem_with(partial) is not None:
                continue
            rows = [row for row in read_metrics(source / METRICS) if row["step"] <= at]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (target / METRICS).write_text(text, encoding="utf-8")
            if not there:
                partial.rename(home / found.name)
            return
        except OSError:  # a running run removes old checkpoints
            continue
        finally:
            shutil.rmtree(partial, ignore_errors=True)
