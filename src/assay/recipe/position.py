"""Positions: inside attention (RoPE or none) and on the embedding (learned, sinusoidal or none)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, SerializeAsAny, model_validator

from assay.recipe.base import Part, pick, refuse
from assay.recipe.roles import ParamRole


class RopeScaling(Part):
    """How RoPE's frequencies change to reach past the trained context."""

    slot = "rope_scaling"


RopeScalingSlot = Annotated[SerializeAsAny[RopeScaling], pick(RopeScaling)]


class NoScaling(RopeScaling):
    """The frequencies as they are."""

    kind: Literal["none"] = "none"


class LinearScaling(RopeScaling):
    """Position interpolation: every frequency divided by ``factor`` (Chen et al. 2023, arXiv:2306.15595, eq. 4)."""

    kind: Literal["linear"] = "linear"
    factor: PositiveFloat


class NtkScaling(RopeScaling):
    """NTK-aware: theta times ``factor^(r / (r - 2))``, r the rotary size (YaRN paper, arXiv:2309.00071, §3.1)."""

    kind: Literal["ntk"] = "ntk"
    factor: PositiveFloat


class Llama3Scaling(RopeScaling):
    """Three bands by wavelength: kept, blended, divided by ``factor`` (Llama 3.1; The Llama 3 Herd, arXiv:2407.21783).

    With L = ``original_seq_len`` and turns = L · frequency / 2π: more than ``high_freq_factor`` turns keep the
    frequency, fewer than ``low_freq_factor`` divide it, between them the two are blended linearly in turns.
    """

    kind: Literal["llama3"] = "llama3"
    factor: PositiveFloat
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_seq_len: PositiveInt

    @model_validator(mode="after")
    def _bands(self) -> Llama3Scaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise refuse("high_freq_factor", "not above low_freq_factor", self.high_freq_factor, "> low_freq_factor")
        return self


class YarnScaling(RopeScaling):
    """YaRN: blend by turns per pair index, and scale cos and sin by ``attention_factor`` (arXiv:2309.00071, §3.2-3.4).

    ``attention_factor``: a number, or ``paper`` for 0.1·ln(factor) + 1. ``beta_fast`` and ``beta_slow`` are the turns
    that bound the blend; ``rounded`` rounds the bounding pair indices outward, as the released code does.
    """

    kind: Literal["yarn"] = "yarn"
    factor: PositiveFloat
    original_seq_len: PositiveInt
    beta_fast: PositiveFloat = 32.0
    beta_slow: PositiveFloat = 1.0
    attention_factor: PositiveFloat | Literal["paper"] = "paper"
    rounded: bool = True

    @model_validator(mode="after")
    def _bands(self) -> YarnScaling:
        if self.beta_fast <= self.beta_slow:
            raise refuse("beta_fast", "not above beta_slow", self.beta_fast, "> beta_slow")
        return self


