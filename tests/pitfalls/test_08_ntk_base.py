"""08. Dynamic NTK (vllm-project/vllm#41236): d = 128, base 1e4, factor 2, original length 2048.

Right base at a length n, with s = 2 n / 2048 - 1: 1e4 · s^(128/126), so 10009.92 at 2049, 30527.74 at 4096, 51293.79 at
6144.
"""

from __future__ import annotations

import pytest
import torch

from assay.model.position import base_frequencies, frequencies_at, rope_frequencies
from assay.recipe import RecipeError
from assay.recipe.position import DynamicScaling, NtkScaling, Rope
from tests.pitfalls.support import close, decoder, ids, recipe


@pytest.mark.parametrize(("length", "base"), [(2048, 10000.0), (2049, 10009.92), (4096, 30527.74), (6144, 51293.79)])
def test_base(length: int, base: float) -> None:
    spec = Rope(theta=1e4, scaling=NtkScaling(factor=2 * length / 2048 - 1))
    found, amplitude = rope_frequencies(spec, 128)
    assert amplitude == 1.0
    assert float(found[1]) ** -64 == pytest.approx(base, abs=0.005)
    assert found.tolist() == pytest.approx(base_frequencies(base, 128).tolist(), rel=1e-6)


@pytest.mark.parametrize(("length", "base"), [(2048, 10000.0), (2049, 10009.92), (4096, 30527.74), (6144, 51293.79)])
def test_base_by_the_length_of_the_row(length: int, base: float) -> None:
    spec = Rope(theta=1e4, scaling=DynamicScaling(factor=2.0, original_seq_len=2048))
    for rows in ([length], [length, 100]):  # a short row after, or beside, a long one has the base as it was
        found, amplitude = frequencies_at(spec, 128, torch.tensor(rows))
        assert amplitude == 1.0
        assert float(found[0, 1]) ** -64 == pytest.approx(base, abs=0.005)
        if len(rows) > 1:
            assert found[1].tolist() == pytest.approx(base_frequencies(1e4, 128).tolist(), rel=1e-12)


def test_a_stretch_below_one_is_refused() -> None:
    with pytest.raises(RecipeError, match="factor"):
        recipe(position={"kind": "rope", "scaling": {"kind": "dynamic", "factor": 0.5, "original_seq_len": 8}})


@torch.no_grad()
def test_a_cache_keeps_one_base() -> None:
    """Across the original length, cached = uncached at the length the cache was made for; no key has another base.

    A cache for no more than the original length has the base as it is, whatever was read before with a longer one.
    """
    model = decoder(position={"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_seq_len": 8}})
    x = ids(0, 1, 14)
    cache = model.new_cache(1, 14)
    got = torch.cat([model(part, cache=cache) for part in x.split((6, 1, 1, 1, 5), dim=1)], dim=1)
    assert close(got, model(x, rope_length=14))
    assert close(got, model(x))  # the current length, once all is read
    assert not close(got[:, :6], model(x[:, :6]), 1e-3)  # which a text that ends there does not have
    short = model.new_cache(1, 8)
    assert close(model(x[:, :6], cache=short), model(x[:, :6]))
    wide = model.new_cache(1, 40, rope_length=8)
    assert close(model(x[:, :6], cache=wide), model(x[:, :6]))
