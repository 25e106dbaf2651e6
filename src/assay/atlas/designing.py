"""Shapes for a number of parameters: candidates that satisfy the rules, ranked, each with reasons and a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from assay.atlas.cells import compact, whole
from assay.atlas.checking import Findings, check
from assay.atlas.device import Device, Estimate, device_of, estimate
from assay.atlas.facts import models
from assay.atlas.measures_run import deepseek_lr
from assay.atlas.measures_shape import rope_bound
from assay.atlas.toml import to_toml
from assay.cost.budget import Budget, budget
from assay.recipe import Recipe, resolve

Count = Literal["total", "non_embedding"]
Table = dict[str, Any]
TOLERANCE = 0.10
_ASPECT = (64.0, 128.0)  # layers of most models since 2023, and Kaplan's minimum near 100
_FFN = (2.5, 4.0)
_DEEPEST = 126  # layers of Llama 3.1 405B, the deepest dense decoder of the atlas
_LONG = 32_768  # from here on, a variant with windowed layers is drawn too
_THETAS = (1e4, 1e5, 5e5, 1e6, 2e6, 5e6, 1e7, 5e7, 1e8)
_PENALTY = {"ok": 0.0, "note": 0.05, "warning": 0.5, "fault": 5.0}
_PER_PARAM = 20.0  # tokens a parameter, where none are given (Chinchilla)


@dataclass(frozen=True)
class Design:
    """One shape: its recipe, why it is proposed, what it costs, what the rules say."""

    name: str
    table: Table
    recipe: Recipe
    params: int  # in the convention that was asked for
    asked: int
    count: Count
    score: float  # smaller is better
    why: tuple[str, ...]
    near: tuple[str, ...]  # real models of a like shape
    budget: Budget
    findings: Findings
    run: Mapping[str, float]  # tokens, training FLOPs, suggested peak learning rate
    estimate: Estimate | None = None

    @cached_property
    def toml(self) -> str:
        """The recipe file to train it."""
        return to_toml(self.table)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts: what ``assay design --json`` prints."""
        mixer, ffn = self.table["block"]["mixer"], self.table["block"]["ffn"]
        return {
            "name": self.name,
            "n_layers": self.recipe.n_layers,
            "d_model": self.recipe.d_model,
            "n_heads": mixer["n_heads"],
            "n_kv_heads": mixer["n_kv_heads"],
            "head_dim": mixer["head_dim"],
            "d_ff": ffn["d_ff"],
            "vocab_size": self.recipe.vocab_size,
            "tied": self.recipe.embedding.tied,
            "params": {
                "asked": self.asked,
                "count": self.count,
                "got": self.params,
                "total": self.budget.params.total,
                "non_embedding": self.budget.params.non_embedding,
            },
            "score": round(self.score, 4),
            "why": list(self.why),
            "near": list(self.near),
            "budget": self.budget.to_dict(),
            "findings": self.findings.to_dict(),
            "run": dict(self.run),
            "estimate": None if self.estimate is None else self.estimate.to_dict(),
            "toml": self.toml,
        }


@dataclass(frozen=True)
class Ask:
    """What a design is asked for, checked."""

    params: int
    tokens: float | None
    context: int
    vocab_size: int
    count: Count
    tp: int
    language: str | None
    device: Device | None

    @property
    def head_dim(self) -> int:
        return 128 if self.params >= 1_000_000_000 else 64 if self.params >= 20_000_000 else 32


@dataclass(frozen=True)
class _Shape:
    d: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    tied: bool
    window: int | None = None

    @property
    def aspect(self) -> float:
        return self.d / self.n_layers

    @property
    def ratio(self) -> float:
        return self.d_ff / self.d

    def per_layer(self, d_ff: int) -> int:
        """Parameters of one layer of the default recipe: projections, QK-norm, three matrices, two norms."""
        q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return self.d * (2 * q + 2 * kv) + 2 * self.head_dim + 3 * self.d * d_ff + 2 * self.d


