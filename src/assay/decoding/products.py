"""Matrix products of a decode step: the weights of one or several linears side by side, laid out for B rows.

Which layout is fastest depends on the machine, the shape and the number of rows, so it is measured once a process and
kept. Copies belong to whoever asked for them, never to the decoder. B rows.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from assay.model.pages import collapse

Run = Callable[[Tensor], Tensor]
Keep = Callable[[Tensor], Tensor]


class Arena:
    """One stretch of memory for copies of weights, in huge pages where the system has them (Linux, ``madvise``)."""

    def __init__(self, nbytes: int) -> None:
        self.used = 0
        self.room = torch.empty(0, dtype=torch.uint8)
        if nbytes < 1 << 21 or not hasattr(mmap, "MADV_HUGEPAGE"):
            return
        try:
            pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            return
        self.room = torch.frombuffer(pages, dtype=torch.uint8)

    def keep(self, value: Tensor) -> Tensor:
        """The values in this memory, contiguous; where it is full or there is none, in memory of their own."""
        begin = -(-self.used // 64) * 64
        end = begin + value.nbytes
        if value.device.type != "cpu" or end > self.room.nbytes:
            return value.contiguous()
        self.used = end
        return self.room[begin:end].view(value.dtype).view(value.shape).copy_(value)


_MEASURED = 1 << 20  # bytes of a group of equal products below which the plain one does
_COLD = 64 << 20  # bytes to go through, so that no cache holds them
_ROUNDS = 12
_HOPELESS = 1.5  # a layout that is so many times slower than the fastest in three rounds is not tried again
_MARGIN = 0.9  # another layout takes the place of the expected one where its time is below this share of it


class Product:
    """``x W^T + b`` for x (B, in), W the rows of one or several matrices one after another. ``run`` computes it."""

    run: Run

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
        self.weights, self.biases = list(weights), list(biases)
        self.layout = "plain"
        self.nbytes = 0

    @property
    def weight(self) -> Tensor:
        """The whole matrix: the parameter itself where it is alone, else a copy."""
        return self.weights[0].detach() if len(self.weights) == 1 else torch.cat([w.detach() for w in self.weights])

    @property
    def bias(self) -> Tensor | None:
        """All biases, 0 where a part has none; None where no part has one."""
        if all(b is None for b in self.biases):
            return None
        pairs = zip(self.weights, self.biases, strict=True)
        return torch.cat([w.new_zeros(len(w)) if b is None else b.detach() for w, b in pairs])

    @property
    def shape(self) -> tuple[int, int]:
        return sum(len(w) for w in self.weights), self.weights[0].shape[1]

    def pack(self, layout: str, batch: int, keep: Keep = Tensor.contiguous) -> None:
        """Lay the weights out; the copy that was there before is dropped."""
        weight = self.weight
        self.run, copy = LAYOUTS[layout](weight, self.bias, batch, keep)
        own = weight is not self.weights[0] and weight.data_ptr() != self.weights[0].data_ptr()
        self.layout = layout
        self.nbytes = copy if layout != "plain" else weight.nbytes * own


def _plain(weight: Tensor, bias: Tensor | None, batch: int, keep: Keep = Tensor.contiguous) -> tuple[Run, int]:
    return lambda x: F.linear(x, weight, bias), 0


def _columns(weight: Tensor, bias: Tensor | None, batch: int, keep: Keep = Tensor.contiguous) -> tuple[Run, int]:
    """Input by output: one row of x goes through memory in order."""
    turned = keep(weight.t())
    if bias is None:
        return lambda x: torch.mm(x, turned), turned.nbytes
    return lambda x: torch.addmm(bias, x, turned), turned.nbytes


def _onednn(weight: Tensor, bias: Tensor | None, batch: int, keep: Keep = Tensor.contiguous) -> tuple[Run, int]:
    """oneDNN's blocked layout for this many rows."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), batch)
    collapse(torch.ops.mkldnn.data_ptr(packed), weight.nbytes)
    linear = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: linear(x, packed, bias, "none", [], ""), weight.nbytes


def _onednn64(weight: Tensor, bias: Tensor | None, batch: int, keep: Keep = Tensor.contiguous) -> tuple[Run, int]:
    """The layout for 64 rows: its wider blocks are as good or better for few rows as well (3 to 15 % at 8)."""
    return _onednn(weight, bias, max(batch, 64), keep)


