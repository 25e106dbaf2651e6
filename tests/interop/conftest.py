"""One reference model a case and session: built, saved and read once, whatever asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.cases import CASES, Case
from tests.interop.support import ids_of, logits_of, quiet, reference, saved

quiet()


@dataclass(frozen=True)
class Bench:
    """A case with transformers' logits and its saved folder."""

    case: Case
    model: Any
    folder: Path
    ids: torch.Tensor
    logits: torch.Tensor


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    pytest.importorskip("transformers")
    made: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        if name not in made:
            case = CASES[name]
            model, ids = reference(case), ids_of()
            made[name] = Bench(case, model, saved(model, tmp_path_factory.mktemp("hf")), ids, logits_of(model, ids))
        return made[name]

    return get
