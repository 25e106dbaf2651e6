"""What a budget has to say about a shape: alignment, divisibility, what does not fit. Each with its fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from assay.cost.model import count_layers
from assay.recipe.ffn import Ffn, FfnSum, Glu, Mlp
from assay.recipe.mixer import attentions_of
from assay.recipe.recipe import Recipe

ALIGNMENTS = (256, 128, 64)


class Finding(NamedTuple):
    """``error``: cannot be run; ``warning``: costs memory or time; ``note``: worth knowing."""

    severity: str
    place: str
    value: Any
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}; {self.fix}"


def ffns_of(ffn: Ffn) -> list[Mlp | Glu]:
    """Every MLP and GLU of a feed-forward part, through sums."""
    if isinstance(ffn, FfnSum):
        return [spec for branch in ffn.branches for spec in ffns_of(branch.ffn)]
    return [ffn] if isinstance(ffn, Mlp | Glu) else []


def dimensions(recipe: Recipe, tp: int = 1) -> dict[str, int]:
    """Every side of a weight matrix on one device, and head_dim, by place."""
    out = {"d_model": recipe.d_model, "vocab_size": -(-recipe.vocab_size // tp)}
    for end, width in (("embedding", recipe.embedding_width), ("head", recipe.head_width)):
        if width != recipe.d_model:
            out[f"{end}.projection.dim"] = width
    for layer in count_layers(recipe.layers):
        place = f"layers.{layer.name}"
        for i, spec in enumerate(attentions_of(layer.mixer)):
            at = f"{place}.mixer" + (f".{i}" if i else "")
            out[f"{at}.head_dim"] = spec.head_dim
            out[f"{at}.n_heads x head_dim"] = -(-spec.n_heads // tp) * spec.head_dim
            out[f"{at}.n_kv_heads x head_dim"] = -(-spec.n_kv_heads // tp) * spec.head_dim
        for i, ffn in enumerate(ffns_of(layer.ffn)):
            out[f"{place}.ffn" + (f".{i}" if i else "") + ".d_ff"] = -(-ffn.d_ff // tp)
    return out


def aligned_to(n: int) -> int:
    """The largest power of two up to 256 that divides n."""
    return min(n & -n, 256)


def alignment_findings(recipe: Recipe, tp: int = 1) -> Iterator[Finding]:
    """Sides that matrix units take badly: not multiples of 64 (warning) or of 128 (note).

    Tensor cores work on tiles of 64 to 256: a side that is no multiple of them is padded, or falls to a slower kernel
    (NVIDIA, "Matrix multiplication background user's guide": multiples of 64 elements in 16 bits on A100 and later).
    """
    each = f" on each of {tp} devices" if tp > 1 else ""
    for place, n in dimensions(recipe, tp).items():
        step = aligned_to(n)
        if place == "vocab_size" and recipe.vocab_size % tp:
            continue  # the plan's own findings tell what to pad it to
        if step >= 128 or (place.endswith("head_dim") and " x " not in place and step >= 64):
            continue
        severity = "note" if step == 64 else "warning"
        whole = tp if each and (place == "vocab_size" or place.endswith("d_ff")) else 1
        better = [f"{-(-n // a) * a * whole:,} ({a})" for a in ALIGNMENTS if a > step]
        yield Finding(
            severity,
            place,
            n,
            f"{n:,}{each} is a multiple of {step} only",
            "the next multiples: " + ", ".join(dict.fromkeys(reversed(better))),
        )


def alignment_table(recipe: Recipe, tp: int = 1) -> dict[str, dict[str, int]]:
    """Every dimension with the power of two that divides it."""
    return {place: {"value": n, "aligned_to": aligned_to(n)} for place, n in dimensions(recipe, tp).items()}
