"""transformers' own tiny models, every weight random, read from their folders and written back: equal logits.

The measure: largest difference of two logit tensors over the largest |logit|, in float32; argmax equal everywhere.
Lengths go past every window, and past the trained context wherever positions are not a table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from assay.interop import families, from_hf, read_recipe, to_hf
from assay.interop.rope import RopeHole
from assay.model import build
from assay.recipe import resolve
from tests.interop.cases import CASES, CONTEXT, LENGTH, LONG, WINDOW
from tests.interop.support import TOLERANCE, distance, ids_of, logits_of, older, reference, saved

assert WINDOW < CONTEXT < LENGTH < LONG
NAMES = list(CASES)


def agrees(got: torch.Tensor, want: torch.Tensor) -> None:
    assert distance(got, want) < TOLERANCE
    assert torch.equal(got.argmax(-1), want.argmax(-1))


def test_every_family_has_a_case() -> None:
    assert {case.model_type for case in CASES.values()} == set(families())


@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str, bench: Any) -> None:
    b = bench(name)
    decoder = from_hf(b.folder)
    assert not decoder.training
    with torch.no_grad():
        agrees(decoder(b.ids), b.logits)
    if name == "llama":
        decoder.use_backend("reference")
        with torch.no_grad():
            agrees(decoder(b.ids), b.logits)


@pytest.mark.parametrize("name", NAMES)
def test_a_left_padded_row_equals_the_row_alone(name: str, bench: Any) -> None:
    b = bench(name)
    decoder = from_hf(b.folder)
    pads = 11
    ids = torch.cat((b.ids[1:, :pads].flip(-1), b.ids[1:, :-pads]), dim=1)
    rows = torch.cat((b.ids[:1], ids))
    mask = torch.ones_like(rows)
    mask[1, :pads] = 0
    with torch.no_grad():
        got = decoder(rows, padding_mask=mask)
    agrees(got[:1], b.logits[:1])
    alone = b.logits[1:, :-pads]
    if (
        b.case.by_length or b.case.both_ways
    ):  # no prefix equals the shorter row; a model that has seen no longer one is the reference
        alone = logits_of(reference(b.case), b.ids[1:, :-pads])
    agrees(got[1:, pads:], alone)


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(name: str, bench: Any, tmp_path: Any) -> None:
    """Ours to a folder, the folder to transformers and to us: model type, tying, dtype, tokens, logits, digest."""
    import transformers

    b = bench(name)
    decoder = from_hf(b.folder)
    tokens = {key.removesuffix("_token_id"): b.case.config.get(key) for key in ("bos_token_id", "eos_token_id")}
    folder = to_hf(decoder, tmp_path / "out", tokens=tokens)
    back, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=b.case.attention, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    agrees(logits_of(back, b.ids), b.logits)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == b.case.model_type
    family = families()[b.case.model_type]
    assert config["architectures"] == [family.masked if b.case.both_ways else family.architecture]
    assert config["dtype"] == "float32"
    assert back.dtype == torch.float32
    assert config["tie_word_embeddings"] == b.model.config.tie_word_embeddings
    assert type(back) is type(b.model)
    again = from_hf(folder)
    assert again.recipe.digest == decoder.recipe.digest
    assert again.recipe.name == decoder.recipe.name
    with torch.no_grad():
        assert torch.equal(again(b.ids), decoder(b.ids))
    (folder / "assay_recipe.json").unlink()  # the foreign files alone say the architecture, and here the init too
    assert read_recipe(folder).digest == decoder.recipe.digest


ROPED = [n for n, c in CASES.items() if any(isinstance(h, RopeHole) for h in families()[c.model_type].holes())]


@pytest.mark.parametrize("name", ROPED)
def test_the_older_dialect_says_the_same(name: str, bench: Any, tmp_path: Any) -> None:
    """``rope_theta``, ``rope_scaling`` and a fraction at the top level: the same recipe, and transformers agrees."""
    import transformers

    b = bench(name)
    new = json.loads((b.folder / "config.json").read_text())
    hole = next(h for h in families()[b.case.model_type].holes() if isinstance(h, RopeHole))
    old = older(new, hole.names)
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert read_recipe(tmp_path).digest == read_recipe(b.folder).digest
    if b.case.model_type == "olmo3":
        return  # transformers 5.24 takes an older rope_theta for the full layers only
    if hole.names.silent and old["rope_scaling"] is None:
        return  # transformers 5.24 puts the family's own scaling in place of a null
    told = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert _plain(told) == _plain(new["rope_parameters"])


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _plain(v) if isinstance(v, dict) else v for k, v in table.items() if k != "type"}


WIDE = [n for n in dict.fromkeys(c.model_type for c in CASES.values()) if "head_dim" in families()[n].claims()]


@pytest.mark.parametrize("model_type", WIDE)
def test_head_dim_is_the_configs(model_type: str, tmp_path: Any) -> None:
    """Not width over heads, wherever the config may say so: scale, rotation, projections and the way back."""
    import transformers

    case = next(c for c in CASES.values() if c.model_type == model_type)
    if any("n_heads times head_dim" in limit.says for limit in families()[model_type].limits):
        pytest.skip("transformers builds a square output projection")
    model = reference(replace(case, config={**case.config, "head_dim": 16}))
    ids = ids_of()
    want = logits_of(model, ids)
    decoder = from_hf(saved(model, tmp_path / "theirs"))
    assert decoder.recipe.layers[0].mixer.head_dim == 16  # type: ignore[attr-defined]
    with torch.no_grad():
        agrees(decoder(ids), want)
    folder = to_hf(decoder, tmp_path / "ours")
    back = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=case.attention)
    agrees(logits_of(back, ids), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype, bench: Any, tmp_path: Any) -> None:
    """A half-precision folder is read as it is unless told otherwise, and written as it is."""
    import transformers

    b = bench("llama, biases")
    half = transformers.AutoModelForCausalLM.from_pretrained(b.folder, dtype=dtype)
    half.save_pretrained(tmp_path / "half")
    decoder = from_hf(tmp_path / "half")
    assert decoder.embedding.table.dtype == dtype
    wide = from_hf(tmp_path / "half", dtype=torch.float32)
    with torch.no_grad():
        agrees(wide(b.ids), logits_of(half.float(), b.ids))
    folder = to_hf(decoder, tmp_path / "out")
    back = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert back.dtype == dtype
    for name, p in back.named_parameters():
        assert torch.equal(p, dict(half.to(dtype).named_parameters())[name]), name


# what of a recipe the comparison must see: (case, path in each layer or at an end, another value)
SEEN: list[tuple[str, str, Any]] = [
    ("diffllama", "mixer.differential.start", 0.5),
    ("diffllama", "mixer.differential.norm.eps", 0.1),
    ("diffllama", "mixer.scale", 0.3),
    ("ministral3", "mixer.query_scale", {"kind": "none"}),
    ("ministral3", "mixer.query_scale.beta", 0.6),
    ("ministral3", "mixer.query_scale.period", 9),
    ("ministral3", "mixer.query_scale.first", 1),
    ("xglm", "embedding.position.spacing", "paper"),
    ("xglm", "embedding.position.offset", 0),
    ("xglm", "embedding.position.layout", "interleaved"),
    ("bert", "mixer.span.causal", True),
    ("bert", "head.transform.activation", {"kind": "gelu_tanh"}),
    ("bert", "head.transform.norm.eps", 0.1),
    ("modernbert-decoder", "head.transform.activation", {"kind": "silu"}),
    ("modernbert-decoder", "embedding.norm.eps", 0.1),
]


@pytest.mark.parametrize(("name", "path", "value"), SEEN)
def test_one_changed_field_is_seen(name: str, path: str, value: Any, bench: Any) -> None:
    """The same weights under a recipe that differs in one field: the comparison above would fail."""
    b = bench(name)
    decoder = from_hf(b.folder)
    table = decoder.recipe.to_dict()
    *above, last = path.split(".")
    for root in (table,) if above[0] in table else table["layers"].values():
        node = root
        for key in above:
            node = node[key]
        node[last] = value
    other = build(resolve(table)).eval()
    other.load_state_dict(decoder.state_dict())
    with torch.no_grad():
        assert distance(other(b.ids), b.logits) > 10 * TOLERANCE
