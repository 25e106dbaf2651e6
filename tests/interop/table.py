"""The measured table of the documentation: ``python -m tests.interop.table``, ``--write`` to put it in ``docs``.

One row a case: largest difference of logits over the largest |logit|, against transformers, read from its folder; the
same for what transformers makes of the folder that we write.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from assay.interop import PENDING, from_hf, to_hf
from assay.interop.errors import shown
from tests.interop.cases import CASES, CONTEXT, LENGTH, LONG, VOCAB, WINDOW, Case
from tests.interop.support import TOLERANCE, distance, ids_of, logits_of, quiet, reference, saved

TARGET = Path(__file__).resolve().parents[2] / "docs" / "parity.md"
COLUMNS = ("family", "config", "dtype", "error", "argmax", "export", "notes")

# where transformers 5.24 is no reference, or only under a setting; tests/interop/test_exceptions.py shows each
EXCEPTIONS = (
    "**falcon with ALiBi**: eager attention adds the bias twice. The reference is sdpa.",
    "**dynamic NTK, LongRoPE**: keys in a cache keep the rotation of the length at which they came, so cached and "
    "uncached logits differ, and a dynamic model remembers its longest row. The reference is a fresh model, uncached.",
    "**gemma2**: runs under eager alone, since sdpa cannot cap scores. Our sdpa backend refuses such a recipe too.",
    "**mpt**: has ALiBi whatever `attn_config.alibi` says. A config that says false is refused.",
    "**xglm**: the table of positions has zeros in the row of the pad token's number. Numbers from 2 on are refused.",
    "**diffllama**: no dropout of probabilities, there or here: nobody has defined it on a difference of two maps.",
    "**bert**: the row of the first segment is added to every position; the second segment's row is not carried over, "
    "and what is written has zeros for both.",
    "**olmo3**: an older config's `rope_theta` reaches the full layers only. Here both kinds.",
    "**apertus, cwm, ministral3**: a `rope_scaling` of null beside a `rope_theta` takes the family's own scaling. Here "
    "null is none, and for ministral3, whose queries are scaled by the same table, an error.",
)
NOTES = {
    "sdpa": "against sdpa",
    "by_length": "each length against a fresh model",
    "both_ways": "both ways; BertForMaskedLM",
}


@dataclass(frozen=True)
class Row:
    """One measured case."""

    family: str
    config: str
    dtype: str
    error: float
    argmax: bool
    export: float
    notes: str

    @property
    def cells(self) -> tuple[str, ...]:
        equal = "equal" if self.argmax else "differs"
        return (self.family, self.config, self.dtype, _shown(self.error), equal, _shown(self.export), self.notes)


def _shown(error: float) -> str:
    return "0" if error == 0 else f"{error:.0e}"


def notes_of(case: Case) -> str:
    told = [NOTES[case.attention]] if case.attention in NOTES else []
    told += [NOTES[name] for name in ("by_length", "both_ways") if getattr(case, name)]
    return "; ".join(told)


def setting(name: str) -> str:
    """The case's name without its family's."""
    return name.removeprefix(CASES[name].model_type).removeprefix(", ") or "plain"


def rows() -> Iterator[Row]:
    """Every case, measured here and now."""
    import transformers

    for name, case in CASES.items():
        model, ids = reference(case), ids_of()
        want = logits_of(model, ids)
        with tempfile.TemporaryDirectory() as tmp:
            decoder = from_hf(saved(model, Path(tmp) / "theirs"))
            with torch.no_grad():
                got = decoder(ids)
            folder = to_hf(decoder, Path(tmp) / "ours")
            back = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=case.attention)
            assert json.loads((folder / "config.json").read_text())["model_type"] == case.model_type
        equal = torch.equal(got.argmax(-1), want.argmax(-1))
        dtype = str(decoder.embedding.table.dtype).removeprefix("torch.")
        export = distance(logits_of(back, ids), want)
        yield Row(case.model_type, setting(name), dtype, distance(got, want), equal, export, notes_of(case))


def markdown(found: list[Row]) -> str:
    """The page."""
    import transformers

    releases = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}, CPU"
    head = f"""# Parity with transformers

Written by `python -m tests.interop.table --write` with {releases}.

Each row is a tiny model that transformers builds from its own config, **every** weight random (gains, biases and scales
too), saved, and read here.

- *error*: the largest difference of two logits over the largest |logit|, of {len(ids_of())} rows of {LENGTH} tokens,
  {VOCAB} known. Windows are {WINDOW}; trained contexts are {CONTEXT}, or {LONG} where positions are a learned table.
- *argmax*: the best token at every place.
- *export*: the same error for the folder that assay writes and `AutoModelForCausalLM` loads.

`tests/interop/test_parity.py` holds every row under {TOLERANCE:g}, a left-padded row to the row alone, both dialects of
RoPE to the same recipe, and the written folder to the same digest.
"""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|---:|---|---:|---|"]
    lines += ["| " + " | ".join(row.cells) + " |" for row in found]
    exceptions = "\n".join(f"- {text}" for text in EXCEPTIONS)
    waits = [f"- {p.model_type} {p.what}: needs {shown(p.missing)}" for p in PENDING]
    page = [head, "\n".join(lines), "\n## Where transformers is no reference\n", exceptions]
    return "\n".join([*page, *(["\n## Not yet\n", *waits] if waits else [])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name} instead of printing it")
    told = parser.parse_args()
    quiet()
    page = markdown(list(rows()))
    if told.write:
        TARGET.write_text(page, encoding="utf-8")
    else:
        print(page, end="")


if __name__ == "__main__":
    main()
