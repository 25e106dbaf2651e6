"""Every fault of a recipe is told at once, those beside a derived default that cannot be computed too."""

from __future__ import annotations

import pytest

from assay.recipe import RecipeError, load


def faults(*overrides: str) -> dict[str, str]:
    """Path and message of everything that is wrong with ``tiny/base`` under these overrides."""
    with pytest.raises(RecipeError) as raised:
        load("tiny/base", overrides)
    return {problem.path: problem.message for problem in raised.value.problems}


def test_a_width_that_has_no_default_hides_no_other_fault() -> None:
    found = faults(
        "block.mixer.n_heads=7",
        "block.mixer.n_haeds=4",
        'block.mixer.span={kind="windw",size=8}',
        "block.mixer.position.theat=1e4",
    )
    assert found.pop("block.mixer.head_dim").startswith("d_model 64 is not divisible by n_heads 7")
    assert found == {
        "block.mixer.n_haeds": "unknown key",
        "block.mixer.span.kind": "no such span kind",
        "block.mixer.position.theat": "unknown key",
    }


def test_a_sizing_rule_that_is_wrong_hides_no_other_fault() -> None:
    assert faults('block.ffn.d_ff={ratio="8/3",multiple=8,round="up"}', 'block.ffn.activation="sillu"') == {
        "block.ffn.d_ff.multiple": "unknown key",
        "block.ffn.d_ff.round": "unknown key",
        "block.ffn.activation.kind": "no such activation kind",
    }
    assert faults('block.ffn.d_ff={ratio="0/3"}', "block.ffn.dropuot=0.1") == {
        "block.ffn.d_ff.ratio": "not positive",
        "block.ffn.dropuot": "unknown key",
    }


def test_a_residual_rule_that_is_wrong_hides_no_other_fault() -> None:
    found = faults('block.residual={rule="pree",norrm="rmsnorm",mixer={rule="prre",dropuot=0.1},output_norm="rmsnrm"}')
    assert found == {
        "block.residual.norrm": "unknown key",
        "block.residual.rule": "no such residual rule",
        "block.residual.mixer.dropuot": "unknown key",
        "block.residual.mixer.rule": "no such residual rule",
        "block.residual.mixer.output_norm.kind": "no such norm kind",
        "block.residual.ffn.output_norm.kind": "no such norm kind",
    }


def test_a_fault_of_a_rule_alone_is_told_alone() -> None:
    assert faults('block.residual={rule="rezero",norm="rmsnorm"}') == {
        "block.residual.norm": "the rule 'rezero' places no norm"
    }
    assert list(faults("block.mixer.n_heads=7")) == ["block.mixer.head_dim"]
    assert faults('block.residual={form="parallel",rule="pre",skip=0.5,mixer={rule="deepnorm"}}') == {
        "block.residual.mixer.rule": "sets skip, which this form shares"
    }
