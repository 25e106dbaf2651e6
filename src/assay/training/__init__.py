"""Runs: configuration, data, optimization, checkpoints, records.

The names below are loaded when they are first used: reading a configuration or a record loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.training.checkpoint import CheckpointError, SaveError, load_checkpoint
    from assay.training.config import DataConfig, Numerics, RunConfig, RunError
    from assay.training.cutting import cut
    from assay.training.data import Corpus, CorpusError, bits_per_byte, open_corpus, open_data
    from assay.training.evaluate import Evaluation, evaluate
    from assay.training.folder import DiskError, FolderError, read_metrics
    from assay.training.loop import check_fits, train
    from assay.training.loss import StepLoss, accumulate_gradients
    from assay.training.optim import AdamW
    from assay.training.optim.groups import Group, decay_groups, groups_table, optimizer_groups
    from assay.training.record import RunRecord, load_record
    from assay.training.start import Start

__all__ = [
    "AdamW",
    "CheckpointError",
    "Corpus",
    "CorpusError",
    "DataConfig",
    "DiskError",
    "Evaluation",
    "FolderError",
    "Group",
    "Numerics",
    "RunConfig",
    "RunError",
    "RunRecord",
    "SaveError",
    "Start",
    "StepLoss",
    "accumulate_gradients",
    "bits_per_byte",
    "check_fits",
    "cut",
    "decay_groups",
    "evaluate",
    "groups_table",
    "load_checkpoint",
    "load_record",
    "open_corpus",
    "open_data",
    "optimizer_groups",
    "read_metrics",
    "train",
]

_HOMES = {
    "checkpoint": (
        "CheckpointError",
        "SaveError",
        "load_checkpoint",
    ),
    "config": (
        "DataConfig",
        "Numerics",
        "RunConfig",
        "RunError",
    ),
    "cutting": ("cut",),
    "data": (
        "Corpus",
        "CorpusError",
        "bits_per_byte",
        "open_corpus",
        "open_data",
    ),
    "evaluate": (
        "Evaluation",
        "evaluate",
    ),
    "folder": (
        "DiskError",
        "FolderError",
        "read_metrics",
    ),
    "loop": (
        "check_fits",
        "train",
    ),
    "loss": (
        "StepLoss",
        "accumulate_gradients",
    ),
    "optim": ("AdamW",),
    "optim.groups": (
        "Group",
        "decay_groups",
        "groups_table",
        "optimizer_groups",
    ),
    "record": (
        "RunRecord",
        "load_record",
    ),
    "start": ("Start",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"assay.training.{module}"), name)
            globals()[name] = value  # found once
            return value
    raise AttributeError(f"module 'assay.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
