"""GGUF files in, on the ``gguf`` package: metadata and names are put into the words of transformers, then read as such.

Quantized tensors are dequantized one at a time. llama.cpp rotates neighbouring channels in its ``llama`` architecture
and stores query and key rows in that order; they are put back, so the recipe is the one of the Hugging Face model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.interop.errors import DamagedFolder, InteropError, UnsupportedArchitecture, closest, shown
from assay.interop.families import families
from assay.interop.load import carry_over, plan_of
from assay.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from assay.model import Decoder


@dataclass(frozen=True)
class Arch:
    """One GGUF architecture as a family of transformers. ``permuted``: q and k rows stand in rotation order."""

    model_type: str
    permuted: bool = False


ARCHS: Mapping[str, Arch] = {"llama": Arch("llama", permuted=True), "qwen2": Arch("qwen2"), "qwen3": Arch("qwen3")}

# metadata after "<arch>." -> key of config.json
_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "vocab_size": "vocab_size",
}
_ROPE = ("rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length")
_CHECKED = ("rope.dimension_count", "attention.value_length")  # must equal head_dim
_IDLE = ("rope.scaling.finetuned", "attention.causal")
_ELSEWHERE = ("general.", "tokenizer.", "GGUF.", "quantize.", "split.", "imatrix.")

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FREQS = "rope_freqs.weight"


def from_gguf(path: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu") -> Decoder:
    """A decoder with the weights of a GGUF file, dequantized.

    Args:
        dtype: of the parameters; None is float32, in which dequantizing is exact.

    Raises:
        UnsupportedArchitecture, InteropError: as :func:`assay.interop.from_hf`.
    """
    import torch

    from assay.model import build, named_params

    source = Gguf(Path(path))
    family = families()[source.arch.model_type]
    recipe = source.recipe()
    decoder = build(recipe, device="meta")
    plan = plan_of(family, recipe, source, {p.name: tuple(p.param.shape) for p in named_params(decoder)})
    decoder = decoder.to(torch.float32 if dtype is None else dtype).to_empty(device=device)
    carry_over(plan, recipe, source, {p.name: p.param for p in named_params(decoder)})
    return decoder.eval()


class Gguf:
    """An open GGUF file under the names of transformers."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.reader = open_reader(path)
        self.fields = {name: field.contents() for name, field in _architecture(self.reader).items()}
        name = str(self.fields.get("general.architecture"))
        if name not in ARCHS:
            raise UnsupportedArchitecture(
                f"{path}: GGUF architecture {name!r} is not supported; nearest: {closest(name, ARCHS)}"
            )
        self.name, self.arch = name, ARCHS[name]
        self.tensors = {_renamed(t.name, path): t for t in self.reader.tensors if t.name != _FREQS}
        self.files = dict.fromkeys(self.tensors, path)

    @property
    def names(self) -> list[str]:
        return list(self.tensors)

    def recipe(self) -> Recipe:
        """The recipe of the file's metadata."""
        config = self.config()
        family = families()[self.arch.model_type]
        recipe = family.read(family.config(config, str(self.folder)))
        title = str(self.fields.get("general.name") or self.folder.stem)
        return recipe.model_copy(update={"name": title, "sources": (f"hf:{self.arch.model_type}", "gguf")})

    def config(self) -> dict[str, Any]:
        """The metadata as a config.json of transformers."""
        own = {k.removeprefix(f"{self.name}."): v for k, v in self.fields.items() if k.startswith(f"{self.name}.")}
        unknown = sorted(k for k in own if k not in (*_KEYS, *_ROPE, *_CHECKED, *_IDLE) and own[k])
        if unknown:
            raise InteropError(f"{self.folder}: {self.name}.{unknown[0]} = {own[unknown[0]]!r}: no rule for this key")
        config = {_KEYS[k]: _plain(v) for k, v in own.items() if k in _KEYS}
        config["vocab_size"] = int(self._tensor("model.embed_tokens.weight").shape[1])
        config["tie_word_embeddings"] = "lm_head.weight" not in self.tensors
        config["rope_parameters"] = self._rope(own)
        if self.arch.model_type == "llama":
            config["attention_bias"] = "model.layers.0.self_attn.o_proj.bias" in self.tensors
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        for key in _CHECKED:
            if key in own and own[key] != size:
                raise InteropError(f"{self.folder}: {self.name}.{key} = {own[key]!r}: only whole heads ({size}) turn")
        return config

    def _rope(self, own: Mapping[str, Any]) -> dict[str, Any]:
        table: dict[str, Any] = {"rope_type": "default", "rope_theta": _plain(own.get("rope.freq_base", 10_000.0))}
        kind = own.get("rope.scaling.type", "none")
        if kind not in ("none", ""):
            table.update(rope_type=kind, factor=_plain(own.get("rope.scaling.factor")))
            table["original_max_position_embeddings"] = own.get("rope.scaling.original_context_length")
            if kind == "linear":
                del table["original_max_position_embeddings"]
        factors = [t for t in self.reader.tensors if t.name == _FREQS]
        if factors:
            table.update(self._llama3(factors[0], float(table["rope_theta"])))
        return table

    def _llama3(self, tensor: Any, theta: float) -> dict[str, Any]:
        """Llama 3's scaling, known to GGUF only as its table of divisors: found again and checked."""
        import torch

        from assay.model.position import base_frequencies, scaled_frequencies
        from assay.recipe.position import Llama3Scaling

        divisors = torch.from_numpy(_dequantized(tensor).copy()).double().flatten()
        spec = Llama3Scaling(factor=float(divisors.max()), original_seq_len=8192)
        plain = base_frequencies(theta, 2 * len(divisors))
        if not torch.allclose(plain / scaled_frequencies(spec, theta, 2 * len(divisors))[0], divisors, rtol=1e-5):
            raise UnsupportedArchitecture(f"{self.folder}: {_FREQS} is not the table of Llama 3's scaling")
        return {
            "rope_type": "llama3",
            "factor": spec.factor,
            "low_freq_factor": spec.low_freq_factor,
            "high_freq_factor": spec.high_freq_factor,
            "original_max_position_embeddings": spec.original_seq_len,
        }

    def _tensor(self, name: str) -> Any:
        if name not in self.tensors:
            raise DamagedFolder(f"{self.folder}: missing {name} (GGUF has {shown(self.tensors)})")
        return self.tensors[name]

    def get(self, name: str) -> Tensor:
        """One tensor in float32, rows of q and k in the order of the Hugging Face model."""
        import torch

        value = torch.from_numpy(_dequantized(self._tensor(name)).copy())
        part = name.split(".")[-2]
        if self.arch.permuted and part in ("q_proj", "k_proj"):
            key = "attention.head_count" if part == "q_proj" else "attention.head_count_kv"
            heads = int(self.fields.get(f"{self.name}.{key}") or self.fields[f"{self.name}.attention.head_count"])
            value = value.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        return value.contiguous()


