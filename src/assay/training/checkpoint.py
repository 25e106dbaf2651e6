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
from safetensors.torch import load_file
from torch import Tensor

from assay.model import Decoder, named_params
from assay.training import disk
from assay.training.disk import PARTIAL
from assay.training.keep import Keep
from assay.training.tensors import safetensors_of

INDEX = "index.json"
_PARTS = ("model", "optimizer", "rng")
_OWN = "index_sha256"  # of the index without this line


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: names the file and what is wrong with it."""


class SaveError(CheckpointError):
    """A checkpoint that could not be written; those before it are as they were."""


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

    ``ema``: a running mean of the weights, by name. Raises SaveError, with nothing changed, where the disk is full or
    may not be written.
    """
    target = root / f"step-{step:08d}"
    partial = root / f"{PARTIAL}{target.name}-{os.getpid()}"
    parts = {
        "model": {p.name: p.param.detach() for p in named_params(decoder)},
        "optimizer": optimizer_tensors(decoder, optimizer),
        "rng": rng_tensors(),
        **({} if ema is None else {"ema": ema}),
    }
    try:
        root.mkdir(parents=True, exist_ok=True)
        disk.sweep(root)
        if problem_with(target) is None:
            return target
        os.mkdir(partial)
        sums = {
            f"{name}.safetensors": disk.write_file(partial / f"{name}.safetensors", safetensors_of(tensors))
            for name, tensors in parts.items()
        }
        index = {"step": step, "digest": decoder.recipe.digest, "sha256": sums, "state": state}
        disk.write_file(partial / INDEX, [_index_text(index)])
        disk.flush(partial)
        if target.exists():
            disk.discard(target)  # only a damaged one can be in the way
        os.rename(partial, target)
        disk.flush(root)
    except OSError as error:
        raise SaveError(f"{target}: not saved: {disk.said(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def problem_with(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder, naming the file; None when every file is as it was written."""
    try:
        sums = _index_of(folder)["sha256"]
    except CheckpointError as error:
        return str(error)
    for name, want in sums.items():
        file = folder / Path(name).name  # a name in an index never leads out of its folder
        if not file.is_file():
            return f"{file}: missing"
        if disk.sha256_of(file) != want:
            return f"{file}: not what was written (its digest differs)"
    return None


def load_checkpoint(folder: Path, *, checked: bool = False) -> Checkpoint:
    """Read and verify a checkpoint; raises CheckpointError naming the damaged file.

    ``checked``: its digests were compared a moment ago.
    """
    problem = None if checked else problem_with(folder)
    if problem is not None:
        raise CheckpointError(problem)
    index = _index_of(folder)
    try:
        parts = [load_file(folder / f"{name}.safetensors") for name in _PARTS]
        ema = load_file(folder / "ema.safetensors") if "ema.safetensors" in index["sha256"] else {}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: {error}") from None
    return Checkpoint(folder, int(index["step"]), parts[0], parts[1], parts[2], index["state"], ema)


def _index_text(index: dict[str, Any]) -> bytes:
    """The index with the digest of itself."""
    own = hashlib.sha256(json.dumps(index, allow_nan=False).encode()).hexdigest()
    return json.dumps({**index, _OWN: own}, indent=1, allow_nan=False).encode()


def _index_of(folder: Path) -> dict[str, Any]:
    """The index, byte for byte what was written; raises CheckpointError."""
    path = folder / INDEX
    try:
        raw = path.read_bytes()
        index: dict[str, Any] = json.loads(raw)
        index.pop(_OWN)
        if _index_text(index) != raw:
            raise CheckpointError(f"{path}: not what was written (its digest differs)")
        missing = [name for name in _PARTS if f"{name}.safetensors" not in index["sha256"]]
        named = folder.name.removeprefix("step-")
        if missing or (named.isdecimal() and int(named) != index["step"]):
            raise CheckpointError(f"{path}: not of this folder: step {index['step']}, no {', '.join(missing) or '-'}")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing") from None
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    return index


def checkpoints(root: Path) -> list[Path]:
    """Checkpoint folders, newest first, sound or not."""
    return sorted((p for p in root.glob("step-*") if p.is_dir()), key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """The update after which it was written, by its name; -1 for another name."""
    named = folder.name.removeprefix("step-")
    return int(named) if named.isdecimal() else -1


def latest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest sound checkpoint, and what is wrong with the newer ones."""
    problems: list[str] = []
    for folder in checkpoints(root):
        problem = problem_with(folder)
        if problem is None:
            return folder, problems
        problems.append(problem)
    return None, problems


def retain(root: Path, keep: Keep, best: int, step: int) -> None:
    """Remove what a rule does not keep, once the checkpoint of ``step`` is written.

    Later ones go too: a run that is at ``step`` has passed them over as damaged, and will write them again.
    """
    found = {step_of(folder): folder for folder in checkpoints(root)}
    stays = {step, *keep.kept([s for s in found if s <= step], best)}
    for own, folder in found.items():
        if own not in stays or own > step:
            try:
                disk.discard(folder)
            except OSError:  # what cannot be removed does no harm
                continue
