"""How two specs differ, wherever they stand: field by field, in words.

Some fields are one axis together (the head counts of an attention); some parts are told whole (a norm, a span).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.recipe.base import Part, Sizes, Spec
from assay.recipe.embedding import Embedding, Head
from assay.recipe.ffn import Activation, Ffn, Glu, Mlp
from assay.recipe.init import DepthScale, Distribution, Init
from assay.recipe.layer import Layer
from assay.recipe.mixer import Attention, Mixer, QkNorm
from assay.recipe.norm import Norm
from assay.recipe.phrases import ffn_name, head_words, width_words
from assay.recipe.position import Alibi, EmbeddingPosition, Rope, RopeScaling, T5Bias
from assay.recipe.recipe import Recipe
from assay.recipe.scale import Scale
from assay.recipe.span import Span
from assay.recipe.words import number, residual_clauses, value_words

Leaf = tuple[tuple[str, ...], Any, Any]  # path, before, after


@dataclass(frozen=True)
class Found:
    """A difference of one pair of specs, wherever they stand in the stack."""

    path: tuple[str, ...]
    before: Any
    after: Any
    axis: str
    clause: str

    @property
    def key(self) -> str:
        return json.dumps([self.path, self.before, self.after, self.clause])


@dataclass(frozen=True)
class Facet:
    """Fields of a spec that are one axis, and the clause that tells their change."""

    fields: tuple[str, ...]
    axis: str
    say: Callable[[Any, Any, Sizes, Sizes], str]


FACETS: dict[type[Spec], tuple[Facet, ...]] = {
    Attention: (
        Facet(
            ("n_heads", "n_kv_heads", "head_dim"),
            "attention heads",
            lambda a, b, x, y: _heads(a, b),
        ),
    ),
    Embedding: (
        Facet(
            ("tied",),
            "tied embedding",
            lambda a, b, x, y: (
                "the head reads the embedding's table (tied; was untied)"
                if b.tied
                else "the head has a table of its own (untied; was tied)"
            ),
        ),
    ),
    T5Bias: (
        Facet(
            ("table",),
            "T5 table",
            lambda a, b, x, y: (
                "the layer reads the first layer's T5 table (was its own)"
                if b.table == "first"
                else "the layer has a T5 table of its own (was the first layer's)"
            ),
        ),
    ),
}
for _ffn in (Mlp, Glu):
    FACETS[_ffn] = (
        Facet(
            ("d_ff",),
            "feed-forward width",
            lambda a, b, x, y: (
                f"feed-forward width {'grows' if b.d_ff > a.d_ff else 'shrinks'} from {width_words(a.d_ff, x)} "
                f"to {width_words(b.d_ff, y)}"
            ),
        ),
        Facet(
            ("activation",),
            "activation",
            lambda a, b, x, y: f"the feed-forward part {from_to(ffn_name(a, x), ffn_name(b, y))}",
        ),
    )

# what a field is called; a field without an entry is called by its slot or kind and its name
NOUNS: dict[tuple[type[Spec], str], str] = {
    (Layer, "mixer"): "mixer",
    (Layer, "ffn"): "feed-forward part",
    (Layer, "residual"): "residual rule",
    (Attention, "position"): "position",
    (Attention, "span"): "span",
    (Attention, "qk_norm"): "QK-norm",
    (Attention, "scale"): "attention scale",
    (Attention, "soft_cap"): "attention soft-cap",
    (Attention, "sinks"): "attention sinks",
    (Attention, "output_gate"): "attention output gate",
    (Attention, "clip_qkv"): "clip of q, k and v",
    (Attention, "inner_norm"): "norm before the attention's output projection",
    (Rope, "theta"): "RoPE theta",
    (Rope, "fraction"): "RoPE fraction",
    (Rope, "layout"): "RoPE layout",
    (Rope, "scaling"): "RoPE scaling",
    (Alibi, "max_bias"): "ALiBi max bias",
    (Alibi, "multiplier"): "ALiBi slope multiplier",
    (T5Bias, "n_buckets"): "T5 bucket count",
    (T5Bias, "max_distance"): "T5 max distance",
    (Mlp, "act_norm"): "norm before the activation",
    (Head, "norm"): "final norm",
    (Head, "scale"): "logit scale",
    (Head, "soft_cap"): "logit soft-cap",
    (Init, "depth"): "init by depth",
}
for _ffn in (Mlp, Glu):
    NOUNS[_ffn, "inner_norm"] = "norm before the down projection"
    for _field in ("bias", "clamp", "up_offset", "dropout"):
        NOUNS[_ffn, _field] = f"feed-forward {_field}"

# parts that are told whole: "from RMSNorm (eps 1e-5) to RMSNorm (eps 1e-6)" says more than the field
_WHOLE = (Norm, Scale, Distribution, DepthScale, RopeScaling, Activation, EmbeddingPosition, QkNorm, Span)


def noun_of(owner: Spec, field: str) -> str:
    """What a field is called in a sentence."""
    for cls in type(owner).__mro__:
        if (cls, field) in NOUNS:
            return NOUNS[cls, field]
    name = field.replace("_", " ")
    kind = owner.kind_name if isinstance(owner, Part) else type(owner).__name__.lower()
    return f"{kind.replace('_', ' ')} {name}"


@dataclass(frozen=True)
class Finder:
    """Finds the differences of two specs and puts them into words."""

    x: Sizes
    y: Sizes

    def of_layer(self, a: Layer, b: Layer) -> list[Found]:
        out = [f for name in ("mixer", "ffn") for f in self.of_part(a, b, name, (name,))]
        before, after = "; ".join(residual_clauses(a, self.x)), "; ".join(residual_clauses(b, self.y))
        clause = f"the residual rule {from_to(before, after)}"
        if before == after:
            # the same rule in words: DeepNorm's skip follows the depth, a rule goes with the sublayer that it is of
            follows = self.x.n_layers != self.y.n_layers or any(
                getattr(a, side).is_none != getattr(b, side).is_none for side in ("mixer", "ffn")
            )
            if follows:
                return out
            clause = "the residual rule changes"
        return out + self.as_one(a.residual, b.residual, ("residual",), "residual rule", clause)

    def of_spec(self, a: Spec, b: Spec, path: tuple[str, ...]) -> Iterator[Found]:
        """Differences of two specs of one class."""
        together: set[str] = set()
        for facet in FACETS.get(type(a), ()):
            together |= set(facet.fields)
            if any(not same(getattr(a, f), getattr(b, f)) for f in facet.fields):
                leaves = [leaf for f in facet.fields for leaf in leaves_of(getattr(a, f), getattr(b, f), (f,))]
                yield collapsed(path, leaves, facet.axis, facet.say(a, b, self.x, self.y))
        for name in type(a).model_fields:
            if name not in together:
                yield from self.of_part(a, b, name, (*path, name))

    def of_part(self, a: Spec, b: Spec, field: str, path: tuple[str, ...]) -> Iterable[Found]:
        """Differences of one field of two specs."""
        v, w = getattr(a, field), getattr(b, field)
        if same(v, w):
            return
        noun = noun_of(b, field)
        if isinstance(v, Spec) and isinstance(w, Spec):
            if type(v) is type(w) and not isinstance(v, _WHOLE):
                yield from self.of_spec(v, w, path)
            else:
                yield from self.as_one(v, w, path, noun, self.moved(noun, v, w))
        elif _specs(v) and _specs(w) and len(v) == len(w):
            for i, (p, q) in enumerate(zip(v, w, strict=True)):
                where = f"branch {i + 1}"
                if type(p) is type(q):
                    for found in self.of_spec(p, q, (*path, str(i))):
                        yield replace(found, clause=f"in {where}, {found.clause}")
                else:
                    yield from self.as_one(p, q, (*path, str(i)), noun, self.moved(f"{noun} {where}", p, q))
        else:
            yield Found(path, plain(v), plain(w), noun, self.moved(noun, v, w))

    def as_one(self, a: Spec, b: Spec, path: tuple[str, ...], axis: str, clause: str) -> list[Found]:
        """The differences of two specs under one clause."""
        leaves = list(leaves_of(a, b, ()))
        return [collapsed(path, leaves, axis, clause)] if leaves else []

    def moved(self, noun: str, v: Any, w: Any) -> str:
        """``the span goes from full causal attention to ...``, or that it comes or goes."""
        before, after = value_words(v, self.x), value_words(w, self.y)
        absent, gone = _absent(v), _absent(w)
        if absent or gone:  # "the QK-norm is added: over each head"
            before, after = before.removeprefix(f"{noun} "), after.removeprefix(f"{noun} ")
        if absent and not gone:
            return f"the {noun} is added" + ("" if w is True else f": {after}")
        if gone and not absent:
            return f"the {noun} is dropped" + ("" if v is True else f" (was {before})")
        if isinstance(v, int | float) and isinstance(w, int | float) and not isinstance(v, bool):
            return f"{noun} {'rises' if w > v else 'falls'} from {number(v)} to {number(w)}"
        return f"the {noun} {from_to(before, after)}"


def from_to(before: str, after: str) -> str:
    bare = re.sub(r"\([^()]*\)", "", before)
    return f"goes from {before}{',' if ', ' in bare or '; ' in bare else ''} to {after}"


def _heads(a: Attention, b: Attention) -> str:
    (name, before), (new, after) = (head_words(spec).split(", ") for spec in (a, b))
    if name == new:
        return f"{name} goes from {before} to {after}"
    return f"the mixer {from_to(head_words(a), head_words(b))}"


def _absent(value: Any) -> bool:
    if isinstance(value, Part) and isinstance(value, Norm | QkNorm | RopeScaling | EmbeddingPosition | Ffn | Mixer):
        return value.is_none
    return value is False or value in ("none", ())


def _specs(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, Spec) for item in value)


def plain(value: Any) -> Any:
    """A value as JSON has it; a part without options is its kind alone, as an author writes it."""
    if isinstance(value, Spec):
        dump = value.model_dump(mode="json")
        only_tag = isinstance(value, Part) and set(dump) == {value.tag}
        return value.kind_name if only_tag and isinstance(value, Part) else dump
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def same(a: Any, b: Any) -> bool:
    return a is b or json.dumps(plain(a)) == json.dumps(plain(b))


def leaves_of(a: Any, b: Any, path: tuple[str, ...]) -> Iterator[Leaf]:
    """The smallest differing values of two values, with their paths."""
    if isinstance(a, Spec) and type(a) is type(b):
        for field in type(a).model_fields:
            if not (isinstance(a, Layer | Recipe) and field in ("name", "sources", "notes")):
                yield from leaves_of(getattr(a, field), getattr(b, field), (*path, field))
    elif _specs(a) and _specs(b) and len(a) == len(b):
        for i, (p, q) in enumerate(zip(a, b, strict=True)):
            yield from leaves_of(p, q, (*path, str(i)))
    elif not same(a, b):
        yield path, plain(a), plain(b)


def collapsed(path: tuple[str, ...], leaves: Sequence[Leaf], axis: str, clause: str) -> Found:
    """One difference from several values: a single one by its own path, more as a table below the common path."""
    if len(leaves) == 1:
        tail, before, after = leaves[0]
        return Found((*path, *tail), before, after, axis, clause)
    tables = [{".".join(leaf[0]): leaf[i] for leaf in leaves} for i in (1, 2)]
    return Found(path, tables[0], tables[1], axis, clause)
