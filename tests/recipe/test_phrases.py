"""Each kind by its phrase, on the page of a recipe and in a diff."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from assay.recipe import load
from assay.recipe.base import _KINDS
from assay.recipe.diff import diff
from assay.recipe.ffn import Activation
from assay.recipe.phrases import activation_name
from assay.recipe.words import _PHRASES, layer_clauses, sizes_of, words

MIXER, POSITION, SPAN = "block.mixer.", "block.mixer.position=", "block.mixer.span="
ALIBI, T5 = POSITION + '{kind="alibi"}', POSITION + '{kind="t5"}'
MLP = 'block.ffn={kind="mlp",d_ff=256,activation="%s"%s}'
LONG = '{kind="rope",scaling={kind="longrope",short_factor=[%s],long_factor=[%s],original_seq_len=32,%s}}'
EIGHT = ",".join(["1.0"] * 8)


def said(*overrides: str) -> tuple[str, ...]:
    """What ``assay show`` says of a layer of ``tiny/base`` under these overrides."""
    recipe = load("tiny/base", overrides)
    return tuple(clause for found in layer_clauses(recipe.layers[0], sizes_of(recipe)).values() for clause in found)


def sentence(*overrides: str, before: tuple[str, ...] = ()) -> str:
    """What ``assay diff`` says, in one sentence, of what the overrides change in ``tiny/base`` with ``before``."""
    (change,) = diff(load("tiny/base", before), load("tiny/base", (*before, *overrides))).changes
    assert change.before != change.after
    return change.text.removeprefix("In all 4 layers, ")


@pytest.mark.parametrize(
    ("override", "phrase"),
    [
        (ALIBI, "ALiBi"),
        (POSITION + '{kind="alibi",max_bias=16.0,multiplier=0.125}', "ALiBi (max bias 16, slopes × 0.125)"),
        (T5, "T5 bias, 32 buckets up to distance 128"),
        (
            POSITION + '{kind="rope",scaling={kind="dynamic",factor=4.0,original_seq_len=2048}}',
            "RoPE, theta 10,000, dynamic NTK scaling by 4 past 2,048",
        ),
        (
            POSITION + LONG % (EIGHT, EIGHT.replace("1.0", "2.5", 1), "attention_factor=1.19"),
            "RoPE, theta 10,000, LongRoPE past 32 (attention factor 1.19, short factors 1, 1, 1, 1, 1, 1, 1, 1, "
            "long factors 2.5, 1, 1, 1, 1, 1, 1, 1)",
        ),
        (SPAN + '{kind="chunked",size=8192}', "attention inside chunks of 8,192"),
        (SPAN + '{kind="chunked",size=8,causal=false}', "attention inside chunks of 8, both ways"),
        (SPAN + '{kind="strided",stride=128}', "strided attention of stride 128"),
        (SPAN + '{kind="fixed",block=128}', "fixed attention (blocks of 128, the last key of each earlier block)"),
        (
            SPAN + '{kind="fixed",block=128,summary=8}',
            "fixed attention (blocks of 128, the last 8 keys of each earlier block)",
        ),
        (
            SPAN + '{kind="window_global",size=512,n_global=1}',
            "sliding window of 512 and 1 global position",
        ),
        (
            SPAN + '{kind="window_global",size=512,n_global=4,causal=false}',
            "sliding window of 512, both ways, and 4 global positions",
        ),
        (MLP % ("xielu", ""), "xIELU MLP, width 256 (4.00x)"),
        (
            'block.ffn.activation={kind="xielu",alpha=1.0,beta=0.25}',
            "xIELU (alpha from 1, beta 0.25) GLU, width 171 (2.67x)",
        ),
        (MLP % ("relu", ',act_norm="layernorm"'), "LayerNorm (eps 1e-5) before the activation"),
        (MLP % ("relu", ',act_norm="shift"'), "learned scalar shift before the activation"),
    ],
)
def test_show_says(override: str, phrase: str) -> None:
    assert phrase in said(override)


def test_show_says_whose_table_a_t5_bias_reads() -> None:
    recipe = load("tiny/local-global", [T5, 'layers.global.mixer.position={kind="t5",table="first"}'])
    assert {words(layer.mixer.position, sizes_of(recipe)) for layer in recipe.layers} == {
        "T5 bias, 32 buckets up to distance 128",
        "T5 bias, 32 buckets up to distance 128, the first layer's table",
    }


def test_many_factors_of_a_longrope_are_told_by_their_range_and_apart() -> None:
    wide = MIXER + "head_dim=32"
    one, other = ([f"{1 + i / 8}" for i in order] for order in (range(16), [*range(14), 14.5, 15]))
    before, after = (
        POSITION + LONG % (",".join(["1.0"] * 16), ",".join(long), "attention_factor=1.0") for long in (one, other)
    )
    (phrase,) = (clause for clause in said(wide, before) if clause.startswith("RoPE"))
    assert "16 short factors 1 to 1 [" in phrase
    assert "16 long factors 1 to 2.875 [" in phrase
    assert len(phrase) < 150
    assert said(wide, before) != said(wide, after)
    found = diff(load("tiny/base", [wide, before]), load("tiny/base", [wide, after])).changes
    assert [change.path for change in found] == ["layers.mixer.position.scaling.long_factor"]
    assert found[0].after == [float(x) for x in other]


@pytest.mark.parametrize(
    ("before", "override", "text"),
    [
        ("", ALIBI, "the position goes from RoPE, theta 10,000, to ALiBi."),
        (ALIBI, "block.mixer.position.max_bias=16.0", "ALiBi max bias rises from 8 to 16."),
        (ALIBI, "block.mixer.position.multiplier=0.5", "ALiBi slope multiplier falls from 1 to 0.5."),
        ("", T5, "the position goes from RoPE, theta 10,000, to T5 bias, 32 buckets up to distance 128."),
        (T5, "block.mixer.position.n_buckets=64", "T5 bucket count rises from 32 to 64."),
        (T5, "block.mixer.position.max_distance=256", "T5 max distance rises from 128 to 256."),
        (
            "",
            'block.mixer.position.scaling={kind="dynamic",factor=2.0,original_seq_len=64}',
            "the RoPE scaling is added: dynamic NTK scaling by 2 past 64.",
        ),
        (
            "",
            SPAN + '{kind="chunked",size=8}',
            "the span goes from full causal attention to attention inside chunks of 8.",
        ),
        (
            SPAN + '{kind="window",size=8}',
            SPAN + '{kind="window_global",size=8,n_global=2}',
            "the span goes from sliding window of 8 to sliding window of 8 and 2 global positions.",
        ),
        (
            SPAN + '{kind="strided",stride=8}',
            SPAN + '{kind="fixed",block=8}',
            "the span goes from strided attention of stride 8 to fixed attention (blocks of 8, the last key of each "
            "earlier block).",
        ),
        (
            MLP % ("relu", ""),
            'block.ffn.activation="xielu"',
            "the feed-forward part goes from ReLU MLP to xIELU MLP.",
        ),
        (
            MLP % ("relu", ""),
            'block.ffn.act_norm="layernorm"',
            "the norm before the activation is added: LayerNorm (eps 1e-5).",
        ),
    ],
)
def test_diff_says(before: str, override: str, text: str) -> None:
    assert sentence(override, before=(before,) if before else ()).lower() == text.lower()


def test_diff_says_whose_table_a_t5_bias_reads() -> None:
    a = load("tiny/local-global", [T5])
    b = load("tiny/local-global", [T5, 'layers.global.mixer.position.table="first"'])
    (there,), (back,) = diff(a, b).changes, diff(b, a).changes
    assert there.clause == "the layer reads the first layer's T5 table (was its own)"
    assert back.clause == "the layer has a T5 table of its own (was the first layer's)"
    assert there.path == "layers.mixer.position.table"


def test_every_kind_of_ours_has_a_phrase() -> None:
    recipe = load("tiny/base")
    for slot, kinds in _KINDS.items():
        for kind, cls in kinds.items():
            if not cls.__module__.startswith("assay.recipe."):
                continue
            if issubclass(cls, Activation):
                act = cls(**({"beta": 1.5} if kind == "swish" else {}))
                assert activation_name(act, sizes_of(recipe)) != kind or kind in ("sigmoid", "identity")
            else:
                assert any(base in _PHRASES for base in cls.__mro__), (slot, kind)


def test_a_kind_of_ones_own_brings_its_phrase() -> None:
    examples = Path(__file__).parents[2] / "examples"
    argv = ["show", str(examples / "average.toml"), "--plugin", str(examples / "average_mixer.py")]
    done = subprocess.run([sys.executable, "-m", "assay", *argv], capture_output=True, text=True, check=True)
    assert "running average, width 64" in done.stdout
