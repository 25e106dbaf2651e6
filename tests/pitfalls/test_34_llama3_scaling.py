"""34. Llama 3's three bands parsed and not used, or blended in the wrong variable (unslothai/unsloth PR#6197).

base 5e5, low 1, high 4, original 8192. head_dim 128, factor 8: pairs 0-28 unchanged, 29-34 blended, 35-63 divided.
head_dim 64, factor 32: 0-14 unchanged, 15-17 blended, 18-31 divided. An unknown type is refused.
"""

from __future__ import annotations

import pytest

from assay.model.position import base_frequencies, rope_frequencies
from assay.recipe import RecipeError, load
from assay.recipe.position import Llama3Scaling, Rope
from tests.pitfalls.support import recipe

CASES = {
    (128, 8.0): [2.166571e-3, 1.371894e-3, 8.567514e-4, 5.248462e-4, 3.126938e-4, 1.785078e-4],
    (64, 32.0): [1.290548e-3, 4.295568e-4, 9.708288e-5],
}
FIRST = {128: 29, 64: 15}


@pytest.mark.parametrize(("head_dim", "factor"), CASES)
def test_bands(head_dim: int, factor: float) -> None:
    blended, first = CASES[head_dim, factor], FIRST[head_dim]
    spec = Rope(theta=5e5, scaling=Llama3Scaling(factor=factor, original_seq_len=8192))
    got, amplitude = rope_frequencies(spec, head_dim)
    plain = base_frequencies(5e5, head_dim)
    last = first + len(blended)
    assert amplitude == 1.0
    assert got[:first].tolist() == plain[:first].tolist()
    assert got[first:last].tolist() == pytest.approx(blended, rel=5e-7)
    assert got[last:].tolist() == pytest.approx((plain[last:] / factor).tolist(), rel=1e-14)
    if head_dim == 128:
        assert float(got[-1]) == pytest.approx(3.068926e-7, rel=5e-7)


@pytest.mark.parametrize(("name", "head_dim", "factor"), [("llama-3.1-8b", 128, 8.0), ("llama-3.2-1b", 64, 32.0)])
def test_presets_carry_it(name: str, head_dim: int, factor: float) -> None:
    for layer in load(name).layers:
        assert layer.mixer.head_dim == head_dim
        want = Rope(theta=5e5, scaling=Llama3Scaling(factor=factor, original_seq_len=8192))
        assert layer.mixer.position == want


@pytest.mark.parametrize("kind", ["llama-3", "llama31", "dynamik", "su", "longrop"])
def test_an_unknown_type_is_refused(kind: str) -> None:
    with pytest.raises(RecipeError, match="no such rope_scaling kind"):
        recipe(position={"kind": "rope", "scaling": {"kind": kind, "factor": 8.0}})


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_a_type_under_another_key_is_refused(key: str) -> None:
    with pytest.raises(RecipeError, match="kind"):
        recipe(position={"kind": "rope", "scaling": {key: "llama3", "factor": 8.0, "original_seq_len": 8192}})
