"""Several optimizers as one: each has its groups, all share one state by parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from assay.training.optim.common import run_closure


class Together(torch.optim.Optimizer):
    """Steps its parts in turn. Groups are the parts' own tables, so a learning rate set here is set there."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = tuple(parts)
        self._share()

    def _share(self) -> None:
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups = self.param_groups[start:end]
            part.state = self.state
            start = end

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = run_closure(closure)
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
