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
    "extends, where nobody follows it": ({"extends": "gpt2"}, "extends"),
    "a rotation after a norm by length": (
        {"block.mixer.qk_norm": {"over": "head", "norm": "scalenorm", "order": "after_rope"}},
        "block.mixer.qk_norm.order",
    ),
    "a rotation after a norm without gain": (
        {"block.mixer.qk_norm": {"over": "width", "norm": {"kind": "rmsnorm", "gain": "none"}, "order": "after_rope"}},
        "block.mixer.qk_norm.order",
    ),
    "the width of one head": (
        {"block.mixer.qk_norm": {"over": "width", "norm": "rmsnorm"}, "block.mixer.n_heads": 1},
        "block.mixer.qk_norm.over",
    ),
    "a shift over heads": ({"block.mixer.qk_norm": {"over": "head", "norm": "shift"}}, "block.mixer.qk_norm.norm"),
    "a start that Fixup sets to 0": ({"init": {"depth": "fixup", "ffn_out": "xavier"}}, "init.ffn_out"),
    "depth without depth": ({"init": {"depth": "total_depth"}, "block.ffn": "none", "n_layers": 1}, "init.depth"),
    "depth of what starts at 0": (
        {"init": {"depth": "total_depth", "attn_out": "zero", "ffn_out": "zero"}},
        "init.depth",
    ),
    "a slot that both sides have of their own": (
        {"block.residual": {"skip": 0.5, "mixer": {"skip": 0.7}, "ffn": "post"}},
        "block.residual.skip",
    ),
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


def test_what_fixup_sets_to_0_is_written_so() -> None:
    """Without a word on them, branch ends and head start at zero in the resolved recipe too."""
    recipe = resolve(changed(BASE, {"init": {"depth": "fixup", "weights": "xavier"}, "embedding.tied": False}))
    kinds = {str(entry.role): entry.distribution.kind_name for entry in recipe.init.roles}
    assert {role for role, kind in kinds.items() if kind == "zero"} == {"attn_out", "ffn_out", "head"}
    assert kinds["attn_in"] == "xavier"
