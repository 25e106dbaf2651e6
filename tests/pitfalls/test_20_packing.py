"""20. Positions reset but attention not blocked, or the reverse (huggingface/nanoVLM PR#204).

Two documents of 6 and 5 tokens in one row; every token of the first is changed. Right: the second equals itself alone,
the loss at the boundary is left out, and the count agrees.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.model import IGNORED
from assay.training.data.batches import rows_of
from assay.training.data.stream import Stream
from tests.pitfalls.support import close, decoder, ids
from tests.pitfalls.test_12_left_padding import KINDS

FIRST, SECOND = ids(1, 6), ids(2, 5)
SEGMENTS = torch.tensor([[4] * 6 + [7] * 5])


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_document_is_itself_alone(kind: str) -> None:
    over, mixer = KINDS[kind]
    model = decoder(over, **mixer)
    changed = (FIRST + 1) % 32
    packed = [model(torch.cat((a, SECOND)).unsqueeze(0), segment_ids=SEGMENTS)[0] for a in (FIRST, changed)]
    alone = model(SECOND.unsqueeze(0))[0]
    for row in packed:
        assert close(row[6:], alone)
    assert close(packed[0][:6], model(FIRST.unsqueeze(0))[0])
    # neither half of the cure is enough for a model that knows positions
    together = model(torch.cat((FIRST, SECOND)).unsqueeze(0))[0]
    assert not close(together[6:], alone, 1e-3)


def test_the_loss_leaves_the_boundary_out() -> None:
    model = decoder()
    row = torch.cat((FIRST, SECOND)).unsqueeze(0)
    targets = row.roll(-1, dims=1)
    targets[0, [5, 10]] = IGNORED  # nothing follows a document's last token
    packed = model.loss(row, targets, segment_ids=SEGMENTS)
    alone = [model.loss(d[None, :-1], d[None, 1:]) for d in (FIRST, SECOND)]
    assert int(packed.count) == sum(int(a.count) for a in alone) == 9
    assert float(packed.sum.detach()) == pytest.approx(sum(float(a.sum.detach()) for a in alone), rel=1e-12)


def test_documents_need_not_stand_together() -> None:
    """Equal ids are one document wherever its tokens stand."""
    model = decoder({"embedding": {"position": "learned"}})
    mixed = torch.stack((FIRST[:5], SECOND), dim=1).flatten().unsqueeze(0)
    segments = torch.tensor([[0, 1] * 5])
    with torch.no_grad():
        got = model(mixed, segment_ids=segments)[0]
        assert close(got[0::2], model(FIRST[None, :5])[0])
        assert close(got[1::2], model(SECOND[None])[0])


def test_the_loader_that_packs_isolates_what_it_packs() -> None:
    """Windows of a stream of these two documents: segments, targets and positions of the loader, the model's loss."""
    model = decoder()
    stream = Stream.of(torch.cat((FIRST, SECOND, FIRST)).numpy(), np.array([0, 6, 11]))
    packed = rows_of(stream, np.array([0]), 11, isolated=True)
    assert packed.segments is not None and packed.segments.tolist() == [[0] * 6 + [1] * 5]
    assert (packed.targets == IGNORED).nonzero().tolist() == [[0, 5], [0, 10]]
    loss = model.loss(packed.ids, packed.targets, segment_ids=packed.segments)
    alone = [model.loss(d[None, :-1], d[None, 1:]) for d in (FIRST, SECOND)]
    assert int(loss.count) == 9
    assert float(loss.sum.detach()) == pytest.approx(sum(float(a.sum.detach()) for a in alone), rel=1e-12)
    # without isolation the boundary is trained on, and the second document sees the first
    plain = rows_of(stream, np.array([0]), 11, isolated=False)
    assert plain.segments is None and int((plain.targets == IGNORED).sum()) == 0
    assert not close(model(plain.ids)[0, 6:], model(SECOND.unsqueeze(0))[0], 1e-3)
