"""18. Data restarts or repeats after resume (karpathy/nanoGPT#467).

A hash of each batch: 30 straight against stops after 7, 8 (the end of an epoch) and 21, each time with everything
opened anew. Right: the same 30 hashes, on 1 or 2 ranks, in other micro-batches, under a batch ramp.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from assay.training.data import Corpus, DataConfig, open_data, rank_range
from assay.training.data.batches import Batch, samples_of
from tests.training.data.support import bins_of

SEQ, BATCH, STEPS, STOPS = 16, 4, 30, (7, 8, 21)
RAMP = [2, 2, 4, 4, 6] + [8] * 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """43 documents of 16 bytes, 10 of them held out: 32 windows."""
    return bins_of(tmp_path_factory.mktemp("data") / "b", [f"document no. {i:02d}" for i in range(43)])


def opened(folder: Path) -> Corpus:
    """Whoever resumes has only the folder, the seed and the step."""
    corpus = open_data(DataConfig(corpus=str(folder), val_bytes=160))
    assert (corpus.train_tokens - 1) // SEQ == 8 * BATCH
    return corpus


def hashes(
    folder: Path, steps: range, sizes: Sequence[int], ranks: int = 1, micro: int = 1, shorten: int | None = None
) -> list[str]:
    corpus, out = opened(folder), []
    for step in steps:
        first, count = sum(sizes[:step]), sizes[step]
        shares: list[Batch] = []
        for rank in range(ranks):
            mine = samples_of(corpus, rank_range(first, count, rank, ranks), SEQ, seed=5)
            shares += mine.split(max(1, len(mine.ids) // micro))
        whole = torch.cat([torch.stack((each.ids, each.targets)) for each in shares], dim=1)
        out.append(hashlib.sha256(whole.numpy().tobytes()).hexdigest())
    return out


@pytest.mark.parametrize("sizes", [[BATCH] * STEPS, RAMP], ids=["constant", "ramp"])
@pytest.mark.parametrize(("ranks", "micro"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_same_batches_after_any_stop(folder: Path, sizes: list[int], ranks: int, micro: int) -> None:
    straight = hashes(folder, range(STEPS), sizes)
    stops = (0, *STOPS, STEPS)
    resumed: list[str] = []
    for begin, end in pairwise(stops):
        resumed += hashes(folder, range(begin, end), sizes, ranks, micro)
    assert resumed == straight
    assert len(set(straight)) == STEPS


def test_an_epoch_may_end_inside_an_update(folder: Path) -> None:
    """Nothing is repeated before everything was read, and nothing is dropped at the end of an epoch."""
    corpus, windows = opened(folder), 8 * BATCH
    updates = [samples_of(corpus, range(i, i + 5), SEQ, seed=5) for i in range(0, 65, 5)]
    rows = torch.cat([each.ids for each in updates])
    for epoch in (rows[:windows], rows[windows : 2 * windows]):
        assert len(epoch.unique(dim=0)) == windows
