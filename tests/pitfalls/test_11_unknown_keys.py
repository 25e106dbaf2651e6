"""11. Unknown or misplaced keys accepted in silence (unslothai/unsloth PR#10452).

A misspelt key, a key one level too high, a hyphen for an underscore, a misspelt key of a nested block, a number written
as text, an unknown rotary type. Right: an error before any work that names key, section and nearest valid name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.interop import InteropError, read_recipe
from assay.recipe import RecipeError, resolve
from tests.pitfalls.support import BASE

Table = dict[str, Any]


def put(path: str, value: Any) -> Callable[[Table], None]:
    def edit(table: Table) -> None:
        *parents, key = path.split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
        table[key] = value

    return edit


# what is written wrong -> (the edit, where the error stands, the nearest valid name)
FAULTS: dict[str, tuple[Callable[[Table], None], str, str]] = {
    "misspelt at the top": (put("vocab_siz", 32), "vocab_siz", "vocab_size"),
    "a hyphen": (put("n-layers", 2), "n-layers", "n_layers"),
    "another library's name": (put("block.mixer.num_heads", 4), "block.mixer.num_heads", "n_heads"),
    "in a nested block": (put("block.mixer.position.thetaa", 1e4), "block.mixer.position.thetaa", "theta"),
    "in a norm": (put("block.residual.norm", {"kind": "rmsnorm", "epss": 1e-5}), "norm.epss", "eps"),
    "in the embedding": (put("embedding.tie", True), "embedding.tie", "tied"),
    "in one side": (put("block.residual.mixer", {"rulle": "pre"}), "mixer.rulle", "rule"),
    "in the head": (put("head.softcap", 30.0), "head.softcap", "soft_cap"),
    "in the init": (put("init.embeding", {"kind": "zero"}), "init.embeding", "embedding"),
    "in a sizing rule": (put("block.ffn.d_ff", {"ratio": 4, "multiple": 64}), "block.ffn.d_ff.multiple", "multiple_of"),
    "in the residual": (put("block.residual.ruel", "pre"), "block.residual.ruel", "rule"),
    "a kind": (put("block.mixer.position.kind", "rop"), "block.mixer.position.kind", "rope"),
    "an unknown rotary type": (
        put("block.mixer.position.scaling", {"kind": "yarrn", "factor": 2.0}),
        "block.mixer.position.scaling.kind",
        "yarn",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_named_with_its_place(name: str) -> None:
    edit, place, near = FAULTS[name]
    table = copy.deepcopy(BASE)
    resolve(table)
    edit(table)
    with pytest.raises(RecipeError) as caught:
        resolve(table)
    assert any(p.path.endswith(place) for p in caught.value.problems), caught.value
    assert near in str(caught.value)
    assert place.rsplit(".", 1)[-1] in str(caught.value)


MISPLACED = {
    "one level too high": put("n_heads", 4),
    "of the layer, in the mixer": put("block.mixer.d_ff", 24),
    "of rope, in the mixer": put("block.mixer.theta", 1e4),
    "of the model, in the block": put("block.vocab_size", 32),
    "of another kind": put("block.ffn.n_experts", 8),
    "of the run": put("learning_rate", 1e-3),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_misplaced(name: str) -> None:
    table = copy.deepcopy(BASE)
    MISPLACED[name](table)
    with pytest.raises(RecipeError, match="unknown key"):
        resolve(table)


TEXTS = {
    "a number as text": put("block.residual.norm", {"kind": "rmsnorm", "eps": "1e-5"}),
    "an integer as text": put("d_model", "16"),
    "a width as text": put("block.ffn.d_ff", "24"),
    "a flag as text": put("embedding.tied", "true"),
    "a flag as a number": put("embedding.tied", 1),
    "a fraction for a whole": put("block.mixer.n_heads", 4.0),
    "a flag for a number": put("n_layers", True),
    "not a number": put("block.mixer.position.theta", float("nan")),
    "not finite": put("block.mixer.position.theta", float("inf")),
}


@pytest.mark.parametrize("name", TEXTS)
def test_types_are_not_coerced(name: str) -> None:
    table = copy.deepcopy(BASE)
    TEXTS[name](table)
    with pytest.raises(RecipeError):
        resolve(table)


def test_all_faults_are_told_at_once() -> None:
    table = copy.deepcopy(BASE)
    for name in ("misspelt at the top", "in a nested block", "in the head", "in the embedding"):
        FAULTS[name][0](table)
    with pytest.raises(RecipeError) as caught:
        resolve(table)
    places = {p.path for p in caught.value.problems}
    assert {"vocab_siz", "block.mixer.position.thetaa", "head.softcap", "embedding.tie"} <= places


# transformers 5.24 takes both without a word
IMPORTED = {
    "a misspelt key": ({"intermediate_sizes": [64]}, r"intermediate_sizes = \[64\].*nearest: intermediate_size\b"),
    "a rotary type": ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "unknown rope type 'spiral'"),
    "a key of the rotary table": ({"rope_scaling": {"type": "linear", "facter": 2.0}}, "facter = 2.0|rope factor"),
}


@pytest.mark.parametrize("name", IMPORTED)
def test_imported_configs(name: str, tmp_path: Path) -> None:
    more, message = IMPORTED[name]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **more}))
    with pytest.raises(InteropError, match=message):
        read_recipe(tmp_path)
