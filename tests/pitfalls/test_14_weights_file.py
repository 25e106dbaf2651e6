"""14. A failed save leaves no good file, or a mixed one (Lightning-AI/pytorch-lightning#688).

Here: one file of weights. A full disk leaves the old file whole and no litter; a damaged file is named; nothing is
half loaded.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.model import WeightsError, build, load_weights, named_params, save_weights
from tests.pitfalls.support import recipe


def values(model: Any) -> dict[str, torch.Tensor]:
    return {p.name: p.param.detach().clone() for p in named_params(model)}


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    first = build(recipe(), seed=1)
    save_weights(first, path)

    def full(tensors: Any, filename: Any, metadata: Any = None) -> None:
        Path(filename).write_bytes(b"half a head")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("assay.model.weights.save_file", full)
        with pytest.raises(OSError, match="No space"):
            save_weights(build(recipe(), seed=2), path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    again = load_weights(build(recipe(), seed=3), path)
    assert all(torch.equal(value, values(first)[name]) for name, value in values(again).items())


@pytest.mark.parametrize("keep", [0, 4, 200, -1])
def test_a_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(build(recipe(), seed=1), path)
    path.write_bytes(path.read_bytes()[:keep])
    model = build(recipe(), seed=2)
    before = values(model)
    with pytest.raises(WeightsError, match=r"w\.safetensors"):
        load_weights(model, path)
    assert all(torch.equal(value, before[name]) for name, value in values(model).items())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nowhere\.safetensors"):
        load_weights(build(recipe()), tmp_path / "nowhere.safetensors")