def design(
    params: float,
    tokens: float | None = None,
    hardware: Device | Mapping[str, Any] | None = None,
    context: int | None = None,
    vocab_size: int | None = None,
    n: int = 5,
    *,
    count: Count = "total",
    tp: int = 1,
    language: str | None = None,
) -> tuple[Design, ...]:
    """Shapes of about ``params`` parameters that satisfy the rules, best first.

    The choices are the field's defaults (pre-norm, RMSNorm, SwiGLU, RoPE, grouped queries, QK-norm, no biases); the
    shape is what varies. Every shape is within 10 % of the asked parameters.

    Args:
        tokens: to train on; 20 a parameter (Chinchilla) when None.
        hardware: a :class:`Device` or a table with its fields: shapes are then ranked by time and fit too.
        context: longest sequence; 4096 when None. From 32768 on, variants with windowed layers compete.
        vocab_size: 50304 below 3B parameters and 100352 above, when None.
        n: how many.
        count: what ``params`` counts: ``total`` or ``non_embedding``.
        tp: tensor-parallel ranks that heads, widths and vocabulary must divide over.
        language: ``english``, ``chinese``, ``code`` or ``multilingual``: holds the vocabulary against the rules.

    Raises:
        ValueError: a size that is not positive, too few parameters for the vocabulary, or no shape near enough.
    """
    ask = _ask(params, tokens, hardware, context, vocab_size, count, tp, language)
    n = whole(n, "n")
    shapes = sorted(_shapes(ask), key=lambda s: _proportion(s, ask))
    if not shapes:
        raise ValueError(
            f"params: no shape has {compact(ask.params)} {count.replace('_', '-')} parameters within {TOLERANCE:.0%} "
            f"with {ask.vocab_size:,} rows and tp {ask.tp}; try more parameters, a smaller vocab_size or a smaller tp"
        )
    drawn = [_drawn(shape, ask) for shape in _varied(shapes, 3 * n)]
    return tuple(sorted(drawn, key=lambda d: d.score)[:n])


def _ask(
    params: float, tokens: float | None, hardware: Any, context: int | None, vocab_size: int | None, count: Count,
    tp: int, language: str | None,
) -> Ask:  # fmt: skip
    asked = whole(params, "params")
    if count not in ("total", "non_embedding"):
        raise ValueError(f"count: {count!r}; known: total, non_embedding")
    rows = (50_304 if asked < 3_000_000_000 else 100_352) if vocab_size is None else whole(vocab_size, "vocab_size")
    return Ask(
        params=asked,
        tokens=None if tokens is None else float(whole(tokens, "tokens")),
        context=4096 if context is None else whole(context, "context"),
        vocab_size=rows,
        count=count,
        tp=whole(tp, "tp"),
        language=language,
        device=None if hardware is None else device_of(hardware),
    )


# --- candidates


