"""How the parts of a layer follow its width: one rule a kind, on the authored table, each change said in a note.

A kind without a rule keeps its table, and says so; :func:`register_shrink` adds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Table = dict[str, Any]
_LEAST_HEAD = 8


@dataclass
class Shrink:
    """One change of width: from ``d`` to ``new_d``, and the length with it; collects notes and a penalty."""

    d: int
    new_d: int
    length: float = 1.0  # new longest sequence over the old one
    notes: list[str] = field(default_factory=list)
    penalty: float = 0.0

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


Rule = Callable[[Table, Shrink, str], Table]
_RULES: dict[str, Rule] = {}


def register_shrink(kind: str, rule: Rule) -> None:
    """Name how a mixer or feed-forward kind follows the width: ``rule(table, shrink, where) -> table``."""
    _RULES[kind] = rule


def shrink_layer(table: Table, to: Shrink, where: str) -> Table:
    """A layer's authored table at the new width."""
    out = dict(table)
    for side in ("mixer", "ffn"):
        out[side] = _part(table[side], to, f"{where}.{side}")
    return out


def _part(table: Table, to: Shrink, where: str) -> Table:
    kind = table["kind"]
    if kind in _RULES:
        return _RULES[kind](table, to, where)
    if kind != "none":
        to.note(f"{where}: {kind} is kept as it is: no rule says how it follows the width")
    return dict(table)


def _sum(table: Table, to: Shrink, where: str) -> Table:
    branches = []
    for i, branch in enumerate(table["branches"]):
        side = "mixer" if "mixer" in branch else "ffn"
        branches.append({**branch, side: _part(branch[side], to, f"{where}.branches.{i}")})
    return {**table, "branches": branches}


def _ffn(table: Table, to: Shrink, where: str) -> Table:
    """d_ff keeps its ratio to the width, rounded to the finest multiple that suits the width."""
    wanted = table["d_ff"] / to.d * to.new_d
    multiple = 64 if to.new_d >= 512 else 16 if to.new_d >= 128 else 8 if to.new_d >= 32 else 1
    width = max(multiple, round(wanted / multiple) * multiple)
    if abs(width / wanted - 1) > 1e-9:
        to.note(f"{where}: d_ff {width} is {width / to.new_d:.3f} of the width, of {table['d_ff'] / to.d:.3f}")
    to.penalty += abs(math.log(width / wanted))
    return {**table, "d_ff": width}


def _attention(table: Table, to: Shrink, where: str) -> Table:
    heads, kv, head_dim = _heads(table, to)
    out = {**table, "n_heads": heads, "n_kv_heads": kv, "head_dim": head_dim}
    if head_dim != table["head_dim"]:
        to.note(f"{where}: head_dim {table['head_dim']} -> {head_dim}: the width does not hold the heads otherwise")
    old, new = table["n_heads"] / table["n_kv_heads"], heads / kv
    if table["n_kv_heads"] > 1 and old != new:
        to.note(f"{where}: {old:g} -> {new:g} query heads a KV head: the width does not hold more")
    ratio, was = heads * head_dim / to.new_d, table["n_heads"] * table["head_dim"] / to.d
    if abs(ratio / was - 1) > 1e-9:
        to.note(f"{where}: heads x head_dim is {ratio:.3f} of the width, of {was:.3f}")
    out["scale"] = _score_scale(table, out, to, where)
    out["span"] = _span(table["span"], to, where)
    out["position"] = _position(table["position"], to, where)
    out["query_scale"] = _query_scale(table["query_scale"], to, where)
    return out


