"""llama.cpp through llama-cpp-python's low-level calls; a GGUF file is written once from the Hugging Face folder."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from protocol import arguments, serve

ARGS = arguments()
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors(path: Path) -> dict[str, np.ndarray]:
    """A float32 safetensors file, read with numpy alone."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32"
            begin, end = entry["data_offsets"]
            out[name] = np.frombuffer(raw[8 + length + begin : 8 + length + end], np.float32).reshape(entry["shape"])
    return out


def written(folder: Path, dtype: str) -> Path:
    """The folder as a GGUF file of llama.cpp's llama architecture: matrices in ``dtype``, norms in float32."""
    out = folder / f"model-{dtype}.gguf"
    if out.exists():
        return out
    config = json.loads((folder / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(str(out) + ".partial", "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType.F32 if dtype == "fp32" else gguf.GGMLQuantizationType.BF16
    for name, value in tensors(folder / "model.safetensors").items():
        stem, ending = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            _, _, i, rest = stem.split(".", 3)
            new = f"blk.{i}.{NAMES[rest]}.{ending}"
            if rest in ("self_attn.q_proj", "self_attn.k_proj"):  # rows in the order of neighbouring channels
                heads = value.shape[0] // head_dim
                value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        else:
            new = f"{NAMES[stem]}.{ending}"
        value = np.ascontiguousarray(value)
        if value.ndim == 1 or dtype == "fp32":
            writer.add_tensor(new, value)
        else:
            writer.add_tensor(new, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    Path(str(out) + ".partial").rename(out)
    return out


class LlamaCppPeer:
    def __init__(self) -> None:
        llama_cpp.llama_backend_init()
        path = written(Path(ARGS.model), ARGS.dtype)
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = ARGS.max_len * ARGS.batch
        context.n_seq_max = ARGS.batch
        context.n_batch = context.n_ubatch = max(512, ARGS.batch * 128)
        context.n_threads = context.n_threads_batch = ARGS.threads
        if ARGS.variant == "f32-cache":
            context.type_k = context.type_v = 0
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        assert self.context, "llama.cpp made no context"
        self.batch = llama_cpp.llama_batch_init(context.n_batch, 0, 1)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def _decode(self, rows: list[list[int]]) -> list[int]:
        """Read tokens of every row; the most likely next one of each."""
        batch, n, last = self.batch, 0, []
        for row, tokens in enumerate(rows):
            for i, token in enumerate(tokens):
                batch.token[n], batch.pos[n] = token, self.length + i
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, row
                batch.logits[n] = i == len(tokens) - 1
                n += 1
            last.append(n - 1)
        batch.n_tokens = n
        assert llama_cpp.llama_decode(self.context, batch) == 0
        self.length += len(rows[0])
        out = []
        for i in last:
            logits = llama_cpp.llama_get_logits_ith(self.context, i)
            out.append(
                int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.vocab,)).argmax())
            )
        return out

    def read(self, prompts: list[list[int]]) -> list[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.length = 0
        return self._decode(prompts)

    def step(self, tokens: list[int]) -> list[int]:
        return self._decode([[token] for token in tokens])

    def plain(self, tokens: list[int]) -> list[int]:
        return tokens


def make() -> tuple[LlamaCppPeer, dict[str, Any]]:
    peer = LlamaCppPeer()
    peer.step(peer.read([[1, 2, 3]] * ARGS.batch))
    info = llama_cpp.llama_print_system_info().decode()
    return peer, {"name": "llama-cpp-python", "version": llama_cpp.__version__, "system": info}


serve(make)
