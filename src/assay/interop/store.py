"""The tensors of a checkpoint folder, read one at a time: safetensors, whole or sharded, or ``.bin`` without pickle.

Opening reads headers only. A missing shard, a file cut short, a name that the index gives and the file lacks, a dtype
that is no float: each is an error that names the file and the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from assay.interop.config import read_json
from assay.interop.errors import DamagedFolder, InteropError, shown

FLOATS = ("F64", "F32", "F16", "BF16")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SINGLE = ("model.safetensors", "pytorch_model.bin")


class Store:
    """Names of tensors and the file of each; ``get`` reads one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = _locate(folder)  # name -> file
        self._open: dict[Path, Any] = {}

    @property
    def names(self) -> list[str]:
        return list(self.files)

    def _file(self, path: Path) -> Any:
        """The open file; earlier ones are closed, for one shard is read after another."""
        if path not in self._open:
            self._open.clear()
            self._open[path] = _opened(path)
        return self._open[path]

    def shape(self, name: str) -> tuple[int, ...]:
        found = self._file(self.files[name])
        if isinstance(found, Mapping):
            return tuple(found[name].shape)
        return tuple(found.get_slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype; raises for anything but a float of 16, 32 or 64 bits."""
        path = self.files[name]
        found = self._file(path)
        if isinstance(found, Mapping):
            dtype = found[name].dtype
            kind, known = str(dtype), dtype in DTYPES.values()
        else:
            kind = str(found.get_slice(name).get_dtype())
            dtype, known = DTYPES.get(kind), kind in DTYPES
        if not known:
            raise InteropError(f"{path}: {name} has dtype {kind}; known: {shown(FLOATS)}")
        return dtype  # type: ignore[no-any-return]

    def get(self, name: str) -> Tensor:
        """One tensor on the CPU."""
        self.dtype(name)
        path = self.files[name]
        found = self._file(path)
        try:
            value: Tensor = found[name] if isinstance(found, Mapping) else found.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise DamagedFolder(f"{path}: {name} cannot be read: {error}") from None
        return value


def _opened(path: Path) -> Any:
    try:
        if path.suffix == ".bin":
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise DamagedFolder(f"{path}: no such file") from None
    except Exception as error:  # safetensors, zip and unpickling errors share no base
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFolder(f"{path}: cannot be read: {reason}") from None


def _locate(folder: Path) -> dict[str, Path]:
    """Every tensor's file, from the index if there is one."""
    for single in _SINGLE:
        index = folder / f"{single}.index.json"
        if index.is_file():
            return _indexed(folder, index)
        path = folder / single
        if path.is_file():
            return dict.fromkeys(_names(_opened(path)), path)
    raise DamagedFolder(f"{folder}: no weights: neither {shown(_SINGLE)} nor an index of shards")


def _indexed(folder: Path, index: Path) -> dict[str, Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DamagedFolder(f"{index}: no weight_map")
    out: dict[str, Path] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise DamagedFolder(f"{index}: {name}: shard {file!r} is not a plain file name")
        out[name] = folder / file
    shards = sorted(set(out.values()))
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise DamagedFolder(f"{folder}: missing {shown(missing)}, named in {index.name}")
    for path in shards:
        have = set(_names(_opened(path)))
        want = {name for name, file in out.items() if file == path}
        if want - have:
            raise DamagedFolder(f"{path}: lacks {shown(sorted(want - have))}, which {index.name} puts there")
        if have - want:
            raise DamagedFolder(f"{path}: holds {shown(sorted(have - want))}, which {index.name} does not name")
    return out


def _names(opened: Any) -> Iterator[str]:
    yield from opened.keys()
