"""How two recipes differ: axis by axis, a change of many layers said once, complete.

Differences are found on the specs, field by field; some fields are one axis together (the head counts of an
attention, a whole residual rule) and are reported as one change. If the digests differ, something is reported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import Any, Literal

from assay.recipe.compare import Finder, Found, collapsed, from_to, leaves_of, plain, same
from assay.recipe.init import Init
from assay.recipe.layer import Layer
from assay.recipe.recipe import Recipe, stack_of_runs
from assay.recipe.words import number, sizes_of, times, which_layers, words

Side = Literal["both", "before", "after"]
_MANY = 4  # changes of one field, each to another value, before they are said as one


@dataclass(frozen=True)
class Change:
    """One difference. ``before`` and ``after`` are plain values: the field's, or a table of the fields that differ.

    ``layers`` are depths counted from 0: ``"all"``, or those concerned; empty outside the stack. They are depths of
    both recipes where these have as many layers, else of the one that ``layers_of`` names. ``clause`` says the change
    and ``where`` its layers, both in words.
    """

    axis: str
    path: str
    before: Any
    after: Any
    clause: str
    layers: tuple[int, ...] | Literal["all"] = ()
    layers_of: Side = "both"
    where: str = ""

    @property
    def text(self) -> str:
        """The change as one sentence."""
        return sentence(f"in {self.where}, {self.clause}" if self.where else self.clause)

    def to_dict(self) -> dict[str, Any]:
        layers = self.layers if self.layers == "all" else list(self.layers)
        return {
            "axis": self.axis,
            "path": self.path,
            "layers": layers,
            "layers_of": self.layers_of,
            "before": self.before,
            "after": self.after,
            "text": self.text,
        }


@dataclass(frozen=True)
class RecipeDiff:
    """What changes from ``before`` to ``after`` (two recipe names)."""

    before: str
    after: str
    digests: tuple[str, str]
    changes: tuple[Change, ...]

    @property
    def same(self) -> bool:
        """True when architecture and init are the same."""
        return not self.changes

    @property
    def headline(self) -> str:
        """One line: how many changes, on which axes."""
        names = (self.after, self.before) if self.after != self.before else ("the second recipe", "the first")
        if self.same:
            return f"{names[0]} and {names[1]} are the same architecture with the same init"
        n = len(self.changes)
        axes = ", ".join(dict.fromkeys(change.axis for change in self.changes))
        return f"{names[0]} differs from {names[1]} in {n} place{'s' if n != 1 else ''}: {axes}"

    def sentences(self) -> tuple[str, ...]:
        """Every change, one sentence each."""
        return tuple(change.text for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, what ``assay diff --json`` prints."""
        return {
            "before": {"name": self.before, "digest": self.digests[0]},
            "after": {"name": self.after, "digest": self.digests[1]},
            "same": self.same,
            "headline": self.headline,
            "changes": [change.to_dict() for change in self.changes],
        }


def sentence(clause: str) -> str:
    """A clause with a capital and a full stop."""
    return clause[:1].upper() + clause[1:] + "."


def diff(a: Recipe, b: Recipe) -> RecipeDiff:
    """What changes from ``a`` to ``b``. Names, sources, notes and layer names are no difference."""
    finder = Finder(sizes_of(a), sizes_of(b))
    changes = [
        *_sizes(a, b),
        *map(_outside, finder.of_spec(a.embedding, b.embedding, ("embedding",))),
        *_layers(a, b, finder),
        *map(_outside, finder.of_spec(a.head, b.head, ("head",))),
        *_init(a.init, b.init, finder),
    ]
    if not changes and a.digest != b.digest:
        changes = [_leftover(a, b)]
    return RecipeDiff(a.name, b.name, (a.digest, b.digest), tuple(changes))


def _outside(found: Found) -> Change:
    """A difference that is not in the stack."""
    return Change(found.axis, ".".join(found.path), found.before, found.after, found.clause)


_SIZES = {"d_model": "width", "n_layers": "depth", "vocab_size": "vocabulary", "max_seq_len": "context"}


def _sizes(a: Recipe, b: Recipe) -> Iterator[Change]:
    for size, axis in _SIZES.items():
        x, y = getattr(a, size), getattr(b, size)
        if x != y:
            verb, unit = "grows" if y > x else "shrinks", {"depth": " layers", "context": " tokens"}.get(axis, "")
            clause = f"{axis} ({size}) {verb} from {x:,} to {y:,}{unit} ({times(y / x)})"
            yield Change(axis, size, x, y, clause)


