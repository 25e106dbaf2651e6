"""Optimizer ledgers: which bytes a parameter costs in training, by tensor class.

A plan is a rule and a ledger, ``adamw-megatron``; the rule alone takes the ledger that is usual for its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from assay.cost.rules import Tensor
from assay.recipe.errors import nearest

_PRECONDITIONED = 10_000  # SOAP: larger sides are left alone (max_precond_dim of the authors' code)


class Ledger(NamedTuple):
    """Bytes of an element of each tensor class; 0 means the width of the dtype."""

    weights: int
    gradients: int
    master: int | None
    state: int
    text: str


LEDGERS: dict[str, Ledger] = {
    "pure": Ledger(0, 0, None, 0, "weights, gradients and state all in the dtype"),
    "master": Ledger(0, 0, 4, 4, "16-bit weights and gradients, float32 master copy and state"),
    "megatron": Ledger(0, 4, 4, 4, "16-bit weights, float32 gradients, master copy and state (Megatron-LM's 18 bytes)"),
    "autocast": Ledger(4, 4, None, 4, "float32 weights, gradients and state; matrix products run in 16 bits"),
}


class Rule(NamedTuple):
    """Numbers of state an element: of hidden matrices, and of everything else."""

    hidden: int
    other: int
    source: str


RULES: dict[str, Rule] = {
    "adamw": Rule(2, 2, "two moments (Loshchilov & Hutter 2019, arXiv:1711.05101)"),
    "muon": Rule(1, 2, "one momentum for hidden matrices, AdamW for the rest (Jordan et al. 2024)"),
    "normuon": Rule(1, 2, "Muon, and one number a row of hidden matrices (Li et al. 2025, arXiv:2510.05491)"),
    "soap": Rule(2, 2, "two moments, and for hidden matrices two factors and their bases (arXiv:2409.11321)"),
    "momentum": Rule(1, 1, "SGD with momentum"),
    "lion": Rule(1, 1, "one momentum (Chen et al. 2023, arXiv:2302.06675)"),
    "sgd": Rule(0, 0, "no state"),
}


class OptimizerPlan(NamedTuple):
    """A rule with its widths filled in for a dtype."""

    name: str
    rule: str
    ledger: str
    weights: int
    gradients: int
    master: int
    state: int

    @property
    def autocast(self) -> bool:
        return self.ledger == "autocast"

    def bytes_per_param(self, *, hidden: bool = False) -> dict[str, int]:
        """Bytes of one parameter, of a hidden matrix or of anything else (SOAP's factors, NorMuon's rows apart)."""
        rule = RULES[self.rule]
        out = {
            "weights": self.weights,
            "gradients": self.gradients,
            "master": self.master,
            "optimizer": self.state * (rule.hidden if hidden else rule.other),
        }
        return {**out, "total": sum(out.values())}

    def describe(self) -> str:
        """``2 weights + 2 gradients + 4 master + 8 optimizer = 16 bytes a parameter``."""

        def words(each: dict[str, int]) -> str:
            terms = " + ".join(f"{n} {name}" for name, n in each.items() if n and name != "total")
            return f"{terms} = {each['total']} bytes a parameter"

        plain, hidden = self.bytes_per_param(), self.bytes_per_param(hidden=True)
        return words(plain) if plain == hidden else f"{words(plain)}; hidden matrices {words(hidden)}"


def optimizer_names() -> tuple[str, ...]:
    """Every plan: a rule alone, or with a ledger."""
    return (*RULES, *(f"{rule}-{ledger}" for rule in RULES for ledger in LEDGERS))


def find_optimizer(name: str | None, dtype: str, width: int) -> OptimizerPlan:
    """A plan by name for weights of a dtype; None is ``adamw``.

    The rule alone means: in fp32, everything in fp32 (AdamW: 4+4+8 = 16 bytes); in 16 bits, a float32 master copy and
    state (2+2+4+8 = 16). Both are 16; the ledger says which.

    Raises:
        ValueError: unknown name, or a ledger that makes no sense for the dtype.
    """
    text = "adamw" if name is None else name.strip().lower().replace("_", "-")
    rule, _, ledger = text.partition("-")
    if rule not in RULES or (ledger and ledger not in LEDGERS):
        close = nearest(text, optimizer_names())
        hint = f" (nearest: {close})" if close else ""
        raise ValueError(
            f"optimizer: no such plan {name!r}{hint}; known: {', '.join(RULES)}, each alone or with "
            f"{', '.join('-' + each for each in LEDGERS)}"
        )
    if dtype == "fp32" and ledger not in ("", "pure"):
        raise ValueError(f"optimizer: {name!r} has no meaning in fp32; allowed: {rule}, or dtype bf16 or fp16")
    ledger = ledger or ("pure" if dtype == "fp32" else "master")
    found = LEDGERS[ledger]
    return OptimizerPlan(
        name=f"{rule}-{ledger}",
        rule=rule,
        ledger=ledger,
        weights=found.weights or width,
        gradients=found.gradients or width,
        master=0 if found.master is None else found.master,
        state=found.state or width,
    )


class Held(NamedTuple):
    """Parameters that a device holds: all, those in hidden matrices, tensors, state beyond a number an element (SOAP's
    factors), and rows of hidden matrices.
    """

    params: int = 0
    hidden: int = 0
    tensors: int = 0
    factors: int = 0
    rows: int = 0

    def plus(self, other: Held, times: int = 1) -> Held:
        return Held(*(a + b * times for a, b in zip(self, other, strict=True)))


def held_of(tensors: Iterable[Tensor], tp: int = 1, kv_rows: int = 0) -> Held:
    """What a device of ``tp`` holds of these parameters; of keys and values at least ``kv_rows`` rows, one head."""
    params = hidden = count = factors = rows = 0
    for t in tensors:
        shape = local_shape(t, tp)
        if kv_rows and t.name.startswith(_KEYS_VALUES, t.name.find("mixer")):
            shape = (min(t.shape[0], max(shape[0], kv_rows)), *shape[1:])
        n = math.prod(shape)
        params, count = params + n, count + 1
        if t.role.is_hidden_matrix and len(shape) == 2:
            hidden += n
            rows += shape[0]
            factors += sum(2 * side * side for side in shape if side <= _PRECONDITIONED)
    return Held(params, hidden, count, factors, rows)


_ROWS = ("attn_in", "attn_value", "ffn_in", "embedding", "head")  # split over outputs, or over the vocabulary
_COLUMNS = ("attn_out", "ffn_out")  # split over inputs
_KEYS_VALUES = ("mixer.k.", "mixer.v.")
_SPLIT_VECTORS = ("q.bias", "k.bias", "v.bias", "gate.bias", "up.bias")


def local_shape(t: Tensor, tp: int) -> tuple[int, ...]:
    """A parameter's shape on one of ``tp`` devices (Shoeybi et al. 2019, arXiv:1909.08053, section 3).

    Projections into a sublayer and the tables of tokens are split over their rows, projections out of it over their
    columns; a bias goes with its outputs; norms of the stream are held whole, norms inside the split are split.
    """
    if tp == 1 or not t.shape:
        return t.shape
    role, name = str(t.role), t.name
    if role in _ROWS:
        return (-(-t.shape[0] // tp), *t.shape[1:])
    if role in _COLUMNS:
        return (*t.shape[:-1], -(-t.shape[-1] // tp))
    inside = ("inner_norm.", "act_norm.") if ".residual." not in name else ()
    split = role == "sink" or name == "head.bias" or name.endswith(_SPLIT_VECTORS) or any(s in name for s in inside)
    per_head = len(t.shape) == 2 and role in ("norm_gain", "bias")
    return (-(-t.shape[0] // tp), *t.shape[1:]) if split or per_head else t.shape


def state_bytes(plan: OptimizerPlan, held: Held) -> int:
    """Bytes of optimizer state; step counters (4 bytes a tensor in torch) are not in it."""
    rule = RULES[plan.rule]
    n = rule.hidden * held.hidden + rule.other * (held.params - held.hidden)
    apart = {"soap": held.factors, "normuon": held.rows}
    return plan.state * (n + apart.get(plan.rule, 0))


class StateBytes(NamedTuple):
    """Bytes by tensor class on one device."""

    weights: int
    gradients: int
    master: int
    optimizer: int

    @property
    def total(self) -> int:
        return sum(self)


def sharded(plan: OptimizerPlan, held: Held, dp: int = 1, zero: int = 0) -> StateBytes:
    """Weights, gradients, master copy and state of one of ``dp`` data-parallel devices.

    ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, figure 1): stage 1 divides master copy and state by dp, stage 2
    also the gradients, stage 3 (FSDP) also the weights. With 2+2+12 bytes: 16, 4+12/dp, 2+14/dp, 16/dp a parameter.
    """

    def part(n: int, from_stage: int) -> int:
        return -(-n // dp) if zero >= from_stage else n

    return StateBytes(
        weights=part(plan.weights * held.params, 3),
        gradients=part(plan.gradients * held.params, 2),
        master=part(plan.master * held.params, 1),
        optimizer=part(state_bytes(plan, held), 1),
    )
