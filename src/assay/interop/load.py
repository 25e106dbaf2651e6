"""From a Hugging Face folder to a recipe and to a decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.interop.config import read_json
from assay.interop.errors import DamagedFolder, InteropError, UnsupportedArchitecture, closest, shown
from assay.interop.families import PENDING, families
from assay.interop.family import Family
from assay.recipe import Recipe, RecipeError, resolve

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from assay.interop.tensors import Carry
    from assay.model import Decoder

SIDECAR = "assay_recipe.json"
# class names of a language model; a base model's weights do where its head is tied
LM_HEADS = ("ForCausalLM", "LMHeadModel", "LMHeadCustomModel", "Model")
MASKED_HEADS = ("ForMaskedLM", "ForPreTraining")  # of families that have such a class
# tensors that hold no weight, in any family
BUFFERS = {r"\.rotary_emb\.(\w+_)?inv_freq$": "rotary frequencies, computed here"}


def family_of(raw: Mapping[str, Any], where: str) -> Family:
    """The family a config belongs to; raises UnsupportedArchitecture with the nearest supported."""
    name = raw.get("model_type")
    if not isinstance(name, str) or not name:
        raise InteropError(f"{where}: no model_type")
    found = families().get(name)
    if found is None:
        waits = [f"{p.what + ': ' if p.what else ''}{shown(p.missing)}" for p in PENDING if p.model_type == name]
        why = f" (needs {'; '.join(waits)})" if waits else ""
        raise UnsupportedArchitecture(
            f"{where}: model_type {name!r} is not supported{why}; nearest: {closest(name, families())}"
        )
    heads = raw.get("architectures") or [found.architecture]
    if not any(str(head).endswith((*LM_HEADS, *(MASKED_HEADS if found.masked else ()))) for head in heads):
        raise UnsupportedArchitecture(
            f"{where}: architectures = {heads}: only a language model ({found.architecture}) can be carried over"
        )
    return found


def read_recipe(folder: str | Path, *, ignore: Sequence[str] = ()) -> Recipe:
    """The recipe of a Hugging Face folder, from its ``config.json``; loads no torch.

    A folder that :func:`to_hf` wrote also holds what a foreign config cannot say (init, name, sources); it is read
    too, if it describes the same architecture.

    Args:
        ignore: foreign keys that are known to change no number, though no rule covers them.

    Raises:
        UnsupportedArchitecture: no family, or a value that no recipe kind expresses.
        InteropError: a key without a rule, a contradiction, a missing or unreadable file.
    """
    return _read(Path(folder), tuple(ignore))[1]


def _read(folder: Path, ignore: tuple[str, ...]) -> tuple[Family, Recipe]:
    path = folder / "config.json"
    raw = read_json(path)
    family = family_of(raw, str(path))
    recipe = family.read(family.config(raw, str(path)), ignore)
    name = folder.resolve().name
    recipe = recipe.model_copy(update={"name": name, "sources": (f"hf:{family.model_type}",)})
    return family, _with_sidecar(folder, recipe)


def _with_sidecar(folder: Path, recipe: Recipe) -> Recipe:
    path = folder / SIDECAR
    if not path.is_file():
        return recipe
    try:
        told = resolve(read_json(path), str(path))
    except RecipeError as error:
        raise DamagedFolder(str(error)) from None
    lost = differences(told, recipe)
    if lost:
        raise DamagedFolder(f"{path}: describes another model than config.json: {shown(lost)}; delete one of them")
    return told


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Fields in which two architectures differ, as paths of the recipe; init and names are not architecture."""
    left = a.model_dump(mode="json", exclude={"name", "sources", "notes", "init", "layers"})
    right = b.model_dump(mode="json", exclude={"name", "sources", "notes", "init", "layers"})
    out = _differ(left, right, "")
    if a.n_layers != b.n_layers:
        return [*out, "n_layers"]
    found: dict[str, list[int]] = {}
    for i, (x, y) in enumerate(zip(a.layers, b.layers, strict=True)):
        if x is not y:
            for path in _differ(
                x.model_dump(mode="json", exclude={"name"}), y.model_dump(mode="json", exclude={"name"}), ""
            ):
                found.setdefault(path, []).append(i)
    for path, where in found.items():
        out.append(f"layers.*.{path}" if len(where) == a.n_layers else f"layers.{_ranges(where)}.{path}")
    return out


def _differ(a: Any, b: Any, path: str) -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for tag in ("kind", "form"):
            if a.get(tag) != b.get(tag):
                return [path]  # another kind altogether
        keys = list(dict.fromkeys([*a, *b]))
        return [p for key in keys for p in _differ(a.get(key), b.get(key), f"{path}.{key}" if path else key)]
    return [] if a == b else [path]


