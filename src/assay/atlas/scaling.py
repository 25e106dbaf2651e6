"""Faithful small proxies: every choice of a recipe kept, the shape shrunk (or grown) to a number of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from assay.atlas.cells import compact, whole
from assay.atlas.shrinking import Shrink, Table, shrink_layer
from assay.cost.budget import count_params
from assay.cost.model import layer_tensors
from assay.recipe import Recipe, RecipeError, resolve
from assay.recipe.stack import read_stack

Count = Literal["non_embedding", "total"]
TOLERANCE = 0.10  # of the asked number of parameters
_MOST_LAYERS = 512


@dataclass(frozen=True)
class Proxy:
    """A recipe scaled to a size, with what was asked, what came out, and what had to give."""

    recipe: Recipe
    asked: int
    count: Count
    got: int
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """How far the parameters are from the asked number, relative."""
        return self.got / self.asked - 1


@dataclass(frozen=True)
class _Candidate:
    d: int
    n_layers: int
    score: float
    shrink: Shrink


def scale(
    recipe: Recipe,
    params: float,
    *,
    count: Count = "non_embedding",
    vocab_size: int | None = None,
    max_seq_len: int | None = None,
) -> Recipe:
    """The recipe at another size: layer pattern, head size, groups, d_ff ratio, tying and scalings kept.

    Args:
        params: parameters to come near to, within 10 %.
        count: which ones: ``non_embedding`` (without token tables and learned positions; the vocabulary belongs to
            the tokenizer) or ``total``.
        vocab_size: another vocabulary; the recipe's when None.
        max_seq_len: another longest sequence, with which windows shrink; the recipe's when None.

    Returns:
        A recipe whose ``notes`` list what could not be kept.

    Raises:
        ValueError: a size that is not positive, or that no shape of this recipe comes near to; says which it can.
    """
    return proxy(recipe, params, count=count, vocab_size=vocab_size, max_seq_len=max_seq_len).recipe


def ladder(recipe: Recipe, sizes: Iterable[float], **options: Any) -> tuple[Recipe, ...]:
    """The recipe at several sizes, smallest first; options as in :func:`scale`.

    Raises:
        ValueError: no size, a size twice, or one that cannot be reached.
    """
    wanted = sorted(sizes)
    if not wanted:
        raise ValueError("sizes: a ladder needs at least one")
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"sizes: one of them stands twice: {', '.join(map(compact, wanted))}")
    return tuple(scale(recipe, size, **options) for size in wanted)


def proxy(
    recipe: Recipe,
    params: float,
    *,
    count: Count = "non_embedding",
    vocab_size: int | None = None,
    max_seq_len: int | None = None,
) -> Proxy:
    """Like :func:`scale`, with the number that came out and the notes apart."""
    asked = whole(params, "params")
    if count not in ("non_embedding", "total"):
        raise ValueError(f"count: {count!r}; known: non_embedding, total")
    job = _Job(
        recipe,
        asked,
        count,
        recipe.vocab_size if vocab_size is None else whole(vocab_size, "vocab_size"),
        recipe.max_seq_len if max_seq_len is None else whole(max_seq_len, "max_seq_len"),
    )
    best = job.search()
    table = job.table(best.d, best.n_layers, best.shrink)
    found = resolve(table, table["name"])
    notes = (*best.shrink.notes, *job.kept_notes(best))
    words = f"Scaled from {recipe.name} to {compact(asked)} {count.replace('_', '-')} parameters."
    found = found.model_copy(update={"notes": " ".join([words, *(f"{n}." for n in notes)])})
    return Proxy(found, asked, count, _counted(found, count), notes)


def _counted(recipe: Recipe, count: Count) -> int:
    params = count_params(recipe)
    return params.total if count == "total" else params.non_embedding


class _Job:
    """One search: the authored table of the recipe, and what candidates are held against."""

    def __init__(self, recipe: Recipe, asked: int, count: Count, vocab_size: int, max_seq_len: int) -> None:
        self.recipe, self.asked, self.count = recipe, asked, count
        self.vocab_size, self.max_seq_len = vocab_size, max_seq_len
        self.authored = recipe.to_dict()
        self.names = _names(self.authored["stack"])
        _name_sources(self.authored["layers"], self.names, recipe)
        self.period = _period(self.names)
        self.length = max_seq_len / recipe.max_seq_len

    def search(self) -> _Candidate:
        """The candidate nearest to the old proportions among those near enough to the asked size."""
        found: list[_Candidate] = []
        nearest: tuple[float, int] | None = None  # (distance, parameters) of the nearest miss
        for unit in self._units():
            for d in self._widths(unit):
                for candidate, got in self._at_width(d):
                    error = abs(got / self.asked - 1)
                    if error <= TOLERANCE:
                        found.append(candidate)
                    elif nearest is None or error < nearest[0]:
                        nearest = (error, got)
            if found:
                return min(found, key=lambda c: c.score)
        reach = f"; nearest: {compact(nearest[1])}" if nearest else ""
        what = self.count.replace("_", "-")
        tables = " (the tables count; pass a smaller vocab_size)" if self.count == "total" else ""
        raise ValueError(
            f"params: no shape of {self.recipe.name} has {compact(self.asked)} {what} parameters within "
            f"{TOLERANCE:.0%}{reach}{tables}; its layer pattern needs at least {self._least_layers()} layers"
        )

    def _units(self) -> tuple[int, ...]:
        """Multiples that the width is searched in, coarsest first."""
        guess = self._guess()
        coarse = 128 if guess >= 1536 else 64 if guess >= 384 else 32 if guess >= 128 else 16
        return tuple(u for u in (coarse, 16, 8, 4) if u <= coarse)

    def _guess(self) -> float:
        """The width at the old proportions: parameters grow with its cube."""
        old = max(1, _counted(self.recipe, "non_embedding"))
        return float(self.recipe.d_model * (self.asked / old) ** (1 / 3))

    def _widths(self, unit: int) -> list[int]:
        guess = self._guess()
        low, high = max(unit, int(guess * 0.45) // unit * unit), max(4 * unit, int(guess * 2.2))
        step = max(unit, (high - low) // 24 // unit * unit)
        return list(range(low, high + 1, step))

    def _at_width(self, d: int) -> Iterator[tuple[_Candidate, int]]:
        """Candidates of one width: the depths next to the asked size."""
        shrink = Shrink(self.recipe.d_model, d, self.length)
        try:
            one_each = resolve(self.table(d, None, shrink), "candidate")
        except (RecipeError, ValueError):
            return
        sizes = {layer.name: sum(t.numel for t in layer_tensors(layer, d)) for layer in one_each.layers}
        rest = _counted(one_each, self.count) - sum(sizes.values())
        least = self._least_layers()
        mean = sum(sizes[n] for n in self.names) / len(self.names)
        depth = round((self.asked - rest) / mean)
        for n in sorted({max(least, depth + i) for i in (-1, 0, 1)} | set(self._phased(max(least, depth)))):
            if n > _MOST_LAYERS:
                continue
            got = rest + sum(sizes[name] for name in self._restack(n))
            yield _Candidate(d, n, self._score(d, n, got, shrink), shrink), got

    def _phased(self, depth: int) -> Iterator[int]:
        """Depths near this one that end in the same turn of the pattern as the old stack."""
        if self.period > 1:
            phase = len(self.names) % self.period
            base = depth - (depth - phase) % self.period
            yield from (n for n in (base, base + self.period) if n >= self._least_layers())

    def _score(self, d: int, n: int, got: int, shrink: Shrink) -> float:
        old = self.recipe.d_model / self.recipe.n_layers
        off_aspect = abs(math.log(d / n / old))
        off_size = abs(got / self.asked - 1)
        phase = 0.15 if self._restack(n)[-1] != self.names[-1] else 0.0
        ragged = 0.05 if d % 64 else 0.0
        return off_aspect + 3 * off_size + shrink.penalty / max(1, len(set(self.names))) + phase + ragged

    def _least_layers(self) -> int:
        """Layers of the shortest stack that still has every kind of layer."""
        return self.period if self.period > 1 else len(_runs(self.names))

    def _restack(self, n: int) -> list[str]:
        """The layer names of a stack of ``n``: the same cycle, or the same runs in proportion."""
        if self.period:
            return [self.names[i % self.period] for i in range(n)]
        runs = _runs(self.names)
        counts = [max(1, round(k * n / len(self.names))) for _, k in runs]
        while sum(counts) != n:
            step = 1 if sum(counts) < n else -1
            at = max(range(len(counts)), key=lambda i: (runs[i][1] * n / len(self.names) - counts[i]) * step)
            if counts[at] + step < 1:
                at = max(range(len(counts)), key=lambda i: counts[i])
            counts[at] += step
        return [name for (name, _), k in zip(runs, counts, strict=True) for _ in range(k)]

    def table(self, d: int, n_layers: int | None, shrink: Shrink) -> Table:
        """The authored table at width ``d``; with one layer of each kind where ``n_layers`` is None."""
        names = list(dict.fromkeys(self.names)) if n_layers is None else self._restack(n_layers)
        table = {k: v for k, v in self.authored.items() if k not in ("stack", "layers")}
        table |= {"d_model": d, "vocab_size": self.vocab_size, "max_seq_len": self.max_seq_len, "stack": names}
        table["name"] = f"{self.recipe.name}-{compact(self.asked)}".lower()
        table["notes"] = ""
        layers: Table = {}
        for name in dict.fromkeys(names):
            layer = shrink_layer(self.authored["layers"][name], shrink, name)
            layers[name] = _at_depth(layer, self.recipe.n_layers, len(names), shrink)
        table["layers"] = layers
        table["embedding"] = _projected(table["embedding"], shrink)
        table["head"] = _projected(table["head"], shrink)
        table["init"] = _start(table["init"], self.recipe.n_layers, len(names), shrink)
        if n_layers is None:  # so few layers may leave a depth rule nothing to shrink
            table["init"]["depth"] = "none"
        return table

    def kept_notes(self, best: _Candidate) -> Iterator[str]:
        """What of the whole is kept or changed, in words."""
        old, new = self.recipe, best
        yield f"{old.n_layers} layers of {old.d_model} -> {new.n_layers} of {new.d}"
        yield f"d_model / n_layers {old.d_model / old.n_layers:.1f} -> {new.d / new.n_layers:.1f}"
        if self._restack(new.n_layers)[-1] != self.names[-1]:
            yield f"the last layer is {self._restack(new.n_layers)[-1]}, of {self.names[-1]}"
        if self.vocab_size != old.vocab_size:
            yield f"vocabulary {old.vocab_size} -> {self.vocab_size}"
        if self.max_seq_len != old.max_seq_len:
            yield f"longest sequence {old.max_seq_len} -> {self.max_seq_len}"


def _name_sources(layers: Table, names: list[str], recipe: Recipe) -> None:
    """Whose keys a layer reads, by name: a depth means nothing in another stack."""
    for name, source in zip(names, recipe.kv_sources, strict=True):
        if source is not None:
            layers[name]["mixer"]["kv"]["layer"] = names[source]


def _names(stack: list[Any]) -> list[str]:
    """The layer name of each depth of a dumped stack."""
    layers: Table = {name: {} for name in _words(stack)}
    return read_stack({"layers": layers, "stack": stack}, [])


def _words(stack: list[Any]) -> Iterator[str]:
    for entry in stack:
        if isinstance(entry, dict):
            yield from _words(entry["cycle"])
        else:
            yield entry.split()[-1]


def _runs(names: list[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for name in names:
        runs = [*runs[:-1], (name, runs[-1][1] + 1)] if runs and runs[-1][0] == name else [*runs, (name, 1)]
    return runs


def _period(names: list[str]) -> int:
    """Layers of one turn of the pattern; 1 where all are alike, 0 where nothing repeats."""
    for period in range(1, len(names) // 2 + 1):
        if all(names[i] == names[i % period] for i in range(len(names))):
            return period
    return 1 if len(set(names)) == 1 else 0


def _projected(end: Table, to: Shrink) -> Table:
    """A projection between table and model keeps its share of the width."""
    projection = end.get("projection")
    if not isinstance(projection, dict) or "dim" not in projection:
        return end
    dim = max(1, round(projection["dim"] / to.d * to.new_d))
    return {**end, "projection": {**projection, "dim": dim}}


def _at_depth(layer: Table, old: int, new: int, to: Shrink) -> Table:
    """DeepNorm's skip (2 layers)^(1/4) follows the depth; other constants are kept."""
    residual = dict(layer["residual"])
    for key, value in residual.items():
        if isinstance(value, dict):
            residual[key] = _skip(value, old, new, to)
    return {**layer, "residual": _skip(residual, old, new, to)}


def _skip(table: Table, old: int, new: int, to: Shrink) -> Table:
    skip = table.get("skip")
    if not isinstance(skip, dict) or not math.isclose(skip.get("value", 0.0), (2.0 * old) ** 0.25, rel_tol=1e-9):
        return table
    to.note("DeepNorm's skip follows the depth")
    return {**table, "skip": {**skip, "value": (2.0 * new) ** 0.25}}


def _start(init: Table, old: int, new: int, to: Shrink) -> Table:
    """A fan-in gain of 1, 2 or 4 over the number of layers follows the depth; other starts are kept."""
    out: Table = {}
    for role, start in init.items():
        gain = start.get("gain", 0.0) if isinstance(start, dict) else 0.0
        times = round(gain * old)
        if old > 2 and times in (1, 2, 4) and math.isclose(gain * old, times, rel_tol=1e-9):
            to.note(f"init.{role}: the gain follows {times} / layers")
            start = {**start, "gain": times / new}
        out[role] = start
    return out