def _bags(weight: Tensor, bias: Tensor | None, batch: int, keep: Keep = Tensor.contiguous) -> tuple[Run, int]:
    """One row x as a weighted sum of the rows of ``W^T``, block of columns by block: an embedding bag.

    That kernel keeps a block of sums in registers while the block's rows stream by, so it runs at the speed of memory.
    """
    n_out, n_in = weight.shape
    width = _block(n_out, weight.element_size())
    n_blocks = -(-n_out // width)
    padded = F.pad(weight, (0, 0, 0, n_blocks * width - n_out))
    table = keep(padded.view(n_blocks, width, n_in).transpose(1, 2)).view(n_blocks * n_in, width)
    rows = torch.arange(n_blocks * n_in, dtype=torch.int32, device=weight.device)
    ends = torch.arange(0, n_blocks * n_in + 1, n_in, dtype=torch.int32, device=weight.device)

    def run(x: Tensor) -> Tensor:
        shares = x.expand(n_blocks, n_in).reshape(-1)
        y = torch.embedding_bag(table, rows, ends, False, 0, False, shares, True)[0].view(1, -1)
        y = y if y.shape[1] == n_out else y[:, :n_out]
        return y if bias is None else y + bias

    return run, table.nbytes


def _block(n_out: int, element: int) -> int:
    """Columns of a block: a multiple of 16 that pads least, few enough for the registers, and two blocks at least."""
    most = min(512 if element == 4 else 384, -(-n_out // 32) * 16)
    return min(range(most, most // 2, -16), key=lambda width: -(-n_out // width) * width)


# layout -> (weight, bias, batch, where to keep copies) to what runs it and the bytes of its copy
LAYOUTS: dict[str, Callable[[Tensor, Tensor | None, int, Keep], tuple[Run, int]]] = {
    "plain": _plain,
    "columns": _columns,
    "bags": _bags,
    "onednn": _onednn,
    "onednn64": _onednn64,
}


def layouts_for(weight: Tensor, batch: int) -> tuple[str, ...]:
    """The layouts that this machine has for a weight: beyond ``plain`` only on a CPU, in float32 and half precision."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return ("plain",)
    single = ("columns", "bags") if batch == 1 else ("columns",)
    packed = ("onednn", *(("onednn64",) if 1 < batch < 64 else ())) if _has_onednn(weight.dtype) else ()
    return ("plain", *single, *packed)


_ONEDNN: dict[torch.dtype, bool] = {}


def _has_onednn(dtype: torch.dtype) -> bool:
    """True where this build packs for oneDNN and the packed product is right; tried once, on a small one."""
    if dtype not in _ONEDNN:
        _ONEDNN[dtype] = torch.backends.mkldnn.is_available() and _right("onednn", dtype)
    return _ONEDNN[dtype]


def _right(layout: str, dtype: torch.dtype) -> bool:
    weight = torch.linspace(-1, 1, 48 * 80, dtype=torch.float64).sin().reshape(48, 80).to(dtype)
    x = torch.linspace(-2, 2, 3 * 80, dtype=torch.float64).cos().reshape(3, 80).to(dtype)
    want = x.double() @ weight.double().t()
    try:
        got = LAYOUTS[layout](weight, None, len(x), Tensor.contiguous)[0](x).double()
    except (AttributeError, RuntimeError, NotImplementedError):  # a build without the operator
        return False
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    return bool((got - want).abs().max() <= bound * want.abs().max())


# --- the choice

_CHOSEN: dict[tuple[Any, ...], str] = {}


def pack_all(products: Sequence[Product], batch: int, layout: str = "auto") -> None:
    """Lay out every product for ``batch`` rows; ``auto`` measures what is fastest for products of each shape."""
    groups: dict[tuple[Any, ...], list[Product]] = {}
    for product in products:
        first = product.weights[0]
        key = (
            batch,
            *product.shape,
            len(product.weights) > 1,
            product.bias is not None,
            first.dtype,
            first.device.type,
        )
        groups.setdefault((*key, torch.get_num_threads()), []).append(product)
    layouts = {}
    for key, group in groups.items():
        chosen = layout if layout != "auto" else _choose(key, group, batch)
        for product in group:
            layouts[product] = chosen if chosen in layouts_for(product.weights[0], batch) else "plain"
    arena = Arena(_arena_bytes([p for p, name in layouts.items() if name in ("columns", "bags")]))
    for product, name in layouts.items():
        product.pack(name, batch, arena.keep)


def _arena_bytes(products: Sequence[Product]) -> int:
    """Room for a copy of each, its rows in whole blocks."""
    total = 0
    for product in products:
        (n_out, n_in), element = product.shape, product.weights[0].element_size()
        width = _block(n_out, element)
        total += -(-n_out // width) * width * n_in * element + 64
    return total


def _choose(key: tuple[Any, ...], group: list[Product], batch: int) -> str:
    first = group[0]
    size = first.shape[0] * first.shape[1] * first.weights[0].element_size()
    layouts = layouts_for(first.weights[0], batch)
    if len(layouts) == 1 or size * len(group) < _MEASURED:
        return "plain"
    if key not in _CHOSEN:
        _CHOSEN[key] = _measured(group[: max(1, -(-_COLD // size))], layouts, batch)
    return _CHOSEN[key]


def _measured(sample: list[Product], layouts: Sequence[str], batch: int) -> str:
    """The layout whose best round was fastest; the rounds of all are interleaved, for other work on the machine.

    What is expected to win is kept unless another is clearly faster, so that noise does not decide.
    """
    runs = {}
    for name in layouts:
        keep = Arena(_arena_bytes(sample)).keep
        runs[name] = [LAYOUTS[name](p.weight, p.bias, batch, keep)[0] for p in sample]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, sample[0].shape[1], generator=generator).to(sample[0].weights[0].dtype)
    clock = time.thread_time  # this thread has its share of every product; what others do on the machine is not in it
    best = dict.fromkeys(layouts, float("inf"))
    for turn in range(_ROUNDS):
        least = min(best.values())
        for name in layouts:
            if turn > 2 and best[name] > _HOPELESS * least:
                continue
            began = clock()
            for run in runs[name]:
                run(x)
            best[name] = min(best[name], clock() - began)
    expected = next(name for name in ("bags", "onednn64", "onednn", "plain") if name in layouts)
    fastest = min(layouts, key=best.__getitem__)
    return fastest if best[fastest] < _MARGIN * best[expected] else expected
