"""Technique to system cost: a recipe without a technique against the same recipe with it, on three dimensions.

The list is data, ``techniques.toml``: what is laid over the recipe on either side. Quality and stability are not here:
they are a study's to say.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from assay.cost.budget import Budget, budget
from assay.recipe import Recipe, RecipeError, load
from assay.recipe.mixer import attentions_of

_TABLE = Path(__file__).with_name("techniques.toml")

# dimension, key, title and convention of each number, and where a budget has it
MEASURES: tuple[tuple[str, str, str, str], ...] = (
    ("memory", "params", "parameters", "every parameter once"),
    ("memory", "cache_bytes", "cache", "of the batch at that length"),
    ("memory", "activation_bytes", "activations", "kept for the backward pass, no recomputation"),
    ("compute", "train_flops", "training FLOPs", "forward and backward of the batch, elementwise work included"),
    ("compute", "decode_flops", "decoding FLOPs", "one token after the others, elementwise work included"),
    ("bandwidth", "train_bytes", "training traffic", "bytes read and written, each class one kernel"),
    ("bandwidth", "decode_bytes", "decoding traffic", "bytes read and written for one token"),
)


@dataclass(frozen=True)
class TechniqueCost:
    """One technique: each measure of :data:`MEASURES` without it and with it."""

    name: str
    title: str
    said: str
    without: dict[str, int]
    with_: dict[str, int]

    def ratio(self, key: str) -> float | None:
        """With over without; None where there was nothing."""
        return self.with_[key] / self.without[key] if self.without[key] else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the ratios among them."""
        body = asdict(self)
        body["with"] = body.pop("with_")
        return {**body, "ratio": {key: self.ratio(key) for _, key, _, _ in MEASURES}}


@cache
def technique_names() -> tuple[str, ...]:
    """Every technique of the table; ``kv-cache`` is computed, not laid over."""
    return (*(row["name"] for row in _rows()), "kv-cache")


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    return tuple(tomllib.loads(_TABLE.read_text(encoding="utf-8"))["techniques"])


def technique_costs(
    name_or_path: str | Path,
    *,
    batch: int = 1,
    seq_len: int | None = None,
    dtype: str = "bf16",
    hardware: str | Path = "h100-sxm",
) -> list[TechniqueCost]:
    """What each technique would cost or save in a recipe whose layers are all alike.

    Args:
        name_or_path: a preset or a recipe file.
        batch, seq_len, dtype, hardware: as :func:`assay.cost.budget` takes them; the device decides which kernels are
            fused, and so what is kept.

    Raises:
        ValueError: the layers differ, or their mixer is not one attention: no one place to lay a technique over.
        RecipeError: the recipe cannot be read, or with a technique could not be.
    """
    base = load(name_or_path)
    fill = _fill(base, base.max_seq_len if seq_len is None else seq_len)

    def measured(overrides: list[str]) -> dict[str, int]:
        recipe = load(name_or_path, [text.format(**fill) for text in overrides])
        return _measures(budget(recipe, batch, seq_len, dtype, hardware=hardware))

    out = []
    for row in _rows():
        try:
            out.append(
                TechniqueCost(row["name"], row["title"], row["said"], measured(row["without"]), measured(row["with"]))
            )
        except RecipeError as error:
            raise RecipeError(error.problems, f"{base.name}, technique {row['name']}") from None
    return [*out, _kv_cache(budget(base, batch, seq_len, dtype, hardware=hardware))]


def _fill(base: Recipe, length: int) -> dict[str, int]:
    kinds = {repr((layer.mixer, layer.ffn, layer.residual)) for layer in base.layers}
    found = [spec for layer in base.layers for spec in attentions_of(layer.mixer)]
    if len(kinds) > 1 or len(found) != base.n_layers:
        raise ValueError("layers: techniques are laid over a recipe whose layers are all the same attention block")
    heads = found[0].n_heads
    return {"n_heads": heads, "kv": max(1, heads // 4), "d_ff": 4 * base.d_model, "window": max(2, length // 4)}


def _measures(found: Budget) -> dict[str, int]:
    return {
        "params": found.params.total,
        "cache_bytes": found.cache.bytes,
        "activation_bytes": found.memory.activations["bytes"],
        "train_flops": found.intensity["train"]["flops"],
        "decode_flops": found.intensity["decode"]["flops"],
        "train_bytes": found.intensity["train"]["bytes"],
        "decode_bytes": found.intensity["decode"]["bytes"],
    }


def _kv_cache(found: Budget) -> TechniqueCost:
    """Without a cache every token is a prefill of all before it."""
    with_ = _measures(found)
    prefill = found.intensity["prefill"]
    without = {**with_, "cache_bytes": 0, "decode_flops": prefill["flops"], "decode_bytes": prefill["bytes"]}
    return TechniqueCost("kv-cache", "a KV cache", "memory for compute", without, with_)