def _ranges(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{{{','.join(map(str, numbers))}}}"


def from_hf(
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    ignore: Sequence[str] = (),
) -> Decoder:
    """A decoder with the weights of a Hugging Face folder. Reads files only: no network, no pickle, no foreign code.

    Tensors are read one at a time, so memory stays near the size of the model.

    Args:
        dtype: of the parameters; None takes that of the stored token table.
        device: where it lives.
        ignore: foreign keys that are known to change no number, though no rule covers them.

    Raises:
        UnsupportedArchitecture, InteropError: as :func:`read_recipe`.
        DamagedFolder: a tensor or shard that is missing, left over, cut short or of the wrong shape or dtype.
    """
    from assay.interop.store import Store
    from assay.model import build, named_params

    folder = Path(folder)
    family, recipe = _read(folder, tuple(ignore))
    store = Store(folder)
    decoder = build(recipe, device="meta")
    params = {p.name: p.param for p in named_params(decoder)}
    plan = plan_of(family, recipe, store, {name: tuple(p.shape) for name, p in params.items()})
    table = next(name for carry, names in plan for name in names if carry.ours == ("embedding.table",))
    decoder = decoder.to(store.dtype(table) if dtype is None else dtype).to_empty(device=device)
    carry_over(plan, recipe, store, {p.name: p.param for p in named_params(decoder)})
    return decoder.eval()


Plan = list[tuple["Carry", tuple[str, ...]]]  # each step with the stored names it reads


class Source(Protocol):
    """Where foreign tensors come from: names, the file of each, and one at a time."""

    folder: Path
    files: dict[str, Path]

    @property
    def names(self) -> list[str]: ...

    def get(self, name: str) -> Tensor: ...


def plan_of(family: Family, recipe: Recipe, store: Source, shapes: Mapping[str, tuple[int, ...]]) -> Plan:
    """Every step, checked: each of ours is filled once, each stored tensor is used or known to hold no weight."""
    from assay.interop.tensors import carries

    stored = _full_names(family, store.names)
    plan: Plan = []
    filled: dict[str, tuple[str, ...]] = {}
    wanted: dict[str, str] = {}
    for carry in carries(family.tensors, shapes, recipe):
        have = [name for name in carry.theirs if name in stored]
        for name in carry.ours:
            wanted.setdefault(name, shown([n for n in carry.theirs if n not in stored] or carry.theirs))
        if len(have) < len(carry.theirs) or (carry.spare and any(name in filled for name in carry.ours)):
            continue
        for name in carry.ours:
            if name in filled:
                raise DamagedFolder(f"{store.folder}: {name} is given twice, by {shown(filled[name] + carry.theirs)}")
            filled[name] = carry.theirs
        plan.append((carry, tuple(stored[name] for name in carry.theirs)))
    lost = [name for name in shapes if name not in filled]
    if lost:
        raise DamagedFolder(
            f"{store.folder}: missing {shown(dict.fromkeys(wanted.get(n, f'a tensor for {n}') for n in lost))}"
        )
    used = {name for names in filled.values() for name in names}
    _check_rest(family, recipe, store, stored, used)
    return sorted(plan, key=lambda step: store.files[step[1][0]])  # shard by shard


def _full_names(family: Family, names: Sequence[str]) -> dict[str, str]:
    """Full foreign name -> stored name; files of the base model alone lack its prefix."""
    outside = tuple({move.theirs.split(".")[0] for move in family.tensors if not move.theirs.startswith(family.prefix)})
    prefix = "" if any(name.startswith(family.prefix) for name in names) else family.prefix
    return {name if name.startswith(outside) else prefix + name: name for name in names}


def _check_rest(family: Family, recipe: Recipe, store: Source, stored: Mapping[str, str], used: set[str]) -> None:
    ignorable = [re.compile(pattern) for pattern in (*BUFFERS, *family.dropped)]
    rest = [name for name in stored if name not in used and not any(p.search(name) for p in ignorable)]
    heads = {f"{m.theirs}.weight" for m in family.tensors if m.ours == ("head",)}
    for name, value in constants_of(family, recipe).items():
        if name not in stored:
            continue
        rest.remove(name)
        found = float(store.get(stored[name]))
        if abs(found - value) > 0.01 * abs(value):  # bfloat16 keeps two digits
            raise DamagedFolder(f"{store.files[stored[name]]}: {name} is {found:g}; only {value:g} can be expressed")
    for name in [name for name in rest if name in heads and recipe.embedding.tied]:
        rest.remove(name)
        table = next(f"{m.theirs}.weight" for m in family.tensors if m.ours == ("embedding",))
        if not _equal(store.get(stored[name]), store.get(stored[table])):
            raise DamagedFolder(f"{store.files[stored[name]]}: the config ties {name} to {table}, but they differ")
    if rest:
        files = {store.files[stored[name]].name for name in rest}
        raise DamagedFolder(f"{store.folder}: {shown(sorted(files))} holds tensors without a rule: {shown(rest)}")


def constants_of(family: Family, recipe: Recipe) -> dict[str, float]:
    """Foreign tensors that hold a number of the recipe."""
    return {
        constant.theirs.replace("{i}", str(i)): constant.value(layer)
        for constant in family.constants
        for i, layer in enumerate(recipe.layers)
    }


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def carry_over(plan: Plan, recipe: Recipe, store: Source, params: Mapping[str, Tensor]) -> None:
    import torch

    from assay.recipe.mixer import Attention

    for carry, names in plan:
        mixer = recipe.layers[carry.layer].mixer if carry.layer >= 0 else None
        shapes = [tuple(params[name].shape) for name in carry.ours]
        where = f"{store.files[names[0]]}: {names[0]}"
        try:
            found = carry.layout.split(
                [store.get(name) for name in names], shapes, mixer if isinstance(mixer, Attention) else None
            )
        except (ValueError, RuntimeError) as error:
            if isinstance(error, InteropError):
                raise
            raise DamagedFolder(f"{where} {error}") from None
        for name, value, shape in zip(carry.ours, found, shapes, strict=True):
            if tuple(value.shape) != shape:
                raise DamagedFolder(f"{where} gives {tuple(value.shape)} for {name}, the config needs {shape}")
            with torch.no_grad():
                params[name].copy_(value)


__all__ = [
    "SIDECAR",
    "Source",
    "carry_over",
    "constants_of",
    "differences",
    "family_of",
    "from_hf",
    "plan_of",
    "read_recipe",
]
