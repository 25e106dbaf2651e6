"""The stack: which named layer stands at each depth."""

from __future__ import annotations

import re
from typing import Any

from assay.recipe.errors import Problem, nearest

_ENTRY = re.compile(r"(?:(\d+)\s+)?([A-Za-z][A-Za-z0-9_.-]*)")


def read_stack(authored: dict[str, Any], problems: list[Problem]) -> list[str]:
    """The layer name of each depth. ``n_layers`` alone repeats ``block``; faults are added to ``problems``."""
    layers = authored.get("layers", {})
    known = ["block", *layers] if isinstance(layers, dict) else ["block"]
    n_layers = authored.get("n_layers")
    if "n_layers" in authored and not _positive(n_layers):
        problems.append(Problem("n_layers", "not a positive integer", n_layers, "1, 2, 3, ...", has_value=True))
        n_layers = None
    stack = authored.get("stack")
    if "stack" not in authored:
        if "n_layers" not in authored:
            problems.append(
                Problem("n_layers", "missing; it has no default", allowed="n_layers = 12, or stack = [...]")
            )
            return []
        names = ["block"] * (n_layers or 0)
    elif not isinstance(stack, list) or not stack:
        allowed = '["3 dense", "58 moe"] or [{cycle = ["5 local", "global"], n_layers = 34}]'
        problems.append(Problem("stack", "not a list of layers", stack, allowed, has_value=True))
        return []
    else:
        names = []
        for i, entry in enumerate(stack):
            lone = n_layers if len(stack) == 1 else None  # a single cycle may take its length from n_layers
            names += _expand(entry, f"stack.{i}", known, problems, lone)
    if stack is not None and n_layers is not None and names and n_layers != len(names):
        message = f"the stack counts {len(names)} layers, n_layers says {n_layers}"
        problems.append(Problem("stack", message, stack, "counts that add up, or no n_layers", has_value=True))
    if isinstance(layers, dict):
        for name in layers:
            if name not in names and names:
                where = "the stack never uses it" if stack is not None else "there is no stack that names it"
                problems.append(
                    Problem(f"layers.{name}", f"unused layer: {where}", allowed="name it in stack, or drop it")
                )
    return names


def _positive(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0


def _expand(entry: Any, path: str, known: list[str], problems: list[Problem], default: int | None = None) -> list[str]:
    if isinstance(entry, dict):
        return _cycle(entry, path, known, problems, default)
    match = _ENTRY.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if match is None or match[1] == "0":
        allowed = '"name", "5 name" or {cycle = [...], n_layers = n}'
        problems.append(Problem(path, "not a stack entry", entry, allowed, has_value=True))
        return []
    count, name = int(match[1] or 1), match[2]
    if name not in known:
        close = nearest(name, known)
        problems.append(
            Problem(path, f"undefined layer {name!r}", entry, ", ".join(known), close or "", has_value=True)
        )
        return []
    return [name] * count


def _cycle(
    entry: dict[str, Any], path: str, known: list[str], problems: list[Problem], default: int | None = None
) -> list[str]:
    unknown = sorted(set(entry) - {"cycle", "n_layers"})
    for key in unknown:
        problems.append(Problem(f"{path}.{key}", "unknown key", entry[key], "cycle, n_layers", has_value=True))
    cycle, total = entry.get("cycle"), entry.get("n_layers", default)
    if not isinstance(cycle, list) or not cycle:
        problems.append(
            Problem(f"{path}.cycle", "not a list of layers", cycle, '["5 local", "global"]', has_value=True)
        )
        return []
    if not isinstance(total, int) or not _positive(total):
        problems.append(Problem(f"{path}.n_layers", "not a positive integer", total, "1, 2, 3, ...", has_value=True))
        return []
    names: list[str] = []
    for i, item in enumerate(cycle):
        names += _expand(item, f"{path}.cycle.{i}", known, problems)
    if not names:
        return []
    if total < len(names):
        message = f"{total} layers do not reach through one cycle of {len(names)}"
        problems.append(Problem(f"{path}.n_layers", message, total, f"at least {len(names)}", has_value=True))
    return [names[i % len(names)] for i in range(total)]
