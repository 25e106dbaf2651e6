"""32. (1 + w) in low precision, embedding multiplier, eps and cast order (huggingface/transformers PR#29402).

Stored 15.8125: gain 16.8125 (16.75 when added in bf16). Multiplier of width 3072: 55.5 in bf16, 55.425626 in fp32.
x = 1e-3: 0.301511 at eps 1e-5, 0.707107 at 1e-6. A row of zeros gives 0. torch's unset eps, 1.19e-7: 0.278197 at 1e-4.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from assay.model import build
from assay.model.norm import RmsNorm
from assay.model.parts import build_part
from assay.recipe.norm import LayerNorm, RMSNorm, ScaleNorm
from tests.pitfalls.support import recipe


def rms(eps: float, width: int = 4, **more: str) -> RmsNorm:
    module = build_part(RMSNorm.model_validate({"eps": eps, **more}), width)
    if module.gain is not None:
        torch.nn.init.ones_(module.gain)
    return module


def test_one_is_added_in_float32() -> None:
    module = rms(1e-12, gain="one_plus").to(torch.bfloat16)
    torch.nn.init.constant_(module.gain, 15.8125)
    gain, _ = module.affine(torch.float32)
    assert gain.tolist() == [16.8125] * 4
    assert module(torch.ones(1, 4)).flatten().tolist() == pytest.approx([16.8125] * 4, abs=1e-5)
    assert float(module.gain.detach()[0] + 1) == 16.75  # the fault


@pytest.mark.parametrize(("dtype", "want"), [(torch.bfloat16, 55.5), (torch.float32, 55.425626)])
def test_embedding_multiplier(dtype: torch.dtype, want: float) -> None:
    over = {"d_model": 3072, "n_layers": 1, "embedding": {"scale": "sqrt_d_model"}, "block": {"ffn": {"d_ff": 4}}}
    model = build(recipe(over, n_heads=1, n_kv_heads=1, head_dim=2), dtype=dtype)
    with torch.no_grad():
        model.embedding.table.fill_(1.0)
        out = model.embedding(torch.zeros(1, 1, dtype=torch.long), torch.arange(1))
    assert out.dtype == dtype
    assert out.float().flatten()[0].item() == pytest.approx(want, abs=1e-6 if dtype == torch.bfloat16 else 5e-6)


@pytest.mark.parametrize(
    ("x", "eps", "want"), [(1e-3, 1e-5, 0.301511), (1e-3, 1e-6, 0.707107), (1e-4, 2**-23, 0.278197)]
)
def test_eps(x: float, eps: float, want: float) -> None:
    assert rms(eps)(torch.full((1, 4), x)).flatten().tolist() == pytest.approx([want] * 4, abs=1e-6)


def test_eps_is_never_the_librarys_own() -> None:
    assert RMSNorm().eps == 1e-6
    assert LayerNorm().eps == 1e-5
    assert build_part(RMSNorm(), 4).eps == 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_zeros(dtype: torch.dtype) -> None:
    x = torch.zeros(1, 4, dtype=dtype, requires_grad=True)
    out = rms(1e-6).to(dtype)(x)
    out.sum().backward()
    assert out.flatten().tolist() == [0.0] * 4
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("kind", ["rmsnorm", "rmsnorm, one plus", "layernorm", "scalenorm"])
def test_a_bf16_norm_rounds_once(kind: str) -> None:
    """Statistics and gain in float32, then one rounding of the result."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(64, 512, generator=generator) * 3).bfloat16()
    tables = {
        "rmsnorm": RMSNorm(eps=1e-6),
        "rmsnorm, one plus": RMSNorm(eps=1e-6, gain="one_plus"),
        "layernorm": LayerNorm(eps=1e-6, bias=False),
        "scalenorm": ScaleNorm(eps=1e-6),
    }
    module = build_part(tables[kind], 512).to(torch.bfloat16)
    with torch.no_grad():
        module.gain.copy_(torch.randn(module.gain.shape, generator=generator))
    wide, gain = x.double(), module.gain.detach().double() + (1.0 if "plus" in kind else 0.0)
    if kind == "layernorm":
        wide = wide - wide.mean(-1, keepdim=True)
    size = (
        wide.norm(dim=-1, keepdim=True) if kind == "scalenorm" else (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    )
    got = module(x).detach()
    assert got.dtype == torch.bfloat16
    # float32 on the way may turn a rounding that stands on an edge
    assert (got != (gain * wide / size).bfloat16()).double().mean() < 1e-4


def test_gains_go_out_and_come_back_as_they_are(tmp_path: Path) -> None:
    """What is stored is the gain less one, here and there: nothing is folded on the way, so not a bit changes."""
    from safetensors.torch import load_file

    from assay.interop import from_hf, to_hf

    norm = {"kind": "rmsnorm", "gain": "one_plus"}
    over = {
        "embedding": {"tied": True, "scale": "sqrt_d_model"}, "head": {"norm": norm},
        "block": {"ffn": {"activation": "gelu_tanh"}, "residual": {"rule": "pre", "norm": norm}},
    }  # fmt: skip
    model = build(recipe(over), dtype=torch.bfloat16)
    with torch.no_grad():
        model.head.norm.gain.fill_(15.8125)
    folder = to_hf(model, tmp_path / "out")
    assert model.recipe.embedding.scale == "sqrt_d_model"
    assert load_file(folder / "model.safetensors")["model.norm.weight"].tolist() == [15.8125] * 16
    again = dict(from_hf(folder).named_parameters())
    for name, p in model.named_parameters():
        assert torch.equal(again[name], p), name
