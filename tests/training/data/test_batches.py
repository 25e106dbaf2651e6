"""Batches: the order of samples over sources, epochs, ranks and ramps; windows across runs; documents isolated."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.model import IGNORED, build
from assay.recipe import load
from assay.training import accumulate_gradients
from assay.training.data import Corpus, DataConfig, n_windows, open_data, rank_range
from assay.training.data.batches import batch, samples_of
from assay.training.data.bins import open_bins
from assay.training.data.order import apportion, portions_of
from assay.training.data.spec import DocumentsPacking
from assay.training.data.stream import Stream
from tests.training.data.support import bins_of, flat, texts

ISOLATED = DocumentsPacking()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bins")
    for name, n in (("a", 40), ("b", 25), ("c", 8)):
        bins_of(place / name, texts(n, seed=ord(name)), shard=900)
    return place


def mixed(folder: Path, *weights: int) -> Corpus:
    corpus = [{"corpus": str(folder / name), "weight": w} for name, w in zip("abc", weights, strict=False)]
    return open_data(DataConfig.model_validate({"corpus": corpus, "val_bytes": 200}))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_a_mixture_is_exact_to_one_sample_at_every_moment(quotas: list[int]) -> None:
    pattern, total = apportion(tuple(quotas)), sum(quotas)
    samples = np.arange(3 * total)
    sources, own = portions_of(samples, pattern, tuple(quotas))
    for source, quota in enumerate(quotas):
        mine = sources == source
        so_far = np.cumsum(mine)
        assert (np.abs(so_far - (samples + 1) * quota / total) < 1).all()
        assert own[mine].tolist() == list(range(3 * quota))  # none left out, none twice


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(3, 40),
    st.integers(0, 2**31),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.integers(1, 9),
)
def test_any_ranks_and_any_ramp_cover_an_epoch_once(
    weights: list[int], seq_len: int, seed: int, sizes: list[int], world: int
) -> None:
    """Updates of any sizes over any number of ranks: together every source's windows, each once an epoch."""
    corpus = _small(tuple(weights))
    ends = [n_windows(part.train.size, seq_len) for part in corpus.parts]
    period = sum(corpus.quotas)
    needed = 1 + max(-(-n // q) for n, q in zip(ends, corpus.quotas, strict=True)) * period
    first, seen, update = 0, [], 0
    while first < needed:
        count = sizes[update % len(sizes)]
        ranges = [rank_range(first, count, rank, world) for rank in range(world)]
        assert [i for each in ranges for i in each] == list(range(first, first + count))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
        order = random.Random(update).sample(ranges, len(ranges))  # whichever rank comes first
        seen += [
            (i, *place) for each in order for i, place in zip(each, places(corpus, each, seq_len, seed), strict=True)
        ]
        first, update = first + count, update + 1
    seen.sort()
    straight = places(corpus, range(first), seq_len, seed)
    assert [place for _, *place in seen] == [list(place) for place in straight]
    for p, n in enumerate(ends):
        starts = [start for part, start in straight if part == p]
        assert len(starts) >= n
        assert sorted(starts[:n]) == [i * seq_len for i in range(n)]
        if len(starts) >= 2 * n > 40:
            assert sorted(starts[n : 2 * n]) == sorted(starts[:n]) and starts[n : 2 * n] != starts[:n]


def places(corpus: Corpus, samples: range, seq_len: int, seed: int) -> list[tuple[int, int]]:
    if not len(samples):
        return []
    parts, starts = corpus.place(np.array(samples), seq_len, seed)
    return list(zip(flat(parts), flat(starts), strict=True))


class _Part:
    def __init__(self, size: int) -> None:
        self.train = Stream.of(np.zeros(size, dtype=np.uint8))


@cache
def _small(weights: tuple[int, ...]) -> Any:
    """A corpus of streams alone."""
    config = DataConfig.model_validate({"corpus": [{"corpus": str(i), "weight": w} for i, w in enumerate(weights)]})
    parts: Any = tuple(_Part(150 + 70 * i) for i in range(len(weights)))
    return Corpus("small", parts, config.quotas, "", 256, "bytes", "")


def test_sources_are_in_orders_of_their_own(folder: Path) -> None:
    corpus = _small((1, 1, 1))
    parts, starts = corpus.place(np.arange(60), 5, 0)
    orders = [starts[parts == p][:10].tolist() for p in range(3)]
    assert len({tuple(order) for order in orders}) == 3


@given(st.lists(st.booleans(), min_size=40, max_size=40), st.integers(1, 300), st.data())
def test_windows_of_chosen_documents(keep: list[bool], n: int, drawn: st.DataObject) -> None:
    bins = _bins_a()
    stream = Stream.chosen(bins, np.array(keep))
    whole = np.concatenate(bins.shards)
    want = [whole[bins.starts[i] : bins.starts[i + 1]] for i in range(40) if keep[i]]
    flat_want = np.concatenate(want) if want else whole[:0]
    assert stream.size == len(flat_want)
    assert flat(stream.counts(256)) == flat(np.bincount(flat_want, minlength=256))
    if stream.size < n:
        return
    starts = np.array(drawn.draw(st.lists(st.integers(0, stream.size - n), min_size=1, max_size=5)))
    owner = np.repeat(np.arange(len(want)), [len(each) for each in want])
    found, documents = stream.windows(starts, n), stream.documents(starts, n)
    for i, start in enumerate(starts):
        assert np.array_equal(found[i], flat_want[start : start + n])
        assert np.array_equal(documents[i], owner[start : start + n])


@cache
def _bins_a() -> Any:
    import tempfile

    return open_bins(bins_of(Path(tempfile.mkdtemp()) / "a", texts(40, seed=ord("a")), shard=900))


def test_beyond_the_end_is_an_error(folder: Path) -> None:
    stream = mixed(folder, 1).parts[0].train
    with pytest.raises(IndexError):
        stream.windows(np.array([stream.size - 3]), 5)


def test_a_batch_is_its_samples_whatever_the_call(folder: Path) -> None:
    corpus = mixed(folder, 3, 2, 1)
    big = batch(corpus, 5, 12, 16, 3, ISOLATED)
    ones = [samples_of(corpus, range(i, i + 1), 16, 3, ISOLATED) for i in range(5, 17)]
    for k, whole in enumerate(big):
        assert whole is not None
        assert torch.equal(whole, torch.cat([one[k] for one in ones]))  # type: ignore[misc]
    halves = big.split(5)
    assert [len(h.ids) for h in halves] == [5, 5, 2]
    assert torch.equal(torch.cat([h.targets for h in halves]), big.targets)
    plain = batch(corpus, 5, 12, 16, 3)
    assert torch.equal(plain.ids, big.ids) and plain.segments is None
    assert ((plain.targets == big.targets) | (big.targets == IGNORED)).all()


def test_isolated_documents_by_definition(folder: Path) -> None:
    """Byte 0 ends a document: what follows it is of another, and is not predicted from it."""
    found = batch(mixed(folder, 1), 0, 20, 48, 0, ISOLATED)
    assert found.segments is not None
    ended = (found.ids == 0).cumsum(-1)
    assert torch.equal(found.segments[:, 1:], ended[:, :-1])
    assert (found.segments[:, 0] == 0).all()
    assert torch.equal(found.targets == IGNORED, found.ids == 0)
    assert int((found.ids == 0).sum()) > 5


def test_a_packed_batch_costs_what_its_documents_cost_alone(folder: Path) -> None:
    """Loss and gradient of isolated windows equal those of each piece of a document as a row of its own."""
    found = batch(mixed(folder, 1), 0, 6, 40, 1, ISOLATED)
    assert found.segments is not None
    alone = []
    for ids, targets, segments in zip(*found, strict=True):
        for s in segments.unique():
            chosen = segments == s
            alone.append((ids[chosen].unsqueeze(0), targets[chosen].unsqueeze(0)))
    recipe = load("tiny/base", ["n_layers=2", "d_model=32"])
    grads, losses = [], []
    for micro in ([tuple(found)], [tuple(each) for each in found.split(4)], alone):
        decoder = build(recipe, dtype=torch.float64)
        losses.append(accumulate_gradients(decoder, micro))  # type: ignore[arg-type]
        grads.append(torch.cat([p.grad.flatten() for p in decoder.parameters()]))  # type: ignore[union-attr]
    for loss, grad in zip(losses[1:], grads[1:], strict=True):
        assert loss.count == losses[0].count == int((found.targets != IGNORED).sum())
        torch.testing.assert_close(loss.nats, losses[0].nats, rtol=1e-6, atol=0)
        torch.testing.assert_close(grad, grads[0], rtol=1e-9, atol=1e-13)