def _init(a: Init, b: Init, finder: Finder) -> Iterator[Change]:
    """Roles that both recipes have. A role of one alone follows from its architecture, unless it starts by itself."""
    groups: dict[tuple[str, str], list[str]] = {}
    of_a, of_b = ({str(e.role): e.distribution for e in init.roles} for init in (a, b))
    usual = [Counter(str(plain(d)) for d in table.values()).most_common(1)[0][0] for table in (of_a, of_b)]
    for role in dict.fromkeys([*of_a, *of_b]):
        v, w = of_a.get(role), of_b.get(role)
        alone = (v is None and str(plain(w)) != usual[1]) or (w is None and str(plain(v)) != usual[0])
        if alone or (v is not None and w is not None and not same(v, w)):
            key = ("" if v is None else words(v, finder.x), "" if w is None else words(w, finder.y))
            groups.setdefault(key, []).append(role)
    shared = [role for role in of_a if role in of_b]
    for (before, after), roles in groups.items():
        subject = "every matrix" if len(roles) > 1 and roles == shared else f"{', '.join(roles)} matrices"
        if before and after:
            clause = f"the init of {subject} {from_to(before, after)}"
        else:
            clause = f"the init of {subject} is {after}" if after else f"the init of {subject} is gone (was {before})"
        leaves = [((role,), plain(of_a.get(role, "none")), plain(of_b.get(role, "none"))) for role in roles]
        yield _outside(collapsed(("init",), leaves, "init", clause))
    yield from map(_outside, finder.of_part(a, b, "depth", ("init", "depth")))


# the stack


@dataclass(frozen=True)
class _Stack:
    """A recipe's distinct layers and which of them stands at each depth."""

    recipe: Recipe
    kinds: tuple[Layer, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, recipe: Recipe) -> _Stack:
        texts: dict[Layer, str] = {}
        kinds: dict[str, Layer] = {}
        for layer in recipe.layers:
            if layer not in texts:
                texts[layer] = json.dumps(layer.model_dump(mode="json", exclude={"name"}))
            kinds.setdefault(texts[layer], layer)
        index = {text: i for i, text in enumerate(kinds)}
        return cls(recipe, tuple(kinds.values()), tuple(index[texts[layer]] for layer in recipe.layers))


@dataclass(frozen=True)
class _Pairs:
    """The differences of each pair of distinct layers, found once."""

    a: _Stack
    b: _Stack
    finder: Finder
    seen: dict[tuple[int, int], list[Found]] = field(default_factory=dict)

    def of(self, i: int, j: int) -> list[Found]:
        if (i, j) not in self.seen:
            self.seen[i, j] = self.finder.of_layer(self.a.kinds[i], self.b.kinds[j])
        return self.seen[i, j]

    def distance(self, i: int, j: int) -> int:
        """How unlike two layers are: differing values, one of another kind counting more."""
        leaves = leaves_of(self.a.kinds[i], self.b.kinds[j], ())
        return sum(4 if isinstance(v, dict) or isinstance(w, dict) else 1 for _, v, w in leaves)


def _layers(a: Recipe, b: Recipe, finder: Finder) -> list[Change]:
    pairs = _Pairs(_Stack.of(a), _Stack.of(b), finder)
    if a.n_layers != b.n_layers:
        return _by_group(pairs)
    placed = [pairs.of(i, j) for i, j in zip(pairs.a.order, pairs.b.order, strict=True)]
    by_depth = _said_once(placed, "both", "")
    if len(pairs.a.kinds) > 1 and len(pairs.b.kinds) > 1 and len(by_depth) > 1:
        by_group = _by_group(pairs)  # the same layers in another pattern: one change rather than many
        return by_group if len(by_group) < len(by_depth) else by_depth
    return by_depth


def _by_group(pairs: _Pairs) -> list[Change]:
    """Each distinct layer of the stack that has more of them against the layer most like it in the other."""
    a, b = pairs.a, pairs.b
    forward = len(b.kinds) >= len(a.kinds)
    stack, other = (b, a) if forward else (a, b)
    match: dict[int, int] = {}
    for k in range(len(stack.kinds)):
        costs = [pairs.distance(*((q, k) if forward else (k, q))) for q in range(len(other.kinds))]
        match[k] = min(range(len(costs)), key=lambda q: (costs[q], q in match.values()))
    placed = [pairs.of(*((match[k], k) if forward else (k, match[k]))) for k in stack.order]
    equal = len(a.order) == len(b.order)
    side: Side = "both" if equal else "after" if forward else "before"
    changes = _said_once(placed, side, "" if equal else stack.recipe.name)
    if len(other.kinds) > 1 and _pattern([match[k] for k in stack.order], equal) != _pattern(other.order, equal):
        matched = [(match[k], k) if forward else (k, match[k]) for k in match]
        before, after = _named(a, b, matched)
        clause = f"the stack goes from {_stack_words(before)} to {_stack_words(after)}"
        changes.append(Change("stack", "stack", before, after, clause))
    return changes


