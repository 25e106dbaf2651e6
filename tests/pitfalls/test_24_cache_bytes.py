"""24. The cache holds expanded heads, or the budget does not match it (LMCache/LMCache PR#694).

Qwen3-0.6B, 28 layers, 8 key/value heads of 128 in bf16: 114,688 bytes a token; 16 query heads would make it 229,376.
The real object and the budget agree, windows included. MLA's latent waits for its mixer.
"""

from __future__ import annotations

import pytest
import torch

from assay.cost import budget
from assay.model import UnsupportedCache, build
from assay.recipe import load

PRESETS = (
    "gpt2",
    "opt-350m",
    "gemma-2-9b",
    "gemma3-4b",
    "llama-3.1-70b",
    "mistral-7b",
    "olmo-3-7b",
    "transformer-2017",
)


def test_114_688() -> None:
    decoder = build(load("qwen3-0.6b"), device="meta", dtype=torch.bfloat16)
    assert decoder.new_cache(1, 1000).nbytes == 1000 * 114_688
    assert decoder.new_cache(3, 1, dtype=torch.float32).nbytes == 3 * 2 * 114_688


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    recipe = load(name)
    decoder = build(recipe, device="meta", dtype=torch.bfloat16)
    length = min(recipe.max_seq_len, 5000)
    try:
        cache = decoder.new_cache(2, length)
    except UnsupportedCache:
        assert '"causal": false' in recipe.to_json()
        return
    assert cache.nbytes == budget(recipe, 2, length).cache.bytes