class DynamicScaling(RopeScaling):
    """Dynamic NTK: past ``original_seq_len`` theta grows with the length (YaRN paper, arXiv:2309.00071, section 3.3).

    theta' = theta · (factor · n / L - (factor - 1))^(r / (r - 2)) for n > L = ``original_seq_len``, with n the length
    of the row (or, with a cache, the length it was made for); theta itself up to L.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Annotated[float, Field(ge=1.0)]
    original_seq_len: PositiveInt


class LongRopeScaling(RopeScaling):
    """Each frequency divided by a searched factor of its own (LongRoPE, Ding et al. 2024, arXiv:2402.13753, eq. 2).

    ``short_factor`` serves rows up to ``original_seq_len``, ``long_factor`` longer ones; each has one number a pair.
    ``attention_factor`` multiplies cos and sin.
    """

    kind: Literal["longrope"] = "longrope"
    short_factor: Annotated[tuple[PositiveFloat, ...], Field(strict=False, min_length=1)]
    long_factor: Annotated[tuple[PositiveFloat, ...], Field(strict=False, min_length=1)]
    original_seq_len: PositiveInt
    attention_factor: PositiveFloat

    @model_validator(mode="after")
    def _paired(self) -> LongRopeScaling:
        if len(self.short_factor) != len(self.long_factor):
            message = f"{len(self.long_factor)} factors, short_factor has {len(self.short_factor)}"
            raise refuse("long_factor", message, list(self.long_factor), "one number a pair in both")
        return self


class Position(Part):
    """What a mixer knows about order. Required on every attention: ``none`` is a choice (NoPE), not a default."""

    slot = "position"


PositionSlot = Annotated[SerializeAsAny[Position], pick(Position)]


class NoPosition(Position):
    """NoPE: the causal mask alone carries order."""

    kind: Literal["none"] = "none"


class Rope(Position):
    """Rotary positions (Su et al. 2021, arXiv:2104.09864, eq. 34).

    Pair k of the first ``fraction · head_dim`` = r channels turns by ``position · theta^(-2k/r)`` radians. ``layout``:
    ``half`` pairs channel k with k + r/2 (GPT-NeoX, Llama in Hugging Face), ``interleaved`` pairs 2k with 2k + 1
    (the paper, GPT-J). The rotary size r must be an even integer.
    """

    kind: Literal["rope"] = "rope"
    theta: Annotated[float, Field(gt=1.0)] = 10_000.0
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    layout: Literal["half", "interleaved"] = "half"
    scaling: RopeScalingSlot = NoScaling()

    def rotary_dim(self, head_dim: int) -> int:
        """Number of channels that turn; raises ValueError unless an even integer of at least 2."""
        exact = self.fraction * head_dim
        size = round(exact)
        if abs(exact - size) > 1e-6 or size % 2 or size < 2:
            raise ValueError(f"rotary size {self.fraction:g} x {head_dim} = {exact:g} is not an even integer >= 2")
        return size


class Alibi(Position):
    """A penalty on scores that grows with distance (Press et al. 2021, arXiv:2108.12409, section 3).

    Head i of n (a power of two) has slope ``2^(-max_bias · i / n)``, i from 1; other counts take the slopes of the
    power of two below, then every second of the one above. ``multiplier`` scales every slope (Falcon:
    1/sqrt(head_dim)).
    """

    kind: Literal["alibi"] = "alibi"
    max_bias: PositiveFloat = 8.0
    multiplier: PositiveFloat = 1.0


class T5Bias(Position):
    """A learned bias a head for each bucket of distances (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    Half the buckets (of a direction, where the span looks both ways) are exact distances, the rest grow
    logarithmically up to ``max_distance``. ``table``: a table of the layer's ``own``, or that of the ``first`` layer,
    as T5 shares it.
    """

    kind: Literal["t5"] = "t5"
    n_buckets: Annotated[int, Field(ge=4)] = 32
    max_distance: PositiveInt = 128
    table: Literal["own", "first"] = "own"

    @model_validator(mode="after")
    def _wide(self) -> T5Bias:
        if self.max_distance <= self.n_buckets // 2:
            raise refuse("max_distance", "not beyond the exact buckets", self.max_distance, f"> {self.n_buckets // 2}")
        if self.n_buckets % 4:
            raise refuse("n_buckets", "not a multiple of 4", self.n_buckets, "8, 16, 32, ...")
        return self

    @property
    def matrix_roles(self) -> tuple[ParamRole, ...]:
        """The table's role, where the layer has one."""
        return (ParamRole.POSITION,) if self.table == "own" else ()


class EmbeddingPosition(Part):
    """Positions added to the embedding, once."""

    slot = "embedding_position"


EmbeddingPositionSlot = Annotated[SerializeAsAny[EmbeddingPosition], pick(EmbeddingPosition)]


class NoEmbeddingPosition(EmbeddingPosition):
    """Nothing is added."""

    kind: Literal["none"] = "none"


class LearnedPosition(EmbeddingPosition):
    """A learned row for each position (GPT-2). ``offset`` unused rows come first (OPT has 2).

    The table has ``max_seq_len + offset`` rows; position p reads row ``p + offset``.
    """

    kind: Literal["learned"] = "learned"
    offset: NonNegativeInt = 0


class SinusoidalPosition(EmbeddingPosition):
    """Fixed sines and cosines (Vaswani et al. 2017, arXiv:1706.03762, §3.5).

    ``interleaved``: channel 2k is sin(p · theta^(-2k/d)), 2k + 1 its cosine (the paper); ``half``: all sines, then all
    cosines (tensor2tensor). ``spacing``: ``inclusive`` takes theta^(-k/(n - 1)) for pair k of n = floor(d/2), so that
    both 1 and 1/theta are among the frequencies, and leaves an odd channel 0 (tensor2tensor, fairseq). ``offset``: the
    number of the first position (XGLM has 2).
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: Annotated[float, Field(gt=1.0)] = 10_000.0
    layout: Literal["half", "interleaved"] = "interleaved"
    spacing: Literal["paper", "inclusive"] = "paper"
    offset: NonNegativeInt = 0
