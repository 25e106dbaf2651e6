"""assay: write a language model as one recipe, know its cost, train it, and get a verdict on a change.

The names below are loaded when they are first used: ``import assay`` itself loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from assay.atlas import Design, Findings, check, design, scale
    from assay.cost import Budget, budget
    from assay.decoding import generate
    from assay.interop import UnsupportedArchitecture, from_hf, to_hf
    from assay.model import Decoder, UnsupportedBackend, build
    from assay.recipe import Recipe, RecipeError, load, resolve
    from assay.recipe.diff import RecipeDiff, diff
    from assay.study import StudyResult, run_study
    from assay.training import RunConfig, RunRecord, train

__all__ = [
    "Budget",
    "Decoder",
    "Design",
    "Findings",
    "Recipe",
    "RecipeDiff",
    "RecipeError",
    "RunConfig",
    "RunRecord",
    "StudyResult",
    "UnsupportedArchitecture",
    "UnsupportedBackend",
    "__version__",
    "budget",
    "build",
    "check",
    "design",
    "diff",
    "from_hf",
    "generate",
    "load",
    "resolve",
    "run_study",
    "scale",
    "to_hf",
    "train",
]

# public name -> the module that holds it
_HOMES = {
    "Budget": "assay.cost",
    "Decoder": "assay.model",
    "Design": "assay.atlas",
    "Findings": "assay.atlas",
    "Recipe": "assay.recipe",
    "RecipeDiff": "assay.recipe.diff",
    "RecipeError": "assay.recipe",
    "RunConfig": "assay.training",
    "RunRecord": "assay.training",
    "StudyResult": "assay.study",
    "UnsupportedArchitecture": "assay.interop",
    "UnsupportedBackend": "assay.model",
    "budget": "assay.cost",
    "build": "assay.model",
    "check": "assay.atlas",
    "design": "assay.atlas",
    "diff": "assay.recipe.diff",
    "from_hf": "assay.interop",
    "generate": "assay.decoding",
    "load": "assay.recipe",
    "resolve": "assay.recipe",
    "run_study": "assay.study",
    "to_hf": "assay.interop",
    "scale": "assay.atlas",
    "train": "assay.training",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value  # found once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
