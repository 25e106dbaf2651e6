"""The reserve list: label shift, wrapper prefixes, FFN width and gate order, equal starts, muP's scale, generation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from assay.cost import budget
from assay.decoding import Sampling, complete
from assay.model import WeightsError, build, load_weights, named_params, save_weights
from assay.recipe import load
from assay.training.data import open_corpus, train_bpe
from assay.training.evaluate import evaluate
from tests.pitfalls.support import close, decoder, ids, recipe

# --- label shifted twice; targets leak across rows (huggingface/transformers#47394) ---


def test_loss_shifts_nothing_by_itself() -> None:
    """Targets stand where they are predicted: CE(logits[:-1], ids[1:]) a row, and rows do not meet."""
    model, x = decoder(), ids(0, 3, 9)
    with torch.no_grad():
        loss = model.loss(x[:, :-1], x[:, 1:])
        logits = model(x)
        rows = [F.cross_entropy(z[:-1], row[1:], reduction="sum") for z, row in zip(logits, x, strict=True)]
        assert float(loss.sum) == pytest.approx(float(sum(rows)), rel=1e-12)
        assert int(loss.count) == 3 * 8


def test_a_model_that_copies_its_input_is_a_bad_predictor() -> None:
    """Each layer switched off, the head reads the embedding of the same token: sure of the input, wrong of the next."""
    model = decoder({"d_model": 32, "embedding": {"tied": True}, "head": {"scale": 10.0}})
    with torch.no_grad():
        model.embedding.table.copy_(torch.eye(32))
        for p in named_params(model):
            if p.role.writes_to_stream:
                p.param.zero_()
        x = ids(0, 4, 33)
        y = torch.where(x[:, 1:] == x[:, :-1], (x[:, 1:] + 1) % 32, x[:, 1:])  # never the same token twice
        copied, shifted = model.loss(x[:, :-1], x[:, :-1]), model.loss(x[:, :-1], y)
    assert float(copied.sum / copied.count) < 0.01
    assert float(shifted.sum / shifted.count) > math.log(32)


# --- wrapper prefixes and non-strict loading (rasbt/LLMs-from-scratch#580) ---


class Wrapped(torch.nn.Module):
    """What a compiler or a sharder does to names: a prefix before every one of them."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner
        self.recipe = inner.recipe


def test_saved_wrapped_does_not_load_as_something_else(tmp_path: Path) -> None:
    save_weights(Wrapped(build(recipe(), seed=1)), tmp_path / "w.safetensors")  # type: ignore[arg-type]
    other = build(recipe(), seed=2)
    before = {p.name: p.param.clone() for p in named_params(other)}
    with pytest.raises(WeightsError, match=r"missing .*layers\.0\.mixer\.q\.weight"):
        load_weights(other, tmp_path / "w.safetensors")
    assert all(torch.equal(p.param, before[p.name]) for p in named_params(other))


def test_compiled_in_place_keeps_its_names(tmp_path: Path) -> None:
    model = build(recipe(), seed=1)
    model.compile()
    save_weights(model, tmp_path / "w.safetensors")
    again = load_weights(build(recipe(), seed=2), tmp_path / "w.safetensors")
    assert all(torch.equal(a.param, b.param) for a, b in zip(named_params(model), named_params(again), strict=True))


@pytest.mark.parametrize(("saved", "loaded"), [({}, {"bias": "all"}), ({"bias": "all"}, {}), ({}, {"head_dim": 4})])
def test_what_does_not_fit_is_named_and_nothing_changes(
    saved: dict[str, object], loaded: dict[str, object], tmp_path: Path
) -> None:
    save_weights(build(recipe(**saved)), tmp_path / "w.safetensors")
    model = build(recipe(**loaded), seed=4)
    before = {p.name: p.param.clone() for p in named_params(model)}
    with pytest.raises(WeightsError, match=r"layers\.0\.mixer\.q\.(bias|weight)"):
        load_weights(model, tmp_path / "w.safetensors")
    assert all(torch.equal(p.param, before[p.name]) for p in named_params(model))


# --- FFN width and gate order (EleutherAI/gpt-neox PR#1309, ml-explore/mlx-lm PR#767) ---


@pytest.mark.parametrize(
    ("d", "rule", "width"),
    [
        (4096, {"ratio": "8/3", "multiple_of": 256}, 11008),
        (5120, {"ratio": "8/3", "multiple_of": 256}, 13824),
        (4096, {"ratio": "8/3", "multiplier": 1.3, "multiple_of": 1024}, 14336),
        (8192, {"ratio": "8/3", "multiplier": 1.3, "multiple_of": 4096}, 28672),
        (4096, {"ratio": 4}, 16384),
        (3000, {"ratio": "8/3"}, 8000),
    ],
)
def test_widths(d: int, rule: dict[str, object], width: int) -> None:
    table = recipe({"d_model": d, "block": {"ffn": {"d_ff": rule}}})
    assert {layer.ffn.d_ff for layer in table.layers} == {width}


def test_presets_have_the_published_widths() -> None:
    assert load("llama-7b").layers[0].ffn.d_ff == 11008
    assert load("llama-3-8b").layers[0].ffn.d_ff == 14336


def test_glu_worked_example() -> None:
    """Three channels, content 2, 2, -1 and gate 3, -2, 1 under SiLU: 5.7, -0.5, -0.73."""
    model = decoder({"d_model": 3, "n_layers": 1, "block": {"ffn": {"d_ff": 3, "bias": ["gate", "up"]}}})
    part = model.layers[0].ffn
    with torch.no_grad():
        for linear, value in ((part.gate, [3.0, -2.0, 1.0]), (part.up, [2.0, 2.0, -1.0])):
            linear.weight.zero_()
            linear.bias.copy_(torch.tensor(value))
        part.down.weight.copy_(torch.eye(3))
        out = part(torch.zeros(1, 3, dtype=torch.float64), None)[0]
    assert [round(float(v), n) for v, n in zip(out, (1, 1, 2), strict=True)] == [5.7, -0.5, -0.73]
    # the two halves swapped would give 5.3, -3.5, -0.27
    assert [round(float(v), 1) for v in torch.tensor([2.0, 2.0, -1.0]).sigmoid() * torch.tensor([6.0, -4, -1])] == [
        5.3, -3.5, -0.3,
    ]  # fmt: skip


