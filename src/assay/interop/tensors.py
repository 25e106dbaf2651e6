"""Which foreign tensor goes where: rules by module, expanded over layers and leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from assay.interop.layouts import SAME, Layout
from assay.recipe import Recipe

LINEAR = {"weight": "weight", "bias": "bias"}
NORM = {"weight": "gain", "bias": "bias"}
TABLE = {"weight": "table", "bias": "bias"}


@dataclass(frozen=True)
class Move:
    """Foreign module -> our modules. ``{i}`` is the depth, ``{h}`` a head; a leaf is the last word of a name."""

    theirs: str
    ours: tuple[str, ...]
    leaves: Mapping[str, str] = field(default_factory=lambda: LINEAR)
    layout: Layout = SAME
    form: str | None = None  # only in layers with this residual form
    spare: bool = False  # only where no rule before it has filled ours


def linear(theirs: str, *ours: str, layout: Layout = SAME) -> Move:
    """A projection, or several fused into one."""
    return Move(theirs, ours, LINEAR, layout)


def norm(theirs: str, ours: str, layout: Layout = SAME, form: str | None = None) -> Move:
    return Move(theirs, (ours,), NORM, layout, form)


def table(theirs: str, ours: str) -> Move:
    return Move(theirs, (ours,), TABLE)


@dataclass(frozen=True)
class Carry:
    """One concrete step: these foreign tensors are these of ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    layer: int  # -1 outside the stack
    layout: Layout
    spare: bool = False


def carries(moves: Sequence[Move], shapes: Mapping[str, tuple[int, ...]], recipe: Recipe) -> Iterator[Carry]:
    """Every step that ends in tensors the model has. ``shapes``: ours, by name."""
    for move in moves:
        stacked = "{i}" in move.ours[0]
        for i in range(recipe.n_layers) if stacked else (-1,):
            if move.form is not None and recipe.layers[i].residual.kind_name != move.form:
                continue
            for foreign, own in move.leaves.items():
                ours = tuple(f"{module.replace('{i}', str(i))}.{own}" for module in move.ours)
                here = [name for name in ours if name in shapes]
                if not here:
                    continue
                if len(here) != len(ours):
                    raise KeyError(f"{move.theirs}: the recipe has {here} but not all of {list(ours)}")
                theirs = f"{move.theirs.replace('{i}', str(i))}.{foreign}"
                if move.layout.per_head:
                    heads = range(shapes[ours[0]][0])
                    yield Carry(tuple(theirs.replace("{h}", str(h)) for h in heads), ours, i, move.layout, move.spare)
                else:
                    yield Carry((theirs, *move.layout.beside), ours, i, move.layout, move.spare)
