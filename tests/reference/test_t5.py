"""T5-style stacks as recipes: one relative bias for all layers, unscaled scores, RMSNorm, no biases.

Held against transformers' own stacks without cross-attention, every weight random, at lengths past the farthest
distance: T5 (arXiv:1910.10683) and T5 v1.1 as decoders and as encoders, UMT5 (arXiv:2304.09151), whose layers each have
a table.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from assay.model import Decoder, build, named_params
from assay.recipe import resolve
from assay.recipe.merge import apply_overrides

D, VOCAB, LAYERS, LENGTH = 24, 41, 3, 43
BUCKETS, DISTANCE = 8, 20
TOLERANCE = 1e-5
assert LENGTH > DISTANCE


@dataclass(frozen=True)
class Stack:
    """One stack: its class in transformers, what its config says, and what of the recipe is not T5's."""

    kind: str = "t5"
    config: tuple[tuple[str, Any], ...] = ()
    decoder: bool = True

    @property
    def told(self) -> dict[str, Any]:
        return dict(self.config)

    @property
    def gated(self) -> bool:
        return str(self.told.get("feed_forward_proj", "relu")).startswith("gated")

    @property
    def tied(self) -> bool:
        return bool(self.told.get("tie_word_embeddings", True))


V1_1 = (("feed_forward_proj", "gated-gelu"), ("tie_word_embeddings", False))
STACKS = {
    "t5, decoder": Stack(),
    "t5, encoder": Stack(decoder=False),
    "t5 v1.1, decoder": Stack(config=V1_1),
    "umt5, decoder": Stack("umt5", V1_1),
}


def recipe_of(stack: Stack) -> dict[str, Any]:
    """The stack as an author writes it."""
    position = {"kind": "t5", "n_buckets": BUCKETS, "max_distance": DISTANCE}
    mixer = {
        "kind": "attention",
        "n_heads": 4,
        "head_dim": 8,
        "scale": 1.0,
        "span": {"kind": "full", "causal": stack.decoder},
    }
    ffn = {"kind": "glu", "activation": "gelu_tanh"} if stack.gated else {"kind": "mlp", "activation": "relu"}
    norm = {"kind": "rmsnorm", "eps": 1e-3}
    later = {**position, "table": "own" if stack.kind == "umt5" else "first"}
    return {
        "name": stack.kind,
        "d_model": D,
        "vocab_size": VOCAB,
        "max_seq_len": 64,
        "embedding": {"tied": stack.tied},
        "block": {"mixer": mixer, "ffn": {**ffn, "d_ff": 40}, "residual": {"rule": "pre", "norm": norm}},
        "layers": {"first": {"mixer": {"position": position}}, "later": {"mixer": {"position": later}}},
        "stack": ["first", f"{LAYERS - 1} later"],
        "head": {"norm": norm, "scale": "inv_sqrt_d_model" if stack.tied else 1.0},
    }


@dataclass(frozen=True)
class Theirs:
    stack: Any
    head: torch.Tensor
    params: dict[str, torch.Tensor]  # under our names

    def logits(self, ids: torch.Tensor, tied: bool) -> torch.Tensor:
        with torch.no_grad():
            hidden = self.stack(ids).last_hidden_state
            out: torch.Tensor = (hidden * D**-0.5 if tied else hidden) @ self.head.T
        return out


def theirs(stack: Stack) -> Theirs:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        stack.kind, vocab_size=VOCAB, d_model=D, d_kv=8, d_ff=40, num_layers=LAYERS, num_heads=4,
        relative_attention_num_buckets=BUCKETS, relative_attention_max_distance=DISTANCE, layer_norm_epsilon=1e-3,
        **stack.told,
    )  # fmt: skip
    config = copy.deepcopy(config)
    config.is_decoder, config.use_cache, config._attn_implementation = stack.decoder, False, "eager"
    module = transformers.models.t5.modeling_t5 if stack.kind == "t5" else transformers.models.umt5.modeling_umt5
    model = (module.T5Stack if stack.kind == "t5" else module.UMT5Stack)(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1:
                p.add_(0.4 * noise)
            elif "relative_attention_bias" in name or "embed_tokens" in name:
                p.copy_(noise)
            else:
                p.copy_(noise * p.shape[-1] ** -0.5)
    table = model.embed_tokens.weight.detach()
    head = table if stack.tied else torch.randn(VOCAB, D, generator=generator)
    return Theirs(model, head, translated(stack, dict(model.named_parameters()), head))


def translated(stack: Stack, params: dict[str, torch.Tensor], head: torch.Tensor) -> dict[str, torch.Tensor]:
    """Their parameters under our names; what only cross-attention reads has no place."""
    feed = 2 if stack.decoder else 1
    inner = {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"}
    out = {"embedding.table": params["embed_tokens.weight"], "head.norm.gain": params["final_layer_norm.weight"]}
    if not stack.tied:
        out["head.table"] = head
    for name, value in params.items():
        words = name.split(".")
        if words[0] != "block" or (stack.decoder and words[3] == "1"):
            continue
        at, part = f"layers.{words[1]}", words[-2]
        side = "mixer" if words[3] == "0" else "ffn"
        assert words[3] in ("0", str(feed))
        if part == "layer_norm":
            out[f"{at}.residual.{side}.input_norm.gain"] = value
        elif part == "relative_attention_bias":
            out[f"{at}.mixer.position.table"] = value
        else:
            out[f"{at}.{side}.{inner.get(part, part) if side == 'ffn' else part}.weight"] = value
    return out


def ours(table: dict[str, Any], params: dict[str, torch.Tensor]) -> Decoder:
    decoder = build(resolve(table)).eval()
    mine = {p.name: p.param for p in named_params(decoder)}
    assert sorted(mine) == sorted(params)
    with torch.no_grad():
        for name, p in mine.items():
            p.copy_(params[name])
    return decoder


def ids_of(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, VOCAB, (2, length), generator=torch.Generator().manual_seed(4))


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("name", STACKS)
def test_logits(name: str) -> None:
    stack = STACKS[name]
    model, ids = theirs(stack), ids_of()
    decoder, want = ours(recipe_of(stack), model.params), model.logits(ids, stack.tied)
    for backend in ("auto", "reference"):
        decoder.use_backend(backend)
        with torch.no_grad():
            assert off(decoder(ids), want) < TOLERANCE
    # a left-padded row is the row alone
    rows, mask = torch.cat((ids[:, :5], ids), dim=1), torch.ones(2, 5 + LENGTH)
    mask[:, :5] = 0
    with torch.no_grad():
        assert off(decoder(rows, padding_mask=mask)[:, 5:], want) < TOLERANCE


FLIPS = (
    "layers.later.mixer.position.max_distance=12",
    "block.mixer.scale=inv_sqrt_head_dim",
    "head.scale=0.5",
    "block.residual.norm.eps=1e-2",
)


@pytest.mark.parametrize("flip", FLIPS)
def test_one_changed_field_is_seen(flip: str) -> None:
    stack = STACKS["t5, decoder"]
    model, ids = theirs(stack), ids_of()
    decoder = ours(apply_overrides(recipe_of(stack), [flip]), model.params)
    with torch.no_grad():
        assert off(decoder(ids), model.logits(ids, stack.tied)) > 10 * TOLERANCE
