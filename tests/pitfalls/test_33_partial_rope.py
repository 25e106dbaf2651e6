"""33. Frequencies from the head's size instead of the rotary size; fraction applied twice (pie-project/pie PR#603).

head_dim 8, fraction 0.5, base 1e4, position 1, x = 1..8, half layout: [-1.984111, 1.959901, 2.462378, 4.019800, 5, 6,
7, 8]; frequencies 1 and 0.01 (1 and 0.1 is the fault). An odd or broken rotary size is refused.
"""

from __future__ import annotations

import pytest
import torch

from assay.model.position import rope_frequencies, rope_tables, rotate
from assay.recipe import RecipeError
from assay.recipe.position import LinearScaling, Llama3Scaling, NtkScaling, Rope, RopeScaling, YarnScaling
from tests.pitfalls.support import recipe


def test_numbers() -> None:
    spec = Rope(theta=1e4, fraction=0.5)
    assert rope_frequencies(spec, 8)[0].tolist() == pytest.approx([1.0, 0.01], rel=1e-15)
    x = torch.arange(1, 9, dtype=torch.float64).unsqueeze(0)
    cos, sin = rope_tables(spec, 8, torch.tensor([1]), torch.float64)
    want = [-1.984111, 1.959901, 2.462378, 4.019800, 5, 6, 7, 8]
    got = rotate(x, cos, sin, "half")[0].tolist()
    assert got == pytest.approx(want, abs=5e-7)
    assert got[4:] == [5, 6, 7, 8]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_rest_passes_untouched(layout: str) -> None:
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    cos, sin = rope_tables(Rope(fraction=0.25), 16, torch.arange(5) * 100, torch.float32)
    assert torch.equal(rotate(x, cos, sin, layout)[:, 4:], x[:, 4:])


@pytest.mark.parametrize(
    "scaling",
    [
        LinearScaling(factor=8.0),
        NtkScaling(factor=4.0),
        Llama3Scaling(factor=8.0, original_seq_len=512),
        YarnScaling(factor=4.0, original_seq_len=512),
    ],
    ids=lambda s: s.kind,
)
def test_scalings_use_the_rotary_size(scaling: RopeScaling) -> None:
    """Half of a head of 64 turns as a whole head of 32."""
    partial, amplitude = rope_frequencies(Rope(fraction=0.5, scaling=scaling), 64)
    whole, same = rope_frequencies(Rope(scaling=scaling), 32)
    assert torch.equal(partial, whole)
    assert amplitude == same


@pytest.mark.parametrize(("fraction", "head_dim"), [(0.25, 10), (0.5, 6), (0.3, 8), (0.125, 8), (1.0, 7)])
def test_a_rotary_size_that_is_no_even_integer_is_refused(fraction: float, head_dim: int) -> None:
    with pytest.raises(RecipeError, match="rotary size"):
        recipe(head_dim=head_dim, position={"kind": "rope", "fraction": fraction})


def test_a_fraction_of_zero_is_said_by_no_position() -> None:
    with pytest.raises(RecipeError, match="fraction"):
        recipe(position={"kind": "rope", "fraction": 0.0})
    assert recipe(position="none").layers[0].mixer.position.is_none


@pytest.mark.parametrize(("fraction", "head_dim", "size"), [(0.1, 80, 8), (0.3, 80, 24), (0.7, 60, 42)])
def test_a_fraction_without_an_exact_float_is_still_whole(fraction: float, head_dim: int, size: int) -> None:
    assert Rope(fraction=fraction).rotary_dim(head_dim) == size