def _shapes(ask: Ask) -> Iterator[_Shape]:
    """Every width and depth of sane proportions whose feed-forward width can make up the parameters."""
    guess = (ask.params * 100 / 12) ** (1 / 3)  # 12 d² a layer, aspect 100
    unit = 256 if guess >= 3072 else 128 if guess >= 1024 else 64 if guess >= 256 else 32
    low, high = max(unit, int(guess * 0.4) // unit * unit), max(2 * unit, int(guess * 1.8))
    for d in range(low, high + 1, unit):
        for n_layers in range(max(2, math.ceil(d / 220)), max(2, d // (14 if d < 1024 else 36)) + 1):
            yield from _at(d, n_layers, unit, ask)


def _at(d: int, n_layers: int, unit: int, ask: Ask) -> Iterator[_Shape]:
    head_dim = next((h for h in (ask.head_dim, 64, 32, 16) if d % h == 0 and d // h >= 1), d)
    n_heads = d // head_dim
    if n_heads % ask.tp or ask.vocab_size % ask.tp:
        return
    for tied in (True, False):
        bare = _Shape(d, n_layers, n_heads, _kv_heads(n_heads, ask), head_dim, 0, tied)
        tables = ask.vocab_size * d * (1 if tied else 2) if ask.count == "total" else 0
        left = ask.params - tables - d - n_layers * bare.per_layer(0)
        wanted = left / (3 * d * n_layers)
        step = max(min(unit, 128), ask.tp)
        d_ff = round(wanted / step) * step
        if d_ff < step or not _FFN[0] - 0.3 <= d_ff / d <= _FFN[1] + 1 or d_ff % ask.tp:
            continue
        got = tables + d + n_layers * bare.per_layer(d_ff)
        if abs(got / ask.params - 1) > TOLERANCE or tied is not _ties(d, ask, got):
            continue
        found = _Shape(d, n_layers, n_heads, bare.n_kv_heads, head_dim, d_ff, tied)
        yield found
        if ask.context >= _LONG and n_layers >= 4:
            yield _Shape(d, n_layers, n_heads, bare.n_kv_heads, head_dim, d_ff, tied, window=4096)


def _kv_heads(n_heads: int, ask: Ask) -> int:
    """Eight from 1B parameters on, a quarter of the heads below; the nearest number that divides."""
    wanted = _wanted_kv(n_heads, ask)
    divisors = [k for k in range(1, n_heads + 1) if n_heads % k == 0 and (k % ask.tp == 0 or ask.tp % k == 0)]
    return min(divisors or [n_heads], key=lambda k: (abs(math.log(k / wanted)), k))


def _wanted_kv(n_heads: int, ask: Ask) -> int:
    return 8 if ask.params >= 1_000_000_000 else max(1, n_heads // 4)


def _ties(d: int, ask: Ask, got: int) -> bool:
    """One table where it is more than 8 % of the model."""
    table = ask.vocab_size * d
    total = got if ask.count == "total" else got + table
    return table / total > 0.08


def _proportion(s: _Shape, ask: Ask) -> float:
    """How far a shape is from the field's proportions; before rules are held."""
    aspect = _outside(s.aspect, _aspects(ask))
    ratio = _outside(s.ratio, _FFN) + 0.1 * abs(math.log(s.ratio / 3.0))
    ragged = sum(0.04 for size, by in ((s.d, 256), (s.d_ff, 256), (s.n_layers, 4)) if size % by)
    ragged += (0.06 if s.n_layers % 2 else 0.0) + (0.06 if s.n_heads > 8 and s.n_heads % 4 else 0.0)
    groups = 0.1 * abs(math.log(s.n_kv_heads / _wanted_kv(s.n_heads, ask)))
    deep = max(0.0, 0.3 * math.log(s.n_layers / _DEEPEST))
    span = 0.0 if s.window is not None or ask.context < _LONG else 0.05
    return aspect + ratio + ragged + groups + deep + span


def _aspects(ask: Ask) -> tuple[float, float]:
    """Small models are deeper for their width (SmolLM2 135M: 19, Qwen3 0.6B: 37)."""
    return (24.0, 96.0) if ask.params < 1_000_000_000 else _ASPECT


def _outside(value: float, band: tuple[float, float]) -> float:
    return max(0.0, math.log(band[0] / value), math.log(value / band[1]))


def _varied(shapes: list[_Shape], n: int) -> list[_Shape]:
    """The best of each width (and span), then the next best, until there are ``n``."""
    seen: dict[tuple[int, bool], int] = {}
    ranked = []
    for i, shape in enumerate(shapes):
        key = (shape.d, shape.window is not None)
        seen[key] = seen.get(key, 0) + 1
        ranked.append((seen[key], i, shape))
    return [shape for _, _, shape in sorted(ranked, key=lambda r: (r[0], r[1]))[:n]]


# --- one shape, drawn


def _drawn(s: _Shape, ask: Ask) -> Design:
    table = _table(s, ask)
    cost = budget(resolve(table, table["name"]), seq_len=ask.context)
    got = cost.params.total if ask.count == "total" else cost.params.non_embedding
    run = _run(ask, cost)
    why = tuple(_why(s, ask, cost, run))
    table["notes"] = " ".join(f"{line}." for line in why)
    recipe = resolve(table, table["name"])
    settings: dict[str, Any] = {"tokens": run["tokens"], "tp": ask.tp, "lr": run["lr"]}
    if ask.language is not None:
        settings["language"] = ask.language
    findings = check(recipe, settings)
    found = None if ask.device is None else estimate(cost, ask.device, run["tokens"])
    score = _proportion(s, ask) + abs(got / ask.params - 1) + sum(_PENALTY[f.severity] for f in findings)
    score += 0.0 if found is None else found.penalty
    return Design(
        name=table["name"],
        table=table,
        recipe=recipe,
        params=got,
        asked=ask.params,
        count=ask.count,
        score=score,
        why=why,
        near=_near(s),
        budget=cost,
        findings=findings,
        run=run,
        estimate=found,
    )


def _table(s: _Shape, ask: Ask) -> Table:
    """The authored recipe of a shape, in the field's default choices."""
    norm = {"kind": "rmsnorm", "eps": 1e-6}
    name = f"{compact(ask.params).lower()}-d{s.d}-l{s.n_layers}{'-windows' if s.window else ''}"
    rope: Table = {"kind": "rope", "theta": _theta(ask.context)}
    mixer: Table = {"kind": "attention", "n_heads": s.n_heads, "n_kv_heads": s.n_kv_heads, "head_dim": s.head_dim}
    table: Table = {"name": name, "d_model": s.d, "vocab_size": ask.vocab_size, "max_seq_len": ask.context}
    if s.window is None:
        table["n_layers"] = s.n_layers
        mixer["position"] = rope
    else:
        table["stack"] = [{"cycle": ["3 local", "global"], "n_layers": s.n_layers}]
        local = {"span": {"kind": "window", "size": s.window}, "position": {"kind": "rope", "theta": _theta(s.window)}}
        table["layers"] = {"local": {"mixer": local}, "global": {"mixer": {"position": rope}}}
    mixer["qk_norm"] = {"over": "head", "norm": norm}
    table["embedding"] = {"tied": s.tied, "scale": "sqrt_d_model"}
    table["block"] = {
        "mixer": mixer,
        "ffn": {"kind": "glu", "d_ff": s.d_ff, "activation": "silu"},
        "residual": {"rule": "pre", "norm": norm},
    }
    table["head"] = {"norm": norm}
    table["init"] = {
        "weights": {"kind": "fan_in", "cutoff": 3.0},
        "embedding": {"kind": "normal", "std": round(s.d**-0.5, 6)},
        "depth": "total_depth",
    }
    return table


def _theta(context: int) -> float:
    """The smallest usual base above what the context asks for."""
    bound = rope_bound(context)
    return next((t for t in _THETAS if t >= bound), float(f"{bound:.1e}"))


def _run(ask: Ask, cost: Budget) -> dict[str, float]:
    tokens = _PER_PARAM * cost.params.total if ask.tokens is None else ask.tokens
    return {
        "tokens": tokens,
        "tokens_per_param": tokens / cost.params.total,
        "train_flops": float(cost.flops.train_per_token) * tokens,
        "lr": float(f"{deepseek_lr(6.0 * cost.params.total * tokens):.2g}"),
    }


def _why(s: _Shape, ask: Ask, cost: Budget, run: Mapping[str, float]) -> Iterator[str]:
    low, high = _aspects(ask)
    inside = "inside" if low <= s.aspect <= high else "outside"
    yield f"d_model / n_layers = {s.aspect:.0f}, {inside} {low:.0f} to {high:.0f}, where models of this size stand"
    yield f"d_ff / d_model = {s.ratio:.2f} (8/3 equals an ungated 4; released gated models 2.5 to 5.8)"
    group = s.n_heads // s.n_kv_heads
    yield f"{s.n_heads} heads of {s.head_dim} fill the width; {s.n_kv_heads} KV heads, {group} query heads each"
    share = ask.vocab_size * s.d / cost.params.total
    yield f"a table is {share:.1%} of the model, so the tables are {'tied' if s.tied else 'apart'}"
    if s.window is not None:
        cache = cost.cache.bytes / 2**30
        yield f"3 of 4 layers see {s.window} tokens: {cache:.2f} GiB of cache at {ask.context:,} tokens"
    if run["tokens_per_param"] < _PER_PARAM * 0.999:
        yield f"{run['tokens_per_param']:.1f} tokens a parameter: a smaller model would use this compute better"


def _near(s: _Shape) -> tuple[str, ...]:
    """Real decoders whose width and depth are each within a fifth, nearest first."""
    found = []
    for m in models():
        if m.is_decoder and m.d_model and m.n_layers:
            far = abs(math.log(m.d_model / s.d)) + abs(math.log(m.n_layers / s.n_layers))
            if abs(math.log(m.d_model / s.d)) < 0.2 and abs(math.log(m.n_layers / s.n_layers)) < 0.2:
                found.append((far, m.id))
    return tuple(model_id for _, model_id in sorted(found)[:5])
