"""What the parts of a recipe are called: short phrases in the field's own terms, for pages and for diffs.

A phrase is registered for a spec class with :func:`says`; a kind without one is said by its kind and fields, so a new
kind needs nothing here. A phrase says everything about its part that is not the plain case. The phrases themselves are
in ``phrases.py`` (what stands in a layer) and ``phrases_frame.py`` (what stands around it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from assay.recipe.base import Part, Sizes, Spec
from assay.recipe.layer import Layer
from assay.recipe.recipe import Recipe
from assay.recipe.residual import Serial

Said = str | Sequence[str]
Phrase = Callable[[Any, Sizes], Said]
P = TypeVar("P", bound=Phrase)

_PHRASES: dict[type[Spec], Phrase] = {}
_SYMBOLS = {
    "sqrt_d_model": "√d_model",
    "inv_sqrt_d_model": "1/√d_model",
    "inv_sqrt_head_dim": "1/√head_dim",
    "inv_head_dim": "1/head_dim",
    "sqrt_width": "√width",
}
_SHOWN = 6  # depths or ranges of depths that are listed before "..."


def says(*classes: type[Spec]) -> Callable[[P], P]:
    """Register the phrase of these spec classes: a text, or several clauses, the main one first."""

    def apply(phrase: P) -> P:
        for cls in classes:
            _PHRASES[cls] = phrase
        return phrase

    return apply


def clauses(spec: Spec, sizes: Sizes) -> tuple[str, ...]:
    """What a spec is, one clause a fact."""
    for cls in type(spec).__mro__:
        if cls in _PHRASES:
            said = _PHRASES[cls](spec, sizes)
            return (said,) if isinstance(said, str) else tuple(said)
    return (_by_fields(spec, sizes),)


def words(spec: Spec, sizes: Sizes) -> str:
    """What a spec is, in one phrase."""
    return "; ".join(clauses(spec, sizes))


def sizes_of(recipe: Recipe) -> Sizes:
    """The widths that phrases refer to."""
    return Sizes(recipe.d_model, recipe.vocab_size, recipe.max_seq_len, recipe.n_layers)


def value_words(value: Any, sizes: Sizes) -> str:
    """A field's value as text."""
    if isinstance(value, Spec):
        return words(value, sizes)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(value_words(v, sizes) for v in value) or "none"
    return _SYMBOLS.get(str(value), str(value))


def number(value: int | float) -> str:
    """``128,256``, ``500,000``, ``0.02``, ``1e-5``; at most six digits of what is not whole."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    mantissa, e, exponent = f"{value:.6g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def times(ratio: float) -> str:
    """A ratio with three digits or so: ``2.69x``, ``32x``, ``0.625x``."""
    return f"{ratio:.3g}x" if ratio < 1 else f"{ratio:.2f}".rstrip("0").rstrip(".") + "x"


def which_layers(depths: Iterable[int], n_layers: int) -> str:
    """A set of depths, counted from 0: ``all 32 layers``, ``every 6th layer (5, 11, 17, 23, 29; 5 of 34)``."""
    chosen = sorted(depths)
    rest = sorted(set(range(n_layers)) - set(chosen))
    if not rest:
        return f"all {n_layers} layers" if n_layers > 1 else "the only layer"
    if len(chosen) == 1:
        return f"layer {chosen[0]} of {n_layers}"
    share = f"{len(chosen)} of {n_layers}"
    if step := _step(chosen, n_layers):
        return f"every {ordinal(step)} layer ({_listed(chosen)}; {share})"
    if (step := _step(rest, n_layers)) > 2:
        return f"{share} layers (all but every {ordinal(step)}: {_listed(rest)})"
    return f"layers {_listed(chosen)} ({share})"


def _step(depths: Sequence[int], n_layers: int) -> int:
    """The distance of depths that repeat through the whole stack; 0 where they do not."""
    if len(depths) < 2:
        return 0
    step = depths[1] - depths[0]
    whole = list(range(depths[0], n_layers, step)) == list(depths) and depths[0] < step
    return step if step > 1 and whole else 0


def ordinal(n: int) -> str:
    """``3rd`` as in every 3rd; ``other`` for 2."""
    suffix = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return {2: "other"}.get(n, f"{n}{suffix}")


def _listed(depths: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for depth in depths:
        if runs and depth == runs[-1][-1] + 1:
            runs[-1].append(depth)
        else:
            runs.append([depth])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(texts if len(texts) <= _SHOWN else [*texts[: _SHOWN - 2], "...", texts[-1]])


def layer_clauses(layer: Layer, sizes: Sizes) -> dict[str, tuple[str, ...]]:
    """What a layer does: its mixer, its feed-forward part and its residual rule."""
    return {
        "mixer": clauses(layer.mixer, sizes),
        "ffn": clauses(layer.ffn, sizes),
        "residual": residual_clauses(layer, sizes),
    }


def residual_clauses(layer: Layer, sizes: Sizes) -> tuple[str, ...]:
    """A layer's residual rule, said of the sublayers that it has."""
    rule = layer.residual
    if isinstance(rule, Serial) and (layer.mixer.is_none or layer.ffn.is_none):
        only = rule.ffn if layer.mixer.is_none else rule.mixer
        return clauses(only, sizes)
    return clauses(rule, sizes)


def _by_fields(spec: Spec, sizes: Sizes) -> str:
    """The fallback: the kind and every field."""
    name = spec.kind_name if isinstance(spec, Part) else type(spec).__name__.lower()
    skip = spec.tag if isinstance(spec, Part) else ""
    fields = [f"{f} {value_words(getattr(spec, f), sizes)}" for f in type(spec).model_fields if f != skip]
    return f"{name} ({', '.join(fields)})" if fields else name


def joined(head: str, details: Iterable[str]) -> str:
    """``head (detail, detail)``; the head alone without details."""
    found = ", ".join(details)
    return f"{head} ({found})" if found else head


def many(n: int, noun: str) -> str:
    """``1 head``, ``32 heads``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def dropout_words(rate: float) -> list[str]:
    """A rate above 0 as a clause."""
    return [f"dropout {number(rate)}"] if rate else []