def open_reader(path: Path) -> Any:
    """The file as the ``gguf`` package opens it; the last one stays open, for weights and tokenizer are read apart."""
    try:
        stat = path.stat()
    except OSError:
        raise DamagedFolder(f"{path}: no such file") from None
    return _opened(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)
def _opened(path: Path, modified: int, size: int) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise InteropError("reading GGUF needs the gguf package: pip install 'assay-lm[hf]'") from None
    try:
        return GGUFReader(path)
    except Exception as error:  # the reader maps the file; damage surfaces as whatever comes first
        raise DamagedFolder(f"{path}: cannot be read as GGUF: {error}") from None


def _architecture(reader: Any) -> dict[str, Any]:
    """The fields about the model; the tokenizer's, which are long, are left unread."""
    kept: Callable[[str], bool] = lambda name: not name.startswith(("tokenizer.", "GGUF."))  # noqa: E731
    return {name: field for name, field in reader.fields.items() if kept(name)}


def _renamed(name: str, path: Path) -> str:
    module, _, leaf = name.rpartition(".")
    words = module.split(".")
    known = _NAMES.get(words[-1])
    if known is None:
        raise InteropError(f"{path}: no rule for tensor {name}")
    return f"model.layers.{words[1]}.{known}.{leaf}" if words[0] == "blk" else f"{known}.{leaf}"


def _plain(value: Any) -> Any:
    """A stored float32 as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value


def _dequantized(tensor: Any) -> Any:
    from gguf.quants import dequantize

    try:
        return dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise InteropError(f"{tensor.name} has dtype {tensor.tensor_type.name}, which gguf cannot dequantize") from None
