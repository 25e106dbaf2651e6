"""From a decoder to a Hugging Face folder, or a refusal that lists what the target cannot express.

Nothing is guessed: the config that is written is read again before any weight is, and every field of the recipe that
did not come back is a reason to refuse.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.interop.common import SPECIAL_TOKENS
from assay.interop.config import defaults_of, defaults_version
from assay.interop.errors import CannotExport, InteropError, UnsupportedArchitecture, closest, shown
from assay.interop.families import families
from assay.interop.family import Family
from assay.interop.load import SIDECAR, constants_of, differences
from assay.interop.tokenizer_files import write_json
from assay.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from assay.interop.tensors import Carry
    from assay.model import Decoder

SHARD_BYTES = 5_000_000_000
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """A family's config that comes nearest to a recipe, and what it loses; ``fits``: it can be read at all."""

    family: Family
    config: dict[str, Any]
    lost: tuple[str, ...]
    fits: bool = True

    @property
    def distance(self) -> tuple[bool, int]:
        return not self.fits, len(self.lost)


def attempt(recipe: Recipe, family: Family) -> Attempt:
    """Write a recipe as a family's config, read it again and compare."""
    config = family.write(recipe)
    broken = [f"{limit.field} ({limit.says})" for limit in family.limits if not limit.holds(config)]
    try:
        told = family.read(family.config(config))
    except InteropError as error:
        return Attempt(family, config, (f"({str(error).splitlines()[0]})", *broken), fits=False)
    return Attempt(family, config, (*differences(recipe, told), *broken))


def lost_fields(recipe: Recipe, family: Family) -> list[str]:
    """The fields of a recipe that a family's config cannot say, as paths; empty if it says them all."""
    return list(attempt(recipe, family).lost)


def choose(recipe: Recipe, model_type: str | None = None) -> tuple[Family, dict[str, Any]]:
    """The family to export as, and its config.

    Among families that say everything, the one that the recipe's sources name (``hf:mistral``) comes first, then the
    order of :func:`families`.

    Raises:
        CannotExport: no family, or not the one asked for; lists the fields in the way.
    """
    known = families()
    if model_type is not None:
        if model_type not in known:
            near = closest(model_type, known)
            raise UnsupportedArchitecture(f"model_type {model_type!r} is not supported; nearest: {near}")
        one = attempt(recipe, known[model_type])
        if one.lost:
            raise CannotExport(f"{recipe.name}: {model_type} cannot express {shown(one.lost, 20)}", one.lost)
        return one.family, one.config
    named = [s.removeprefix("hf:") for s in recipe.sources if s.startswith("hf:")]
    tried = []
    for name in dict.fromkeys([*(n for n in named if n in known), *known]):
        one = attempt(recipe, known[name])
        if not one.lost:
            return one.family, one.config
        tried.append(one)
    best = min(tried, key=lambda one: one.distance)
    raise CannotExport(
        f"{recipe.name}: no model type of transformers expresses this recipe; the nearest, {best.family.model_type}, "
        f"lacks {shown(best.lost, 20)}",
        best.lost,
    )


