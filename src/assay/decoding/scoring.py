"""How likely a model finds given text: of a continuation after a context, of a whole text, past the context too.

The rules are those of lm-evaluation-harness (its ``hf`` model), so that numbers agree; where they leave a hole they are
closed and said. No cache: every pass reads whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from assay.decoding.checks import check_causal
from assay.decoding.errors import fault
from assay.decoding.loop import Decoding, Kept
from assay.decoding.sampling import Sampling
from assay.decoding.tokenizer import Tokenizer
from assay.decoding.write import Writing
from assay.model import Decoder

CHUNK_ELEMENTS = 1 << 24  # logits held at once, 64 MiB in float32

Window = tuple[list[int], list[int]]  # inputs, and the targets that follow the last of them
Score = tuple[float, bool]  # nats (a log-probability), and whether greedy decoding would write it
Told = Callable[[int], None]  # of progress: how many more are done


def windows(context: Sequence[int], continuation: Sequence[int], max_len: int) -> Iterator[Window]:
    """The passes that score ``continuation``: at most ``max_len`` inputs each, every target once.

    A target is predicted from the nearest ``max_len`` tokens before the last target of its window, so one window cuts
    the context from the left. A continuation longer than ``max_len`` is cut into windows of that many targets; a later
    window sees the last token of the one before, the last one as many more as fit.
    """
    whole = [*context, *continuation]
    done = 0
    while done < len(continuation):
        n = min(max_len, len(continuation) - done)
        end = len(context) + done + n
        yield whole[max(0, end - 1 - max_len) : end - 1], list(continuation[done : done + n])
        done += n


@torch.inference_mode()
def score_windows(decoder: Decoder, rows: Sequence[Window], batch: int, told: Told | None = None) -> list[Score]:
    """The score of each window. Windows with the same inputs are read once, longest first, padded on the right."""
    reading: dict[tuple[int, ...], list[int]] = {}
    for i, (inputs, _) in enumerate(rows):
        reading.setdefault(tuple(inputs), []).append(i)
    order = sorted(reading, key=lambda key: (-len(key), key))
    out: list[Score] = [(0.0, True)] * len(rows)
    training = decoder.training
    decoder.eval()
    try:
        for start in range(0, len(order), batch):
            together = order[start : start + batch]
            for key, hidden in zip(together, _read(decoder, together), strict=True):
                for i in reading[key]:
                    out[i] = _score(decoder, hidden, rows[i][1])
                if told is not None:
                    told(len(reading[key]))
    finally:
        decoder.train(training)
    return out


def _read(decoder: Decoder, rows: list[tuple[int, ...]]) -> list[Tensor]:
    """The hidden states (T, d) of each row."""
    device = decoder.embedding.table.device
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    mask = None
    if min(map(len, rows)) < width:
        mask = torch.arange(width) < torch.tensor([len(row) for row in rows]).unsqueeze(-1)
        mask = mask.to(device)
    hidden = decoder.features(ids.to(device), mask).hidden
    return [hidden[i, : len(row)] for i, row in enumerate(rows)]


def _score(decoder: Decoder, hidden: Tensor, targets: list[int]) -> Score:
    """Of the targets after the last of the inputs whose hidden states these are."""
    at = hidden[len(hidden) - len(targets) :]
    wanted = torch.tensor(targets, device=hidden.device)
    chunk = max(1, CHUNK_ELEMENTS // decoder.recipe.vocab_size)
    total, greedy = 0.0, True
    for start in range(0, len(targets), chunk):
        z = decoder.unembed(at[start : start + chunk]).float()
        part = wanted[start : start + chunk]
        picked = z.gather(-1, part.unsqueeze(-1)).squeeze(-1)
        total += float((picked.double() - torch.logsumexp(z, dim=-1).double()).sum())
        greedy = greedy and bool((z.argmax(-1) == part).all())
    return total, greedy


@dataclass(frozen=True)
class Scorer:
    """A model with its tokenizer, asked about text.

    Attributes:
        max_length: inputs a pass, at most.
        batch: rows a pass.
        start: whether a context begins with the start token: as its ``tokenizer`` does it, ``always`` once, ``never``.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    max_length: int
    batch: int = 8
    start: Literal["tokenizer", "always", "never"] = "tokenizer"

    @property
    def prefix(self) -> int:
        """What an empty context is: the start token, else the end token."""
        if self.tokenizer.prefix_id is None:
            message = f"{self.tokenizer.name} names neither a start nor an end token to stand for an empty context"
            raise fault(
                "tokenizer", message, allowed="a bos_token or eos_token in tokenizer_config.json", where="score"
            )
        return self.tokenizer.prefix_id

    def encode(self, text: str) -> list[int]:
        """Ids of a context, with one start token at most: what puts it there, or the text spells it out."""
        spelt = self.tokenizer.specials.get("bos_token")
        own = self.start == "tokenizer" and not (spelt and text.startswith(spelt))
        ids = self.tokenizer.encode(text, special=own)
        return [self.prefix, *ids] if self.start == "always" and ids[:1] != [self.prefix] else ids

    def pair(self, context: str, continuation: str) -> Window:
        """Ids of both: spaces at the context's end go to the continuation, then the whole is cut where the context's
        own ids end, so that tokens across the border count to the continuation. Where nothing is left of it then
        (the border vanished into one token), it is read by itself.
        """
        if not context:
            ids = self.tokenizer.encode(continuation, special=False)
            return (ids[:1], ids[1:]) if ids[:1] == [self.prefix] else ([self.prefix], ids)
        bare = context.rstrip()
        if not bare:  # spaces alone: as an empty context
            return self.pair("", context + continuation)
        before, rest = self.encode(bare), context[len(bare) :] + continuation
        return before, self.encode(bare + rest)[len(before) :] or self.tokenizer.encode(rest, special=False)

    def continuations(self, pairs: Sequence[tuple[str, str]], told: Told | None = None) -> list[Score]:
        """Log-likelihood of each continuation after its context; an empty one has 0."""
        return self.score([self.pair(*pair) for pair in pairs], told)

    def score(self, pairs: Sequence[Window], told: Told | None = None) -> list[Score]:
        """The same for ids."""
        check_causal(self.decoder.recipe)
        pieces = [list(windows(context, wanted, self.max_length)) for context, wanted in pairs]
        found = iter(score_windows(self.decoder, [w for piece in pieces for w in piece], self.batch, told))
        own = [[next(found) for _ in piece] for piece in pieces]
        return [(sum(nats for nats, _ in parts), all(best for _, best in parts)) for parts in own]

    def texts(self, texts: Sequence[str], told: Told | None = None) -> list[float]:
        """Log-likelihood of whole texts, every token once, after one start token whatever the tokenizer adds."""
        pairs: list[Window] = []
        for text in texts:
            ids = self.tokenizer.encode(text, special=False)
            start = self.tokenizer.specials.get("bos_token")
            spelt = start is not None and text.startswith(start) and ids[:1] == [self.prefix]
            pairs.append((ids[:1], ids[1:]) if spelt else ([self.prefix], ids))
        return [nats for nats, _ in self.score(pairs, told)]

    def write(
        self,
        contexts: Sequence[str],
        stop: Sequence[str],
        max_new_tokens: int,
        sampling: Sampling,
        seeds: Sequence[int],
    ) -> Iterator[tuple[int, str]]:
        """Each context's place and the text written after it, up to a stop string; a long context loses its left."""
        room = self.max_length - max_new_tokens
        if room < 1:
            message = f"{max_new_tokens} new tokens leave no room for a prompt in a context of {self.max_length}"
            raise fault("max_gen_toks", message, allowed=f"at most {self.max_length - 1}", where="score")
        rows = [(self.encode(context) or [self.prefix])[-room:] for context in contexts]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        engine = Kept(max(map(len, rows), default=0) + max_new_tokens)
        for start in range(0, len(order), self.batch):
            places = order[start : start + self.batch]
            width = max(len(rows[i]) for i in places)
            ids, mask = torch.zeros(2, len(places), width, dtype=torch.long)
            for n, i in enumerate(places):
                ids[n, width - len(rows[i]) :], mask[n, width - len(rows[i]) :] = torch.tensor(rows[i]), 1
            work = Decoding(
                self.decoder,
                ids,
                mask,
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                seeds=[seeds[i] for i in places],
                stop_ids=self.tokenizer.stops_at(stop),
                vocab=min(self.tokenizer.size, self.decoder.recipe.vocab_size),
                rope_length=self.max_length,
                engine=engine,
            )
            writing = Writing(work, self.tokenizer, [s for s in stop if s])
            for _ in writing:
                pass
            yield from zip(places, writing.texts, strict=True)