def test_equal_parameters_of_three_matrices_and_two() -> None:
    """3 d d_ff = 8 d^2 at d_ff = 8 d / 3; at 4096 that is 10923, and 11008 when aligned to 256."""
    for d in (384, 768, 3072):
        pair = [
            recipe({"d_model": d, "block": {"ffn": ffn}}, head_dim=8)
            for ffn in ({"kind": "mlp", "d_ff": {"ratio": 4}, "activation": "gelu"}, {"d_ff": {"ratio": "8/3"}})
        ]
        plain, gated = (budget(r).params.by_component["ffn"] for r in pair)
        assert plain == gated == 2 * 8 * d**2
    near = recipe({"d_model": 4096, "block": {"ffn": {"d_ff": {"ratio": "8/3", "rounding": "nearest"}}}})
    assert near.layers[0].ffn.d_ff == 10923


# --- equal starts on all ranks (NVlabs/LongLive#71) ---


def test_the_same_seed_starts_the_same_whatever_was_drawn_before() -> None:
    torch.manual_seed(0)
    first = build(recipe(), seed=3)
    torch.manual_seed(1)
    torch.rand(17)
    second = build(recipe(), seed=3)
    assert all(torch.equal(a.param, b.param) for a, b in zip(named_params(first), named_params(second), strict=True))


# --- muP's attention scale (EleutherAI/gpt-neox PR#1061) ---


def test_inverse_head_dim() -> None:
    x = ids(0, 2, 9)
    with torch.no_grad():
        assert close(decoder(scale="inv_head_dim")(x), decoder(scale=1 / 8)(x))
        assert not close(decoder(scale="inv_head_dim")(x), decoder()(x), 1e-3)


# --- finished rows keep generating (lucidrains/h-transformer-1d#9, mistralai/mistral-inference PR#270) ---


def test_rows_that_end_at_different_steps() -> None:
    """Only pads after the end, log-probabilities stop, the other rows are as if alone."""
    model = decoder(dtype=torch.float32)
    x = ids(1, 3, 5)
    free = complete(model, x, 16, sampling=Sampling.of(temperature=2.0), seed=[0, 1, 2]).ids
    ends = [int(free[0, 3]), int(free[1, 8])]
    out = complete(
        model, x, 16, sampling=Sampling.of(temperature=2.0), seed=[0, 1, 2], stop_ids=ends, pad_id=31, logprobs=True
    )
    assert out.logprobs is not None
    assert len(set(out.lengths)) > 1
    for row, n in enumerate(out.lengths):
        assert out.ids[row, :n].tolist() == free[row, :n].tolist()
        assert out.ids[row, n:].tolist() == [31] * (out.ids.shape[1] - n)
        assert (out.logprobs[row, :n] < 0).all()
        assert not out.logprobs[row, n:].any()


# --- padded vocabularies (dottxt-ai/outlines PR#236, Lightning-AI/litgpt PR#1334) ---


def test_ids_beyond_the_tokenizer_are_never_drawn() -> None:
    """A table of 32 rows for a tokenizer of 20, the rest made the likeliest."""
    model = decoder()
    with torch.no_grad():
        model.head.table[20:] *= 50
    x = ids(2, 2, 4)
    greedy, hot = Sampling(), Sampling.of(temperature=3.0)
    assert int(complete(model, x, 12, sampling=greedy).ids.max()) >= 20
    for sampling in (greedy, hot):
        assert int(complete(model, x, 12, sampling=sampling, seed=[4, 5], vocab=20).ids.max()) < 20


# --- bits per byte (karpathy/nanochat PR#693) ---


def test_bytes_of_tokens_are_those_of_the_raw_text(tmp_path: Path) -> None:
    """A lone continuation byte is 1 byte, not the 3 of a replacement character; specials are 0."""
    tokenizer = train_bpe(["東京 naïve 🎈"] * 3, 257, tmp_path / "tok.json")  # every byte a token of its own
    (found,) = tokenizer.encode(["東🎈é!"])
    assert tokenizer.token_bytes is not None
    assert tokenizer.token_bytes[found.ids].tolist() == [1] * (3 + 4 + 2 + 1)
    assert int(tokenizer.token_bytes.sum()) == 256
    assert tokenizer.eos is not None and tokenizer.token_bytes[tokenizer.eos] == 0


def test_specials_are_in_neither_sum(tmp_path: Path) -> None:
    """A model that is sure of every byte and wrong of every end has 0 bits a byte."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{"a" * n}"}}\n' for n in range(1, 6)))
    corpus = open_corpus(str(tmp_path / "a.jsonl"), val_bytes=8, cache=tmp_path)
    model = decoder({"vocab_size": 256, "d_model": 32, "head": {"bias": True}})
    with torch.no_grad():
        for p in named_params(model):
            p.param.zero_()
        model.head.bias[ord("a")] = 60.0
    held = corpus.parts[0].held
    assert 0 in held.tokens[1:].tolist()
    found = evaluate(model, corpus, held.stream.size - 1)
    assert found.bits_per_byte == pytest.approx(0.0, abs=1e-9)
    assert found.n_bytes == int((held.tokens[1:] != 0).sum())
    assert found.loss > 1.0
