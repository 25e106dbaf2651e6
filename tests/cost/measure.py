"""What torch keeps and holds, measured: the oracles of the memory ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from assay.cost.activations import Execution, Network, network
from assay.cost.rules import Work
from assay.cost.tape import Numerics
from assay.model import Decoder, build
from assay.recipe import Recipe, resolve

# precision -> dtype of the parameters, whether autocast is on, and what the cost room is told
PRECISIONS: dict[str, tuple[torch.dtype, bool, Numerics]] = {
    "fp32": (torch.float32, False, Numerics(4, 4)),
    "bf16": (torch.bfloat16, False, Numerics(2, 2)),
    "autocast": (torch.float32, True, Numerics(2, 4, autocast=True)),
}


class Kept:
    """Storages that autograd packs while this is open, each once, parameters left out."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._params = {p.untyped_storage().data_ptr() for p in params}
        self._found: dict[int, Tensor] = {}  # holds the tensors, so that no address is used twice

    def _pack(self, t: Tensor) -> Tensor:
        address = t.untyped_storage().data_ptr()
        if address not in self._params:
            self._found.setdefault(address, t)
        return t

    def __enter__(self) -> Kept:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    @property
    def nbytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in self._found.values())


def kept_by(decoder: Decoder, batch: int, length: int, *, autocast: bool = False) -> int:
    """Bytes that a training forward keeps."""
    decoder.train()
    ids = torch.zeros(batch, length, dtype=torch.long)
    with Kept(decoder.parameters()) as kept, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        decoder.loss(ids, ids.clone())
    return kept.nbytes


def measured(recipe: Recipe, batch: int, length: int, precision: str = "fp32", backend: str = "auto") -> int:
    """Bytes that the built model keeps for its backward pass."""
    dtype, autocast, _ = PRECISIONS[precision]
    return kept_by(build(recipe, dtype=dtype, backend=backend), batch, length, autocast=autocast)


def traced(
    recipe: Recipe, batch: int, length: int, precision: str = "fp32", backend: str = "auto", recompute: str = "none"
) -> Network:
    """The same on paper."""
    numerics = PRECISIONS[precision][2]._replace(backend=backend)
    return network(recipe, Execution(Work(batch, length), numerics, recompute))


def shape(**over: Any) -> Recipe:
    """A small model by its sizes; keys with dots reach into the table."""
    table: dict[str, Any] = {
        "d_model": 64,
        "vocab_size": 512,
        "max_seq_len": 4096,
        "n_layers": 2,
        "embedding": {"tied": False},
        "block": {
            "mixer": {"kind": "attention", "n_heads": 4, "position": "rope"},
            "ffn": {"kind": "glu", "d_ff": 192, "activation": "silu"},
            "residual": "pre",
        },
        "head": {"norm": "rmsnorm"},
    }
    for key, value in over.items():
        *path, last = key.replace("__", ".").split(".")
        node = table
        for part in path:
            node = node[part]
        node[last] = value
    return resolve(table)


_STEP = """
import gc, json, sys
import torch
from assay.model import build, mean
from assay.recipe import resolve

def status(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key))

def step(model, optimizer, batch, length):
    ids = torch.zeros(batch, length, dtype=torch.long)
    mean(model.loss(ids, ids)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

job = json.loads(sys.argv[1])
torch.set_num_threads(1)
for table, batch, length, counts in ((job["warm"], 2, 32, False), (job["recipe"], job["batch"], job["length"], True)):
    model = build(resolve(table), dtype=getattr(torch, job["dtype"]), backend=job["backend"]).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if counts:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # the high-water mark starts here
        base = status("VmRSS")
    if job["prefill"]:
        with torch.no_grad():
            model.unembed(model.features(torch.zeros(batch, length, dtype=torch.long)).hidden[:, -1:])
    else:
        for _ in range(2):
            step(model, optimizer, batch, length)
    if counts:
        print(status("VmHWM") - base)
    del model, optimizer
    gc.collect()
"""


def peak_growth(recipe: Recipe, batch: int, length: int, dtype: str, backend: str, *, prefill: bool = False) -> int:
    """Bytes by which a process grows over two real training steps, or over a prefill, its weights already there."""
    small = shape(n_layers=1)
    job = {
        "recipe": recipe.to_dict(),
        "warm": small.to_dict(),
        "batch": batch,
        "length": length,
        "dtype": dtype,
        "backend": backend,
        "prefill": prefill,
    }
    # large blocks straight from the system and back to it: the allocator's own slack is not the ledger's
    calm = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", _STEP, json.dumps(job)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **calm})
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
