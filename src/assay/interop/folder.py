"""What holds a model, opened: a run's folder, a folder that ``assay import`` or ``convert`` wrote, one of Hugging Face,
a GGUF file.

Files are read, nothing is fetched, unpickled or run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay.decoding.errors import fault
from assay.decoding.tokenizer import Bytes, Pieces, Tokenizer, check_vocabulary, read_tokenizer
from assay.interop.errors import DamagedFolder
from assay.interop.load import SIDECAR

if TYPE_CHECKING:
    import torch

    from assay.model import Decoder

RECIPE, WEIGHTS = "recipe.toml", "model.safetensors"
Kind = Literal["run", "weights", "hf", "gguf"]


@dataclass(frozen=True)
class Opened:
    """A model ready to read.

    Attributes:
        kind: ``run`` (a training run), ``weights`` (a recipe and weights), ``hf``, ``gguf``.
        weights: the file the weights came from; the folder where there are several.
        warnings: newer checkpoints that were passed over, and why.
    """

    source: Path
    kind: Kind
    decoder: Decoder
    weights: Path
    warnings: tuple[str, ...] = ()

    def tokenizer(self, given: str | None = None) -> Tokenizer:
        """Its tokenizer, checked against the vocabulary.

        Args:
            given: ``bytes``, a folder with ``tokenizer.json`` or such a file, instead of the model's own.

        Raises:
            DecodingError: none there, unreadable, or of another vocabulary.
        """
        found = _own_tokenizer(self) if given is None else _named_tokenizer(given)
        # in a folder of Hugging Face's a file may have been changed for another model's; elsewhere it is what it was
        foreign = self.kind == "hf" and not (self.source / SIDECAR).is_file()
        check_vocabulary(found, self.decoder.recipe, exact=given is None and not foreign)
        return found


def kind_of(source: Path) -> Kind:
    """What a path holds. Raises DamagedFolder for what is no model."""
    if source.suffix == ".gguf":
        return "gguf"
    if not source.is_dir():
        reason = "not a folder" if source.exists() else "no such folder"
        raise DamagedFolder(f"{source}: {reason}; {_WANTED}")
    if (source / RECIPE).is_file():
        return "run" if (source / "manifest.json").is_file() else "weights"
    if (source / "config.json").is_file():
        return "hf"
    raise DamagedFolder(f"{source}: neither {RECIPE} nor config.json in it; {_WANTED}")


_WANTED = "expected a run's folder, a Hugging Face folder or a .gguf file"


def open_folder(
    source: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu", finite: bool = True
) -> Opened:
    """The model of a folder or file, in eval mode.

    Args:
        dtype: of the parameters; None: as stored.
        finite: refuse weights that are not finite, naming the tensor.

    Raises:
        InteropError, RecipeError: not a model, damaged, or of an architecture that no recipe expresses.
        DecodingError: weights that are not finite.
    """
    source = Path(source)
    kind = kind_of(source)
    warnings: tuple[str, ...] = ()
    weights = source
    if kind == "gguf":
        from assay.interop.gguf import from_gguf

        decoder = from_gguf(source, dtype=dtype, device=device)
    elif kind == "hf":
        from assay.interop.load import from_hf

        decoder = from_hf(source, dtype=dtype, device=device)
    else:
        weights, warnings = _weights_of(source)
        decoder = _own(source, weights, dtype, device)
    if finite:
        from assay.decoding.checks import check_finite

        check_finite(decoder)
    return Opened(source, kind, decoder.eval(), weights, warnings)


def _own(folder: Path, weights: Path, dtype: torch.dtype | None, device: str | torch.device) -> Decoder:
    import torch

    from assay.model import WeightsError, build, load_weights
    from assay.recipe import load

    decoder = build(load(folder / RECIPE), device="meta")
    decoder = decoder.to(dtype or _stored_dtype(weights) or torch.float32).to_empty(device=device)
    try:
        return load_weights(decoder, weights)
    except WeightsError as error:
        raise DamagedFolder(str(error)) from None


def _stored_dtype(weights: Path) -> torch.dtype | None:
    """The dtype of the token table; None where it cannot be told, which loading then does."""
    from safetensors import SafetensorError, safe_open

    from assay.interop.store import DTYPES

    try:
        with safe_open(weights, framework="pt") as f:
            return DTYPES.get(f.get_slice("embedding.table").get_dtype())
    except (OSError, SafetensorError):
        return None


def _weights_of(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The weights of the newest sound checkpoint, or beside the recipe; and what is wrong with newer ones."""
    problems: list[str] = []
    for checkpoint in sorted((folder / "checkpoints").glob("step-*"), reverse=True):
        problem = _problem(checkpoint)
        if problem is None:
            return checkpoint / WEIGHTS, tuple(problems)
        problems.append(problem)
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS, tuple(problems)
    told = f": {problems[0]}" if problems else "; a run keeps none with keep = nothing, or before its first"
    raise DamagedFolder(f"{folder}: no sound checkpoint{told}")


def _problem(checkpoint: Path) -> str | None:
    file = checkpoint / WEIGHTS
    try:
        want = json.loads((checkpoint / "index.json").read_text(encoding="utf-8"))["sha256"][WEIGHTS]
        with file.open("rb") as f:
            found = hashlib.file_digest(f, "sha256").hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{checkpoint}: {type(error).__name__}: {error}"
    return None if found == want else f"{file}: not what was written (its digest differs)"


def _own_tokenizer(opened: Opened) -> Tokenizer:
    source = opened.source
    if opened.kind == "gguf":
        from assay.interop.gguf_tokenizer import gguf_tokenizer

        return gguf_tokenizer(source)
    if opened.kind != "run":
        return read_tokenizer(source)
    named = None if (source / "tokenizer.json").is_file() else tokenizer_of_run(source)
    found = read_tokenizer(source) if named is None else _named_tokenizer(named)
    return _ended(found, _table(_manifest(source), "corpus")) if isinstance(found, Pieces) else found


def _ended(tokenizer: Pieces, corpus: dict[str, Any]) -> Pieces:
    """With the ids that stood after and before each document of the run's corpus."""
    first, last = (corpus[word] if isinstance(corpus.get(word), int) else None for word in ("bos", "eos"))
    stops = tokenizer.stop_ids if last is None else tuple(sorted({*tokenizer.stop_ids, last}))
    prefix = next((i for i in (first, last, tokenizer.prefix_id) if i is not None), None)
    return replace(tokenizer, stop_ids=stops, prefix_id=prefix)


def tokenizer_of_run(folder: Path) -> str | None:
    """``bytes``, or where a run's manifest says that its tokenizer was; None where it says nothing."""
    told = _manifest(folder)
    data = _table(_table(told, "config"), "data")
    named = data.get("tokenizer", "auto")
    if "bytes" in (named, _table(told, "corpus").get("tokenizer")):
        return "bytes"
    corpus = data.get("corpus")
    if named == "auto" and isinstance(corpus, str) and (Path(corpus) / "tokenizer.json").is_file():
        return corpus  # texts that were tokenized before
    return named if isinstance(named, str) and named != "auto" else None


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        told = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _table(told: dict[str, Any], key: str) -> dict[str, Any]:
    value = told.get(key)
    return value if isinstance(value, dict) else {}


def _named_tokenizer(given: str) -> Tokenizer:
    if given == "bytes":
        return Bytes()
    if not Path(given).exists():
        raise fault("tokenizer", "no such file or folder", given, "bytes, a tokenizer.json, or its folder", "tokenizer")
    return read_tokenizer(Path(given))
