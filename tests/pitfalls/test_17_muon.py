"""17. Muon: wrong tensors, wrong shape factor, each shard orthogonalised alone (pytorch-image-models PR#2791).

Update RMS 0.2 x lr by the rule that matches AdamW, whatever the shape; factor 2 for 1024x256 and 1 for 256x1024 by the
original one. Embedding, head, gains and biases belong to AdamW, each parameter to one optimizer. Fused q, k, v move as
separate ones. A shard moves as the whole does. Without a gradient nothing moves.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from assay.model import build, named_params
from assay.recipe.base import make
from assay.training.optim import Muon, OptimizerSpec
from assay.training.optim.groups import groups_table, optimizer_groups
from tests.pitfalls.support import recipe

SHAPES = [(256, 1024), (1024, 256), (512, 512)]


def update_of(shape: tuple[int, int], adjust: str) -> torch.Tensor:
    """One update of lr 1 and no decay, from a random gradient."""
    p = nn.Parameter(torch.zeros(shape))
    p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    Muon([p], lr=1.0, weight_decay=0.0, adjust=adjust).step()  # type: ignore[arg-type]
    return p.detach()


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_is_that_of_adamw(shape: tuple[int, int]) -> None:
    assert float(update_of(shape, "match_rms_adamw").square().mean().sqrt()) == pytest.approx(0.2, rel=0.1)


def test_the_original_factor_is_two_for_tall_and_one_for_wide() -> None:
    singular = {s: float(torch.linalg.svdvals(update_of(s, "original")).mean()) for s in SHAPES}
    assert singular[1024, 256] / singular[256, 1024] == pytest.approx(2.0, rel=0.02)
    assert singular[512, 512] == pytest.approx(singular[256, 1024], rel=0.1)


@pytest.mark.parametrize("tied", [False, True])
def test_each_parameter_in_one_optimizer_by_its_role(tied: bool) -> None:
    over = {
        "n_layers": 1,
        "embedding": {"tied": tied, "position": "learned"},
        "block": {"residual": {"rule": "layerscale"}, "ffn": {"bias": "all"}},
        "head": {"bias": True},
    }
    qk = {"over": "head", "gain_per": "head", "norm": {"kind": "rmsnorm"}}  # a gain of two dimensions
    spelled = recipe(over, position="none", sinks="per_head", qk_norm=qk, bias="all")
    model = build(spelled)
    spec = make(OptimizerSpec, {"kind": "muon"}, {})
    groups = optimizer_groups(model, spec, spelled)
    rows = groups_table(groups)
    assert sorted(row["name"] for row in rows) == sorted(p.name for p in named_params(model))
    by_muon = {row["name"] for row in rows if row["rule"] == "muon"}
    parts = ("mixer.q", "mixer.k", "mixer.v", "mixer.o", "ffn.gate", "ffn.up", "ffn.down")
    assert by_muon == {f"layers.0.{part}.weight" for part in parts}
    optimizer = spec.make(groups, 1e-3)
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())


def test_fused_projections_move_as_separate_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    start, grad = torch.randn(24, 16, generator=generator), torch.randn(24, 16, generator=generator)
    heights = (12, 6, 6)
    fused = nn.Parameter(start.clone())
    fused.grad = grad
    Muon([{"params": [fused], "blocks": heights}], lr=0.1, ns_dtype="float32").step()
    apart = [nn.Parameter(part.clone()) for part in start.split(heights)]
    for p, g in zip(apart, grad.split(heights), strict=True):
        p.grad = g
    Muon(apart, lr=0.1, ns_dtype="float32").step()
    torch.testing.assert_close(fused.detach(), torch.cat([p.detach() for p in apart]))
    as_one = nn.Parameter(start.clone())
    as_one.grad = grad
    Muon([as_one], lr=0.1, ns_dtype="float32").step()
    assert (as_one - fused).norm() > 0.1 * (fused - start).norm()  # the fault would be seen


def _shard(rank: int, folder: str) -> None:
    """One of two processes: three updates of a matrix sharded over its rows."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(12, 8, generator=generator)
    p = nn.Parameter(distribute_tensor(start, mesh, [Shard(0)]))
    optimizer = Muon([p], lr=0.1, ns_dtype="float32", neuron_beta=0.9)
    for _ in range(3):
        p.grad = distribute_tensor(torch.randn(12, 8, generator=generator), mesh, [Shard(0)])
        optimizer.step()
    whole = p.detach().full_tensor()
    if rank == 0:
        torch.save(whole, f"{folder}/moved.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_sharded_matrix_moves_as_a_whole_one() -> None:
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(12, 8, generator=generator))
    optimizer = Muon([p], lr=0.1, ns_dtype="float32", neuron_beta=0.9)
    for _ in range(3):
        p.grad = torch.randn(12, 8, generator=generator)
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_shard, args=(rank, folder)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
        moved = torch.load(Path(folder) / "moved.pt", weights_only=True)
    torch.testing.assert_close(moved, p.detach(), rtol=1e-5, atol=1e-5)


def test_nothing_moves_without_a_gradient() -> None:
    p = nn.Parameter(torch.ones(4, 4))
    optimizer = Muon([p], lr=0.1, weight_decay=0.5)
    optimizer.step()
    assert torch.equal(p.detach(), torch.ones(4, 4))
    assert not optimizer.state
