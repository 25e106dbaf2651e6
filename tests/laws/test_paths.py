"""Paths agree: the same tokens give the same numbers, however they are batched, padded, packed or split."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.model import loss as loss_module
from assay.recipe import Recipe
from tests.laws.common import (
    assert_close,
    assert_grads_close,
    backends,
    examples,
    grads_of,
    loss_grads,
    random_ids,
    random_targets,
    seeds,
    summed,
)
from tests.strategies import random_decoder, recipes

# past every window, and within the shortest context
LENGTH = 11


@given(recipes(sdpa=True), seeds)
def test_backends_agree(recipe: Recipe, seed: int) -> None:
    """Logits and gradients of every attention kernel are those of the one written out; whole, padded and packed.

    At pads too, where a query has no legal key and attention gives 0.
    """
    reference = random_decoder(recipe, seed, "reference")
    ids, targets = random_ids(recipe, 3, LENGTH, seed), random_targets(recipe, 3, LENGTH, seed)
    mask, segments = padding(3, LENGTH, seed), documents(3, LENGTH, seed)
    for extra in ({}, {"padding_mask": mask}, {"segment_ids": segments}):
        live = mask if "padding_mask" in extra else torch.ones_like(mask)
        targets = targets.masked_fill(~live, -100)
        want = reference(ids, **extra)
        loss, grads = loss_grads(reference, ids, targets, **extra)
        for name in ("sdpa", "auto"):
            other = random_decoder(recipe, seed, name)
            assert_close(other(ids, **extra), want, what=f"{name}, {list(extra)}")
            got, got_grads = loss_grads(other, ids, targets, **extra)
            assert_close(got.sum, loss.sum, what=f"loss of {name}")
            assert_grads_close(got_grads, grads)


@given(recipes(), seeds, backends, st.sampled_from(["right", "left", "anywhere"]), st.booleans())
def test_padded_is_alone(recipe: Recipe, seed: int, backend: str, side: str, empty_row: bool) -> None:
    """Each row of a ragged batch equals the row by itself, wherever its pads stand and whatever ids they hold."""
    decoder = random_decoder(recipe, seed, backend)
    ids, targets = random_ids(recipe, 4, LENGTH, seed), random_targets(recipe, 4, LENGTH, seed)
    mask = padding(4, LENGTH, seed, side)
    if empty_row:
        mask[2] = False
    targets = targets.masked_fill(~mask, -100)
    given_mask = mask.long() if seed % 2 else mask
    logits = decoder(ids, padding_mask=given_mask)
    assert torch.isfinite(logits).all()
    alone = []
    for row in range(4):
        real = mask[row]
        if real.any():
            assert_close(logits[row, real], decoder(ids[row, real][None])[0], what=f"row {row}")
            alone.append(loss_grads(decoder, ids[row, real][None], targets[row, real][None]))
    loss, grads = loss_grads(decoder, ids, targets, padding_mask=given_mask)
    assert_close(loss.sum, sum_of([each.sum for each, _ in alone]), what="loss")
    assert int(loss.count) == sum(int(each.count) for each, _ in alone)
    assert_grads_close(grads, summed(g for _, g in alone))


@given(recipes(), seeds, backends, st.booleans())
def test_packed_is_alone(recipe: Recipe, seed: int, backend: str, padded: bool) -> None:
    """Documents packed in a row, with pads between and around them or without, equal each document by itself."""
    decoder = random_decoder(recipe, seed, backend)
    ids, targets = random_ids(recipe, 2, LENGTH, seed), random_targets(recipe, 2, LENGTH, seed)
    segments = documents(2, LENGTH, seed)
    mask = padding(2, LENGTH, seed, "anywhere") if padded else torch.ones(2, LENGTH, dtype=torch.bool)
    targets = targets.masked_fill(~mask, -100)
    extra = {"padding_mask": mask, "segment_ids": segments} if padded else {"segment_ids": segments}
    logits = decoder(ids, **extra)
    alone = []
    for row in range(2):
        for document in segments[row].unique():
            own = (segments[row] == document) & mask[row]
            if own.any():
                assert_close(logits[row, own], decoder(ids[row, own][None])[0], what=f"document {document}")
                alone.append(loss_grads(decoder, ids[row, own][None], targets[row, own][None]))
    loss, grads = loss_grads(decoder, ids, targets, **extra)
    assert_close(loss.sum, sum_of([each.sum for each, _ in alone]), what="loss")
    assert_grads_close(grads, summed(g for _, g in alone))


@given(recipes(), seeds, backends)
def test_batch_of_one_is_batch_of_many(recipe: Recipe, seed: int, backend: str) -> None:
    decoder = random_decoder(recipe, seed, backend)
    ids = random_ids(recipe, 5, LENGTH, seed)
    together = decoder(ids)
    assert together.shape == (5, LENGTH, recipe.vocab_size)
    assert_close(together, torch.cat([decoder(row[None]) for row in ids]))


@given(recipes(), seeds)
def test_accumulated_is_one_batch(recipe: Recipe, seed: int) -> None:
    """Micro-batches of unequal counts, one of them with nothing to learn, sum to the whole batch."""
    decoder = random_decoder(recipe, seed)
    ids, targets = random_ids(recipe, 6, LENGTH, seed), random_targets(recipe, 6, LENGTH, seed)
    targets[0, 2:] = -100  # unequal counts
    targets[3] = -100  # and none at all
    whole = decoder.loss(ids, targets)
    want = grads_of(decoder, whole.sum / whole.count)
    parts = [loss_grads(decoder, ids[rows], targets[rows]) for rows in (slice(0, 3), slice(3, 4), slice(4, 6))]
    count = sum(int(loss.count) for loss, _ in parts)
    assert count == int(whole.count) == int((targets != -100).sum())
    assert int(parts[1][0].count) == 0
    assert float(parts[1][0].sum.detach()) == 0.0
    assert_close(sum_of([loss.sum for loss, _ in parts]), whole.sum, what="loss")
    assert_grads_close({name: g / count for name, g in summed(g for _, g in parts).items()}, want)
    for name in whole.aux:
        assert_close(sum_of([loss.aux[name] for loss, _ in parts]), whole.aux[name], what=name)


@given(recipes(), seeds, st.integers(1, 60))
def test_loss_in_chunks_is_loss_of_whole_logits(recipe: Recipe, seed: int, elements: int) -> None:
    decoder = random_decoder(recipe, seed)
    ids, targets = random_ids(recipe, 2, LENGTH, seed), random_targets(recipe, 2, LENGTH, seed)
    logits = decoder(ids).flatten(0, 1)
    want = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
    want_grads = grads_of(decoder, want)
    with mock.patch.object(loss_module, "CHUNK_ELEMENTS", elements):
        loss, grads = loss_grads(decoder, ids, targets)
    assert_close(loss.sum, want, what="loss")
    assert_grads_close(grads, want_grads)
    log_z = torch.logsumexp(logits, dim=-1)[targets.flatten() != -100]
    assert_close(loss.aux["z_squared"], log_z.square().sum(), what="log² Z")
    assert_close(loss.aux["log_z"], log_z.sum(), what="log Z")


@examples(0.6)
@given(recipes(dropout=True), seeds)
def test_eval_is_train_without_dropout(recipe: Recipe, seed: int) -> None:
    """In eval mode nothing is dropped and no random number is used; in training the mode decides, not the recipe."""
    decoder = random_decoder(recipe, seed)
    ids = random_ids(recipe, 2, LENGTH, seed)
    state = torch.get_rng_state()
    want = decoder(ids)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(decoder(ids), want)
    if '"dropout": 0.1' not in recipe.to_json() and '"dropout": 0.5' not in recipe.to_json():
        assert_close(decoder.train()(ids), want)


# --- who sees whom


def sees(recipe: Recipe, length: int) -> Tensor:
    """(length, length): may the logits at a place depend on the token at another; from the recipe, pair by pair."""
    reach = torch.eye(length, dtype=torch.bool)
    for layer in recipe.layers:
        own = _mixer_sees(layer.mixer.model_dump(), length)
        reach = (own.long() @ reach.long()) > 0
    return reach


def _mixer_sees(mixer: dict[str, Any], length: int) -> Tensor:
    out = torch.eye(length, dtype=torch.bool)
    if mixer["kind"] == "sum":
        for branch in mixer["branches"]:
            out |= _mixer_sees(branch["mixer"], length)
    if mixer["kind"] == "attention":
        for query in range(length):
            for key in range(length):
                out[query, key] |= _spans(mixer["span"], query, key)
    return out


def _spans(span: dict[str, Any], query: int, key: int) -> bool:
    """One pair, from the words of the recipe."""
    size, apart = span.get("size", 0), abs(query - key)
    if key > query and span.get("causal", True):
        return False
    match span["kind"]:
        case "full":
            return True
        case "window":
            return bool(apart < size)
        case "chunked":
            return bool(query // size == key // size)
        case "strided":
            return bool(apart < span["stride"] or apart % span["stride"] == 0)
        case "fixed":
            own = key >= query - query % span["block"]
            return own or key % span["block"] in range(span["block"] - span["summary"], span["block"])
        case "window_global":
            return bool(apart < size or min(query, key) < span["n_global"])
    raise NotImplementedError(span["kind"])


@given(recipes(max_layers=2), seeds, backends, st.booleans())
def test_a_token_changes_only_what_sees_it(recipe: Recipe, seed: int, backend: str, masked: bool) -> None:
    """Causality and windows: over all layers together, a token reaches the places that its spans reach, no other."""
    decoder = random_decoder(recipe, seed, backend)
    ids = random_ids(recipe, 1, LENGTH, seed).expand(LENGTH, LENGTH)
    others = (ids + 1 + seed % (recipe.vocab_size - 1)) % recipe.vocab_size
    one_each = torch.where(torch.eye(LENGTH, dtype=torch.bool), others, ids)  # row t: token t is another
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool) if masked else None  # the same pairs by another way
    before, after = decoder(ids, padding_mask=mask), decoder(one_each, padding_mask=mask)
    reached = sees(recipe, LENGTH).T
    assert torch.equal(before[~reached], after[~reached])
    assert (before != after).any(-1).diagonal().all()


def sum_of(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum()


# --- batches


def padding(rows: int, length: int, seed: int, side: str = "right") -> Tensor:
    """(rows, length) of tokens (True) and pads, at least one token a row, the first row whole."""
    generator = torch.Generator().manual_seed(seed + 7)
    if side == "anywhere":
        mask = torch.rand(rows, length, generator=generator) < 0.6
        mask[torch.arange(rows), torch.randint(0, length, (rows,), generator=generator)] = True
    else:
        counts = torch.randint(1, length + 1, (rows, 1), generator=generator)
        place = torch.arange(length)
        mask = place < counts if side == "right" else place >= length - counts
    mask[0] = True
    return mask


def documents(rows: int, length: int, seed: int) -> Tensor:
    """(rows, length) of document numbers, in runs; the numbers are in no order."""
    generator = torch.Generator().manual_seed(seed + 8)
    begins = torch.rand(rows, length, generator=generator) < 0.3
    names = torch.randperm(length + 1, generator=generator) - 3
    return names[begins.long().cumsum(-1)]
