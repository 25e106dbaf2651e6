"""Tensors as the bytes of a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def safetensors_of(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, a tensor at a time: 8 bytes of header length, JSON header, data without gaps
    (https://github.com/huggingface/safetensors, "Format"). No more than one tensor is copied at once.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # wide first: all stay aligned
    header, at = {}, 0
    for name in order:
        t = tensors[name]
        end = at + t.numel() * t.element_size()
        header[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        if tensors[name].numel():
            flat = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            yield flat.data
