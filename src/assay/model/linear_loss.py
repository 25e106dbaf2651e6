"""Cross-entropy of a linear head without its logits: gradients are made in the forward pass, a chunk of tokens at once.

N tokens, h head width, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import is_autocast_available
from torch.autograd.function import once_differentiable

from assay.model import loss as plain
from assay.model.loss import IGNORED, Loss

ROW_ELEMENTS = 1 << 21  # logits that the softmax works on at once on a CPU: they stay in its cache
COLUMN_ELEMENTS = 1 << 20  # entries of the table's gradient added at once on a CPU where products are in 16 bits


class _Head(NamedTuple):
    """``soft_cap · tanh(scale · (x W^T + b) / soft_cap)``, and the weight of log² Z in the objective."""

    scale: float
    soft_cap: float | None
    z_loss: float


def linear_cross_entropy(
    x: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
) -> Loss:
    """Summed cross-entropy of ``soft_cap · tanh(scale · (x W^T + b) / soft_cap)`` against ``targets``.

    Logits exist for C tokens at a time, in the bytes of ``CHUNK_ELEMENTS`` in float32, and are not kept: the gradient
    of the objective ``sum + z_loss · z_squared`` is made beside its value and scaled in the backward pass. Any other
    use of the outputs (``z_squared`` alone, a second backward pass) is right too and computes the logits again.

    Args:
        x: (N, h).
        table: (V, h); may be an embedding's.
        bias: (V,).
        targets: (N,) ids; ``IGNORED`` (-100) leaves a place out.

    Returns:
        the loss; ``aux["objective"]`` is what to differentiate when there is a z-loss.
    """
    head = _Head(scale, soft_cap, z_loss)
    objective, nll, z2, z = _LinearLoss.apply(x, table, bias, targets, head, _compute_dtype(x))  # type: ignore[no-untyped-call]
    count = (targets != IGNORED).sum()
    return Loss(nll if z_loss else objective, count, {"objective": objective, "z_squared": z2, "log_z": z})


def _compute_dtype(x: Tensor) -> torch.dtype:
    """What a linear layer would compute in here: autocast's type inside autocast, float64 apart."""
    device = x.device.type
    if is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def _plain(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast off: the types here are chosen one by one."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if is_autocast_available(device) else nullcontext()


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, head: _Head, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        needs = ctx.needs_input_grad[:3]
        ctx.set_materialize_grads(False)
        ctx.head, ctx.dtype = head, dtype
        ctx.save_for_backward(x, table, bias, targets)
        wanted = (1.0, head.z_loss) if any(needs) else None
        with _plain(x):
            sums, ctx.made = _passes(x, table, bias, targets, head, dtype, wanted, needs)
        nll, z2, z = sums.unbind()
        ctx.mark_non_differentiable(z)
        return nll + head.z_loss * z2 if head.z_loss else nll.clone(), nll, z2, z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor | None) -> tuple[Tensor | None, ...]:
        to_objective, to_nll, to_z2, _ = outer
        made, ctx.made = ctx.made, None
        if made is not None and to_nll is None and to_z2 is None and to_objective is not None:
            return (*(None if g is None else g.mul_(to_objective.to(g.dtype)) for g in made), None, None, None)
        x, table, bias, targets = ctx.saved_tensors
        zero = x.new_zeros((), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
        a, b, c = (zero if g is None else g for g in (to_objective, to_nll, to_z2))
        weights = (a + b, ctx.head.z_loss * a + c)
        with _plain(x):
            _, made = _passes(x, table, bias, targets, ctx.head, ctx.dtype, weights, ctx.needs_input_grad[:3])
        return (*made, None, None, None)


def _passes(
    x: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    head: _Head,
    dtype: torch.dtype,
    weights: tuple[Any, Any] | None,
    needs: tuple[bool, ...],
) -> tuple[Tensor, list[Tensor | None]]:
    """Sums of nats, log² Z and log Z; and the gradient of ``weights[0] · nats + weights[1] · log² Z``."""
    n, vocab = x.shape[0], table.shape[0]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    sums = torch.zeros(3, dtype=wide, device=x.device)
    to_x = torch.empty_like(x) if weights is not None and needs[0] else None
    to_table = torch.zeros_like(table) if weights is not None and needs[1] else None
    to_bias = torch.zeros(vocab, dtype=wide, device=x.device) if weights is not None and needs[2] else None
    cast, cast_bias = table.to(dtype), None if bias is None else bias.to(dtype)
    chunk = max(1, min(n, 4 * plain.CHUNK_ELEMENTS // (dtype.itemsize * vocab)))
    at_once = max(1, ROW_ELEMENTS // vocab) if x.device.type == "cpu" else chunk
    for start in range(0, n, chunk):
        part = slice(start, start + chunk)
        rows = x[part].to(dtype)
        logits = torch.nn.functional.linear(rows, cast, cast_bias)
        for at in range(0, logits.shape[0], at_once):
            some = slice(at, at + at_once)
            sums += _rows(logits[some], targets[part][some], head, weights)
        if weights is None:
            continue
        if to_x is not None:
            to_x[part] = logits @ cast
        if to_table is not None:
            _add_product(to_table, logits, rows)
        if to_bias is not None:
            to_bias += logits.sum(0, dtype=wide)
    return sums, [to_x, to_table, None if to_bias is None or bias is None else to_bias.to(bias.dtype)]


def _rows(logits: Tensor, targets: Tensor, head: _Head, weights: tuple[Any, Any] | None) -> Tensor:
    """The sums over some rows, (r, V), which are overwritten by the gradient of what the linear map gave."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    z = logits.to(wide)
    z = z * head.scale if head.scale != 1.0 else z
    if head.soft_cap is not None:
        z = head.soft_cap * torch.tanh(z / head.soft_cap)
    real = targets != IGNORED
    places = targets.masked_fill(~real, 0).unsqueeze(-1)
    picked = z.gather(-1, places).squeeze(-1)
    slope = None if head.soft_cap is None or weights is None else 1.0 - (z / head.soft_cap).square()
    peak = z.amax(-1, keepdim=True)
    e = (z - peak if z is logits else z.sub_(peak)).exp_()
    total = e.sum(-1, keepdim=True)
    log_z = (peak + total.log()).squeeze(-1)
    kept = torch.where(real, log_z, 0.0)
    nll = torch.where(real, log_z - picked, 0.0)
    if weights is not None:
        by_nll, by_z2 = weights
        factor = torch.where(real, by_nll + 2.0 * by_z2 * log_z, 0.0).to(wide).unsqueeze(-1)
        e.mul_(factor / total)
        hit = e.gather(-1, places) - torch.where(real, by_nll, 0.0).to(wide).unsqueeze(-1)
        e.scatter_(-1, places, hit)
        if slope is not None:
            e.mul_(slope)
        logits.copy_(e.mul_(head.scale) if head.scale != 1.0 else e)
    return torch.stack([nll.sum(), kept.square().sum(), kept.sum()])


def _add_product(total: Tensor, grad: Tensor, rows: Tensor) -> None:
    """``total += grad^T rows``: (V, h) += (C, V)^T (C, h), summed in total's type.

    A CPU casts the 16-bit product before it adds it: in blocks that stay in its cache, not through memory.
    """
    if total.dtype == grad.dtype:
        torch.addmm(total, grad.mT, rows, out=total)  # in place; `addmm_` is no operation that counters know
        return
    block = max(1, COLUMN_ELEMENTS // rows.shape[1]) if total.device.type == "cpu" else total.shape[0]
    for at in range(0, total.shape[0], block):
        total[at : at + block] += grad[:, at : at + block].mT @ rows
