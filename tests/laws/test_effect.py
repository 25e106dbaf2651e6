"""What cannot take effect is refused, never ignored; the error names the place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from assay.recipe import RecipeError, resolve
from tests.strategies import Table

BASE: Table = {
    "d_model": 8,
    "vocab_size": 11,
    "max_seq_len": 16,
    "n_layers": 2,
    "embedding": {"tied": True},
    "head": {"norm": "rmsnorm"},
    "block": {
        "mixer": {"kind": "attention", "n_heads": 2, "position": "rope"},
        "ffn": {"kind": "mlp", "d_ff": 8, "activation": "relu"},
        "residual": "pre",
    },
    "init": {},
}

# what is changed, and a place that the error names
CASES: dict[str, tuple[Table, str]] = {
    "a layer names itself": ({"block.name": "local"}, "block.name"),
    "a rotation after a norm by length": (
        {"block.mixer.qk_norm": {"over": "head", "norm": "scalenorm", "order": "after_rope"}},
        "block.mixer.qk_norm.order",
    ),
    "a rotation after a norm without gain": (
        {"block.mixer.qk_norm": {"over": "width", "norm": {"kind": "rmsnorm", "gain": "none"}, "order": "after_rope"}},
        "block.mixer.qk_norm.order",
    ),
    "a shift over heads": ({"block.mixer.qk_norm": {"over": "head", "norm": "shift"}}, "block.mixer.qk_norm.norm"),
}


def changed(table: Table, changes: Table) -> Table:
    out = copy.deepcopy(table)
    for path, value in changes.items():
        node: Any = out
        *above, last = path.split(".")
        for key in above:
            node = node[key]
        node[last] = value
    return out


@pytest.mark.parametrize("case", CASES)
def test_what_has_no_effect_is_refused(case: str) -> None:
    changes, path = CASES[case]
    with pytest.raises(RecipeError) as raised:
        resolve(changed(BASE, changes))
    assert path in [problem.path for problem in raised.value.problems], str(raised.value)
