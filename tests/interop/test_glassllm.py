"""Real trained weights: a published decoder of 0.85M parameters, against a forward pass written out in NumPy.

The file (``tests/data/glassllm``) keeps matrices (in, out), rotates neighbouring channels and ties its head.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.interop import CannotExport, from_hf, relayout, to_hf
from assay.model import Decoder, build, named_params
from assay.recipe import resolve
from tests.interop.support import distance, logits_of

FILE = Path(__file__).resolve().parents[1] / "data" / "glassllm" / "en.npz"
IDS = [17, 301, 5, 940, 66, 66, 402, 8, 777, 123, 31, 512, 9, 256, 1000, 64]


def stored() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with np.load(FILE) as data:
        return json.loads(str(data["__config__"])), {k: data[k].astype(np.float64) for k in data if k != "__config__"}


def by_hand(ids: list[int]) -> np.ndarray:
    """Logits (T, V): every head, pair and position in a loop; float64."""
    c, w = stored()
    d = c["d_model"] // c["n_heads"]

    def rms(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return np.stack([row / np.sqrt(np.mean(row * row) + c["eps"]) * gain for row in x])

    def turned(x: np.ndarray) -> np.ndarray:
        out = x.copy()
        for position in range(len(x)):
            for i in range(d // 2):
                angle = position * c["rope_base"] ** (-2 * i / d)
                a, b = x[position, 2 * i], x[position, 2 * i + 1]
                out[position, 2 * i] = a * np.cos(angle) - b * np.sin(angle)
                out[position, 2 * i + 1] = a * np.sin(angle) + b * np.cos(angle)
        return out

    x = np.stack([w["E"][i] for i in ids])
    for n in range(c["n_layers"]):
        p = f"blocks.{n}."
        h = rms(x, w[p + "norm1.gamma"])
        q, k, v = (h @ w[f"{p}attn.W_{name}"] for name in "QKV")
        heads = []
        for head in range(c["n_heads"]):
            kv = head // (c["n_heads"] // c["n_kv_heads"])
            qh, kh = turned(q[:, head * d : (head + 1) * d]), turned(k[:, kv * d : (kv + 1) * d])
            vh = v[:, kv * d : (kv + 1) * d]
            rows = []
            for t in range(len(ids)):
                score = np.array([qh[t] @ kh[s] / np.sqrt(d) for s in range(t + 1)])
                weight = np.exp(score - score.max())
                rows.append((weight / weight.sum()) @ vh[: t + 1])
            heads.append(np.stack(rows))
        x = x + np.concatenate(heads, axis=1) @ w[p + "attn.W_O"]
        h = rms(x, w[p + "norm2.gamma"])
        gate = h @ w[p + "ffn.W1"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[p + "ffn.W3"])) @ w[p + "ffn.W2"]
    return rms(x, w["norm_f.gamma"]) @ w["E"].T


NAMES = {
    "attn.W_Q": "mixer.q.weight", "attn.W_K": "mixer.k.weight", "attn.W_V": "mixer.v.weight",
    "attn.W_O": "mixer.o.weight", "ffn.W1": "ffn.gate.weight", "ffn.W3": "ffn.up.weight", "ffn.W2": "ffn.down.weight",
    "norm1.gamma": "residual.mixer.input_norm.gain", "norm2.gamma": "residual.ffn.input_norm.gain",
}  # fmt: skip


def decoder() -> Decoder:
    c, w = stored()
    recipe = resolve({
        "name": "glassllm-en", "d_model": c["d_model"], "vocab_size": c["vocab_size"], "max_seq_len": c["max_len"],
        "n_layers": c["n_layers"], "embedding": {"tied": True},
        "block": {
            "mixer": {
                "kind": "attention", "n_heads": c["n_heads"], "n_kv_heads": c["n_kv_heads"],
                "position": {"kind": "rope", "theta": c["rope_base"], "layout": "interleaved"},
            },
            "ffn": {"kind": "glu", "d_ff": {"ratio": "8/3", "rounding": "down"}, "activation": "silu"},
            "residual": {"rule": "pre", "norm": {"kind": "rmsnorm", "eps": c["eps"]}},
        },
        "head": {"norm": {"kind": "rmsnorm", "eps": c["eps"]}},
    })  # fmt: skip
    out = build(recipe)
    params = {p.name: p.param for p in named_params(out)}
    found = {"embedding.table": w["E"], "head.norm.gain": w["norm_f.gamma"]}
    for name, value in w.items():
        if name.startswith("blocks."):
            _, layer, rest = name.split(".", 2)
            found[f"layers.{layer}.{NAMES[rest]}"] = value.T if value.ndim == 2 else value
    assert sorted(found) == sorted(params)
    with torch.no_grad():
        for name, value in found.items():
            params[name].copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return out.eval()


@pytest.fixture(scope="module")
def want() -> torch.Tensor:
    return torch.from_numpy(by_hand(IDS)).unsqueeze(0)


def test_logits(want: torch.Tensor) -> None:
    with torch.no_grad():
        got = decoder()(torch.tensor([IDS]))
    assert sum(p.numel() for p in decoder().parameters()) == 852_608
    assert distance(got.double(), want) < 1e-5
    assert torch.equal(got.argmax(-1), want.argmax(-1))


def test_it_is_trained() -> None:
    """English costs it less than an even guess over 1,024 words does, by far."""
    tokens = torch.tensor([IDS])
    with torch.no_grad():
        entropy = torch.distributions.Categorical(logits=decoder()(tokens)).entropy().mean()
    assert float(entropy) < 0.75 * np.log(1024)


def test_as_llama_and_back(want: torch.Tensor, tmp_path: Path) -> None:
    """Llama pairs channel k with k + r/2: refused as it is, equal once the rows have moved."""
    transformers = pytest.importorskip("transformers")
    ours = decoder()
    with pytest.raises(CannotExport, match=r"llama cannot express layers.\*.mixer.position.layout"):
        to_hf(ours, tmp_path / "llama", model_type="llama")
    folder = to_hf(relayout(ours, "half"), tmp_path / "llama", model_type="llama")
    ids = torch.tensor([IDS])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert distance(logits_of(theirs, ids).double(), want) < 1e-5
    back = relayout(from_hf(folder), "interleaved")
    for name, p in back.named_parameters():
        assert torch.equal(p, dict(ours.named_parameters())[name]), name
    # and a family that rotates neighbours takes it as it is
    folder = to_hf(ours, tmp_path / "helium", model_type="helium")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert distance(logits_of(theirs, ids).double(), want) < 1e-5
