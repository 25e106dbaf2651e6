"""Tokens against parameters: Chinchilla's ratio and its parametric fit (Hoffmann et al. 2022, arXiv:2203.15556)."""

from __future__ import annotations

from typing import Any, NamedTuple

TOKENS_PER_PARAM = 20  # table 3, approach 1: from 20.0 at 400M to 21.6 at 10T


class Fit(NamedTuple):
    """``L(N, D) = E + A / N^alpha + B / D^beta``, nats a token (equation 10; approach 3, appendix D.3)."""

    e: float = 1.69
    a: float = 406.4
    b: float = 410.7
    alpha: float = 0.34
    beta: float = 0.28

    def loss(self, params: float, tokens: float) -> float:
        return float(self.e + self.a / params**self.alpha + self.b / tokens**self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Parameters and tokens of least loss under ``6 N D = flops`` (equation 4)."""
        g = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        nd = flops / 6
        params = g * nd ** (self.beta / (self.alpha + self.beta))
        return params, nd / params


CHINCHILLA = Fit()


def scaling_report(params: int, tokens: float | None) -> dict[str, Any]:
    """``scaling`` of a budget: the 20:1 budget of these parameters, and where the given tokens stand."""
    ratio_tokens = TOKENS_PER_PARAM * params
    out: dict[str, Any] = {
        "params": params,
        "chinchilla_tokens": ratio_tokens,
        "chinchilla_flops": 6 * params * ratio_tokens,
    }
    if tokens is None:
        return out
    flops = 6 * params * tokens
    best_params, best_tokens = CHINCHILLA.optimum(flops)
    return {
        **out,
        "tokens": tokens,
        "tokens_per_param": tokens / params,
        "times_chinchilla": tokens / ratio_tokens,
        "flops_6nd": flops,
        "petaflop_s_days": flops / (1e15 * 86_400),
        "fit_loss": CHINCHILLA.loss(params, tokens),
        "fit_optimum": {
            "params": best_params,
            "tokens": best_tokens,
            "loss": CHINCHILLA.loss(best_params, best_tokens),
        },
    }
