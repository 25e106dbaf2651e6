"""07. An exported config leaves a field at its default (huggingface/nanotron PR#188).

One toy model with every value away from its default: base 5e5, eps 1e-2, head size not width over heads, biases on q, k
and v only, half of each head rotated, untied, 3 local layers and 1 global, tanh-GELU, YaRN. Right: equal logits at 8
and at 600 tokens in the public class, or a refusal that names the part; and every field moves the logits.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.interop import CannotExport, from_hf, to_hf
from assay.model import Decoder, build
from assay.recipe import resolve
from assay.recipe.merge import apply_overrides
from tests.pitfalls.support import close, ids

YARN = {"kind": "yarn", "factor": 4.0, "original_seq_len": 1024, "beta_fast": 8.0, "beta_slow": 0.5, "rounded": False}
ROPE = {"kind": "rope", "theta": 5e5, "scaling": YARN}
NORM = {"kind": "rmsnorm", "eps": 1e-2}
TOY: dict[str, Any] = {
    "name": "toy",
    "d_model": 24,
    "vocab_size": 32,
    "max_seq_len": 4096,
    "embedding": {"tied": False},
    "block": {
        "mixer": {
            "kind": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "position": ROPE,
            "bias": ["q", "k", "v"],
        },
        "ffn": {"kind": "glu", "d_ff": 40, "activation": "gelu_tanh"},
        "residual": {"rule": "pre", "norm": NORM},
    },
    "layers": {"local": {"mixer": {"span": {"kind": "window", "size": 6}}}, "global": {}},
    "stack": [{"cycle": ["3 local", "global"], "n_layers": 8}],
    "head": {"norm": NORM},
}  # fmt: skip
# one field at a time, as a forgotten one would fall back
FLIPS = (
    "block.mixer.position.theta=1e4",
    "block.residual.norm.eps=1e-6",
    "head.norm.eps=1e-6",
    "block.ffn.activation=silu",
    "block.mixer.position.scaling=none",
    "block.mixer.position.scaling.factor=2.0",
    "block.mixer.position.scaling.original_seq_len=256",
    "block.mixer.position.scaling.beta_fast=32.0",
    "block.mixer.position.scaling.beta_slow=1.0",
    "block.mixer.position.scaling.rounded=true",
    "layers.local.mixer.span.size=7",
    "layers.local.mixer.span=full",
    "block.mixer.scale=0.2",
)


def toy(table: dict[str, Any]) -> Decoder:
    """Its model with every weight random."""
    decoder = build(resolve(table)).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in decoder.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * (0.4 if p.dim() == 1 else p.shape[-1] ** -0.5))
    return decoder


@torch.no_grad()
def test_equal_at_8_and_at_600(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    decoder = toy(TOY)
    folder = to_hf(decoder, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    for length in (8, 600):
        x = ids(length, 1, length)
        assert close(theirs(x, use_cache=False).logits, decoder(x), 1e-5)
        assert torch.equal(from_hf(folder)(x), decoder(x))


@torch.no_grad()
@pytest.mark.parametrize("flip", FLIPS)
def test_every_field_is_seen_at_600(flip: str) -> None:
    decoder, x = toy(TOY), ids(600, 1, 600)
    other = build(resolve(apply_overrides(copy.deepcopy(TOY), [flip]))).eval()
    other.load_state_dict(decoder.state_dict())
    assert not close(other(x), decoder(x), 1e-4)


def test_what_no_class_expresses_is_named(tmp_path: Path) -> None:
    """Half of each head beside windows and YaRN: no public class has all of it."""
    table = copy.deepcopy(TOY)
    table["block"]["mixer"]["position"] = {**ROPE, "fraction": 0.5}
    decoder = toy(table)
    with pytest.raises(CannotExport) as caught:
        to_hf(decoder, tmp_path / "out")
    assert caught.value.fields
    with pytest.raises(CannotExport, match="qwen2 cannot express") as caught:
        to_hf(decoder, tmp_path / "out", model_type="qwen2")
    assert any("fraction" in field for field in caught.value.fields)
    assert not (tmp_path / "out").exists()
