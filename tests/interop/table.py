"""The measured table of the documentation: ``python -m tests.interop.table``.

One row a case: largest difference of logits over the largest |logit|, against transformers in float32, read from its
folder; the same for what transformers makes of the folder that we write.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from assay.interop import PENDING, from_hf, to_hf
from assay.interop.errors import shown
from tests.interop.cases import CASES
from tests.interop.support import distance, ids_of, logits_of, quiet, reference, saved


@dataclass(frozen=True)
class Row:
    """One measured case."""

    family: str
    config: str
    error: float
    argmax: bool
    export: float


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
        setting = name.removeprefix(case.model_type).removeprefix(", ") or "plain"
        yield Row(case.model_type, setting, distance(got, want), equal, distance(logits_of(back, ids), want))


def main() -> None:
    import transformers

    quiet()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, float32, CPU.\n")
    print("| family | config | error | argmax | export |\n|---|---|---:|---|---:|")
    for r in rows():
        print(f"| {r.family} | {r.config} | {r.error:.1e} | {'equal' if r.argmax else 'differs'} | {r.export:.1e} |")
    print("\n| not yet | setting | needs |\n|---|---|---|")
    for p in PENDING:
        print(f"| {p.model_type} | {p.what or 'all'} | {shown(p.missing) or 'a converter'} |")


if __name__ == "__main__":
    main()
