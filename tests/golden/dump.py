"""What the golden files hold: one text a preset and a kind of dump, compared byte for byte.

A change of a recipe, a default or a rule shows up here as a diff to read. ``python -m tests.golden.regen`` writes the
files again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from assay.cost import layer_of, starts_of, tensors_of
from assay.recipe import Recipe, load, preset_names
from assay.recipe.parametrization import CompleteP
from assay.training.optim import MuonSpec
from assay.training.optim.groups import settings_of

FOLDER = Path(__file__).parent


def recipe_dump(recipe: Recipe) -> str:
    """The resolved recipe, nothing left to default."""
    return recipe.to_toml()


def start_dump(recipe: Recipe) -> str:
    """A line a kind of tensor: name (with the depths that share it), shape, role, decay, start."""
    depths: dict[tuple[str, ...], list[int]] = {}
    for start in starts_of(recipe):
        t = start.tensor
        layer = layer_of(t.name)
        name = t.name if layer < 0 else f"layers.*.{t.name.split('.', 2)[2]}"
        line = (
            name,
            "x".join(map(str, t.shape)) or "scalar",
            str(t.role),
            "decay" if t.role.decays else "-",
            str(start),
        )
        depths.setdefault(line, []).append(layer)
    return "".join("  ".join((_with_depths(line[0], layers), *line[1:])) + "\n" for line, layers in depths.items())


def groups_dump(recipe: Recipe) -> str:
    """How Muon's run moves each kind of tensor: role, rule, decay, factors of rate and eps under CompleteP at 2 x 2."""
    spec = MuonSpec(weight_decay=0.1)
    twice = CompleteP(base_width=max(1, recipe.d_model // 2), base_depth=max(1, recipe.n_layers // 2), alpha=0.5)
    depths: dict[tuple[str, ...], list[int]] = {}
    for t in tensors_of(recipe):
        layer = layer_of(t.name)
        name = t.name if layer < 0 else f"layers.*.{t.name.split('.', 2)[2]}"
        alone = settings_of(t.name, t.role, t.shape, spec, recipe)
        scaled = settings_of(t.name, t.role, t.shape, spec, recipe, twice)
        line = (
            name,
            str(t.role),
            alone.rule,
            f"decay {alone.weight_decay:g}" if alone.weight_decay else "-",
            f"lr x {scaled.lr_scale:.4g}, decay {scaled.weight_decay:.4g}, eps x {scaled.eps_scale:.4g}",
        )
        depths.setdefault(line, []).append(layer)
    return "".join("  ".join((_with_depths(line[0], layers), *line[1:])) + "\n" for line, layers in depths.items())


def _with_depths(name: str, layers: list[int]) -> str:
    if layers[0] < 0:
        return name
    runs: list[tuple[int, int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], layer)
        else:
            runs.append((layer, layer))
    return name.replace("*", ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs))


# folder and ending of each kind of dump
DUMPS: dict[str, tuple[str, Callable[[Recipe], str]]] = {
    "recipe": (".toml", recipe_dump),
    "start": (".txt", start_dump),
    "groups": (".txt", groups_dump),
}


def path_of(kind: str, name: str) -> Path:
    """Where the dump of a preset lies."""
    return FOLDER / kind / f"{name}{DUMPS[kind][0]}"


def dump(kind: str, name: str) -> str:
    """The text as it is now."""
    return DUMPS[kind][1](load(name))


def expected() -> dict[Path, tuple[str, str]]:
    """Every golden file that should exist, with its kind and preset."""
    return {path_of(kind, name): (kind, name) for kind in DUMPS for name in preset_names()}


def stale() -> list[Path]:
    """Golden files of presets that are gone."""
    there = {path for kind in DUMPS for path in (FOLDER / kind).rglob("*") if path.is_file()}
    return sorted(there - set(expected()))
