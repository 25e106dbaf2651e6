"""Decoding caches: what each mixer keeps of the tokens it has read, made by the mixer itself.

A row's real tokens are stored one after another, so a pad takes no place and a padded row keeps what the row alone
would. B batch, K key/value heads, D head_dim, T new tokens, S places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from assay.model.backend import Legal
from assay.model.pages import collapse
from assay.model.span import allowed
from assay.recipe.base import Part
from assay.recipe.span import ChunkedSpan, FullSpan, GlobalSpan, Span, WindowSpan


class UnsupportedCache(ValueError):
    """A layer that cannot be decoded from a cache."""


class CacheFull(ValueError):
    """More tokens than the cache was made for."""


@dataclass(frozen=True)
class Room:
    """What a mixer makes its state for: rows, tokens a row at most, and where they live."""

    batch: int
    max_len: int
    device: torch.device
    dtype: torch.dtype


@runtime_checkable
class State(Protocol):
    """What one mixer keeps: its bytes, and how it forgets all of it."""

    @property
    def nbytes(self) -> int: ...

    def reset(self) -> None: ...


# --- places of a span


@dataclass(frozen=True)
class Places:
    """Where a row's tokens stand: the first ``pinned`` for good, later ones in a ring of ``ring``.

    ``resets``: a new round of the ring sees nothing of the round before (chunks).
    """

    pinned: int
    ring: int = 0
    resets: bool = False

    @property
    def n(self) -> int:
        return self.pinned + self.ring

    def slot(self, position: Any) -> Any:
        """The place of a position, an int or a tensor."""
        if not self.ring:
            return position
        if not self.pinned:
            return position % self.ring
        turned = self.pinned + (position - self.pinned) % self.ring
        if isinstance(position, Tensor):
            return torch.where(position < self.pinned, position, turned)
        return position if position < self.pinned else turned

    def held(self, lengths: Tensor, n: int) -> Tensor:
        """The position in each of the first ``n`` places of rows of these lengths, (..., n); negative where empty."""
        slot = torch.arange(n, device=lengths.device)
        lengths = lengths.unsqueeze(-1)
        first = torch.where(slot < lengths, slot, -1)
        if not self.ring or n <= self.pinned:
            return first
        last = lengths - self.pinned - 1  # of the positions that go round
        turned = last - (last - (slot - self.pinned)) % self.ring
        turned = torch.where(turned >= 0, turned + self.pinned, -1)
        return torch.where(slot < self.pinned, first, turned) if self.pinned else turned


# kind of span -> its places at a length; a kind that is not named keeps every token
PLACES: dict[type[Part], Callable[[Any, int], Places]] = {
    WindowSpan: lambda span, n: Places(0, min(span.size, n)),
    ChunkedSpan: lambda span, n: Places(0, min(span.size, n), resets=True),
    GlobalSpan: lambda span, n: Places(min(span.n_global, n), min(span.size, max(n - span.n_global, 0))),
}


def places_of(span: Span, max_len: int) -> Places:
    """Where the tokens that a span can still see are kept, for rows of at most ``max_len``."""
    make = PLACES.get(type(span))
    return Places(max_len) if make is None else make(span, max_len)


# --- one pass


@dataclass(frozen=True)
class Keys:
    """The keys of a pass, in the order they are attended to: positions (S,) or (B, S), and which of them are tokens."""

    positions: Tensor
    real: Tensor


@dataclass
class Append:
    """What one pass adds to a cache, the same for all its layers.

    Attributes:
        before: tokens of each row until now. counts: those that come, pads left out.
        lengths: ``before`` as a tensor (B,).
        new: T, pads counted.
        positions: (T,) where all rows agree, else (B, T).
        mask: (B, T) bool, True = token; None when every place is one.
    """

    before: list[int]
    counts: list[int]
    lengths: Tensor
    new: int
    positions: Tensor
    mask: Tensor | None
    max_len: int
    _keys: dict[Places, Keys] = field(default_factory=dict)
    _targets: dict[Places, tuple[Tensor, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        after = [a + n for a, n in zip(self.before, self.counts, strict=True)]
        self.uniform = self.mask is None and len(set(self.before)) == 1
        self.past, self.after = max(self.before), max(after)
        self.fresh = self.past == 0

    def joins(self, places: Places) -> bool:
        """True where the new keys overwrite what the first of the new queries must see: both are then laid out."""
        return self.new > 1 and places.ring > 0 and self.after > places.n

    def visible(self, places: Places) -> int:
        """How many places, from the first, the pass reads; in a join, how many were filled before."""
        if self.joins(places):
            return min(self.past, places.n)
        if places.resets and self.uniform and self.new == 1:
            return (self.after - 1) % places.ring + 1
        return min(self.after, places.n)

    def keys(self, places: Places) -> Keys:
        """What stands in the keys that :meth:`KeyValues.extend` gives for these places."""
        if places not in self._keys:
            self._keys[places] = self._make_keys(places)
        return self._keys[places]

    def _make_keys(self, places: Places) -> Keys:
        lengths = self.lengths[:1].squeeze(0) if self.uniform else self.lengths
        n = self.visible(places)
        if self.joins(places):
            old = places.held(lengths, n)
            new = self.positions if self.mask is None else torch.where(self.mask, self.positions, -1)
            both = torch.cat((old, new.expand(*old.shape[:-1], -1)), dim=-1)
        else:
            both = places.held(lengths + (self.new if self.mask is None else self.mask.sum(-1)), n)
        return Keys(both, both >= 0)

    def legal(self, span: Span) -> Legal:
        """The legal pairs of the new queries and those keys; the fresh pass is the caller's, as without a cache."""
        places = places_of(span, self.max_len)
        if self.uniform and self.new == 1 and type(span) in (FullSpan, *PLACES):
            return Legal("all")  # a single query sees all that its span keeps
        if self.uniform and isinstance(span, FullSpan):
            return Legal("causal")
        keys = self.keys(places)
        legal = allowed(span, self.positions.unsqueeze(-1), keys.positions.unsqueeze(-2)) & keys.real.unsqueeze(-2)
        if self.mask is not None:
            legal = legal & self.mask.unsqueeze(-1)
        legal = legal if legal.dim() == 3 else legal.unsqueeze(0)
        return Legal("mask", legal.unsqueeze(1), may_be_empty=self.mask is not None)

    def targets(self, places: Places) -> tuple[Tensor, ...]:
        """(slot,) with (column,) where rows agree, else (row, slot, column): where each new token that is kept goes."""
        if places not in self._targets:
            self._targets[places] = self._make_targets(places)
        return self._targets[places]

    def _make_targets(self, places: Places) -> tuple[Tensor, ...]:
        device = self.lengths.device
        if self.uniform:
            kept = [*range(self.past, min(self.after, places.pinned))]
            kept += range(max(self.past, places.pinned, self.after - places.ring), self.after)
            at = torch.tensor(kept, dtype=torch.long, device=device)
            return places.slot(at), at - self.past
        if self.new == 1 and self.mask is None:
            rows = torch.arange(len(self.before), device=device)
            return rows, places.slot(self.lengths), torch.zeros_like(rows)
        real = torch.ones_like(self.positions, dtype=torch.bool) if self.mask is None else self.mask
        ends = self.lengths + real.sum(-1)
        stays = real & ((self.positions < places.pinned) | (self.positions >= (ends - places.ring).unsqueeze(-1)))
        row, column = stays.nonzero(as_tuple=True)
        return row, places.slot(self.positions[row, column]), column


