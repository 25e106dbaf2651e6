"""What a prompt must be before a model reads it, and what a model must be before it writes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.decoding.errors import DecodingError, fault
from assay.recipe.mixer import attentions_of
from assay.recipe.position import LearnedPosition
from assay.recipe.recipe import Recipe


def check_prompt(recipe: Recipe, ids: Tensor, padding_mask: Tensor | None, max_new_tokens: int) -> Tensor | None:
    """Refuse ids that the model cannot read; returns the mask as bool, None where every place is a token.

    Raises:
        DecodingError: wrong shape, an empty row, an id out of range, or more tokens than the positions have.
    """
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise fault("ids", "not a table of token ids", f"{ids.dtype} {tuple(ids.shape)}", "integers (batch, length)")
    if max_new_tokens < 1:
        raise fault("max_new_tokens", "nothing to write", max_new_tokens, "at least 1")
    mask = None
    if padding_mask is not None:
        if padding_mask.shape != ids.shape:
            raise fault("padding_mask", f"not of the shape of ids, {tuple(ids.shape)}", tuple(padding_mask.shape))
        mask = padding_mask.bool().to(ids.device)
        mask = None if bool(mask.all()) else mask
    lengths = [ids.shape[1]] * ids.shape[0] if mask is None else mask.sum(-1).tolist()
    if not lengths or min(lengths) == 0:
        row = lengths.index(0) if lengths else 0
        raise fault("prompt", f"row {row} is empty: there is nothing to go on from", allowed="at least one token a row")
    bad = (ids < 0) | (ids >= recipe.vocab_size)
    bad = bad if mask is None else bad & mask
    if bool(bad.any()):
        row, place = (int(i) for i in bad.nonzero()[0])
        allowed = f"0 to {recipe.vocab_size - 1} (vocab_size = {recipe.vocab_size})"
        raise fault("ids", f"row {row}, place {place}: no token of this model", int(ids[row, place]), allowed)
    total = max(lengths) + max_new_tokens
    if isinstance(recipe.embedding.position, LearnedPosition) and total > recipe.max_seq_len:
        raise too_long(max(lengths), max_new_tokens, recipe.max_seq_len, "the learned positions end there")
    return mask


def too_long(prompt: int, new: int, limit: int, why: str) -> DecodingError:
    """A prompt, or a prompt with what is to be written after it, beyond the context."""
    if prompt >= limit:
        message, room = f"{prompt} tokens, but the context is max_seq_len = {limit}: {why}", limit - 1
        return fault("prompt", message, allowed=f"at most {room} tokens; cut its beginning, or take a longer model")
    message = f"{prompt} tokens and {new} new ones are {prompt + new}, but the context is max_seq_len = {limit}: {why}"
    return fault("prompt", message, allowed=f"a shorter prompt, or at most max_new_tokens = {limit - prompt}")


def check_causal(recipe: Recipe) -> None:
    """Refuse a model that sees tokens after the one it predicts from: it would read the answer."""
    for i, layer in enumerate(recipe.layers):
        for spec in attentions_of(layer.mixer):
            if not spec.span.is_causal:
                message = f"span {spec.span.kind_name} sees tokens that come after"
                raise fault(f"layers.{i}.mixer", message, allowed="causal layers", where="model")


def check_finite(model: nn.Module) -> None:
    """Refuse weights that are not finite, naming the first such tensors and how many of their values are not."""
    found = []
    for name, p in model.named_parameters():
        bad = int((~torch.isfinite(p)).sum())
        if bad:
            found.append(f"{name} ({bad:,} of {p.numel():,} values)")
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        message = f"not finite in {', '.join(found[:4])}{more}"
        raise fault("weights", message, allowed="finite numbers; take an earlier checkpoint", where="model")


def not_finite(model: nn.Module, row: int) -> DecodingError:
    """Why a row's logits are not finite: a tensor by name, or an overflow on the way."""
    try:
        check_finite(model)
    except DecodingError as error:
        return error
    dtype = next(model.parameters()).dtype
    message = f"row {row}: not finite though every weight is: it overflowed in {dtype}"
    return fault("logits", message, allowed="a wider dtype", where="model")
