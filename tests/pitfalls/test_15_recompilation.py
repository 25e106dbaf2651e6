"""15. Recompilation on every length or every cached token (meta-pytorch/torchtune PR#1663).

Prompts of 17, 33 and 64 tokens, then 64 steps: at most 2 compilations for the prompts, at most 1 for the steps, however
a user has compiled the model. A call with a cache is never compiled, because its lengths would be guarded on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.decoding import Engine
from tests.pitfalls.support import close, decoder, ids


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that runs eagerly and counts its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return module.forward


@torch.no_grad()
@pytest.mark.parametrize("how", ["blocks", "whole"])
def test_compilations(how: str) -> None:
    plain, model, backend = decoder(), decoder(), Counting()
    call: Any = model
    if how == "blocks":
        for block in model.layers:
            block.compile(backend=backend)
    else:
        call = torch.compile(model, backend=backend)
    for length in (17, 33, 64):
        x = ids(length, 2, length)
        assert close(call(x, cache=model.new_cache(2, length)), plain(x))
    assert backend.graphs <= 2
    before, cache, x = backend.graphs, model.new_cache(2, 64), ids(0, 2, 64)
    logits = torch.cat([call(token, cache=cache) for token in x.split(1, dim=1)], dim=1)
    assert close(logits, plain(x))
    assert backend.graphs <= before + 1
    before, engine = backend.graphs, Engine(model, 2, 64)
    engine.prefill(x[:, :1])
    for column in x[:, 1:].T:
        last = engine.step(column)
    assert close(last, plain(x)[:, -1])
    assert backend.graphs == before
