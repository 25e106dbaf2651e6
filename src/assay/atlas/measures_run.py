"""Measures of a run: learning rate, warmup, decay, precision, tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assay.atlas.records import Model
from assay.atlas.subject import SETTINGS, Missing, Reading, Subject, measure, register_measure
from assay.recipe.roles import ParamRole

Readings = Iterator[Reading]


def _setting(name: str) -> None:
    def read(s: Subject) -> Readings:
        yield Reading(s.run(name))

    facts: dict[str, Any] = {
        "lr": lambda m: m.training.peak_lr,
        "weight_decay": lambda m: m.training.weight_decay,
        "grad_clip": lambda m: m.training.grad_clip,
        "z_loss": lambda m: m.training.z_loss if isinstance(m.training.z_loss, float) else None,
        "beta2": lambda m: m.training.beta2 if isinstance(m.training.beta2, float) else None,
        "warmup_steps": lambda m: m.training.warmup_steps,
    }
    register_measure(f"run.{name}", SETTINGS[name], read, facts.get(name))


for _name in SETTINGS:
    if _name != "decay_roles":
        _setting(_name)


def _steps(s: Subject) -> float:
    if "steps" in s.settings:
        return float(s.settings["steps"])
    if {"tokens", "batch_tokens"} <= s.settings.keys():
        return float(s.settings["tokens"] / s.settings["batch_tokens"])
    raise Missing("steps")


def _tokens(s: Subject) -> float:
    if "tokens" in s.settings:
        return float(s.settings["tokens"])
    if {"steps", "batch_tokens"} <= s.settings.keys():
        return float(s.settings["steps"] * s.settings["batch_tokens"])
    raise Missing("tokens")


def _warmup_share(m: Model) -> float | None:
    t = m.training
    steps = t.steps or (t.tokens / t.batch_tokens if t.tokens and t.batch_tokens else None)
    return t.warmup_steps / steps if t.warmup_steps and steps else None


@measure("run.warmup_share", "warmup over the run", _warmup_share)
def _(s: Subject) -> Readings:
    yield Reading(s.run("warmup_steps") / _steps(s))


def _per_param(m: Model) -> float | None:
    return m.training.tokens / m.params.total if m.training.tokens and m.params.total and not m.is_moe else None


@measure("run.tokens_per_param", "training tokens a parameter", _per_param)
def _(s: Subject) -> Readings:
    yield Reading(_tokens(s) / s.params.total)


def deepseek_lr(flops: float) -> float:
    """The best peak learning rate for a compute budget: 0.3118 · C^-0.125 (DeepSeek LLM, arXiv:2401.02954, eq. 1)."""
    return float(0.3118 * flops**-0.125)


def _lr_ratio(m: Model) -> float | None:
    t, n = m.training, m.params.total
    usable = t.peak_lr and t.tokens and n and m.kind == "dense" and (t.optimizer or "").startswith("adam")
    return t.peak_lr / deepseek_lr(6.0 * n * t.tokens) if usable and t.peak_lr and n and t.tokens else None


@measure("run.lr_ratio", "peak learning rate over 0.3118 C^-0.125, C = 6 · parameters · tokens", _lr_ratio)
def _(s: Subject) -> Readings:
    yield Reading(s.run("lr") / deepseek_lr(6.0 * s.params.total * _tokens(s)))


@measure("run.decayed", "roles that decay and usually do not")
def _(s: Subject) -> Readings:
    roles = {str(r) for r in s.run("decay_roles")}
    known = {str(r) for r in ParamRole}
    unknown = sorted(roles - known)
    if unknown:
        raise ValueError(f"decay_roles: no such role: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    odd = sorted(r for r in roles if not ParamRole(r).decays)
    yield Reading(", ".join(odd) or "none")


@measure("tp.remainder", "what is left when a size is divided among the tensor-parallel ranks")
def _(s: Subject) -> Readings:
    ranks = s.run("tp")
    yield Reading(s.recipe.vocab_size % ranks, f"vocab_size {s.recipe.vocab_size}")
    for name, a in s.attentions:
        yield Reading(a.n_heads % ranks, f"{name}: n_heads {a.n_heads}")
        uneven = min(a.n_kv_heads % ranks, ranks % a.n_kv_heads)  # fewer heads than ranks are copied, in equal numbers
        yield Reading(uneven, f"{name}: n_kv_heads {a.n_kv_heads}")
    for name, f in s.ffns:
        yield Reading(f.d_ff % ranks, f"{name}: d_ff {f.d_ff}")


@measure("tp.kv_copies", "copies of each key and value head over the tensor-parallel ranks")
def _(s: Subject) -> Readings:
    ranks = s.run("tp")
    for name, a in s.attentions:
        copies = max(1.0, ranks / a.n_kv_heads) if a.n_kv_heads % ranks else 1.0
        yield Reading(copies, f"{name}: {a.n_kv_heads} KV heads")
