"""How recipes are put into words, and how two of them differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.recipe import Recipe, base, load, preset_names, resolve
from assay.recipe.diff import RecipeDiff, diff
from assay.recipe.mixer import Mixer
from assay.recipe.words import clauses, layer_clauses, number, says, sizes_of, times, which_layers, words
from tests.laws.flips import flipped, flips_of
from tests.strategies import recipes

ANCHORS = ("llama-3.1-8b", "gemma3-4b", "gpt2")
FLIPPED = ("tiny/base", "tiny/local-global", "tiny/parallel", "tiny/parallel-shared", "tiny/qk-norm", "opt-350m")


def changed(name: str, *overrides: str, before: tuple[str, ...] = ()) -> RecipeDiff:
    """The diff from a preset to the same with overrides."""
    return diff(load(name, before), load(name, overrides))


def page(recipe: Recipe) -> list[Any]:
    """Everything that is said of a recipe but its digest and sources."""
    sizes = sizes_of(recipe)
    ends = [clauses(part, sizes) for part in (recipe.embedding, recipe.head, recipe.init)]
    return [sizes, *ends, *(layer_clauses(layer, sizes) for layer in recipe.layers)]


# what a diff says


def test_llama_2_to_llama_3_1() -> None:
    found = diff(load("llama-2-7b"), load("llama-3.1-8b"))
    assert found.headline == (
        "llama-3.1-8b differs from llama-2-7b in 6 places: "
        "vocabulary, context, attention heads, RoPE theta, RoPE scaling, feed-forward width"
    )
    assert found.sentences() == (
        "Vocabulary (vocab_size) grows from 32,000 to 128,256 (4.01x).",
        "Context (max_seq_len) grows from 4,096 to 131,072 tokens (32x).",
        "In all 32 layers, the mixer goes from multi-head attention, 32 heads of 128, to grouped-query attention, "
        "32 query heads on 8 KV heads of 128.",
        "In all 32 layers, RoPE theta rises from 10,000 to 500,000.",
        "In all 32 layers, the RoPE scaling is added: Llama 3 scaling by 8 from 8,192 (bands 1 to 4).",
        "In all 32 layers, feed-forward width grows from 11,008 (2.69x) to 14,336 (3.50x).",
    )
    heads = found.changes[2]
    assert (heads.path, heads.before, heads.after, heads.layers) == ("layers.mixer.n_kv_heads", 32, 8, "all")


def test_plain_to_local_and_global_layers() -> None:
    found = diff(load("llama-3.1-8b"), load("gemma3-4b"))
    by_path: dict[str, list[Any]] = {}
    for change in found.changes:
        by_path.setdefault(change.path, []).append(change)
    (span,) = by_path["layers.mixer.span"]
    assert span.layers == tuple(i for i in range(34) if i % 6 != 5)
    assert span.layers_of == "after"
    assert "29 of 34 layers (all but every 6th: 5, 11, 17, 23, 29) of gemma3-4b" in span.text
    assert (span.before, span.after) == (
        {"kind": "full", "causal": True},
        {"kind": "window", "size": 1024, "causal": True},
    )
    thetas = by_path["layers.mixer.position.theta"]
    assert [(t.before, t.after, len(t.layers)) for t in thetas] == [(5e5, 1e4, 29), (5e5, 1e6, 5)]
    assert by_path["layers.residual"][0].layers == "all"
    assert "pre-LN" in by_path["layers.residual"][0].text
    assert "sandwich" in by_path["layers.residual"][0].text
    assert "stack" not in by_path  # the spans say it
    assert "init" not in {change.axis for change in found.changes}  # no head table, so no start for one


def test_the_other_way_round_names_the_layers_of_the_first() -> None:
    found = diff(load("gemma3-4b"), load("llama-3.1-8b"))
    (span,) = (c for c in found.changes if c.path == "layers.mixer.span")
    assert span.layers_of == "before"
    assert len(span.layers) == 29
    assert len(found.changes) == len(diff(load("llama-3.1-8b"), load("gemma3-4b")).changes)


def test_another_pattern_of_the_same_layers_is_one_change() -> None:
    found = changed("gemma3-4b", 'stack=[{cycle=["3 local","global"],n_layers=34}]')
    assert [c.path for c in found.changes] == ["stack"]
    assert found.sentences()[0] == (
        "The stack goes from [5 local, global, repeated over 34] to [3 local, global, repeated over 34]."
    )
    deeper = changed("gemma3-4b", 'stack=[{cycle=["5 local","global"],n_layers=48}]')
    assert [c.path for c in deeper.changes] == ["n_layers"]


def test_names_that_cross_do_not_hide_a_change_of_the_stack() -> None:
    table = load("tiny/local-global").to_dict()
    local, glob = table["layers"]["local"], table["layers"]["global"]
    table["layers"] = {"local": glob, "global": local}  # the same names, the layers swapped
    (change,) = diff(load("tiny/local-global"), resolve(table)).changes
    assert change.before != change.after
    assert change.text == "The stack goes from [3 local, global] to [3 global, local]."


def test_a_change_of_some_layers_names_them() -> None:
    (change,) = changed("gemma3-4b", "layers.global.mixer.position.theta=5e5").changes
    assert change.layers == (5, 11, 17, 23, 29)
    assert change.layers_of == "both"
    assert change.text == "In every 6th layer (5, 11, 17, 23, 29; 5 of 34), RoPE theta falls from 1,000,000 to 500,000."


def test_a_width_of_its_own_for_each_layer_is_one_change() -> None:
    table = load("tiny/base").to_dict()
    layer = table["layers"].pop("layer")
    for i in range(8):
        table["layers"][f"l{i}"] = deepcopy(layer)
        table["layers"][f"l{i}"]["ffn"]["d_ff"] = 64 + 32 * i
    table["stack"] = [f"l{i}" for i in range(8)]
    found = diff(load("tiny/base", ["n_layers=8"]), resolve(table))
    (change,) = found.changes
    assert change.path == "layers.ffn.d_ff"
    assert change.layers == "all"
    assert change.after == [64 + 32 * i for i in range(8)]
    assert change.text == "In all 8 layers, feed-forward width goes from 171 to 64-288, layer by layer."


def test_what_follows_from_another_change_is_not_said_twice() -> None:
    deep = changed("tiny/deepnorm", "n_layers=8")
    assert [c.path for c in deep.changes] == ["n_layers"]  # alpha follows the depth
    wide = changed("tiny/base", "block.mixer.n_heads=8")
    assert [c.path for c in wide.changes] == ["layers.mixer"]  # KV heads and head_dim follow the heads
    assert wide.changes[0].after == {"n_heads": 8, "n_kv_heads": 8, "head_dim": 8}
    tied = changed("tiny/base", "embedding.tied=true")
    assert [c.path for c in tied.changes] == ["embedding.tied"]  # the head's init goes with its table
    alone = changed("tiny/base", "block.ffn=none")
    assert [c.path for c in alone.changes] == ["layers.ffn"]  # its residual rule goes with it


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("block.residual.norm.eps=1e-5", "the residual rule goes from pre-LN, RMSNorm (eps 1e-6), to pre-LN, RMSNorm"),
        ("block.residual=post", "to post-LN, RMSNorm (eps 1e-6)"),
        ("block.residual=sandwich", "to sandwich norm (input and output), RMSNorm (eps 1e-6)"),
        ("block.residual=reordered", "to reordered norm (on the output), RMSNorm (eps 1e-6)"),
        ("block.residual=rezero", "to ReZero: no norms; branch × a learned scalar from 0"),
        ("block.residual=deepnorm", "to DeepNorm: post-LN, RMSNorm (eps 1e-6)."),
        ('block.residual={form="parallel",rule="pre"}', "to parallel, each part behind its own norm; RMSNorm"),
        ('block.residual={form="parallel_shared_norm",rule="pre"}', "to parallel, both parts behind one norm, RMSNorm"),
        ("block.residual.mixer.branch=0.5", "to mixer: pre-LN, RMSNorm (eps 1e-6), branch × 0.5; ffn: pre-LN, RMSNorm"),
        ("block.mixer.n_kv_heads=1", "to multi-query attention, 4 query heads on 1 KV head of 16."),
        ("block.mixer.position=none", "the position goes from RoPE, theta 10,000, to no position in attention (NoPE)."),
        ('block.mixer.span={kind="window",size=8}', "the span goes from full causal attention to sliding window of 8."),
        ('block.mixer.qk_norm={over="head",norm="rmsnorm"}', "the QK-norm is added: over each head, RMSNorm"),
        ('block.mixer.bias=["q","k"]', "the attention bias is added: q, k."),
        ("block.mixer.soft_cap=50.0", "the attention soft-cap is added: 50."),
        ("block.ffn.activation=gelu", "the feed-forward part goes from SwiGLU to GEGLU."),
        ('block.ffn={kind="mlp",d_ff=256,activation="relu2"}', "to squared ReLU MLP, width 256 (4.00x)."),
        ("embedding.tied=true", "The head reads the embedding's table (tied; was untied)."),
        ("embedding.scale=sqrt_d_model", "The embedding scale goes from 1 to √d_model."),
        ("head.norm=none", "The final norm is dropped (was RMSNorm (eps 1e-6))."),
        ("head.bias=true", "The head bias is added."),
        ("init.depth=total_depth", "The init by depth goes from the same at every depth to 1/√"),
        ('init.head={kind="normal",std=0.01}', "The init of head matrices goes from N(0, 0.02²) to N(0, 0.01²)."),
    ],
)
def test_one_override_is_one_sentence(override: str, text: str) -> None:
    found = changed("tiny/base", override)
    assert len(found.changes) == 1
    assert text.lower() in found.sentences()[0].lower()


def test_a_diff_is_plain_values() -> None:
    found = diff(load("gemma3-4b"), load("llama-2-7b"))
    read = json.loads(json.dumps(found.to_dict()))
    assert read["same"] is False
    assert read["before"]["digest"] == load("gemma3-4b").digest
    assert {"axis", "path", "layers", "layers_of", "before", "after", "text"} == set(read["changes"][0])
    assert found.sentences() == tuple(change["text"] for change in read["changes"])


# complete, and nothing else


@pytest.mark.parametrize("name", preset_names())
def test_a_recipe_does_not_differ_from_itself(name: str) -> None:
    found = diff(load(name), load(name))
    assert found.same
    assert not found.changes


def test_names_sources_and_notes_are_no_difference() -> None:
    table = load("gemma3-4b").to_dict()
    table |= {"name": "mine", "sources": ["a notebook"], "notes": "tried on a Sunday"}
    table["layers"] = {"near": table["layers"]["local"], "far": table["layers"]["global"]}
    table["stack"] = [{"cycle": ["5 near", "far"], "n_layers": 34}]
    found = diff(load("gemma3-4b"), resolve(table))
    assert found.same
    assert found.headline == "mine and gemma3-4b are the same architecture with the same init"


@pytest.mark.parametrize("anchor", ANCHORS)
def test_every_pair_of_other_digests_differs(anchor: str) -> None:
    for name in preset_names():
        for a, b in ((load(anchor), load(name)), (load(name), load(anchor))):
            assert diff(a, b).same == (a.digest == b.digest), (a.name, b.name)


def found_and_told(before: Recipe, after: Recipe) -> bool:
    """Whether the diff, both ways, and the page know as much as the digest."""
    same = before.digest == after.digest
    diffs = (diff(before, after), diff(after, before))
    told = all(c.before != c.after for found in diffs for c in found.changes)
    return told and all(found.same == same for found in diffs) and (page(before) == page(after)) == same


@pytest.mark.parametrize("name", FLIPPED)
def test_every_flip_of_a_field_is_found_and_told(name: str) -> None:
    before = load(name)
    tried = 0
    for flip in flips_of(before):
        for value in flip.values:
            after = flipped(before, flip, value)
            if after is not None:
                tried += 1
                assert found_and_told(before, after), (flip, value)
    assert tried > 50


@given(recipes(), st.data())
def test_every_flip_of_a_random_recipe_is_found_and_told(before: Recipe, data: st.DataObject) -> None:
    flips = flips_of(before)
    for flip in data.draw(st.lists(st.sampled_from(flips), min_size=1, max_size=8, unique_by=id)):
        for value in flip.values:
            after = flipped(before, flip, value)
            assert after is None or found_and_told(before, after), (flip, value)


@given(recipes(), recipes())
def test_every_pair_of_random_recipes_differs(a: Recipe, b: Recipe) -> None:
    found = diff(a, b)
    assert found.same == (a.digest == b.digest)
    assert json.loads(json.dumps(found.to_dict()))["same"] == found.same


# words


@pytest.mark.parametrize(
    ("depths", "n_layers", "text"),
    [
        (range(32), 32, "all 32 layers"),
        ([0], 1, "the only layer"),
        ([3], 8, "layer 3 of 8"),
        ([0, 1, 2], 61, "layers 0-2 (3 of 61)"),
        ([1, 3, 5, 7], 8, "every other layer (1, 3, 5, 7; 4 of 8)"),
        (range(5, 34, 6), 34, "every 6th layer (5, 11, 17, 23, 29; 5 of 34)"),
        ([i for i in range(12) if i % 4 != 3], 12, "9 of 12 layers (all but every 4th: 3, 7, 11)"),
        (range(0, 64, 2), 64, "every other layer (0, 2, 4, 6, ..., 62; 32 of 64)"),
        ([0, 1, 5], 8, "layers 0-1, 5 (3 of 8)"),
    ],
)
def test_depths_in_words(depths: Any, n_layers: int, text: str) -> None:
    assert which_layers(depths, n_layers) == text


def test_numbers_in_words() -> None:
    said = [number(v) for v in (128256, 5e5, 0.02, 1e-5, 1.702, 0.632455532033676, -1.0)]
    assert said == ["128,256", "500,000", "0.02", "1e-5", "1.702", "0.632456", "-1"]
    assert [times(v) for v in (2.6875, 32.0, 0.625, 1.5)] == ["2.69x", "32x", "0.625x", "1.5x"]


@pytest.mark.parametrize("name", preset_names())
def test_no_part_of_a_preset_falls_back_to_its_fields(name: str) -> None:
    recipe = load(name)
    text = json.dumps(page(recipe), default=str)
    assert "kind" not in text
    assert "{" not in text.replace('{"mixer"', "")


def test_attention_by_its_heads() -> None:
    recipe = load("llama-2-7b")
    names = [
        words(load("llama-2-7b", [f"block.mixer.n_kv_heads={n}"]).layers[0].mixer, sizes_of(recipe)) for n in (32, 8, 1)
    ]
    assert [name.partition(";")[0] for name in names] == [
        "multi-head attention, 32 heads of 128",
        "grouped-query attention, 32 query heads on 8 KV heads of 128",
        "multi-query attention, 32 query heads on 1 KV head of 128",
    ]


@pytest.fixture
def own_kinds() -> Iterator[None]:
    """Kinds that a test defines are forgotten after it."""
    before = {slot: dict(kinds) for slot, kinds in base._KINDS.items()}
    yield
    base._KINDS.clear()
    base._KINDS.update(before)


@pytest.mark.usefixtures("own_kinds")
def test_a_kind_nobody_has_put_into_words() -> None:
    class ShortConv(Mixer):
        """A convolution over the last tokens."""

        kind: Literal["words_test_conv"] = "words_test_conv"
        taps: int = 4
        gated: bool = False

    a = load("tiny/base", ['block.mixer={kind="words_test_conv"}'])
    b = load("tiny/base", ['block.mixer={kind="words_test_conv",taps=8}'])
    mixer, sizes = a.layers[0].mixer, sizes_of(a)
    assert words(mixer, sizes) == "words_test_conv (taps 4, gated no)"
    assert diff(a, b).sentences() == ("In all 4 layers, words test conv taps rises from 4 to 8.",)
    (swap,) = diff(load("tiny/base"), a).changes
    assert swap.text.endswith("to words_test_conv (taps 4, gated no).")
    assert swap.after == {"kind": "words_test_conv", "taps": 4, "gated": False}

    @says(ShortConv)
    def _phrase(spec: ShortConv, sizes: Any) -> str:
        return f"short convolution over {spec.taps} tokens"

    assert words(mixer, sizes) == "short convolution over 4 tokens"
