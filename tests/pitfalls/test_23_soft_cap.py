"""23. A fast kernel drops the soft-cap (vllm-project/vllm-metal#665, sgl-project/sglang#33915).

Score 100, cap 50: 48.2014. Cap 5, one real score 0 and one masked: the masked weight is 0, not 0.0067. A model with a
cap of 0.01 differs from one without on every kernel; one that cannot cap is refused. The head's cap is in the loss too.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from assay.decoding import Sampling, complete
from assay.model import UnsupportedBackend, build
from assay.model.backend import BACKENDS, Call, Legal, scores
from tests.pitfalls.support import close, decoder, ids, recipe


def test_48_2014() -> None:
    q = torch.tensor([[[[100.0]]]])
    call = Call(Legal("all"), 1.0, soft_cap=50.0)
    assert float(scores(q, torch.ones(1, 1, 1, 1), call)) == pytest.approx(48.2014, abs=5e-5)
    # the scale comes first: 10 · 10
    call = Call(Legal("all"), 10.0, soft_cap=50.0)
    assert float(scores(q / 10, torch.ones(1, 1, 1, 1), call)) == pytest.approx(48.2014, abs=5e-5)


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("name", ["reference", "auto"])
def test_the_cap_comes_before_the_mask(name: str, empty: bool) -> None:
    legal = Legal("mask", torch.tensor([[[[True, False]]]]), may_be_empty=empty)
    out = BACKENDS[name].attend(
        torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2, 2), torch.eye(2)[None, None], Call(legal, 1.0, soft_cap=5.0)
    )
    assert out.flatten().tolist() == [1.0, 0.0]


def test_every_kernel_caps_or_refuses() -> None:
    x = ids(0, 2, 9)
    with torch.no_grad():
        plain = decoder()(x)
        capped = {}
        for name in ("reference", "auto"):
            model = decoder(soft_cap=0.01)
            model.use_backend(name)
            capped[name] = model(x)
            assert not close(capped[name], plain, 1e-3)
    assert close(capped["auto"], capped["reference"])
    for name in BACKENDS:
        model = build(recipe(soft_cap=0.01))
        if name == "sdpa":
            with pytest.raises(UnsupportedBackend, match="cap"):
                model.use_backend(name)
            with pytest.raises(UnsupportedBackend, match="cap"):
                build(recipe(soft_cap=0.01), backend=name)


def test_one_capped_layer_is_enough_to_refuse() -> None:
    layers = {"a": {}, "b": {"mixer": {"soft_cap": 5.0}}}
    with pytest.raises(UnsupportedBackend, match=r"layers\.1"):
        build(recipe({"n_layers": 2, "stack": ["a", "b"], "layers": layers}), backend="sdpa")


def test_the_heads_cap_is_in_the_loss() -> None:
    model, free = decoder({"head": {"soft_cap": 0.5}}), decoder()
    x, y = ids(0, 2, 9), ids(1, 2, 9)
    with torch.no_grad():
        logits = model(x)
        assert close(logits, 0.5 * torch.tanh(free(x) / 0.5))
        want = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        assert float(model.loss(x, y).sum) == pytest.approx(float(want), rel=1e-12)
        assert float(free.loss(x, y).sum) != pytest.approx(float(want), rel=1e-3)


def test_generation_caps() -> None:
    """The scores' cap in cached decoding, token by token as read anew; the head's in what is drawn."""
    x = ids(4, 1, 6)
    for cap in (0.3, "none"):
        model = decoder({"head": {"soft_cap": 0.01}}, soft_cap=cap)
        out = complete(model, x, 8, sampling=Sampling.of(temperature=1.0), seed=3, logprobs=True)
        assert out.logprobs is not None
        whole = torch.cat((x, out.ids), dim=1)
        want = torch.log_softmax(model(whole), dim=-1)[0, 5:-1].gather(-1, out.ids[0, :, None]).squeeze(-1)
        assert close(out.logprobs[0], want)
        assert float((out.logprobs + math.log(32)).abs().max()) < 0.021  # all but uniform under a cap of 0.01
    free = complete(decoder(), x, 8, sampling=Sampling.of(temperature=1.0), seed=3, logprobs=True)
    assert free.logprobs is not None
    assert float((free.logprobs + math.log(32)).abs().max()) > 0.1
