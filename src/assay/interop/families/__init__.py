"""Every family that can be read, by its ``model_type``; and those that wait for a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from assay.interop.family import Family
from assay.recipe.base import slots


@cache
def families() -> Mapping[str, Family]:
    """The supported families, in the order in which an export prefers them."""
    from assay.interop.families.alibi import ALIBIS
    from assay.interop.families.bert import BERTS
    from assay.interop.families.gpt import GPTS
    from assay.interop.families.layernorm import LAYERNORM
    from assay.interop.families.llama import LLAMA_LIKE
    from assay.interop.families.llama_attention import LLAMA_ATTENTION
    from assay.interop.families.local_global import LOCAL_GLOBAL
    from assay.interop.families.opt import OPTS

    every = (*LLAMA_LIKE, *LOCAL_GLOBAL, *GPTS, *LAYERNORM, *OPTS, *ALIBIS, *LLAMA_ATTENTION, *BERTS)
    return {family.model_type: family for family in every}


@dataclass(frozen=True)
class Pending:
    """A family, or a setting of one, that needs kinds a recipe does not have."""

    model_type: str
    what: str
    needs: tuple[tuple[str, str], ...]  # (slot, kind)

    @property
    def missing(self) -> tuple[str, ...]:
        """The kinds that are still not registered."""
        have = slots()
        return tuple(f"{slot} kind {kind!r}" for slot, kind in self.needs if kind not in have.get(slot, ()))


PENDING: tuple[Pending, ...] = ()