# --- keys and values of one attention


class KeyValues:
    """Keys and values of one attention, ``store`` (2, B, K, S, D); the span decides S and who stands where."""

    def __init__(self, room: Room, span: Span, n_kv_heads: int, head_dim: int) -> None:
        self.places = places_of(span, room.max_len)
        shape = (2, room.batch, n_kv_heads, self.places.n, head_dim)
        self.store = torch.zeros(shape, dtype=room.dtype, device=room.device)
        if self.store.device.type == "cpu":
            collapse(self.store.data_ptr(), self.store.nbytes)

    @property
    def nbytes(self) -> int:
        return self.store.nbytes

    def reset(self) -> None:
        self.store.zero_()

    def extend(self, k: Tensor, v: Tensor, append: Append) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D).

        Returns:
            The keys and values that the new queries are held against, in the order of :meth:`Append.keys`.
        """
        if append.fresh:
            self._write(k, v, append)
            return k, v
        if not append.joins(self.places):
            self._write(k, v, append)
            kept = self.store[:, :, :, : append.visible(self.places)].to(k.dtype)
            return kept[0], kept[1]
        old = self.store[:, :, :, : append.visible(self.places)].to(k.dtype)
        keys, values = torch.cat((old[0], k), dim=2), torch.cat((old[1], v), dim=2)
        self._write(k, v, append)
        return keys, values

    def _write(self, k: Tensor, v: Tensor, append: Append) -> None:
        store = self.store
        if append.uniform and append.new == 1:
            slot = self.places.slot(append.past)
            store[0, :, :, slot], store[1, :, :, slot] = k[:, :, 0], v[:, :, 0]
        elif append.uniform and not self.places.ring:
            store[0, :, :, append.past : append.after], store[1, :, :, append.past : append.after] = k, v
        elif append.uniform:
            slot, column = append.targets(self.places)
            for stored, new in ((store[0], k), (store[1], v)):
                stored[:, :, slot] = new[:, :, column].to(stored.dtype)
        else:
            row, slot, column = append.targets(self.places)
            for stored, new in ((store[0], k), (store[1], v)):
                stored[row, :, slot] = new[row, :, column].to(stored.dtype)


# --- the cache of a model


class Cache:
    """What a decoder keeps between calls. Made by ``decoder.new_cache``.

    Attributes:
        batch, max_len: rows, and real tokens a row at most.
        rope_length: the length that RoPE scalings which depend on it take, whatever has been read.
        lengths: (B,) real tokens of each row so far.
    """

    def __init__(self, room: Room, states: dict[nn.Module, State], rope_length: int) -> None:
        self.room, self.states, self.rope_length = room, states, rope_length
        self.frequencies: dict[str, tuple[Tensor, float]] = {}  # of each RoPE in use, at the RoPE length
        self._rows = [0] * room.batch
        self.lengths = torch.zeros(room.batch, dtype=torch.long, device=room.device)

    @property
    def batch(self) -> int:
        return self.room.batch

    @property
    def max_len(self) -> int:
        return self.room.max_len

    @property
    def length(self) -> int:
        """Real tokens of the longest row."""
        return max(self._rows)

    @property
    def rows(self) -> tuple[int, ...]:
        """Real tokens of each row, without a look at the device."""
        return tuple(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states; allocated once, when the cache is made."""
        return sum(state.nbytes for state in self.states.values())

    def reset(self) -> None:
        """Forget every token; nothing is allocated anew."""
        for state in self.states.values():
            state.reset()
        self._rows = [0] * self.batch
        self.lengths.zero_()

    def begin(self, ids: Tensor, mask: Tensor | None) -> Append:
        """The pass that reads ``ids`` (B, T); raises before anything is stored."""
        batch, new = ids.shape
        if batch != self.batch:
            raise ValueError(f"ids: {batch} rows, but the cache was made for batch = {self.batch}")
        if ids.device.type != self.room.device.type:
            raise ValueError(f"ids: on {ids.device}, but the cache is on {self.room.device}")
        counts = [new] * batch if mask is None else mask.sum(-1).tolist()
        mask = None if all(n == new for n in counts) else mask
        for row, (old, more) in enumerate(zip(self._rows, counts, strict=True)):
            if old + more > self.max_len:
                raise CacheFull(
                    f"ids: row {row} would hold {old + more} tokens, but the cache was made for max_len = "
                    f"{self.max_len}; make it with new_cache(batch, max_len={old + more}) or more, or reset() it"
                )
        if mask is not None:
            ahead = (mask.long().cumsum(-1) - 1).clamp_min(0)
            positions = self.lengths.unsqueeze(-1) + ahead
        elif len(set(self._rows)) == 1:
            positions = torch.arange(self._rows[0], self._rows[0] + new, device=ids.device)
        else:
            positions = self.lengths.unsqueeze(-1) + torch.arange(new, device=ids.device)
        return Append(list(self._rows), counts, self.lengths, new, positions, mask, self.max_len)

    def commit(self, append: Append) -> None:
        """The pass is over: its tokens count from now on."""
        self._rows = [old + more for old, more in zip(append.before, append.counts, strict=True)]
        self.lengths += append.new if append.mask is None else append.mask.sum(-1)

    def state(self, module: nn.Module) -> Any:
        """What this module keeps here."""
        state = self.states.get(module)
        if state is None:
            raise UnsupportedCache(
                f"{type(module).__name__}: keeps nothing in this cache; it was made by another model"
            )
        return state


def states_of(part: nn.Module, path: str, room: Room, *, mixes: bool) -> Iterator[tuple[nn.Module, State]]:
    """The states of a mixer or feed-forward module; ``mixes``: one that must have its own way to be decoded.

    A module makes its state with ``new_state(room)``; None says that it needs none. ``members()`` names the parts that
    a module only sums.
    """
    members = getattr(part, "members", None)
    if members is not None:
        for name, member in members():
            yield from states_of(member, f"{path}.{name}", room, mixes=mixes)
        return
    make = getattr(part, "new_state", None)
    if make is None:
        if mixes:
            raise UnsupportedCache(
                f"{path}: {type(part).__name__} has no cache; give the module new_state(room), or call without a cache"
            )
        return
    try:
        state = make(room)
    except UnsupportedCache as error:
        raise UnsupportedCache(f"{path}: {error}") from None
    if state is not None:
        yield part, state
