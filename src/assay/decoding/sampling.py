"""From logits to the next token: a penalty, filters in a fixed order, and a draw whose stream is the row's own.

B rows, V vocabulary. Order: repetition penalty, temperature, top-k, top-p, min-p, renormalise, draw. Filters set what
they bar to -inf; the most likely token always stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError, model_validator
from torch import Tensor

from assay.decoding.errors import DecodingError
from assay.recipe.base import Spec, problems_of, refuse

_BITS = 48  # of a draw: u · total stays below total in float64


class Sampling(Spec):
    """How a token is chosen.

    ``temperature`` 0 is greedy: the largest logit, the lowest id of a tie. Otherwise ``softmax(z / temperature)``, cut
    by ``top_k`` (a number, or ``all``), ``top_p`` and ``min_p``. ``repetition_penalty`` acts in both.
    """

    temperature: NonNegativeFloat = 0.0
    top_k: PositiveInt | Literal["all"] = "all"
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _effective(self) -> Sampling:
        if self.temperature == 0:
            for name, idle in (("top_k", "all"), ("top_p", 1.0), ("min_p", 0.0)):
                value = getattr(self, name)
                if value != idle:
                    raise refuse(name, "has no effect at temperature 0, where the best token is taken", value, _HOW)
        return self

    @classmethod
    def of(cls, **fields: Any) -> Sampling:
        """The options, checked. Raises DecodingError naming each faulty one."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise DecodingError(problems_of(cls, error), "sampling") from None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


_HOW = "a temperature above 0, or leave it out"


def penalise(z: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """``z / θ`` where z > 0, else ``z · θ``, for the tokens already there (CTRL, Keskar et al. 2019,
    arXiv:1909.05858, §4.1; the sign rule is the customary one, so that θ > 1 always lowers).

    Args:
        z: logits (B, V).
        seen: (B, V) bool, True for tokens of the prompt and of what was written; pads never count.
    """
    return torch.where(seen, torch.where(z > 0, z / penalty, z * penalty), z)


def keep_top_k(z: Tensor, k: int) -> Tensor:
    """The k largest of each row (Fan et al. 2018, arXiv:1805.04833, §5.1); ties with the k-th stay."""
    if k >= z.shape[-1]:
        return z
    edge = torch.topk(z, k, dim=-1).values[..., -1:]
    return z.masked_fill(z < edge, -torch.inf)


def keep_top_p(z: Tensor, p: float) -> Tensor:
    """The smallest set of likeliest tokens with mass ≥ p (Holtzman et al. 2020, arXiv:1904.09751, eq. 2).

    A token stays if the mass before it is below p; equal tokens are ranked by id.
    """
    ranked, order = torch.sort(z, dim=-1, descending=True, stable=True)
    mass = torch.softmax(ranked, dim=-1)
    barred = mass.cumsum(-1) - mass >= p
    barred[..., 0] = False
    return z.masked_fill(torch.zeros_like(barred).scatter(-1, order, barred), -torch.inf)


def keep_min_p(z: Tensor, share: float) -> Tensor:
    """Tokens with ``p ≥ share · max p`` (Nguyen et al. 2024, arXiv:2407.01082, §3)."""
    p = torch.softmax(z, dim=-1)
    return z.masked_fill(p < share * p.amax(-1, keepdim=True), -torch.inf)


def filtered(logits: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """Logits after penalty, temperature and filters: their softmax is what is drawn from. Float64 where there is one.

    ``seen`` as in :func:`penalise`; needed where the penalty is not 1.
    """
    z = logits.double() if logits.device.type != "mps" else logits.cpu().double()
    if sampling.repetition_penalty != 1:
        assert seen is not None
        z = penalise(z, seen.to(z.device), sampling.repetition_penalty)
    if sampling.is_greedy:
        return z
    if sampling.temperature < 1e-200:  # from 0 down, where the division could overflow
        z = z - z.amax(-1, keepdim=True)
    z = z / sampling.temperature
    if sampling.top_k != "all":
        z = keep_top_k(z, sampling.top_k)
    if sampling.top_p < 1:
        z = keep_top_p(z, sampling.top_p)
    return keep_min_p(z, sampling.min_p) if sampling.min_p > 0 else z


def uniform(seed: int, step: int) -> float:
    """The draw of a stream at a step, in [0, 1): a hash of both, so nothing else can move it."""
    digest = hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) / 2.0**_BITS


def choose(logits: Tensor, sampling: Sampling, seeds: Sequence[int], step: int, seen: Tensor | None = None) -> Tensor:
    """The next token of each row, (B,).

    Row i inverts the distribution function (tokens by id) at ``uniform(seeds[i], step)``: what it gets depends on its
    own logits and seed, not on the rows beside it. V where a row's logits are no numbers.
    """
    if sampling.is_greedy and sampling.repetition_penalty == 1:
        return logits.argmax(-1)
    z = filtered(logits, sampling, seen)
    if sampling.is_greedy:
        return z.argmax(-1).to(logits.device)
    heights = torch.softmax(z, dim=-1).cumsum(-1)
    u = torch.tensor([uniform(seed, step) for seed in seeds], dtype=z.dtype, device=z.device).unsqueeze(-1)
    return torch.searchsorted(heights, u * heights[..., -1:], right=True).squeeze(-1).to(logits.device)
