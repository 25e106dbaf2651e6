"""Rotary and sinusoidal positions. Angles are computed in float64 and rounded once, whatever the model's dtype.

B batch, T tokens, H heads, D head_dim, r rotary size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from assay.model.parts import ByKind
from assay.recipe.position import (
    Alibi,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    NtkScaling,
    Rope,
    SinusoidalPosition,
    T5Bias,
    YarnScaling,
)
from assay.recipe.query_scale import ByPosition


def base_frequencies(theta: float, r: int) -> Tensor:
    """``theta^(-2k/r)`` for k = 0 .. r/2 - 1, float64 on the CPU."""
    # device= is explicit throughout: a surrounding meta device must not swallow the numbers
    exponent = torch.arange(0, r, 2, dtype=torch.float64, device="cpu") / r
    return torch.as_tensor(theta, dtype=torch.float64, device="cpu") ** -exponent


# scaled_frequencies(scaling, theta, r): frequencies (r/2) in float64, and the factor on cos and sin, of the scalings
# that do not depend on the length
scaled_frequencies = ByKind("frequencies")


@scaled_frequencies.register(NoScaling)
def _(scaling: NoScaling, theta: float, r: int) -> tuple[Tensor, float]:
    return base_frequencies(theta, r), 1.0


@scaled_frequencies.register(LinearScaling)
def _(scaling: LinearScaling, theta: float, r: int) -> tuple[Tensor, float]:
    return base_frequencies(theta, r) / scaling.factor, 1.0


@scaled_frequencies.register(NtkScaling)
def _(scaling: NtkScaling, theta: float, r: int) -> tuple[Tensor, float]:
    if r <= 2:
        raise ValueError(f"rope scaling ntk: needs a rotary size above 2, not {r}")
    return base_frequencies(theta * scaling.factor ** (r / (r - 2)), r), 1.0


@scaled_frequencies.register(Llama3Scaling)
def _(scaling: Llama3Scaling, theta: float, r: int) -> tuple[Tensor, float]:
    frequency = base_frequencies(theta, r)
    turns = scaling.original_seq_len * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * frequency + (1 - keep) * frequency / scaling.factor, 1.0


@scaled_frequencies.register(YarnScaling)
def _(scaling: YarnScaling, theta: float, r: int) -> tuple[Tensor, float]:
    frequency = base_frequencies(theta, r)

    def pair_of(turns: float) -> float:
        # index of the pair that makes this many turns over the original context
        return r * math.log(scaling.original_seq_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.rounded:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, r - 1)
    pairs = torch.arange(r // 2, dtype=torch.float64, device="cpu")
    ramp = ((pairs - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    factor = scaling.attention_factor
    attention = 0.1 * math.log(scaling.factor) + 1.0 if factor == "paper" and scaling.factor > 1 else 1.0
    if not isinstance(factor, str):
        attention = float(factor)
    return (1 - ramp) * frequency + ramp * frequency / scaling.factor, attention


def rope_frequencies(spec: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies of a RoPE spec on the CPU, and its factor on cos and sin."""
    frequency, factor = scaled_frequencies(spec.scaling, spec.theta, spec.rotary_dim(head_dim))
    return frequency, factor


def frequencies_at(spec: Rope, head_dim: int, lengths: Tensor) -> tuple[Tensor, float]:
    """Frequencies for rows of these lengths: ``lengths.shape + (r/2,)`` float64, and the factor on cos and sin.

    For the scalings that depend on the length: dynamic NTK and LongRoPE.
    """
    scaling, r = spec.scaling, spec.rotary_dim(head_dim)
    n = lengths.to(torch.float64).unsqueeze(-1)
    exponent = torch.arange(0, r, 2, dtype=torch.float64, device=lengths.device) / r
    if isinstance(scaling, DynamicScaling):
        grown = scaling.factor * n / scaling.original_seq_len - (scaling.factor - 1)
        theta = spec.theta * grown.clamp_min(1.0) ** (r / (r - 2))  # grown <= 1 up to the original length
        return theta**-exponent, 1.0
    assert isinstance(scaling, LongRopeScaling)
    long, short = (
        torch.tensor(factors, dtype=torch.float64, device=lengths.device)
        for factors in (scaling.long_factor, scaling.short_factor)
    )
    return spec.theta**-exponent / torch.where(n > scaling.original_seq_len, long, short), scaling.attention_factor


def depends_on_length(spec: Rope) -> bool:
    """True where the frequencies change with the length of the row."""
    return isinstance(spec.scaling, DynamicScaling | LongRopeScaling)


