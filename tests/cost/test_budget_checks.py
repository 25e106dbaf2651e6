"""Published and recomputed numbers that a budget must give, one a line.

Parameters were counted with another library from the released shapes. What the budget cannot say yet is not here:
mixtures of experts, latent attention, activations, optimizer ledgers, hardware.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from assay.cost import Budget, budget
from assay.model import build
from assay.recipe import Recipe, load, resolve


def dense(d: int, layers: int, heads: int, kv: int, ff: int, vocab: int, **more: Any) -> Recipe:
    """A Llama-like model by its sizes; ``more`` goes to the attention, ``tied`` to the embedding."""
    tied = more.pop("tied", False)
    return resolve(
        {
            "d_model": d,
            "vocab_size": vocab,
            "max_seq_len": 32_768,
            "n_layers": layers,
            "embedding": {"tied": tied},
            "block": {
                "mixer": {"kind": "attention", "n_heads": heads, "n_kv_heads": kv, "position": "rope", **more},
                "ffn": {"kind": "glu", "d_ff": ff, "activation": "silu"},
                "residual": "pre",
            },
            "head": {"norm": "rmsnorm"},
        }
    )


def qwen25_72b() -> Recipe:
    return dense(8192, 80, 64, 8, 29_568, 152_064, bias=["q", "k", "v"])


# --- parameters ---

PRESETS = {
    "1 GPT-2 small": ("gpt2", 124_439_808),
    "2 GPT-2 XL": ("gpt2-xl", 1_557_611_200),
    "3 Llama-7B": ("llama-7b", 6_738_415_616),
    "6 Llama-2-70B": ("llama-2-70b", 68_976_648_192),
    "7 Llama-3-8B": ("llama-3-8b", 8_030_261_248),
    "8 Llama-3-70B": ("llama-3-70b", 70_553_706_496),
    "9 Llama-3.1-405B": ("llama-3.1-405b", 405_853_388_800),
    "10 Llama-3.2-1B, tied": ("llama-3.2-1b", 1_235_814_400),
    "11 Mistral-7B": ("mistral-7b", 7_241_732_096),
    "13 Qwen3-0.6B, tied, head_dim 128, QK-norm": ("qwen3-0.6b", 596_049_920),
    "14 Qwen3-8B": ("qwen3-8b", 8_190_735_360),
    "15 Qwen3-32B, 64 x 128 != 5120": ("qwen3-32b", 32_762_123_264),
    "16 Qwen2.5-7B, QKV bias": ("qwen2.5-7b", 7_615_616_512),
    "17 Gemma-2B, MQA": ("gemma-2b", 2_506_172_416),
    "19 Gemma-2-9B, sandwich norms": ("gemma-2-9b", 9_241_705_984),
    "20 OLMo-2-7B, output norms, QK-norm of the width": ("olmo-2-7b", 7_298_617_344),
    "22 Pythia-70M": ("pythia-70m", 70_426_624),
    "24 GPT-J-6B, parallel block, biases in MLP and head": ("gptj-6b", 6_050_882_784),
    "29 GPT-3 175B": ("gpt3-175b", 174_604_259_328),
}


@pytest.mark.parametrize("line", PRESETS)
def test_parameters(line: str) -> None:
    name, total = PRESETS[line]
    params = budget(load(name), seq_len=1).params
    assert params.total == params.active == total
    assert params.non_embedding + params.embedding == total


WRITTEN_OUT = {
    "3 Llama-7B": (dense(4096, 32, 32, 32, 11_008, 32_000), 6_738_415_616),
    "7 Llama-3-8B": (dense(4096, 32, 32, 8, 14_336, 128_256), 8_030_261_248),
    "10 Llama-3.2-1B": (dense(2048, 16, 32, 8, 8192, 128_256, tied=True), 1_235_814_400),
    "13 Qwen3-0.6B": (
        dense(1024, 28, 16, 8, 3072, 151_936, tied=True, head_dim=128, qk_norm={"over": "head", "norm": "rmsnorm"}),
        596_049_920,
    ),
    "16 Qwen2.5-7B": (dense(3584, 28, 28, 4, 18_944, 152_064, bias=["q", "k", "v"]), 7_615_616_512),
}


@pytest.mark.parametrize("line", WRITTEN_OUT)
def test_parameters_without_a_preset(line: str) -> None:
    recipe, total = WRITTEN_OUT[line]
    assert budget(recipe, seq_len=1).params.total == total


# --- FLOPs ---


def nanogpt() -> Recipe:
    """nanoGPT's notebook: GPT-2 small without biases."""
    table = load("gpt2").to_dict()
    table.pop("init")
    norm = {"kind": "layernorm", "bias": False}
    (layer,) = table["layers"].values()
    layer["mixer"]["bias"], layer["ffn"]["bias"], layer["residual"] = "none", "none", {"rule": "pre", "norm": norm}
    table["head"]["norm"] = norm
    return resolve(table)


