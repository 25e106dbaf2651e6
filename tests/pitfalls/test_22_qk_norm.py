"""22. QK-norm over the wrong axis; gain on the wrong side of the rotation (vllm-project/vllm-metal#691).

q = [3, 4, 0, 0], two heads of 2: whole [1.2, 1.6, 0, 0], per head [0.8485, 1.1314, 0, 0]. x = [1, 0], gain [2, 1],
angle 1: norm then rotate [1.5282, 2.3800], rotate then norm [1.5282, 1.1900].
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.model import Decoder
from tests.pitfalls.support import close, decoder, ids, record

TINY = {"kind": "rmsnorm", "eps": 1e-12, "gain": "none"}
GAINED = {"kind": "rmsnorm", "eps": 1e-12}


def with_queries(x: list[float], monkeypatch: pytest.MonkeyPatch, at: int = 0, **mixer: Any) -> Any:
    """The query that reaches the kernel at a position, when the projection gives x; (heads, head_dim)."""
    width = len(x)
    heads = mixer.pop("n_heads")
    model = decoder({"n_layers": 1}, n_heads=heads, n_kv_heads=heads, head_dim=width // heads, bias=["q"], **mixer)
    with torch.no_grad():
        model.layers[0].mixer.q.weight.zero_()
        model.layers[0].mixer.q.bias.copy_(torch.tensor(x))
        gain = getattr(model.layers[0].mixer.q_norm, "gain", None)
        if gain is not None:
            gain.copy_(torch.tensor([2.0, 1.0]))
        recording = record(monkeypatch, model)
        model(ids(0, 1, 4))
    return recording.calls[0][0][0, :, at]


@pytest.mark.parametrize(("over", "want"), [("width", [1.2, 1.6, 0.0, 0.0]), ("head", [0.8485, 1.1314, 0.0, 0.0])])
def test_axis(over: str, want: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    q = with_queries([3, 4, 0, 0], monkeypatch, n_heads=2, position="none", qk_norm={"over": over, "norm": TINY})
    assert q.flatten().tolist() == pytest.approx(want, abs=5e-5)


@pytest.mark.parametrize(("order", "want"), [("before_rope", [1.5282, 2.3800]), ("after_rope", [1.5282, 1.1900])])
def test_side_of_the_rotation(order: str, want: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    qk = {"over": "head", "norm": GAINED, "order": order}
    # head_dim 2: the one pair turns by 1 radian a position
    q = with_queries([1, 0], monkeypatch, at=1, n_heads=1, qk_norm=qk)
    assert q[0].tolist() == pytest.approx(want, abs=5e-5)


def norms(model: Decoder) -> tuple[int, int]:
    mixer = model.layers[0].mixer
    return mixer.q_norm.gain.numel(), mixer.k_norm.gain.numel()


def test_the_key_norm_has_the_key_width() -> None:
    # 4 query heads, 2 key heads of 8
    assert norms(decoder(qk_norm={"over": "width", "norm": GAINED})) == (32, 16)
    assert norms(decoder(qk_norm={"over": "head", "norm": GAINED})) == (8, 8)
    assert norms(decoder(qk_norm={"over": "head", "gain_per": "head", "norm": GAINED})) == (32, 16)


@pytest.mark.parametrize("over", ["head", "width"])
def test_unit_gain_commutes_with_the_rotation(over: str) -> None:
    before, after = (decoder(qk_norm={"over": over, "norm": GAINED, "order": o}) for o in ("before_rope", "after_rope"))
    x = ids(0, 2, 9)
    with torch.no_grad():
        assert close(before(x), after(x), 1e-6)
        for model in (before, after):
            model.layers[0].mixer.q_norm.gain.copy_(torch.linspace(0.5, 2, len(model.layers[0].mixer.q_norm.gain)))
        assert not close(before(x), after(x), 1e-4)
