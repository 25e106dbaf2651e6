"""28. head_dim assumed to be width / heads; softmax scale from the wrong number (huggingface/transformers#31891).

Qwen3-0.6B: query width 2048, 114,688 bytes a token (57,344 is wrong). Gemma-2-9B: scale 0.0625, not 0.066815.
Gemma-2-27B: 1/sqrt(144) = 0.083333 though head_dim is 128. muP: 1/head_dim.
"""

from __future__ import annotations

import pytest

from assay.cost import budget, tensors_of
from assay.recipe import Recipe, RecipeError, load, resolve
from tests.pitfalls.support import decoder, ids, recipe, record


def test_qwen3() -> None:
    found = load("qwen3-0.6b")
    shapes = {t.name: t.shape for t in tensors_of(found)}
    assert shapes["layers.0.mixer.q.weight"] == (2048, 1024)
    assert shapes["layers.0.mixer.o.weight"] == (1024, 2048)
    cost = budget(found, dtype="bf16", seq_len=1024)
    assert cost.cache.bytes_per_token == 114_688
    assert cost.cache.bytes == 114_688 * 1024
    assert cost.flops.by_op["attention_core_square"] == 28 * 4 * 2048 * 1024**2


def gemma2_27b() -> Recipe:
    """The 9B's recipe at the sizes of arXiv:2408.00118, table 1."""
    table = load("gemma-2-9b").to_dict()
    table |= {"d_model": 4608, "stack": [{"cycle": ["local", "global"], "n_layers": 46}]}
    for layer in table["layers"].values():
        layer["mixer"] |= {"n_heads": 32, "n_kv_heads": 16, "head_dim": 128, "scale": 144**-0.5}
        layer["ffn"]["d_ff"] = 36_864
    return resolve(table)


def test_gemma2_scales() -> None:
    assert {layer.mixer.scale_value for layer in load("gemma-2-9b").layers} == {0.0625}
    large = gemma2_27b()
    assert budget(large, seq_len=1).params.total == 27_227_128_320
    assert {layer.mixer.head_dim for layer in large.layers} == {128}
    for layer in large.layers:
        assert layer.mixer.scale_value == pytest.approx(0.083333, abs=5e-7)


@pytest.mark.parametrize(
    ("scale", "want"), [("inv_sqrt_head_dim", 8**-0.5), ("inv_head_dim", 1 / 8), (144**-0.5, 144**-0.5), (1.0, 1.0)]
)
def test_the_kernel_gets_the_scale(scale: object, want: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """d_model / n_heads is 4 here, head_dim 8."""
    model = decoder(scale=scale)
    recording = record(monkeypatch, model)
    model(ids(0, 1, 3))
    assert [call[3].scale for call in recording.calls] == [pytest.approx(want, rel=1e-12)] * 2


def test_no_default_where_heads_do_not_divide_the_width() -> None:
    table = recipe().to_dict()
    for layer in table["layers"].values():
        layer["mixer"] |= {"n_heads": 3, "n_kv_heads": 3}
        del layer["mixer"]["head_dim"]
    with pytest.raises(RecipeError, match="head_dim"):
        resolve(table)