def _heads(table: Table, to: Shrink) -> tuple[int, int, int]:
    """Heads, KV heads and head size nearest to the old choices; adds to the penalty what they give up."""
    heads, kv, head_dim = table["n_heads"], table["n_kv_heads"], table["head_dim"]
    wanted = heads * head_dim / to.d * to.new_d
    group = 1 if kv == 1 else heads // kv
    step = 1 if table["differential"]["kind"] == "none" else 2  # heads whose maps are subtracted come in pairs
    qk = table["qk_norm"]
    least = 2 if qk["kind"] != "none" and qk["over"] == "width" else 1  # with one head, its width is the head's
    best: tuple[float, tuple[int, int, int]] | None = None
    for new_group in (g for g in range(group, 0, -1) if group % g == 0):
        for size in _head_dims(table, head_dim):
            k = max(-(-least // (new_group * step)), round(wanted / (new_group * size * step))) * step
            found = (new_group * k, 1 if kv == 1 else k, size)
            cost = 2 * abs(math.log(found[0] * size / wanted))
            cost += 0.5 * math.log(head_dim / size) + 1.5 * math.log(group / new_group)
            cost += 0.0 if size == head_dim or size % 32 == 0 else 0.04 if size % 16 == 0 else 0.1
            if best is None or cost < best[0] - 1e-12:
                best = (cost, found)
    assert best is not None
    to.penalty += best[0]
    return best[1]


def _head_dims(table: Table, head_dim: int) -> list[int]:
    """Head sizes up to the old one whose rotary part is whole."""
    sizes = [head_dim, *range(head_dim - head_dim % 8, _LEAST_HEAD - 1, -8)]
    position = table["position"]
    fraction = position.get("fraction", 1.0) if isinstance(position, dict) and position.get("kind") == "rope" else None
    return [s for s in dict.fromkeys(sizes) if s == head_dim or fraction is None or _whole(fraction * s)]


def _whole(size: float) -> bool:
    return abs(size - round(size)) < 1e-6 and round(size) % 2 == 0 and round(size) >= 2


def _score_scale(table: Table, out: Table, to: Shrink, where: str) -> Any:
    """A number that is a rule of the shape follows the shape; any other is kept."""
    scale = table["scale"]
    if not isinstance(scale, int | float):
        return scale
    if math.isclose(scale, 1 / table["head_dim"]):
        return "inv_head_dim"
    if math.isclose(scale, (to.d / table["n_heads"]) ** -0.5):
        to.note(f"{where}: scale follows 1/sqrt(d_model / n_heads)")
        return (to.new_d / out["n_heads"]) ** -0.5
    if out["head_dim"] != table["head_dim"]:
        to.note(f"{where}: scale {scale:g} is kept, though head_dim changes")
    return scale


def _span(span: Table, to: Shrink, where: str) -> Table:
    size = span.get("size")
    if not isinstance(size, int):
        return span
    if to.length == 1.0:
        to.note(f"{where}: the {span['kind']} of {size} is kept, as is the longest sequence")
        return span
    new = max(8, round(size * to.length / 8) * 8)
    to.note(f"{where}: the {span['kind']} of {size} -> {new}, with the longest sequence")
    return {**span, "size": new}


def _position(position: Any, to: Shrink, where: str) -> Any:
    if not isinstance(position, dict) or to.length == 1.0:
        return position
    scaling = position.get("scaling")
    if isinstance(scaling, dict) and "original_seq_len" in scaling:
        length = max(8, round(scaling["original_seq_len"] * to.length))
        to.note(f"{where}: the length that RoPE's scaling starts from -> {length}")
        position = {**position, "scaling": {**scaling, "original_seq_len": length}}
    if position.get("kind") == "rope":
        to.note(f"{where}: theta is kept, though the longest sequence changes")
    return position


def _query_scale(scale: Table, to: Shrink, where: str) -> Table:
    """The period of a factor by position follows the longest sequence, as a window does."""
    if to.length == 1.0 or "period" not in scale:
        return scale
    period = max(1, round(scale["period"] * to.length))
    to.note(f"{where}: queries are scaled every {scale['period']} positions -> {period}, with the longest sequence")
    return {**scale, "period": period}


register_shrink("sum", _sum)
register_shrink("mlp", _ffn)
register_shrink("glu", _ffn)
register_shrink("attention", _attention)
