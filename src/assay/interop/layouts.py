"""How foreign checkpoints arrange numbers: fused projections, transposed matrices, one norm a head.

A layout turns the foreign tensors of one place into ours and back. Nothing is computed, only moved, so both ways are
exact. Torch is loaded when tensors arrive, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from assay.recipe.mixer import Attention

Shapes = Sequence[tuple[int, ...]]


class Layout:
    """One foreign tensor is one of ours."""

    per_head = False  # the foreign name holds {h}: one tensor a row of ours
    beside: tuple[str, ...] = ()  # further foreign tensors that ours is made of, by full name

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        """Foreign tensors to ours, of these shapes. Raises ValueError where they cannot have come from there."""
        return list(found)

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        """Ours to the foreign tensors."""
        return list(ours)


SAME = Layout()


@dataclass(frozen=True)
class Transposed(Layout):
    """Matrices stored (in, out), as GPT-2's Conv1D does; vectors are as they are. ``then`` acts on (out, in)."""

    then: Layout = SAME

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        return self.then.split([_turned(t) for t in found], shapes, mixer)

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        return [_turned(t).contiguous() for t in self.then.join(ours, mixer)]


def _turned(t: Tensor) -> Tensor:
    return t.T if t.dim() == 2 else t


@dataclass(frozen=True)
class Rows(Layout):
    """Several of ours one after another along the first axis."""

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        (whole,) = found
        rows = [shape[0] for shape in shapes]
        _check_rows(whole, sum(rows))
        return list(whole.split(rows))

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        import torch

        return [torch.cat(ours)]


@dataclass(frozen=True)
class Grouped(Layout):
    """Queries, keys and values fused group by group: the G query heads of a group, its key head, its value head.

    G = 1 is GPT-NeoX (every head with its own key and value), one group in all is Falcon-7B.
    """

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        (whole,) = found
        assert mixer is not None
        kv, g, d = mixer.n_kv_heads, mixer.n_heads // mixer.n_kv_heads, mixer.head_dim
        _check_rows(whole, kv * (g + 2) * d)
        grouped = whole.unflatten(0, (kv, g + 2, d))
        return [grouped[:, :g].flatten(0, 2), grouped[:, g].flatten(0, 1), grouped[:, g + 1].flatten(0, 1)]

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        import torch

        assert mixer is not None
        kv, d = mixer.n_kv_heads, mixer.head_dim
        return [torch.cat([t.unflatten(0, (kv, -1, d)) for t in ours], dim=1).flatten(0, 2)]


@dataclass(frozen=True)
class Shards(Layout):
    """``n`` blocks of rows, each with its share of every one of ours, in ``order`` (CodeGen: 4 shards of q, v, k)."""

    n: int
    order: tuple[int, ...]  # which of ours stands first, second, ... in a block

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        (whole,) = found
        _check_rows(whole, sum(shape[0] for shape in shapes))
        if shapes[0][0] % self.n:
            raise ValueError(f"{shapes[0][0]} rows do not divide into {self.n} shards")
        blocks = whole.unflatten(0, (self.n, len(self.order), -1))
        return [blocks[:, self.order.index(i)].flatten(0, 1) for i in range(len(shapes))]

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        import torch

        if ours[0].shape[0] % self.n:
            raise ValueError(f"{ours[0].shape[0]} rows do not divide into {self.n} shards")
        return [torch.stack([ours[i].unflatten(0, (self.n, -1)) for i in self.order], dim=1).flatten(0, 2)]


@dataclass(frozen=True)
class SwappedHalves(Layout):
    """The halves of every head change places: turns a rotation the other way round (nanochat). Undoes itself."""

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        assert mixer is not None
        if mixer.head_dim % 2:
            raise ValueError(f"head_dim {mixer.head_dim} has no halves")
        return [t.unflatten(0, (-1, 2, mixer.head_dim // 2)).flip(1).flatten(0, 2) for t in found]

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        return self.split(ours, (), mixer)


@dataclass(frozen=True)
class PerHead(Layout):
    """One foreign tensor a head, stacked in ours (StableLM's norms)."""

    per_head = True

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        import torch

        return [torch.stack(found)]

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        return [row.clone() for row in ours[0]]


@dataclass(frozen=True)
class FirstRowAdded(Layout):
    """A table to each of whose rows the first row of another, ``other``, is added: BERT's first segment.

    Only the sum is ours, so what is written back has zeros in the other, ``rows`` of them.
    """

    other: str
    rows: int = 2

    @property
    def beside(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.other,)

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        whole, other = found
        if other.shape[1:] != whole.shape[1:]:
            raise ValueError(f"and {self.other} have rows of {whole.shape[1]} and {other.shape[1]}")
        return [(whole.double() + other[:1].double()).to(whole.dtype)]

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        return [ours[0], ours[0].new_zeros(self.rows, ours[0].shape[1])]


@dataclass(frozen=True)
class Twins(Layout):
    """Two foreign tensors of which the first counts, and the second, ``other``, should hold the same numbers."""

    other: str

    @property
    def beside(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.other,)

    def split(self, found: list[Tensor], shapes: Shapes, mixer: Attention | None) -> list[Tensor]:
        return [found[0]]

    def join(self, ours: list[Tensor], mixer: Attention | None) -> list[Tensor]:
        return [ours[0], ours[0].clone()]


def _check_rows(whole: Tensor, rows: int) -> None:
    if whole.shape[0] != rows:
        raise ValueError(f"has shape {tuple(whole.shape)}, the config needs {rows} rows")
