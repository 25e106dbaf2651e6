"""Where transformers 5.24 is no reference: each claim of docs/parity.md on it, shown on its own models.

A release that mends one of these fails its test here; then the sentence goes, and the case takes the default again.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from assay.interop import InteropError, UnsupportedArchitecture, families, from_hf, read_recipe
from assay.model.backend import UnsupportedBackend
from tests.interop.cases import CASES, CONTEXT
from tests.interop.support import TOLERANCE, distance, ids_of, logits_of, reference

SEEN = 100 * TOLERANCE


def under(name: str, attention: str, **config: Any) -> torch.Tensor:
    """transformers' logits of a case under an attention implementation."""
    case = CASES[name]
    return logits_of(reference(replace(case, attention=attention, config={**case.config, **config})), ids_of())


def test_falcon_adds_alibi_twice_under_eager(bench: Any) -> None:
    b = bench("falcon, ALiBi")
    assert b.case.attention == "sdpa"
    assert distance(under("falcon, ALiBi", "eager"), b.logits) > SEEN


def test_gemma2_runs_under_eager_alone() -> None:
    """sdpa cannot cap scores: transformers refuses it, as our sdpa backend refuses the recipe."""
    assert CASES["gemma2"].attention == "eager"
    with pytest.raises(ValueError, match="Gemma2ForCausalLM does not support"):
        under("gemma2", "sdpa")


def test_gemma2_ours_refuses_sdpa_too(bench: Any) -> None:
    decoder = from_hf(bench("gemma2").folder)
    with pytest.raises(UnsupportedBackend, match="cannot cap scores"):
        decoder.use_backend("sdpa")


def test_mpt_has_alibi_whatever_its_config_says() -> None:
    with_, without = (under("mpt", "eager", attn_config={"alibi": on}) for on in (True, False))
    assert torch.equal(with_, without)
    family = families()["mpt"]
    with pytest.raises(UnsupportedArchitecture, match=r"attn_config.alibi = False"):
        family.read(family.config({**CASES["mpt"].config, "attn_config": {"alibi": False}}))


@pytest.mark.parametrize(("name", "original"), [("llama, dynamic", CONTEXT), ("llama, longrope", 16)])
def test_length_dependent_rope_differs_cached_from_uncached(name: str, original: int, bench: Any) -> None:
    """Keys that were rotated at a shorter length stay in transformers' cache; ours are compared without one."""
    b, fresh = bench(name), reference(CASES[name])
    with torch.no_grad():
        first = fresh(b.ids[:, :original], use_cache=True)
        rest = fresh(b.ids[:, original:], cache=first.cache, use_cache=True)
        assert distance(rest.logits, b.logits[:, original:]) > SEEN
        assert distance(from_hf(b.folder)(b.ids), b.logits) < TOLERANCE


def test_dynamic_ntk_remembers_the_longest_row_it_has_seen(bench: Any) -> None:
    """A row of the trained length after a longer one keeps the longer one's base; a fresh model is the reference."""
    b = bench("llama, dynamic")
    row = b.ids[:, :CONTEXT]
    want = logits_of(reference(b.case), row)
    logits_of(b.model, b.ids)  # longer than it was trained on
    assert distance(logits_of(b.model, row), want) > SEEN
    with torch.no_grad():
        assert distance(from_hf(b.folder)(row), want) < TOLERANCE


def test_xglm_zeroes_the_position_of_the_pad_tokens_number() -> None:
    """A pad token of 2 or more takes away the sines of one position: nothing that a recipe says."""
    assert distance(under("xglm", "eager", pad_token_id=5), under("xglm", "eager", pad_token_id=1)) > SEEN
    family = families()["xglm"]
    with pytest.raises(UnsupportedArchitecture, match=r"pad_token_id = 5"):
        family.read(family.config({**CASES["xglm"].config, "pad_token_id": 5}))


def test_diffllama_has_no_dropout_of_probabilities() -> None:
    """It refuses a rate, as a recipe does."""
    with pytest.raises(ValueError, match="attention_dropout"):
        under("diffllama", "eager", attention_dropout=0.1)
    family = families()["diffllama"]
    with pytest.raises(ValueError, match=r"mixer.dropout"):
        family.read(family.config({**CASES["diffllama"].config, "attention_dropout": 0.1}))


def test_bert_keeps_one_segment(bench: Any, tmp_path: Any) -> None:
    """The first segment's row is added to every position; the second's is not carried over, and written as zeros."""
    from safetensors.torch import load_file

    from assay.interop import to_hf

    b = bench("bert")
    theirs = load_file(b.folder / "model.safetensors")
    ours = load_file(to_hf(from_hf(b.folder), tmp_path / "out") / "model.safetensors")
    at, types = "bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight"
    assert theirs[types][0].abs().max() > 0
    assert not ours[types].any()
    assert ours[types].shape == theirs[types].shape
    assert torch.allclose(ours[at], theirs[at] + theirs[types][0], atol=1e-6)


# config.json, older dialect


def told(model_type: str, config: dict[str, Any], folder: Any) -> tuple[Any, Any]:
    """What transformers makes of a config's RoPE, and our recipe's attention layers (or why there is none)."""
    import transformers

    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **config}))
    theirs = transformers.AutoConfig.from_pretrained(folder).rope_parameters
    try:
        return theirs, [layer.mixer for layer in read_recipe(folder).layers]
    except InteropError as error:
        return theirs, str(error)


def old_rope(name: str, **config: Any) -> dict[str, Any]:
    return {**{k: v for k, v in CASES[name].config.items() if k != "rope_parameters"}, **config}


def test_olmo3_takes_an_older_theta_for_its_full_layers_only(tmp_path: Any) -> None:
    theirs, ours = told("olmo3", old_rope("olmo3", rope_theta=77.0), tmp_path)
    assert theirs["full_attention"]["rope_theta"] == 77.0 != theirs["sliding_attention"]["rope_theta"]
    assert {mixer.position.theta for mixer in ours} == {77.0}


@pytest.mark.parametrize("model_type", ["apertus", "cwm", "ministral3"])
def test_a_null_scaling_takes_the_familys_own(model_type: str, tmp_path: Any) -> None:
    theirs, ours = told(model_type, old_rope(model_type, rope_theta=77.0, rope_scaling=None), tmp_path)
    assert theirs["rope_type"] != "default"
    if model_type == "ministral3":
        assert "llama_4_scaling_beta = None" in ours
    else:
        assert {mixer.position.scaling.kind_name for mixer in ours} == {"none"}
