"""A part from a user's file goes through recipe, cost, model and the laws, and never through a recipe's own text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from assay.cost import Work, budget, flops_of, tensors_of
from assay.model import build, load_weights, named_params, save_weights
from assay.plugin import PluginError, load_plugin, loaded
from assay.recipe import Recipe, load, resolve
from tests.cost.measure import measured, traced

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    load_plugin(EXAMPLES / "average_mixer.py")
    return load(EXAMPLES / "average.toml")


def test_recipe_round_trip(recipe: Recipe) -> None:
    assert [layer.mixer.kind_name for layer in recipe.layers] == (["attention"] * 3 + ["average"]) * 2
    assert resolve(recipe.to_dict()).digest == recipe.digest


def test_counted_is_built(recipe: Recipe) -> None:
    built = {p.name: (tuple(p.param.shape), p.role, p.start) for p in named_params(build(recipe, device="meta"))}
    assert built == {t.name: (t.shape, t.role, t.start) for t in tensors_of(recipe)}
    decoder = build(recipe, device="meta")
    with FlopCounterMode(display=False) as counter:
        decoder(torch.zeros(2, 16, dtype=torch.long, device="meta"))
    total = flops_of(recipe, Work(2, 16)).total
    assert counter.get_total_flops() == total.matmul + total.core_square
    # the average keeps one vector whatever the length
    assert budget(recipe, seq_len=64).cache.by_layer["average"] == budget(recipe, seq_len=128).cache.by_layer["average"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_it_keeps_is_traced_byte_for_byte(recipe: Recipe, precision: str) -> None:
    net = traced(recipe, 2, 12, precision)
    assert not net.unknown()
    assert net.kept() == measured(recipe, 2, 12, precision)


def test_paths_agree(recipe: Recipe, tmp_path: Path) -> None:
    decoder = build(recipe, dtype=torch.float64)
    with torch.no_grad():
        for p in decoder.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    ids = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(0))
    alone = decoder(ids[:1, :7])
    padded = torch.zeros(1, 12, dtype=torch.long)
    padded[:, 5:] = ids[:1, :7]
    mask = torch.tensor([[0] * 5 + [1] * 7])
    torch.testing.assert_close(decoder(padded, mask)[:, 5:], alone, rtol=1e-9, atol=1e-9)
    packed = torch.cat((ids[:1, :7], ids[1:, :5]), dim=1)
    segments = torch.tensor([[0] * 7 + [1] * 5])
    torch.testing.assert_close(decoder(packed, segment_ids=segments)[:, 7:], decoder(ids[1:, :5]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(decoder(ids)[1:], decoder(ids[1:]), rtol=1e-9, atol=1e-9)
    changed = ids.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 256
    torch.testing.assert_close(decoder(changed)[:, :8], decoder(ids)[:, :8], rtol=0, atol=0)
    save_weights(decoder, tmp_path / "w.safetensors")
    again = load_weights(build(recipe, seed=1, dtype=torch.float64), tmp_path / "w.safetensors")
    assert torch.equal(again(ids), decoder(ids))


def test_by_flag_and_without() -> None:
    command = [sys.executable, "-m", "assay", "budget", str(EXAMPLES / "average.toml"), "--json"]
    out = subprocess.run(
        [*command, "--plugin", str(EXAMPLES / "average_mixer.py")], capture_output=True, text=True, check=True
    )
    assert json.loads(out.stdout)["params"]["total"] > 0
    bare = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bare.returncode == 2
    assert "no such mixer kind" in bare.stderr


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="cannot be read"):
        load_plugin(tmp_path / "none.py")
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no')")
    with pytest.raises(PluginError, match=r"broken\.py: RuntimeError: no"):
        load_plugin(broken)


def test_loaded_once_and_known_by_its_source() -> None:
    first = load_plugin(EXAMPLES / "average_mixer.py")
    assert load_plugin(EXAMPLES / "average_mixer.py") is first
    assert first in loaded()
    assert len(first.sha256) == 64