def to_hf(
    decoder: Decoder,
    folder: str | Path,
    *,
    model_type: str | None = None,
    tokens: Mapping[str, int | Sequence[int] | None] | None = None,
    tokenizer: str | Path | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Path:
    """Write a folder that ``AutoModelForCausalLM.from_pretrained`` loads with equal logits.

    The folder appears whole or not at all: it is written beside ``folder``, flushed, then renamed.

    Args:
        model_type: the family to write; by default the one the model came from, or the first that says everything.
        tokens: ``bos``, ``eos`` and ``pad`` ids; those not given are written as null.
        tokenizer: a folder whose tokenizer files are copied beside the weights.
        shard_bytes: largest weights file; more are split into shards with an index.
        overwrite: replace a folder that is there and not empty.

    Raises:
        CannotExport: the target cannot express the recipe; ``fields`` lists what it would lose.
        FileExistsError: the folder has content and ``overwrite`` is false.
    """
    family, config = choose(decoder.recipe, model_type)
    folder = Path(folder)
    if folder.exists() and not overwrite and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder}: exists and is not empty; pass overwrite to replace it")
    ids = _token_ids(tokens or {})
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        dtype = _write_weights(decoder, family, partial, shard_bytes)
        write_json(partial / "config.json", _config(family, config, ids, dtype))
        generation = {"_from_model_config": True, **ids, "transformers_version": defaults_version()}
        write_json(partial / "generation_config.json", generation)
        write_json(partial / SIDECAR, decoder.recipe.to_dict())
        if tokenizer is not None:
            _copy_tokenizer(Path(tokenizer), partial)
        _flush(partial)
        _swap(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _token_ids(tokens: Mapping[str, Any]) -> dict[str, Any]:
    short = {name.removesuffix("_token_id"): name for name in SPECIAL_TOKENS}
    unknown = sorted(set(tokens) - set(short))
    if unknown:
        raise ValueError(f"tokens: unknown {unknown[0]!r}; known: {', '.join(short)}")
    return {name: list(ids) if isinstance(ids := tokens.get(word), tuple) else ids for word, name in short.items()}


def _config(family: Family, config: Mapping[str, Any], ids: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    told = {key: value for key, value in ids.items() if value is not None or key not in family.told_tokens}
    usual = defaults_of(family.model_type).get("pad_token_id") or 0
    if "pad_token_id" not in told and usual >= config["vocab_size"]:
        told["pad_token_id"] = 0  # the class's own would be a row past the table
    return {
        "architectures": [family.architecture_of(config)],
        "model_type": family.model_type,
        "dtype": dtype,
        **config,
        **told,
        "transformers_version": defaults_version(),
    }


# weights

Planned = list[tuple["Carry", dict[str, int]]]  # each step with the bytes of its foreign tensors


def _write_weights(decoder: Decoder, family: Family, folder: Path, shard_bytes: int) -> str:
    """All tensors in one file or in shards, one shard in memory at a time; returns the dtype's name."""
    from safetensors.torch import save_file

    shards = list(_shards(decoder, family, shard_bytes))
    index: dict[str, str] = {}
    total = 0
    for n, steps in enumerate(shards, 1):
        single = len(shards) == 1
        file = "model.safetensors" if single else f"model-{n:05d}-of-{len(shards):05d}.safetensors"
        tensors = dict(_foreign(decoder, steps))
        if n == len(shards):
            numbers = constants_of(family, decoder.recipe).items()
            tensors.update({name: decoder.embedding.table.new_tensor(value, device="cpu") for name, value in numbers})
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(tensors, file))
        total += sum(t.numel() * t.element_size() for t in tensors.values())
    if len(shards) > 1:
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    return str(decoder.embedding.table.dtype).removeprefix("torch.")


def _steps(decoder: Decoder, family: Family) -> list[Carry]:
    """The steps that write every parameter once: of rules for the same tensor the first counts."""
    from assay.interop.tensors import carries
    from assay.model import named_params

    shapes = {p.name: tuple(p.param.shape) for p in named_params(decoder)}
    done: set[str] = set()
    out = []
    try:
        for carry in carries(family.tensors, shapes, decoder.recipe):
            if not done.intersection(carry.ours):
                done.update(carry.ours)
                out.append(carry)
    except KeyError as error:
        raise CannotExport(f"{decoder.recipe.name}: {family.model_type} cannot express {error.args[0]}") from None
    rest = [name for name in shapes if name not in done]
    if rest:
        raise CannotExport(f"{decoder.recipe.name}: {family.model_type} has no tensor for {shown(rest)}", rest)
    return out


def _shards(decoder: Decoder, family: Family, limit: int) -> Iterator[list[Carry]]:
    params = dict(decoder.named_parameters())
    shard: list[Carry] = []
    size = 0
    for carry in _steps(decoder, family):
        own = sum(params[name].numel() * params[name].element_size() for name in carry.ours)
        if shard and size + own > limit:
            yield shard
            shard, size = [], 0
        shard.append(carry)
        size += own
    yield shard


def _foreign(decoder: Decoder, steps: Sequence[Carry]) -> Iterator[tuple[str, Tensor]]:
    from assay.recipe.mixer import Attention

    params = dict(decoder.named_parameters())
    for carry in steps:
        mixer = decoder.recipe.layers[carry.layer].mixer if carry.layer >= 0 else None
        ours = [params[name].detach().cpu() for name in carry.ours]
        try:
            theirs = carry.layout.join(ours, mixer if isinstance(mixer, Attention) else None)
        except ValueError as error:
            raise CannotExport(f"{decoder.recipe.name}: {carry.theirs[0]}: {error}", carry.ours) from None
        for name, value in zip(carry.theirs, theirs, strict=True):
            yield name, value.contiguous()


# files


def _copy_tokenizer(source: Path, folder: Path) -> None:
    found = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{source}: no tokenizer files ({shown(TOKENIZER_FILES)})")
    for path in found:
        shutil.copyfile(path, folder / path.name)


def _flush(folder: Path) -> None:
    mode = (folder / "config.json").stat().st_mode
    for path in sorted(folder.iterdir()):
        path.chmod(mode)  # safetensors writes for its owner alone
        with path.open("rb+") as f:
            os.fsync(f.fileno())


def _swap(partial: Path, folder: Path) -> None:
    """Put the finished folder in place; what stood there is moved aside first and removed last."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    try:
        partial.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


__all__ = ["choose", "lost_fields", "to_hf"]
