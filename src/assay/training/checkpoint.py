"""Checkpoints: a folder of safetensors and a JSON index, there whole or not at all, checked by digest when read.

Nothing is pickled. Optimizer state is kept by parameter name, never by order.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.model import Decoder, named_params

INDEX = "index.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: names the file and what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back: weights and optimizer state by parameter name, and the index's plain values."""

    folder: Path
    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rng: dict[str, Tensor]
    state: dict[str, Any]
    ema: dict[str, Tensor] = field(default_factory=dict)


def optimizer_tensors(decoder: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as ``<entry>/<parameter name>``."""
    out = {}
    for p in named_params(decoder):
        for entry, value in optimizer.state.get(p.param, {}).items():
            out[f"{entry}/{p.name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return out


def restore_optimizer(decoder: Decoder, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put state back by name. Raises CheckpointError for state of a parameter that the model does not have."""
    by_name = {p.name: p.param for p in named_params(decoder)}
    fused = {id(p) for group in optimizer.param_groups if group.get("fused") for p in group["params"]}
    for key, value in tensors.items():
        entry, _, name = key.partition("/")
        if name not in by_name:
            raise CheckpointError(f"optimizer state for {name!r}, which the model does not have")
        param = by_name[name]
        home = torch.device("cpu") if entry == "step" and id(param) not in fused else param.device
        optimizer.state[param][entry] = value.to(home)


def rng_tensors() -> dict[str, Tensor]:
    """The state of torch's random generators, CPU and current CUDA device."""
    out = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        out["cuda"] = torch.cuda.get_rng_state()
    return out


def restore_rng(tensors: dict[str, Tensor]) -> None:
    """Put the generators back."""
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def save_checkpoint(
    root: Path,
    step: int,
    decoder: Decoder,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    ema: dict[str, Tensor] | None = None,
) -> Path:
    """Write ``root/step-<n>``: beside it first, flushed to disk, then renamed. Litter of earlier tries is removed.

    ``ema``: a running mean of the weights, by name.
    """
    target = root / f"step-{step:08d}"
    root.mkdir(parents=True, exist_ok=True)
    for litter in root.glob(".partial-*"):
        shutil.rmtree(litter, ignore_errors=True)
    if problem_with(target) is None:
        return target
    partial = root / f".partial-{target.name}-{os.getpid()}"
    try:
        partial.mkdir()
        parts = {
            "model": {p.name: p.param.detach() for p in named_params(decoder)},
            "optimizer": optimizer_tensors(decoder, optimizer),
            "rng": rng_tensors(),
            **({} if ema is None else {"ema": ema}),
        }
        sums = {}
        for name, tensors in parts.items():
            file = partial / f"{name}.safetensors"
            save_file({k: t.detach().contiguous().cpu() for k, t in tensors.items()}, file)
            _flush(file)
            sums[file.name] = _sha256(file)
        index = {"step": step, "digest": decoder.recipe.digest, "sha256": sums, "state": state}
        (partial / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        _flush(partial / INDEX)
        shutil.rmtree(target, ignore_errors=True)  # only a damaged one can be in the way
        partial.rename(target)
        _flush(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def problem_with(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder, naming the file; None when every file is as it was written."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        sums: dict[str, str] = index["sha256"]
        int(index["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{folder / INDEX}: {type(error).__name__}: {error}"
    for name, want in sums.items():
        file = folder / Path(name).name  # a name in an index never leads out of its folder
        if not file.is_file():
            return f"{file}: missing"
        if _sha256(file) != want:
            return f"{file}: not what was written (its digest differs)"
    return None


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint; raises CheckpointError naming the damaged file."""
    problem = problem_with(folder)
    if problem is not None:
        raise CheckpointError(problem)
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    try:
        parts = [load_file(folder / f"{name}.safetensors") for name in ("model", "optimizer", "rng")]
        ema = load_file(folder / "ema.safetensors") if "ema.safetensors" in index["sha256"] else {}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: {error}") from None
    return Checkpoint(folder, int(index["step"]), parts[0], parts[1], parts[2], index["state"], ema)


def checkpoints(root: Path) -> list[Path]:
    """Checkpoint folders, newest first, sound or not."""
    return sorted((p for p in root.glob("step-*") if p.is_dir()), reverse=True)


def latest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest sound checkpoint, and what is wrong with the newer ones."""
    problems: list[str] = []
    for folder in checkpoints(root):
        problem = problem_with(folder)
        if problem is None:
            return folder, problems
        problems.append(problem)
    return None, problems


def retain(root: Path, keep: set[int], newest: int = 2) -> None:
    """Remove checkpoints but those of ``keep`` and the newest few: damage to the last must leave one before it."""
    for folder in checkpoints(root)[newest:]:
        if int(folder.name.removeprefix("step-")) not in keep:
            shutil.rmtree(folder, ignore_errors=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
