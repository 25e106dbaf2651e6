"""Weights on disk: safetensors by parameter name, written atomically, checked name by name when read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from assay.model.decoder import Decoder
from assay.model.parts import named_params


class WeightsError(ValueError):
    """A weights file that does not fit the model; says which tensors."""


def save_weights(decoder: Decoder, path: str | Path) -> None:
    """Write every parameter once (a tied table under its one name), with the recipe, to a safetensors file.

    The file appears whole or not at all: it is written beside ``path``, flushed, then renamed.
    """
    path = Path(path)
    tensors = {p.name: p.param.detach().contiguous().cpu() for p in named_params(decoder)}
    metadata = {"format": "assay", "digest": decoder.recipe.digest, "recipe": json.dumps(decoder.recipe.to_dict())}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata=metadata)
        with partial.open("rb+") as f:
            os.fsync(f.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_weights(decoder: Decoder, path: str | Path) -> Decoder:
    """Fill a decoder's parameters from a file, in place; bit for bit where the dtypes agree.

    Raises:
        WeightsError: unreadable file, or names or shapes that do not match; nothing is changed then.
    """
    path = Path(path)
    wanted = {p.name: p.param for p in named_params(decoder)}
    try:
        with safe_open(path, framework="pt") as f:
            found = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from None
    problems = [f"missing {name}" for name in wanted if name not in found]
    problems += [f"unexpected {name}" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, the recipe needs {tuple(p.shape)}"
        for name, p in wanted.items()
        if name in found and found[name].shape != p.shape
    ]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise WeightsError(f"{path}: does not fit the model: {shown}")
    with torch.no_grad():
        for name, param in wanted.items():
            param.copy_(found[name])
    return decoder