def rope_tables(
    spec: Rope, head_dim: int, positions: Tensor, dtype: torch.dtype, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle.

    Args:
        positions: integers, shape (T,) or (B, T).
        dtype: the model's; the tables are float32, or float64 for a float64 model.
        lengths: the length of each position's row or document, of the shape of ``positions`` or a scalar; needed only
            where the scaling depends on it.

    Returns:
        cos, sin: shape positions.shape + (r/2,).
    """
    frequency, factor = frequencies_of(spec, head_dim, lengths)
    return tables_at(frequency, factor, positions, dtype)


def frequencies_of(spec: Rope, head_dim: int, lengths: Tensor | None = None) -> tuple[Tensor, float]:
    """Frequencies (r/2) float64, or ``lengths.shape + (r/2,)`` where they depend on the length; the factor on both."""
    if not depends_on_length(spec):
        return rope_frequencies(spec, head_dim)
    if lengths is None:
        raise ValueError(f"rope scaling {spec.scaling.kind_name}: depends on the length, and none was given")
    return frequencies_at(spec, head_dim, lengths)


def tables_at(frequency: Tensor, factor: float, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, positions.shape + (r/2,): float32, or float64 for a float64 model."""
    table = torch.float64 if dtype == torch.float64 else torch.float32
    wide = torch.float64 if positions.device.type != "mps" else torch.float32
    angle = positions.to(wide).unsqueeze(-1) * frequency.to(positions.device, wide)
    return (angle.cos() * factor).to(table), (angle.sin() * factor).to(table)


def spread(cos: Tensor, sin: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """The tables (..., r/2) as factors (..., r) of the channels and of their partners; see :func:`turn`."""
    if layout == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)


def turn(x: Tensor, own: Tensor, partner: Tensor, layout: str) -> Tensor:
    """``x · own + partner_of(x) · partner`` on the first r channels of x (..., T, D); the rest pass.

    Fewer passes over memory than pair by pair. ``own`` and ``partner`` broadcast to (..., T, r).
    """
    r = own.shape[-1]
    turned = (x if r == x.shape[-1] else x[..., :r]).to(own.dtype)
    swapped = turned.roll(r // 2, -1) if layout == "half" else turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    out = torch.addcmul(turned * own, swapped, partner).to(x.dtype)
    return out if r == x.shape[-1] else torch.cat((out, x[..., r:]), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Turn the first r channels of x; the rest pass.

    Args:
        x: (..., T, D) with the token axis second to last.
        cos, sin: broadcastable to (..., T, r/2).
        layout: ``half`` or ``interleaved``.
    """
    return turn(x, *spread(cos, sin, layout), layout)


def sinusoidal(spec: SinusoidalPosition, d: int, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Sinusoidal rows: positions.shape + (d,), in ``dtype``; an odd d drops the last cosine, or ends in a 0."""
    inclusive = spec.spacing == "inclusive"
    pairs = d // 2 if inclusive else (d + 1) // 2
    pair = torch.arange(pairs, dtype=torch.float64, device=positions.device)
    exponent = pair / (pairs - 1) if inclusive else 2 * pair / d
    angle = (positions + spec.offset).to(torch.float64).unsqueeze(-1) * spec.theta**-exponent
    if spec.layout == "half":
        rows = torch.cat((angle.sin(), angle.cos()), dim=-1)
    else:
        rows = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    return F.pad(rows, (0, max(0, d - rows.shape[-1])))[..., :d].to(dtype)


def query_factor(spec: ByPosition, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """``1 + beta · ln(1 + floor((p + first) / period))`` of every position, in ``dtype``."""
    steps = (positions + spec.first) // spec.period
    return (1.0 + spec.beta * torch.log1p(steps.to(torch.float64))).to(dtype)


def alibi_slopes(spec: Alibi, n_heads: int) -> list[float]:
    """The slope of each head, the multiplier included."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-spec.max_bias * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-spec.max_bias * i / (2 * power)) for i in range(1, 2 * (n_heads - power), 2)]
    return [spec.multiplier * slope for slope in slopes]


def alibi_bias(spec: Alibi, n_heads: int, query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
    """``-slope · |query - key|``, (1 or B, H, T, S), for positions (T,) or (B, T) and (S,) or (B, S)."""
    distance = (query.unsqueeze(-1) - key.unsqueeze(-2)).abs().to(dtype)
    distance = distance if distance.dim() == 3 else distance.unsqueeze(0)
    slopes = torch.tensor(alibi_slopes(spec, n_heads), dtype=torch.float64, device=query.device)
    return -slopes.to(dtype).reshape(1, -1, 1, 1) * distance.unsqueeze(1)


def t5_buckets(spec: T5Bias, query: Tensor, key: Tensor | None = None, *, causal: bool) -> Tensor:
    """The bucket of every (query, key) pair, (T, S) or (B, T, S); without ``key``, of the queries among themselves."""
    ahead = (query if key is None else key).unsqueeze(-2) - query.unsqueeze(-1)  # key minus query
    buckets, base = spec.n_buckets, torch.zeros_like(ahead)
    if causal:
        distance = (-ahead).clamp_min(0)
    else:
        buckets //= 2
        base = (ahead > 0).long() * buckets
        distance = ahead.abs()
    exact = buckets // 2
    far = torch.log(distance.clamp_min(1).double() / exact) / math.log(spec.max_distance / exact) * (buckets - exact)
    return base + torch.where(distance < exact, distance, (exact + far.long()).clamp_max(buckets - 1))
