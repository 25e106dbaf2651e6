"""The parts of ``assay budget`` beyond counts: findings, memory of a device, intensity, time, plan, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_LEDGER = ("weights", "gradients", "master", "optimizer", "activations", "gathered")
_MODES = ("train", "prefill", "decode")


def print_findings(page: Console, values: Mapping[str, Any]) -> None:
    """What the shape, the plan or the device make worse than it need be, each with its fix."""
    from assay.cli.tables import heading, indented, pairs

    found = values.get("findings") or ()
    if not found:
        return
    page.print()
    page.print(heading("Findings"))
    rows = [(f["severity"], [f"{f['place']}: {f['message']}", f"fix: {f['fix']}"]) for f in found]
    page.print(indented(pairs(rows)))


def print_more(page: Console, values: Mapping[str, Any]) -> None:
    """What is there of memory, intensity, time, plan and tokens."""
    _memory(page, values)
    _intensity(page, values)
    _time(page, values)
    _plan(page, values)
    _tokens(page, values)


def _memory(page: Console, values: Mapping[str, Any]) -> None:
    from assay.cli import numbers
    from assay.cli.tables import heading, indented, ruled

    train, serve = values["memory"].get("train"), values["memory"].get("inference")
    if not train or not serve:
        return
    page.print()
    page.print(heading(f"Memory of one device in training, {train['optimizer']}: {train['ledger']}"))
    total = train["total_bytes"]
    parts = [(k, train.get(f"{k}_bytes")) for k in _LEDGER]
    rows = [(k, numbers.size(n), numbers.share(n, total)) for k, n in parts if n]
    rows.append(("peak", numbers.size(train["peak_bytes"]), _fits(train)))
    page.print(indented(ruled(("held", "", ""), rows, right=(2,))))
    kept = values["memory"]["activations"]
    recomputed = ", ".join(f"{k} {numbers.short_size(kept[f'{k}_bytes'])}" for k in ("none", "selective", "full"))
    page.print(indented(f"activations by what is recomputed: {recomputed}"))
    page.print()
    page.print(heading("Memory of one device in serving"))
    keys = (("weights", "weights_bytes"), ("cache", "cache_bytes"), ("prefill works in", "prefill_working_bytes"))
    rows = [(name, numbers.size(serve[key]), numbers.share(serve[key], serve["total_bytes"])) for name, key in keys]
    rows.append(("in all", numbers.size(serve["total_bytes"]), _fits(serve)))
    page.print(indented(ruled(("held", "", ""), rows, right=(2,))))


def _fits(held: Mapping[str, Any]) -> str:
    return {True: "fits", False: "does not fit"}.get(held.get("fits"), "")  # type: ignore[arg-type]


def _intensity(page: Console, values: Mapping[str, Any]) -> None:
    from assay.cli.tables import heading, indented, ruled

    found = {mode: values["intensity"][mode] for mode in _MODES if mode in values["intensity"]}
    if not found:
        return
    by_mode = {mode: {row["op"]: row for row in each["by_op"]} for mode, each in found.items()}
    ops = list(dict.fromkeys(op for each in by_mode.values() for op in each))
    page.print()
    page.print(heading("FLOPs a byte, and the share of the mode's bytes"))
    rows = [(op.replace("_", " "), *(_cell(by_mode[mode].get(op)) for mode in found)) for op in ops]
    rows.append(("all", *(_ratio(each["intensity"]) for each in found.values())))
    page.print(indented(ruled(("operation", *found), rows, right=range(1, len(found) + 1))))
    if values.get("hardware"):
        ridge, name = values["hardware"]["ridge_flops_per_byte"], values["hardware"]["name"]
        page.print(indented(f"{name} is limited by compute above {ridge:,.0f} FLOPs a byte in {values['dtype']}"))


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    share = f"({row['bytes_share']:.0%})"
    return share if row["intensity"] is None else f"{_ratio(row['intensity'])} {share}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(page: Console, values: Mapping[str, Any]) -> None:
    from assay.cli.tables import heading, indented, pairs, ruled

    time = values["time"]
    rows = [
        (
            {"train": "training step", "prefill": "prefill", "decode": "a decoded token"}[mode],
            seconds(each["seconds"]), each["bound"], f"{each['tokens_per_s']:,.0f}",
        )
        for mode in _MODES
        if (each := time.get(mode))
    ]  # fmt: skip
    if rows:
        page.print()
        page.print(heading(f"Time at least, on {values['hardware']['name']}"))
        page.print(indented(ruled(("what", "at least", "limited by", "tokens/s at most"), rows, right=(1, 3))))
    more: list[tuple[str, str]] = []
    if run := time.get("training"):
        whole = f"{run['tokens']:.3g} tokens, {run['flops']:.3g} FLOP"
        days = f"{run['days_at_peak']:,.3g} days at the peak of {run['devices']:,} devices"
        if "days" in run:
            days = f"{run['days']:,.3g} days at MFU {run['mfu']:g}; {days}"
        more += [("whole training", f"{whole}: {days}")]
    if measured := time.get("measured"):
        more += [("measured", ", ".join(f"{k} {v:.3g}" for k, v in measured.items() if isinstance(v, int | float)))]
    if more:
        page.print(indented(pairs(more)))


def seconds(value: float) -> str:
    """``2.05 s``, ``3.55 ms``."""
    return f"{value:,.3g} s" if value >= 1 else f"{1e3 * value:,.3g} ms"


def _plan(page: Console, values: Mapping[str, Any]) -> None:
    from assay.cli import numbers
    from assay.cli.tables import heading, indented, pairs

    plan = values["parallel"]
    if not plan or plan.get("devices", 1) == 1:
        return
    page.print()
    words = ", ".join(f"{k}={v}" for k, v in plan["plan"].items())
    page.print(heading(f"Plan: {plan['devices']:,} devices, {words}"))
    sent = plan["communication"]
    rows = [("bubble", f"{plan['bubble']:.1%} of a step")]
    rows += [
        (f"sent, {k}", numbers.size(sent[f"{k}_bytes"])) for k in ("tensor", "data", "pipeline") if sent[f"{k}_bytes"]
    ]
    page.print(indented(pairs(rows)))


def _tokens(page: Console, values: Mapping[str, Any]) -> None:
    from assay.cli.tables import heading, indented, pairs

    found = values["scaling"]
    if not found:
        return
    rows = [
        (
            "Chinchilla",
            f"{found['chinchilla_tokens']:.3g} tokens (20 a parameter), {found['chinchilla_flops']:.3g} FLOP",
        )
    ]
    if found.get("tokens_per_param"):
        times = found["times_chinchilla"]
        rows.append(
            ("asked", f"{found['tokens']:.3g} tokens, {found['tokens_per_param']:,.3g} a parameter, {times:,.3g}x that")
        )
        rows.append(
            ("training", f"{found['flops_6nd']:.3g} FLOP (6ND), {found['petaflop_s_days']:,.4g} petaflop/s-days")
        )
    page.print()
    page.print(heading("Tokens and parameters"))
    page.print(indented(pairs(rows)))
