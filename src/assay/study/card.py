"""The card of a change: five dimensions side by side, so that no gain is read without its price."""

from __future__ import annotations

from typing import Any

from assay.study.verdict import Verdict

Record = dict[str, Any]
Value = int | float | str | None


def card(baseline: Record, change: Record, verdict: Verdict) -> list[Record]:
    """Quality, memory, compute, bandwidth, stability of two arms of a comparison (their records).

    Rows marked ``timing`` depend on the machine's mood; all others are the same on every rerun.
    """
    a, b = baseline, change
    return [
        _dimension("quality", *_quality(a, b, verdict)),
        _dimension(
            "memory",
            _same(a, b, "parameters", "", "params"),
            _same(a, b, "weights", "bytes", "weights_bytes", "fp32"),
            _same(a, b, "optimizer state", "bytes", "optimizer_bytes", "fp32, beside weights and gradients"),
            _same(a, b, "KV cache a token", "bytes", "kv_bytes_per_token", "fp32"),
            _same(
                a, b, "peak memory of a training process", "MB", "peak_rss_mb", "measured, interpreter included", True
            ),
        ),
        _dimension(
            "compute",
            _same(a, b, "training FLOPs a token", "FLOP", "flops_per_token", "forward and backward, full square"),
            _same(a, b, "decoding FLOPs a token", "FLOP", "decode_flops", "at the study's length, legal keys"),
            _same(a, b, "CPU time of all runs", "s", "cpu_seconds", "tuning and reporting", True),
        ),
        _dimension(
            "bandwidth",
            _row("step time, median", "ms", _median(a), _median(b), "CPU time of an update", True),
            _same(a, b, "decode intensity", "FLOP/byte", "decode_intensity", "batch 1: weights and cache read once"),
        ),
        _dimension("stability", *_stability(a, b)),
    ]


def _dimension(name: str, *rows: Record) -> Record:
    return {"dimension": name, "rows": list(rows)}


def _row(measure: str, unit: str, baseline: Value, change: Value, note: str = "", timing: bool = False) -> Record:
    ratio = None
    if isinstance(baseline, int | float) and isinstance(change, int | float) and baseline:
        ratio = change / baseline
    out = {"measure": measure, "unit": unit, "baseline": baseline, "change": change, "ratio": ratio, "note": note}
    return {**out, "timing": True} if timing else out


def _same(a: Record, b: Record, measure: str, unit: str, key: str, note: str = "", timing: bool = False) -> Record:
    return _row(measure, unit, a.get(key), b.get(key), note, timing)


def _median(arm: Record) -> float | None:
    return None if arm["step_ms"] is None else float(arm["step_ms"]["median"])


def _quality(a: Record, b: Record, verdict: Verdict) -> list[Record]:
    note = f"{verdict.word}; no interval: a reporting seed failed"
    if verdict.effect is not None:
        w = verdict.effect.welch
        low, high = w.interval
        note = f"{verdict.word}: {w.nats:+.3f} ({w.confidence:.0%} interval {low:+.3f} to {high:+.3f})"
    spread = "standard deviation over fresh seeds"
    return [
        _row("validation loss, mean", "nats/byte", a["mean"], b["mean"], note),
        _row("spread over seeds", "nats/byte", a["sd"], b["sd"], spread),
        _row(
            "best tuning loss",
            "nats/byte",
            a["l_star"],
            b["l_star"],
            "lowest mean over the grid, chosen after the fact",
        ),
    ]


def _stability(a: Record, b: Record) -> list[Record]:
    breaks = f"LR-to-divergence: {a['lr_to_divergence']['text']} and {b['lr_to_divergence']['text']}"
    sensitive = "mean over the grid of min(loss, initial loss) less the best (Wortsman et al. 2023)"
    if a["never_learned"] or b["never_learned"]:
        sensitive += "; near zero for an arm that never learned"
    good = [arm["lr_to_divergence"]["last_good"] for arm in (a, b)]
    return [
        _row("largest stable learning rate", "", good[0], good[1], breaks),
        _same(a, b, "LR sensitivity", "nats", "lr_sensitivity", sensitive),
        _same(a, b, "LR sensitivity from the best rate up", "nats", "lr_sensitivity_high"),
        _row("fresh seeds that learn", "", _survival(a), _survival(b), "at the selected rate"),
        _same(a, b, "largest attention logit", "", "max_logit", "over training, fresh seeds"),
        _same(a, b, "largest gradient norm", "", "grad_norm_max", "before clipping, fresh seeds"),
    ]


def _survival(arm: Record) -> str:
    k, n = arm["alive"]
    return f"{k} of {n}"