def test_30_nanogpt_notebook() -> None:
    found = budget(nanogpt(), seq_len=1024)
    flops = found.flops
    assert found.params.total == 124_337_664
    assert flops.forward_full == 291_648_307_200
    assert 3 * flops.forward_full == 874_944_921_600
    assert flops.train_per_token == 874_944_921_600 // 1024
    # PaLM's form, 6 N + 12 L H Q T a token: N with learned positions, then without, as six_n has it
    core = 12 * 12 * 12 * 64 * 1024
    with_positions = 1024 * (6 * found.params.total + core)
    assert with_positions == 879_894_724_608
    assert with_positions / (3 * flops.forward_full) == pytest.approx(1.0057, abs=5e-5)
    assert with_positions - 1024 * (flops.six_n + core) == 1024 * 6 * 1024 * 768


def test_31_gpt3_6nd() -> None:
    found = budget(load("gpt3-175b"))
    total = 6 * found.params.total * 300e9
    assert total == pytest.approx(3.1428e23, rel=5e-5)
    assert total / (1e15 * 86_400) == pytest.approx(3637, abs=1)
    assert f"{found.flops.six_n * 300e9:.2e}" == "3.14e+23"


def test_32_palm_540b() -> None:
    found = budget(load("palm-540b"), seq_len=2048)
    core = 3 * found.flops.by_op["attention_core_square"] // 2048
    assert core == 12 * 118 * 48 * 256 * 2048
    per_token = found.flops.six_n + core
    assert f"{per_token:.2e}" == "3.28e+12"
    assert per_token * 780e9 == pytest.approx(2.5566e24, rel=5e-5)
    # 6 N counts a multiply-add for norm gains too; the products alone are a little less
    gains = 6 * found.params.by_role["norm_gain"]
    assert found.flops.train_per_token == per_token - gains


def test_35_llama3_405b_6nd() -> None:
    found = budget(load("llama-3.1-405b"))
    assert 6 * found.params.total * 15.6e12 == pytest.approx(3.799e25, rel=1e-4)
    assert f"{found.flops.six_n * 15.6e12:.1e}" == "3.8e+25"


METERED = ["opt-350m", "gptj-6b", "pythia-70m", "gemma-2-9b"]


@pytest.mark.parametrize("name", METERED)
def test_39_torchs_counter_on_meta(name: str) -> None:
    """Analytic = FlopCounterMode, exactly: forward, and training as three times that."""
    recipe = load(name)
    model = build(recipe, device="meta").eval()
    ids = torch.zeros(2, 24, dtype=torch.long, device="meta")
    counts = budget(recipe, batch=2, seq_len=24).flops
    with FlopCounterMode(display=False) as counter:
        logits = model(ids)
        assert counter.get_total_flops() == counts.forward_full
        logits.sum().backward()
    assert counter.get_total_flops() == 3 * counts.forward_full


