"""Whose keys and values an attention reads: its own, or those of an earlier layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import NonNegativeInt, SerializeAsAny

from assay.recipe.base import Part, pick
from assay.recipe.errors import Problem, nearest


class Keys(Part):
    """Where an attention's keys and values come from."""

    slot = "kv"
    default_kind: ClassVar[str | None] = "shared"


KeysSlot = Annotated[SerializeAsAny[Keys], pick(Keys)]


class OwnKeys(Keys):
    """Projected from the layer's own input."""

    kind: Literal["own"] = "own"


class SharedKeys(Keys):
    """Those of the layer at depth ``layer``, after its norm and rotation: no k, no v, nothing in the cache.

    Cross-layer attention (Brandon et al. 2024, arXiv:2405.12981, section 3.1); the late layers of Gemma 3n. An author
    may write the depth, from 0; how many layers back, as a negative number; or a layer's name, for the last earlier
    layer of that name with keys of its own. Heads, span and rotation are the source's.
    """

    kind: Literal["shared"] = "shared"
    layer: NonNegativeInt


def place_sources(
    names: Sequence[str], raws: Mapping[str, Mapping[str, Any]], found: list[Problem]
) -> list[int | None]:
    """The depth that a layer's author named in other words, None where there is none; faults are added to ``found``."""
    references = {name: _reference(raw) for name, raw in raws.items()}
    out: list[int | None] = []
    last: dict[str, int] = {}  # name -> the last layer with keys of its own
    for depth, name in enumerate(names):
        reference = references[name]
        source: int | None = None
        problem: Problem | None = None
        if isinstance(reference, str):
            source = last.get(reference)
            problem = _missing(name, reference, depth, names) if source is None else None
        elif isinstance(reference, int) and not isinstance(reference, bool) and reference < 0:
            source = depth + reference
            message = f"layer {depth} is not so deep"
            early = Problem(_path(name), message, reference, "the depth of an earlier layer", has_value=True)
            problem = early if source < 0 else None
        elif reference is None:
            last[name] = depth
        if problem is not None and problem.path not in {p.path for p in found}:
            found.append(problem)
        out.append(source if problem is None else 0)
    return out


def with_source(raw: Mapping[str, Any], source: int | None) -> dict[str, Any]:
    """A layer's table with the depth in the place of what its author wrote."""
    if source is None:
        return dict(raw)
    mixer = raw["mixer"]
    return {**raw, "mixer": {**mixer, "kv": {**mixer["kv"], "layer": source}}}


def written_sources(names: Sequence[str], sources: Sequence[int | None]) -> list[int | str | None]:
    """How to write each layer's source so that layers of one name read alike, where that can be.

    As the last layer of a name, as so many layers back, or as a depth. ``names``: of the layers by depth, "" for one
    that cannot be named.
    """
    named: dict[str, list[int]] = {}
    for depth, source in enumerate(sources):
        if source is not None:
            named.setdefault(names[depth], []).append(depth)
    out: list[int | str | None] = list(sources)
    for depths in named.values():
        back: set[int | str] = {(sources[d] or 0) - d for d in depths}
        ways = ({_last_of(names, sources, d) for d in depths}, back, {sources[d] for d in depths})
        for way in ways:
            if len(way) == 1 and None not in way:
                out = [next(iter(way)) if d in depths else written for d, written in enumerate(out)]
                break
    return out


def _last_of(names: Sequence[str], sources: Sequence[int | None], depth: int) -> str | None:
    """The name of the source, where it is the last layer of that name, with keys of its own, before this one."""
    source = sources[depth]
    assert source is not None
    last = max((d for d in range(depth) if names[d] == names[source] and sources[d] is None), default=None)
    return names[source] if last == source and names[source] else None


def _reference(raw: Mapping[str, Any]) -> Any:
    """What an author wrote for the source; None without one."""
    mixer = raw.get("mixer")
    kv = mixer.get("kv") if isinstance(mixer, Mapping) else None
    return kv.get("layer") if isinstance(kv, Mapping) and kv.get("kind", "shared") == "shared" else None


def _path(name: str) -> str:
    return f"{'block' if name == 'block' else f'layers.{name}'}.mixer.kv.layer"


def _missing(name: str, reference: str, depth: int, names: Sequence[str]) -> Problem:
    others = [n for n in dict.fromkeys(names) if n != name]
    if reference not in names:
        close = nearest(reference, others) or ""
        return Problem(_path(name), "no such layer", reference, ", ".join(others), close, has_value=True)
    message = f"no layer of this name with keys of its own stands before layer {depth}"
    return Problem(_path(name), message, reference, "an earlier layer", has_value=True)


__all__ = ["Keys", "KeysSlot", "OwnKeys", "SharedKeys", "place_sources", "with_source", "written_sources"]
