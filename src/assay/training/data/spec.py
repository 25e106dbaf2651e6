"""The ``data`` section of a run: which texts, what is held out, how windows are packed. Read without numpy or torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny, model_validator

from assay.recipe.base import Part, Spec, pick, refuse

EMBEDDED = ("stdlib", "english", "chinese")
_LONGEST_PERIOD = 100_000  # samples until a mixture's pattern of sources starts over


class Split(Part):
    """Which documents are held out for validation; the same ones in every run of the corpus."""

    slot = "data_split"


class BytesSplit(Split):
    """Documents in the order of their digests until ``val_bytes`` are reached, the last one cut there."""

    kind: Literal["bytes"] = "bytes"


class DocumentsSplit(Split):
    """Each document by its own digest, with probability ``share``; the first ``val_bytes`` of them are evaluated.

    Whether a document is held out depends on nothing but its text: it stays so when the corpus grows or is mixed.
    """

    kind: Literal["documents"] = "documents"
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01


class Packing(Part):
    """How documents fill windows. Each document has its BOS and EOS once, wherever windows are cut."""

    slot = "data_packing"


class StreamPacking(Packing):
    """Windows of one stream: a token sees all that stands before it in its window, other documents too."""

    kind: Literal["stream"] = "stream"


STREAM = StreamPacking()


class DocumentsPacking(Packing):
    """Windows of one stream, documents isolated: none sees another, positions restart, no loss across a boundary."""

    kind: Literal["documents"] = "documents"


class Filter(Part):
    """Which documents are left out of training and validation alike."""

    slot = "data_filter"


class NoFilter(Filter):
    """Every document stays."""

    kind: Literal["none"] = "none"


class RepeatedNgrams(Filter):
    """Documents go where a span of 1 to 13 tokens stands ``repeats`` times in a row (OLMo 2, arXiv:2501.00656, 3.1)."""

    kind: Literal["repeated_ngrams"] = "repeated_ngrams"
    repeats: Annotated[int, Field(ge=2)] = 32


class Portion(Spec):
    """One corpus of a mixture; ``weight`` is its share of the windows, beside the others' weights."""

    corpus: Annotated[str, Field(min_length=1)]
    weight: PositiveFloat = 1.0


SplitSlot = Annotated[SerializeAsAny[Split], pick(Split)]
PackingSlot = Annotated[SerializeAsAny[Packing], pick(Packing)]
FilterSlot = Annotated[SerializeAsAny[Filter], pick(Filter)]


class DataConfig(Spec):
    """Texts and how they become batches.

    ``corpus``: ``stdlib``, ``english`` or ``chinese``; the path of a text, JSONL or Parquet file, of a folder of them
    or a pattern (``texts/**/*.md``); a Hugging Face dataset on disk; a folder that ``assay tokenize`` wrote; or several
    of these with weights. ``field`` is the one that holds the text of a record. ``tokenizer``: ``bytes``, a
    ``tokenizer.json``, or ``auto``: a tokenized folder's own, else bytes. ``val_bytes`` of text are for validation.
    ``max_epochs`` refuses a run that would read any of its texts more often.
    """

    corpus: Annotated[str, Field(min_length=1)] | Annotated[tuple[Portion, ...], Field(strict=False, min_length=1)] = (
        "stdlib"
    )
    field: str = "text"
    tokenizer: str = "auto"
    val_bytes: PositiveInt = 65_536
    split: SplitSlot = BytesSplit()
    packing: PackingSlot = StreamPacking()
    filter: FilterSlot = NoFilter()
    max_epochs: PositiveFloat | Literal["any"] = "any"

    @model_validator(mode="after")
    def _mixture(self) -> DataConfig:
        names = [portion.corpus for portion in self.portions]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise refuse(
                    f"corpus.{i}.corpus", "a portion of this corpus exists", name, "one weight for each corpus"
                )
        if sum(self.quotas) > _LONGEST_PERIOD:
            weights = [portion.weight for portion in self.portions]
            allowed = f"small whole numbers, or decimals of few places: a period of at most {_LONGEST_PERIOD:,} samples"
            raise refuse("corpus", f"weights repeat after {sum(self.quotas):,} samples", weights, allowed)
        return self

    @property
    def portions(self) -> tuple[Portion, ...]:
        """The corpora with their weights; a single one is a mixture of one."""
        return (Portion(corpus=self.corpus),) if isinstance(self.corpus, str) else self.corpus

    @property
    def quotas(self) -> tuple[int, ...]:
        """The weights as the least whole numbers in the same proportion; their sum is the mixture's period."""
        exact = [Fraction(repr(portion.weight)) for portion in self.portions]
        unit = exact[0]
        for each in exact[1:]:
            unit = _gcd(unit, each)
        return tuple(int(each / unit) for each in exact)

    def identity(self) -> dict[str, Any]:
        """What decides the batches beside the tokens themselves, which the corpus's digest stands for."""
        return {"packing": self.packing.model_dump(mode="json"), "quotas": list(self.quotas)}


def _gcd(a: Fraction, b: Fraction) -> Fraction:
    while b:
        a, b = b, a % b
    return a


def place_paths(data: Any, folder: Path) -> Any:
    """The authored ``data`` table with the paths that exist beside its file written out in full."""
    if not isinstance(data, Mapping):
        return data
    out = dict(data)
    corpus = out.get("corpus")
    if isinstance(corpus, str):
        out["corpus"] = _placed(corpus, folder)
    elif isinstance(corpus, list):
        out["corpus"] = [
            {**p, "corpus": _placed(p["corpus"], folder)} if isinstance(p, Mapping) and "corpus" in p else p
            for p in corpus
        ]
    if "tokenizer" in out and out["tokenizer"] not in ("auto", "bytes"):
        out["tokenizer"] = _placed(out["tokenizer"], folder)
    return out


def _placed(name: Any, folder: Path) -> Any:
    if not isinstance(name, str) or name in EMBEDDED or Path(name).is_absolute():
        return name
    sign = re.search(r"[*?\[]", name)  # of a pattern, the folder before it has to be there
    root = folder / name[: sign.start()].rpartition("/")[0] if sign else folder / name
    return str((folder / name).absolute()) if root.exists() else name