@pytest.mark.parametrize(("t", "d"), [(2048, 1024), (4096, 4096), (8192, 512)])
def test_46_share_of_attention(t: int, d: int) -> None:
    """F = 4 D gated, D = N H: attention over the square is T / (8 D) of the layers' products, and QKVO at T = 2 D."""
    recipe = dense(d, 2, d // 64, d // 64, 4 * d, 1000)

    def shares(t: int) -> tuple[float, float]:
        ops = budget(recipe, seq_len=t).flops.by_op
        core = ops["attention_core_square"]
        return core / (ops["mixer_projections"] + ops["ffn"]), core / ops["mixer_projections"]

    assert shares(t)[0] == pytest.approx(t / (8 * d), rel=1e-15)
    assert shares(2 * d)[1] == 1.0


def test_qkvo_worked_example() -> None:
    """d = 4096: four projections of one token are 4 · 2 · 4096² = 1.34e8 FLOPs."""
    ops = budget(load("llama-2-7b"), seq_len=1).flops.by_op
    assert ops["mixer_projections"] == 32 * 4 * 2 * 4096**2
    assert f"{ops['mixer_projections'] / 32:.2e}" == "1.34e+08"


# --- bytes of keys and values a token, bf16 ---

CACHES = {
    "44 Qwen2.5-72B": (qwen25_72b(), 327_680),
    "44 Llama-3.1-405B": (load("llama-3.1-405b"), 516_096),
    "44 DeepSeek-V2 as MHA": (dense(5120, 60, 128, 128, 12_288, 102_400, head_dim=128), 3_932_160),
    "45 Llama-2-7B": (load("llama-2-7b"), 524_288),
    "45 Llama-2-70B": (load("llama-2-70b"), 327_680),
    "45 Llama-3-8B": (load("llama-3-8b"), 131_072),
    "45 Mistral-7B": (load("mistral-7b"), 131_072),
    "45 Qwen3-8B": (load("qwen3-8b"), 147_456),
    "45 Qwen3-32B": (load("qwen3-32b"), 262_144),
    # its experts do not cache; a dense model with the same attention does
    "45 Qwen3-235B": (dense(4096, 94, 64, 4, 12_288, 151_936, head_dim=128), 192_512),
    "45 GPT-2": (load("gpt2"), 36_864),
    "45 GPT-3": (load("gpt3-175b"), 4_718_592),
    "45 PaLM-540B, MQA": (load("palm-540b"), 120_832),
}


@pytest.mark.parametrize("line", CACHES)
def test_cache_bytes(line: str) -> None:
    recipe, per_token = CACHES[line]
    found = budget(recipe, batch=3, seq_len=512).cache
    assert found.bytes_per_token == per_token
    assert found.bytes == 3 * 512 * per_token
    assert budget(recipe, seq_len=512, dtype="fp8").cache.bytes_per_token * 2 == per_token


def test_45_mistral_stops_growing_at_its_window() -> None:
    """131,072 bytes a token until 4096 of them are held."""

    def held(seq_len: int) -> Budget:
        return budget(load("mistral-7b"), seq_len=seq_len)

    assert held(4096).cache.bytes == held(8192).cache.bytes == 4096 * 131_072
    assert held(4095).cache.bytes == 4095 * 131_072


def test_weights_in_bytes() -> None:
    for dtype, width in (("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 1)):
        assert budget(load("llama-3-8b"), seq_len=1, dtype=dtype).memory.weights_bytes == width * 8_030_261_248


# --- what other calculators get wrong ---


def test_the_unembedding_is_tripled_for_training() -> None:
    found = budget(load("gpt2"), seq_len=1024).flops
    assert found.by_op["unembedding"] == 2 * 1024 * 768 * 50_257
    assert found.train_per_token * 1024 == 3 * found.forward_full


def test_embeddings_count_once_when_tied_and_twice_when_not() -> None:
    tied, untied = (dense(64, 2, 4, 4, 128, 1000, tied=t) for t in (True, False))
    assert budget(untied).params.total - budget(tied).params.total == 64 * 1000
    assert budget(untied).params.active_without_input_embedding == budget(tied).params.total
    assert budget(tied).params.active_without_input_embedding == budget(tied).params.total
    assert budget(tied).flops.forward_full == budget(untied).flops.forward_full


def test_norms_are_of_their_kind_and_biases_are_counted() -> None:
    plain = dense(64, 2, 4, 4, 128, 1000).to_dict()
    plain.pop("init")

    def total(norm: str, bias: str) -> int:
        table = {**plain, "layers": {}}
        for name, layer in plain["layers"].items():
            mixer, ffn = {**layer["mixer"], "bias": bias}, {**layer["ffn"], "bias": bias}
            table["layers"][name] = {"mixer": mixer, "ffn": ffn, "residual": {"rule": "pre", "norm": norm}}
        return budget(resolve(table)).params.total

    assert total("layernorm", "none") - total("rmsnorm", "none") == 2 * 2 * 64
    assert total("rmsnorm", "all") - total("rmsnorm", "none") == 2 * (4 * 64 + 2 * 128 + 64)
