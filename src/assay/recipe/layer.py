"""A layer: one mixer, one feed-forward part, and how both meet the stream. Everything a layer does is inside it."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from assay.recipe.base import Sizes, Spec, refuse
from assay.recipe.ffn import FfnSlot
from assay.recipe.mixer import MixerSlot
from assay.recipe.norm import Norm
from assay.recipe.residual import IDENTITY, Branch, ResidualSlot, Serial


class Layer(Spec):
    """One layer of the stack, complete. ``name`` is for reading; it decides nothing."""

    name: str = "block"
    mixer: MixerSlot
    ffn: FfnSlot
    residual: ResidualSlot

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        """A sublayer that is left out takes no residual rule from what is written for both."""
        residual = raw.get("residual")
        if isinstance(residual, str):
            residual = {"rule": residual}
        if isinstance(residual, dict) and residual.get("form", "serial") == "serial":
            residual = dict(residual)
            for name in ("mixer", "ffn"):
                if _is_none(raw.get(name)) and name not in residual:
                    residual[name] = {"rule": "none"}
            raw["residual"] = residual
        return raw

    @model_validator(mode="after")
    def _effective(self) -> Layer:
        if self.mixer.is_none and self.ffn.is_none:
            raise refuse("", "a layer with neither mixer nor ffn does nothing", allowed="at least one of the two")
        for name in ("mixer", "ffn"):
            if not getattr(self, name).is_none:
                continue
            if not isinstance(self.residual, Serial):
                raise refuse("residual.form", f"{name} is none, so there is nothing to run beside", allowed="serial")
            if getattr(self.residual, name) != IDENTITY:
                raise refuse(f"residual.{name}", f"has no effect: {name} is none", allowed=f"leave residual.{name} out")
        for path, norm in norms_of(self):
            if norm.kind_name == "fixnorm":
                raise refuse(path, "fixnorm acts on embedding rows only", "fixnorm", "scalenorm, rmsnorm, layernorm")
        return self

    @property
    def n_branches(self) -> int:
        """How many sublayers write to the residual stream."""
        return int(not self.mixer.is_none) + int(not self.ffn.is_none)


def norms_of(spec: Spec, path: str = "") -> list[tuple[str, Norm]]:
    """Every norm inside a spec with its path."""
    out: list[tuple[str, Norm]] = []
    for field in type(spec).model_fields:
        value = getattr(spec, field)
        here = f"{path}.{field}" if path else field
        if isinstance(value, Norm):
            out.append((here, value))
        elif isinstance(value, Spec):
            out.extend(norms_of(value, here))
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                if isinstance(item, Spec):
                    out.extend(norms_of(item, f"{here}.{i}"))
    return out


def _is_none(value: Any) -> bool:
    return value == "none" or (isinstance(value, dict) and value.get("kind") == "none")


__all__ = ["Branch", "Layer", "norms_of"]