def _named(a: _Stack, b: _Stack, matched: list[tuple[int, int]]) -> tuple[list[Any], list[Any]]:
    """Both stacks as an author writes them, layers that match under one name: the names of two files may cross."""
    names: list[str] = []

    def fresh(layer: Layer) -> str:
        stem = "layer" if layer.name == "block" else layer.name
        tries = (stem if i == 1 else f"{stem}-{i}" for i in count(1))
        names.append(next(name for name in tries if name not in names))
        return names[-1]

    of_a = [fresh(layer) for layer in a.kinds]
    of_b: dict[int, str] = {}
    for i, j in matched:
        if of_a[i] not in of_b.values():
            of_b.setdefault(j, of_a[i])
    of_b |= {j: fresh(layer) for j, layer in enumerate(b.kinds) if j not in of_b}
    return _authored([of_a[i] for i in a.order]), _authored([of_b[j] for j in b.order])


def _pattern(order: Sequence[int], whole: bool) -> tuple[int, ...]:
    """The order of layers; unless ``whole``, only the cycle that it repeats."""
    cycles = (p for p in range(1, len(order) // 2 + 1) if all(k == order[i % p] for i, k in enumerate(order)))
    return tuple(order if whole else order[: next(cycles, len(order))])


def _authored(names: Sequence[str]) -> list[Any]:
    """A stack in the authoring form that repeats these layers."""
    return stack_of_runs([(name, len(list(run))) for name, run in groupby(names)])


def _stack_words(stack: list[Any]) -> str:
    texts = [f"{', '.join(e['cycle'])}, repeated over {e['n_layers']}" if isinstance(e, dict) else e for e in stack]
    return f"[{', '.join(texts)}]"


def _said_once(placed: list[list[Found]], side: Side, owner: str) -> list[Change]:
    """Equal differences of several layers as one change; a field that differs layer by layer as one, too."""
    depths: dict[str, list[int]] = {}
    found: dict[str, Found] = {}
    for depth, here in enumerate(placed):
        for each in here:
            found.setdefault(each.key, each)
            depths.setdefault(each.key, []).append(depth)
    by_path: dict[tuple[str, ...], list[str]] = {}
    for key, each in found.items():
        by_path.setdefault(each.path, []).append(key)
    out = []
    for keys in by_path.values():
        each = found[keys[0]]
        if len(keys) > _MANY:
            at = {depth: found[key] for key in keys for depth in depths[key]}
            out.append(_placed(_merged(each, [at[d] for d in sorted(at)]), sorted(at), len(placed), side, owner))
        else:
            out += [_placed(found[key], depths[key], len(placed), side, owner) for key in keys]
    return out


def _merged(first: Found, each: list[Found]) -> Found:
    """Many differences of one field as one; the values are listed by layer."""
    befores, afters = [f.before for f in each], [f.after for f in each]
    clause = f"the {first.axis} changes layer by layer"
    if all(isinstance(v, int | float) for v in befores + afters):
        clause = f"{first.axis} goes from {_range(befores)} to {_range(afters)}, layer by layer"
    return replace(first, before=befores, after=afters, clause=clause)


def _range(values: list[Any]) -> str:
    low, high = min(values), max(values)
    return number(low) if low == high else f"{number(low)}-{number(high)}"


def _placed(found: Found, depths: list[int], n_layers: int, side: Side, owner: str) -> Change:
    everywhere = len(depths) == n_layers
    where = which_layers(depths, n_layers)
    if owner:
        where = "all layers" if everywhere else f"{where} of {owner}"
    return Change(
        axis=found.axis,
        path=".".join(("layers", *found.path)),
        before=found.before,
        after=found.after,
        clause=found.clause,
        layers="all" if everywhere else tuple(depths),
        layers_of="both" if everywhere else side,
        where=where,
    )


def _leftover(a: Recipe, b: Recipe) -> Change:
    """The recipes differ where no rule above looked: told by path and value."""
    leaves = list(leaves_of(a, b, ()))
    paths = ", ".join(".".join(path) for path, _, _ in leaves) or "the dump"
    found = collapsed((), leaves, "recipe", "")
    return _outside(replace(found, clause=f"the recipes differ in {paths}"))
