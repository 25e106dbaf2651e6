"""What an accelerator gives: kernels that agree with the CPU, and how fast and how large a training update is.

python bench/gpu.py                  # needs a CUDA device; prints JSON
python bench/gpu.py --device cpu     # the same on the CPU, at a tiny size, to check the script
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

import assay
from assay.cost import budget
from assay.model import Decoder, mean
from assay.training import accumulate_gradients, decay_groups

SMALL = ("tiny/base", "tiny/qk-norm", "tiny/local-global", "tiny/parallel-shared", "tiny/post-ln")


def agreement(device: str) -> dict[str, float]:
    """Largest difference of logits between CPU float32 and this device, relative to the largest logit."""
    out = {}
    ids = torch.randint(0, 256, (2, 96), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    for name in SMALL:
        recipe = assay.load(name)
        want = assay.build(recipe, backend="reference")(ids, mask)
        for backend in ("sdpa", "reference"):
            for dtype, label in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
                decoder = assay.build(recipe, device=device, dtype=dtype, backend=backend)
                got = decoder(ids.to(device), mask.to(device)).float().cpu()
                real = mask.bool()
                worst = (got - want)[real].abs().max() / want[real].abs().max()
                out[f"{name} {backend} {label}"] = float(worst.detach())
    return out


def update(decoder: Decoder, optimizer: torch.optim.Optimizer, ids: torch.Tensor, targets: torch.Tensor) -> None:
    """One training update under bf16 autocast."""
    accumulate_gradients(decoder, [(ids, targets)], precision="bf16")
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def throughput(device: str, sets: list[str], batch: int, seq_len: int, compiled: bool, steps: int) -> dict[str, Any]:
    """Tokens a second, peak memory and model FLOPs a second of training updates (bf16 autocast, fused AdamW)."""
    recipe = assay.load("llama-3.2-1b", sets)
    decoder = assay.build(recipe, device=device)
    if compiled:
        for block in decoder.layers:
            block.compile()
    groups = decay_groups(decoder, 0.1)
    optimizer = torch.optim.AdamW([g.for_torch() for g in groups], lr=1e-4, fused=True)
    ids = torch.randint(0, recipe.vocab_size, (batch, seq_len + 1)).to(device)
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        update(decoder, optimizer, ids[:, :-1], ids[:, 1:])
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        update(decoder, optimizer, ids[:, :-1], ids[:, 1:])
    if cuda:
        torch.cuda.synchronize()
    rate = steps * batch * seq_len / (time.perf_counter() - began)
    per_token = budget(recipe, batch, seq_len).flops.train_per_token_causal
    with torch.no_grad():
        loss = float(mean(decoder.loss(ids[:, :-1], ids[:, 1:])))
    return {
        "params": sum(p.numel() for p in decoder.parameters()),
        "batch": batch,
        "seq_len": seq_len,
        "compiled": compiled,
        "tokens_per_s": rate,
        "model_tflops_causal": rate * per_token / 1e12,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "loss": loss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; try --device cpu")
    small = ["n_layers=2", "d_model=64", "vocab_size=512", "block.mixer.n_heads=4", "block.mixer.n_kv_heads=2"]
    small += ["block.mixer.head_dim=16", "block.ffn.d_ff=128"]
    sizes = [(small, 2, 64)] if device == "cpu" else [(["n_layers=4"], 8, 2048), ([], 4, 2048)]
    report = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "agreement": agreement(device),
        "training": [
            throughput(device, sets, batch, seq_len, compiled, steps=3 if device == "cpu" else 10)
            for sets, batch, seq_len in sizes
            for compiled in ((False,) if device == "cpu" else (False, True))
        ],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
