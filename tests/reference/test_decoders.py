"""Whole decoders against the reference in float64: every placement, every option, weights all random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from assay.model import Decoder
from tests.reference.decoder import PLACEMENTS
from tests.reference.support import (
    FFN,
    LAYER,
    MIXER,
    RMS,
    ROPE,
    authored,
    distance,
    random_decoder,
    reference_logits,
    tokens,
)

LENGTH = 11  # past every window below
NORMS = {
    "rmsnorm": RMS,
    "layernorm": LAYER,
    "one_plus": {"kind": "rmsnorm", "eps": 1e-3, "gain": "one_plus"},
    "no bias": {"kind": "layernorm", "eps": 1e-3, "bias": False},
    "no gain": {"kind": "rmsnorm", "eps": 1e-3, "gain": "none"},
    "scalenorm": {"kind": "scalenorm", "eps": 1e-3},
}


def ours(decoder: Decoder, ids: list[int]) -> Any:
    with torch.no_grad():
        return decoder(torch.tensor([ids]))[0].numpy()


def check(table: dict[str, Any], placement: str, norm: Any, seed: int, length: int = LENGTH) -> None:
    decoder, ids = random_decoder(table, seed), tokens(seed, length)
    want = reference_logits(table, placement, norm, decoder, ids)
    for backend in ("auto", "reference"):
        decoder.use_backend(backend)
        assert distance(ours(decoder, ids), want) < 1e-9


# --- placements ---


# a placement without norms is tried once
PLACED = [(p, norm) for p, (_, rule) in PLACEMENTS.items() for norm in (NORMS if "norm" in rule else ["rmsnorm"])]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("placement", "norm"), PLACED)
def test_placement(placement: str, norm: str, seed: int) -> None:
    ffn = {"kind": "mlp", "d_ff": 9, "activation": "gelu", "bias": "all"} if seed else FFN
    mixer = {**MIXER, "bias": "all"} if seed else MIXER
    table = authored(placement, NORMS[norm], (mixer,) * 3, (ffn,) * 3)
    check(table, placement, NORMS[norm], seed)


# --- attention ---

WINDOW = {"kind": "window", "size": 3}
STEPS = {"kind": "by_position", "beta": 0.7, "period": 3}
ATTENTION: dict[str, dict[str, Any]] = {
    "mha": {"n_kv_heads": 4},
    "mqa": {"n_kv_heads": 1},
    "head_dim of its own": {"n_heads": 2, "n_kv_heads": 2, "head_dim": 10},
    "nope": {"position": "none"},
    "window": {"span": WINDOW},
    "window of one": {"span": {"kind": "window", "size": 1}},
    "both ways": {"span": {"kind": "full", "causal": False}},
    "window both ways": {"span": {"kind": "window", "size": 3, "causal": False}},
    "scale": {"scale": 0.9},
    "scale by head_dim": {"scale": "inv_head_dim"},
    "bias on q, k, v": {"bias": ["q", "k", "v"]},
    "bias on o": {"bias": ["o"]},
    "clip": {"clip_qkv": 0.5},
    "soft cap": {"soft_cap": 0.6},
    "soft cap in a window": {"soft_cap": 0.6, "span": WINDOW},
    "sinks": {"sinks": "per_head"},
    "sinks in a window": {"sinks": "per_head", "span": WINDOW},
    "gate a head": {"output_gate": "head"},
    "gate a channel": {"output_gate": "channel", "bias": "all"},
    "inner norm": {"inner_norm": LAYER},
    "qk-norm a head": {"qk_norm": {"over": "head", "norm": RMS}},
    "qk-norm a head, layernorm": {"qk_norm": {"over": "head", "norm": LAYER}},
    "qk-norm a head, one plus": {"qk_norm": {"over": "head", "norm": NORMS["one_plus"]}},
    "qk-norm a head, no gain": {"qk_norm": {"over": "head", "norm": NORMS["no gain"]}},
    "qk-norm a head, a gain each": {"qk_norm": {"over": "head", "norm": LAYER, "gain_per": "head"}},
    "qk-norm a head, scalenorm": {"qk_norm": {"over": "head", "norm": NORMS["scalenorm"]}},
    "qk-norm of the width": {"qk_norm": {"over": "width", "norm": RMS}},
    "qk-norm of the width, layernorm": {"qk_norm": {"over": "width", "norm": LAYER}},
    "qk-norm after rope": {"qk_norm": {"over": "head", "norm": RMS, "order": "after_rope"}},
    "qk-norm after rope, a gain each": {
        "qk_norm": {"over": "head", "norm": RMS, "gain_per": "head", "order": "after_rope"}
    },
    "qk-norm of the width after rope": {"qk_norm": {"over": "width", "norm": RMS, "order": "after_rope"}},
    "query scale": {"query_scale": STEPS},
    "query scale, from 1, capped": {"query_scale": {**STEPS, "period": 4, "first": 1}, "soft_cap": 0.6},
    "differential": {"differential": {"kind": "pairs", "norm": NORMS["no gain"]}},
    "differential, a start": {"differential": {"kind": "pairs", "norm": LAYER, "start": 0.3}, "inner_norm": RMS},
    "differential, no norm": {"differential": {"norm": "none"}, "n_kv_heads": 4, "sinks": "per_head", "span": WINDOW},
    "keys of the layer before": {"kv": {"kind": "shared", "layer": 0}},
    "keys of the layer before, all else its own": {
        "kv": {"layer": 0},
        "qk_norm": {"over": "head", "norm": RMS},
        "clip_qkv": 0.5,
        "bias": ["q", "o"],
        "output_gate": "head",
        "query_scale": STEPS,
        "sinks": "per_head",
        "scale": 0.3,
        "differential": {"kind": "pairs", "norm": LAYER, "start": 0.3},
    },
    "clip before qk-norm": {"clip_qkv": 0.5, "qk_norm": {"over": "head", "norm": RMS}},
    "interleaved": {"position": {**ROPE, "layout": "interleaved"}},
    "partial": {"position": {**ROPE, "fraction": 0.5}},
    "partial, interleaved": {"position": {**ROPE, "fraction": 0.25, "layout": "interleaved"}},
    "linear": {"position": {**ROPE, "scaling": {"kind": "linear", "factor": 4}}},
    "ntk": {"position": {**ROPE, "scaling": {"kind": "ntk", "factor": 4}}},
    "ntk, partial": {"position": {**ROPE, "fraction": 0.5, "scaling": {"kind": "ntk", "factor": 4}}},
    "llama3": {
        "position": {
            **ROPE,
            "scaling": {
                "kind": "llama3",
                "factor": 4,
                "original_seq_len": 16,
                "low_freq_factor": 1,
                "high_freq_factor": 2,
            },
        }
    },
    "yarn": {"position": {**ROPE, "scaling": {"kind": "yarn", "factor": 4, "original_seq_len": 8, "beta_fast": 2}}},
    "yarn, not rounded": {
        "position": {
            **ROPE,
            "fraction": 0.5,
            "scaling": {
                "kind": "yarn",
                "factor": 4,
                "original_seq_len": 8,
                "beta_fast": 1,
                "beta_slow": 0.1,
                "rounded": False,
                "attention_factor": 1.2,
            },
        }
    },
    "sum": {
        "kind": "sum",
        "branches": [
            {"mixer": {**MIXER, "span": WINDOW}, "input_scale": 0.7, "output_norm": RMS},
            {"mixer": {**MIXER, "position": "none"}, "output_scale": -1.3, "input_norm": LAYER},
        ],
    },
}
# options that change nothing but when the plain attention is asked for them
PLAIN = ("sum",)


def attention(name: str) -> dict[str, Any]:
    return ATTENTION[name] if name in PLAIN else {**MIXER, **ATTENTION[name]}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, seed: int) -> None:
    """The option in the second of three layers: what a layer does is its own."""
    table = authored("pre", RMS, (MIXER, attention(name), MIXER), (FFN,) * 3)
    check(table, "pre", RMS, seed)


# --- feed-forward parts ---

FFNS: dict[str, dict[str, Any]] = {
    **{
        f"{kind}, {act}": {"kind": kind, "d_ff": 9, "activation": act}
        for kind in ("mlp", "glu")
        for act in ("relu", "relu2", "gelu", "gelu_tanh", "silu", "elu", "selu", "sigmoid", "identity")
    },
    "swish": {"kind": "mlp", "d_ff": 9, "activation": {"kind": "swish", "beta": 1.702}},
    "mlp, biases": {"kind": "mlp", "d_ff": 9, "activation": "relu", "bias": "all"},
    "mlp, bias on down": {"kind": "mlp", "d_ff": 9, "activation": "relu", "bias": ["down"]},
    "glu, biases": {**FFN, "bias": "all"},
    "glu, bias on gate": {**FFN, "bias": ["gate"]},
    "clamp": {**FFN, "clamp": 0.5},
    "clamp and offset": {**FFN, "clamp": 0.5, "up_offset": 1.0, "activation": {"kind": "swish", "beta": 1.702}},
    "inner norm": {**FFN, "inner_norm": LAYER},
    "mlp, norm before the activation": {"kind": "mlp", "d_ff": 9, "activation": "relu", "act_norm": LAYER},
    "mlp, shifts": {"kind": "mlp", "d_ff": 9, "activation": "relu", "act_norm": "shift", "inner_norm": "shift"},
    "mlp, inner norm": {"kind": "mlp", "d_ff": 9, "activation": "relu", "inner_norm": RMS},
    "sum": {
        "kind": "sum",
        "branches": [
            {"ffn": FFN, "input_norm": RMS, "output_scale": 0.5},
            {"ffn": {"kind": "mlp", "d_ff": 7, "activation": "gelu"}, "input_scale": 2.0, "output_norm": LAYER},
        ],
    },
}


@pytest.mark.parametrize("name", FFNS)
def test_ffn(name: str) -> None:
    table = authored("pre", RMS, (MIXER,) * 3, (FFN, FFNS[name], FFN))
    check(table, "pre", RMS, seed=0)


# --- the two ends ---

PROJECTED = {"kind": "linear", "dim": 5}
ENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shift": ({"tied": False}, {"norm": "shift"}),
    "tied": ({"tied": True}, {"norm": RMS}),
    "scale": ({"tied": True, "scale": "sqrt_d_model"}, {"norm": RMS, "scale": "inv_sqrt_d_model"}),
    "scale by a number": ({"tied": False, "scale": 1.7}, {"norm": RMS, "scale": 0.3}),
    "learned positions": ({"tied": True, "position": {"kind": "learned", "offset": 0}}, {"norm": LAYER}),
    "learned positions, offset": ({"tied": True, "position": {"kind": "learned", "offset": 2}}, {"norm": LAYER}),
    "sinusoidal": ({"tied": True, "position": {"kind": "sinusoidal"}, "scale": "sqrt_d_model"}, {"norm": "none"}),
    "sinusoidal, half": (
        {"tied": False, "position": {"kind": "sinusoidal", "layout": "half", "theta": 100.0}},
        {"norm": RMS},
    ),
    "sinusoidal, inclusive": (
        {"tied": True, "position": {"kind": "sinusoidal", "layout": "half", "spacing": "inclusive", "offset": 2}},
        {"norm": RMS},
    ),
    "sinusoidal, inclusive, interleaved": (
        {"tied": True, "position": {"kind": "sinusoidal", "spacing": "inclusive", "theta": 50.0}},
        {"norm": RMS},
    ),
    "transform": (
        {"tied": True},
        {
            "norm": "none",
            "bias": True,
            "transform": {"kind": "dense", "activation": "gelu", "norm": LAYER, "bias": True},
        },
    ),
    "transform, projected": (
        {"tied": False},
        {
            "norm": RMS,
            "transform": {"kind": "dense", "activation": "relu", "norm": "none"},
            "projection": {"kind": "linear", "dim": 7},
        },
    ),
    "embedding norm": ({"tied": False, "norm": LAYER}, {"norm": LAYER}),
    "fixnorm": ({"tied": True, "norm": {"kind": "fixnorm", "radius": 3.0, "eps": 1e-5}}, {"norm": RMS}),
    "fixnorm, untied": ({"tied": False, "norm": {"kind": "fixnorm", "radius": 3.0, "eps": 1e-5}}, {"norm": RMS}),
    "projections": ({"tied": True, "projection": PROJECTED}, {"norm": RMS, "projection": PROJECTED}),
    "projections with bias, untied": (
        {"tied": False, "projection": {**PROJECTED, "bias": True}},
        {"norm": RMS, "projection": {"kind": "linear", "dim": 7, "bias": True}},
    ),
    "bias": ({"tied": False}, {"norm": RMS, "bias": True}),
    "bias, tied": ({"tied": True}, {"norm": RMS, "bias": True}),
    "soft cap": ({"tied": False}, {"norm": RMS, "soft_cap": 0.8}),
    "scale, bias and soft cap": ({"tied": False}, {"norm": RMS, "bias": True, "scale": 0.5, "soft_cap": 0.8}),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends(name: str) -> None:
    embedding, head = ENDS[name]
    table = authored("pre", RMS, (MIXER,) * 2, (FFN,) * 2, embedding, head)
    check(table, "pre", RMS, seed=3)


# --- everything at once ---


@pytest.mark.parametrize("seed", range(24))
def test_random_recipe(seed: int) -> None:
    rng = np.random.default_rng([seed, 99])

    def pick(options: Any) -> Any:
        names = sorted(options)
        return options[names[int(rng.integers(len(names)))]]

    placement = list(PLACEMENTS)[int(rng.integers(len(PLACEMENTS)))]
    norm = pick(NORMS)
    # two options of attention laid over each other, so that their order shows
    mixers = tuple({**attention(_pick_name(rng)), **_extra(rng)} for _ in range(3))
    mixers = tuple(m if m["kind"] == "attention" else ATTENTION["sum"] for m in mixers)
    ffns = tuple(pick(FFNS) for _ in range(3))
    table = authored(placement, norm, mixers, ffns, *pick(ENDS))
    check(table, placement, norm, seed, length=int(rng.integers(1, 20)))


def _pick_name(rng: np.random.Generator) -> str:
    names = [name for name, table in ATTENTION.items() if "kv" not in table]  # drawn for any depth, beside any other
    return names[int(rng.integers(len(names)))]


def _extra(rng: np.random.Generator) -> dict[str, Any]:
    extras = [{}, {"soft_cap": 0.9}, {"sinks": "per_head"}, {"span": WINDOW}, {"clip_qkv": 1.0}, {"scale": 0.4}]
    return extras[int(rng.integers(len(extras)))]


# --- pads and documents: a row equals the row alone ---

PADDED = {
    "rope": authored("pre", RMS, (MIXER, {**MIXER, "span": WINDOW}), (FFN,) * 2),
    "learned": authored(
        "post",
        LAYER,
        ({**MIXER, "position": "none"},) * 2,
        (FFN,) * 2,
        {"tied": True, "position": {"kind": "learned", "offset": 2}},
    ),
    "sinusoidal, capped": authored(
        "pre",
        RMS,
        ({**MIXER, "position": "none", "soft_cap": 0.6, "sinks": "per_head"}, {**MIXER, "span": WINDOW}),
        (FFN,) * 2,
        {"tied": True, "position": {"kind": "sinusoidal"}},
    ),
    "both ways": authored("pre", RMS, ({**MIXER, "span": {"kind": "window", "size": 3, "causal": False}},), (FFN,)),
}


@pytest.mark.parametrize("name", PADDED)
def test_padded_rows(name: str) -> None:
    table = PADDED[name]
    norm = LAYER if name == "learned" else RMS
    decoder = random_decoder(table, seed=5)
    rows = [tokens(i, n) for i, n in enumerate((6, 9, 4, 9))]
    left = [9 - len(rows[0]), 0, 2, 0]  # the third row has pads on both sides
    ids, mask = torch.zeros(4, 9, dtype=torch.long), torch.zeros(4, 9)
    for b, (row, start) in enumerate(zip(rows, left, strict=True)):
        ids[b, start : start + len(row)] = torch.tensor(row)
        mask[b, start : start + len(row)] = 1
    with torch.no_grad():
        got = decoder(ids, padding_mask=mask).numpy()
    for b, (row, start) in enumerate(zip(rows, left, strict=True)):
        want = reference_logits(table, table["name"], norm, decoder, row)
        assert distance(got[b, start : start + len(row)], want) < 1e-9


@pytest.mark.parametrize("name", PADDED)
def test_packed_documents(name: str) -> None:
    table = PADDED[name]
    norm = LAYER if name == "learned" else RMS
    decoder = random_decoder(table, seed=6)
    documents = [tokens(i, n) for i, n in enumerate((5, 1, 7))]
    ids = torch.tensor([[i for document in documents for i in document]])
    segments = torch.tensor([[i for i, d in enumerate(documents) for _ in d]])
    # and with the same documents behind pads
    padded = torch.cat((torch.zeros(1, 2, dtype=torch.long), ids), dim=1)
    mask = torch.cat((torch.zeros(1, 2), torch.ones_like(ids)), dim=1)
    with torch.no_grad():
        plain = decoder(ids, segment_ids=segments)[0].numpy()
        behind = decoder(padded, padding_mask=mask, segment_ids=torch.cat((segments[:, :1],) * 2 + (segments,), 1))
    start = 0
    for document in documents:
        want = reference_logits(table, table["name"], norm, decoder, document)
        assert distance(plain[start : start + len(document)], want) < 1e-9
        assert distance(behind[0, 2 + start : 2 + start + len(document)].numpy(), want) < 1e-9
        start += len(document)


# --- the comparison can fail ---

MUTATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "window": ({"span": WINDOW}, {"span": {"kind": "window", "size": 4}}),
    "theta": ({}, {"position": {**ROPE, "theta": 60.0}}),
    "layout": ({}, {"position": {**ROPE, "layout": "interleaved"}}),
    "cap": ({"soft_cap": 0.6}, {}),
    "clip": ({"clip_qkv": 0.5}, {}),
    "scale": ({}, {"scale": "inv_head_dim"}),
    "order": (ATTENTION["qk-norm a head"], ATTENTION["qk-norm after rope"]),
    "start of lambda": ({"differential": {"norm": RMS, "start": 0.3}}, {"differential": {"norm": RMS, "start": 0.31}}),
    "period": ({"query_scale": STEPS}, {"query_scale": {**STEPS, "period": 4}}),
    "eps": ({"qk_norm": {"over": "head", "norm": RMS}}, {"qk_norm": {"over": "head", "norm": {**RMS, "eps": 2e-3}}}),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_option_is_seen(name: str) -> None:
    right, wrong = ({**MIXER, **over} for over in MUTATIONS[name])
    decoder, ids = random_decoder(authored("pre", RMS, (right,), (FFN,)), seed=0), tokens(0, LENGTH)
    changed = reference_logits(authored("pre", RMS, (wrong,), (FFN,)), "pre", RMS, decoder, ids)
    assert distance(ours(decoder, ids), changed) > 1e-6


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_parameter_moves_the_logits(placement: str) -> None:
    """A parameter of the model that changed nothing would make agreement worthless."""
    mixer = {**MIXER, "bias": "all", "qk_norm": {"over": "head", "norm": LAYER}, "sinks": "per_head"}
    table = authored(placement, LAYER, (mixer,), ({**FFN, "bias": "all"},), None, {"norm": RMS, "bias": True})
    decoder, ids = random_decoder(table, seed=1), tokens(1, LENGTH)
    before, generator = ours(decoder, ids), torch.Generator().manual_seed(2)
    for name, p in decoder.named_parameters():
        held = p.detach().clone()
        with torch.no_grad():
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
            moved = distance(ours(decoder, ids), before)
            p.copy_(held)
        assert moved > 1e-6, name
