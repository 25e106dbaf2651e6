"""A part of your own: one spec, one module, one cost rule, in a Python file that a recipe never names.

The file is given by flag (``assay budget mine.toml --plugin my_mixer.py``), or a package names it under the entry point
group ``assay.parts``. Defining the spec registers its kind; :func:`register` adds its cost and its module::

    from assay.plugin import CostRule, Mixer, ParamRole, Tensor, register

    class Average(Mixer):
        kind: Literal["average"] = "average"

    class AverageCost(CostRule[Average]):
        def tensors(self, spec, d): ...

    def module(spec, d):
        from assay.model import Linear, Module   # torch is imported here, when a model is built
        ...

    register(Average, cost=AverageCost(), module=module)

:func:`says` gives it a phrase of its own for ``assay show`` and ``assay diff``; without one it is told by its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.cost import ops
from assay.cost.rules import CacheSize, CostRule, Flops, Tensor, Work, register_cost
from assay.cost.tape import Store, Tape, Value
from assay.recipe.base import Part, Sizes
from assay.recipe.extension import Loaded, PluginError, load_entry_points, load_plugin, loaded, register_module
from assay.recipe.ffn import Activation, Ffn
from assay.recipe.init import DepthScale, Distribution, Draw, Place
from assay.recipe.mixer import Mixer
from assay.recipe.norm import Norm, NormSlot
from assay.recipe.position import Position, PositionSlot
from assay.recipe.roles import ParamRole
from assay.recipe.span import Span, SpanSlot
from assay.recipe.words import says

__all__ = [
    "Activation",
    "CacheSize",
    "CostRule",
    "DepthScale",
    "Distribution",
    "Draw",
    "Ffn",
    "Flops",
    "Loaded",
    "Mixer",
    "Norm",
    "NormSlot",
    "ParamRole",
    "Place",
    "PluginError",
    "Position",
    "PositionSlot",
    "Sizes",
    "Span",
    "SpanSlot",
    "Store",
    "Tape",
    "Tensor",
    "Value",
    "Work",
    "load_entry_points",
    "load_plugin",
    "loaded",
    "ops",
    "register",
    "says",
]


def register(spec: Any, *, cost: CostRule[Any] | None = None, module: Callable[..., Any] | None = None) -> None:
    """Give a kind its cost rule and the callable ``(spec, d_model) -> torch module`` that builds it."""
    if not (isinstance(spec, type) and issubclass(spec, Part)):
        raise PluginError(f"register: {spec!r} is not a kind; derive it from Mixer, Ffn, Norm, ...")
    if cost is not None:
        register_cost(spec, cost)
    if module is not None:
        register_module(spec, module)
