"""Continuing rows of tokens: one prefill, then a token of every row a step.

B rows, T prompt places, N new tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from assay.decoding.checks import check_prompt, not_finite
from assay.decoding.engine import Engine
from assay.decoding.errors import fault
from assay.decoding.sampling import Sampling, choose
from assay.model import Decoder, UnsupportedCache


class Steps(Protocol):
    """What reads tokens and gives logits, float32 or better: an :class:`Engine`, or a slow one in tests."""

    def prefill(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """(B, T) to logits (B, V) of each row's last token."""
        ...

    def reset(self) -> None:
        """Forget what was read."""
        ...

    def step(self, next_ids: Tensor) -> Tensor:
        """(B,) to logits (B, V)."""
        ...


Maker = Callable[[Decoder, int, int, int], Steps]  # (decoder, batch, max_len, rope_length)


def _engine(decoder: Decoder, batch: int, max_len: int, rope_length: int) -> Steps:
    try:
        return Engine(decoder, batch, max_len, rope_length=rope_length)
    except UnsupportedCache as error:
        raise fault("recipe", str(error), allowed="layers that see only what stands before", where="model") from None
    except (RuntimeError, TypeError) as error:  # as torch tells it
        if not any(word in str(error) for word in _NO_ROOM):
            raise
        message = f"the cache of {batch} rows of {max_len:,} tokens does not fit in memory"
        raise fault("max_new_tokens", message, allowed="fewer new tokens, or fewer rows at once") from None


_NO_ROOM = (
    "allocate memory",
    "enough memory",
    "out of memory",
    "size calculation overflowed",
    "Overflow when unpacking",
)


class Kept:
    """A maker that keeps its engine from one batch to the next: weights are laid out and memory taken once.

    Args:
        max_len: tokens a row of any batch, at most.
    """

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self._made: tuple[tuple[int, int], Steps] | None = None

    def __call__(self, decoder: Decoder, batch: int, max_len: int, rope_length: int) -> Steps:
        key = (batch, rope_length)
        if self._made is not None and self._made[0] == key and max_len <= self.max_len:
            engine = self._made[1]
            engine.reset()
            return engine
        self._made = None  # its memory first
        made = _engine(decoder, batch, max(max_len, self.max_len), rope_length)
        self._made = (key, made)
        return made


@dataclass(frozen=True)
class Step:
    """One token a row. ``live``: (B,) the rows it belongs to; the others had finished, their id is the pad's."""

    ids: Tensor
    live: Tensor
    logprobs: Tensor | None


@dataclass(frozen=True)
class Completion:
    """What was written.

    Attributes:
        ids: (B, N), each row up to and with its stop id, then pads.
        lengths: tokens of each row.
        finish: why each row ended: ``stop_id``, ``stop`` (a stop string), ``length``.
        logprobs: (B, N) log-probability of each token under the model's own softmax over ``vocab``, before any filter;
            0 at pads; None unless asked for.
    """

    ids: Tensor
    lengths: tuple[int, ...]
    finish: tuple[str, ...]
    logprobs: Tensor | None = None


class Decoding:
    """Rows in progress: iterate for a :class:`Step` a token until every row has finished.

    Args:
        ids: (B, T) prompts; ``padding_mask`` (B, T), 1 = token, pads left or right.
        seeds: one a row; row i depends on ``seeds[i]`` alone.
        stop_ids: ids that end a row; they are part of it.
        pad_id: what a finished row gets.
        vocab: ids from here on are never chosen: a table padded beyond its tokenizer.
        rope_length: for RoPE scalings that depend on the length, one for all rows; by default the longest prompt with
            what is written after it. Say one to make a row equal to itself in another batch.
        logprobs: also give each token's log-probability.
        engine: makes what reads the tokens.
    """

    def __init__(
        self,
        decoder: Decoder,
        ids: Tensor,
        padding_mask: Tensor | None = None,
        *,
        max_new_tokens: int,
        sampling: Sampling,
        seeds: Sequence[int],
        stop_ids: Sequence[int] = (),
        pad_id: int = 0,
        vocab: int | None = None,
        rope_length: int | None = None,
        logprobs: bool = False,
        engine: Maker = _engine,
    ) -> None:
        recipe = decoder.recipe
        self.mask = check_prompt(recipe, ids, padding_mask, max_new_tokens)
        if len(seeds) != ids.shape[0]:
            raise fault("seed", f"{len(seeds)} seeds for {ids.shape[0]} rows", list(seeds)[:8], "one, or one a row")
        if vocab is not None and not 0 < vocab <= recipe.vocab_size:
            raise fault("vocab", "no part of the vocabulary", vocab, f"1 to {recipe.vocab_size}")
        device = decoder.embedding.table.device
        ids = ids.to(device=device, dtype=torch.long)
        self.mask = None if self.mask is None else self.mask.to(device)
        self.ids = ids if self.mask is None else ids.masked_fill(~self.mask, 0)  # a pad's id is read by nobody
        self.decoder, self.sampling, self.seeds = decoder, sampling, tuple(seeds)
        self.max_new_tokens, self.pad_id, self.vocab, self.logprobs = max_new_tokens, pad_id, vocab, logprobs
        self.stop_ids = torch.tensor(sorted(set(stop_ids)), dtype=torch.long, device=device)
        rows = ids.shape[0]
        self.live = torch.ones(rows, dtype=torch.bool, device=device)
        self.finish = ["length"] * rows
        self.lengths = [0] * rows
        self.seconds = {"setup": 0.0, "prefill": 0.0, "decode": 0.0}
        self.steps_done = 0
        longest = ids.shape[1] if self.mask is None else int(self.mask.sum(-1).max())
        self.max_len = longest + max_new_tokens
        self.rope_length = self.max_len if rope_length is None else rope_length
        self._make = engine
        self._seen: Tensor | None = None
        if sampling.repetition_penalty != 1:
            self._seen = torch.zeros(rows, recipe.vocab_size, dtype=torch.bool, device=device)
            real = torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask
            self._seen[torch.where(real)[0], self.ids[real]] = True

    @property
    def prompt_tokens(self) -> int:
        """Real tokens of all prompts."""
        return self.ids.numel() if self.mask is None else int(self.mask.sum())

    def stop(self, row: int) -> None:
        """End a row from outside, after the token it last got: what reads its text saw a stop string."""
        if bool(self.live[row]):
            self.live = self.live.clone()  # it may be an inference tensor
            self.live[row] = False
            self.finish[row] = "stop"

    def __iter__(self) -> Iterator[Step]:
        training = self.decoder.training
        self.decoder.eval()
        try:
            yield from self._steps()
        finally:
            self.decoder.train(training)
            self._seen = None  # a place a row and token of the vocabulary: not for those who keep what is done

    def _steps(self) -> Iterator[Step]:
        began = time.perf_counter()
        engine = self._make(self.decoder, self.ids.shape[0], self.max_len, self.rope_length)
        with torch.inference_mode():
            logits = engine.prefill(self.ids, self.mask)
            step = self._chosen(logits, 0)
        self.seconds["prefill"] = time.perf_counter() - began
        yield step
        for n in range(1, self.max_new_tokens):
            if not bool(self.live.any()):
                return
            if n == 1 and isinstance(engine, Engine):
                began = time.perf_counter()
                engine.prepare()
                self.seconds["setup"] = time.perf_counter() - began
            began = time.perf_counter()
            with torch.inference_mode():
                logits = engine.step(step.ids.masked_fill(~step.live, 0))
                step = self._chosen(logits, n)
            self.seconds["decode"] += time.perf_counter() - began
            yield step

    def _chosen(self, logits: Tensor, n: int) -> Step:
        """The tokens of step ``n``, told to the rows' records; a stop id ends its row."""
        if self.vocab is not None and self.vocab < logits.shape[-1]:
            barred = torch.arange(logits.shape[-1], device=logits.device) >= self.vocab
            logits = logits.masked_fill(barred, -torch.inf)
        picked = choose(logits, self.sampling, self.seeds, n, self._seen)
        nowhere = picked >= logits.shape[-1]  # a draw from what is no distribution
        picked = picked.masked_fill(nowhere, 0)
        worth = logits.gather(-1, picked.unsqueeze(-1)).squeeze(-1)
        odd = (nowhere | ~torch.isfinite(worth)) & self.live
        if bool(odd.any()):
            raise not_finite(self.decoder, int(odd.nonzero()[0]))
        live = self.live.clone()
        step = Step(
            picked.masked_fill(~live, self.pad_id),
            live,
            (worth - logits.logsumexp(-1)).masked_fill(~live, 0.0) if self.logprobs else None,
        )
        if self._seen is not None:
            self._seen.scatter_(-1, picked.unsqueeze(-1), True)
        ends = torch.isin(picked, self.stop_ids) & live if self.stop_ids.numel() else None
        for row in live.nonzero().flatten().tolist():
            self.lengths[row] += 1
            if ends is not None and bool(ends[row]):
                self.finish[row] = "stop_id"
        if ends is not None:
            self.live = live & ~ends
        self.steps_done = n + 1
        return step


def complete(
    decoder: Decoder,
    ids: Tensor,
    max_new_tokens: int,
    padding_mask: Tensor | None = None,
    *,
    sampling: Sampling | None = None,
    seed: int | Sequence[int] = 0,
    stop: Sequence[str] = (),
    tokenizer: Any = None,
    **more: Any,
) -> Completion:
    """Continue every row; arguments as :func:`generate` and :class:`Decoding`."""
    from assay.decoding.write import Writing

    seeds = [seed] * ids.shape[0] if isinstance(seed, int) else [int(s) for s in seed]
    work = Decoding(
        decoder,
        ids,
        padding_mask,
        max_new_tokens=max_new_tokens,
        sampling=Sampling() if sampling is None else sampling,
        seeds=seeds,
        **more,
    )
    if stop and tokenizer is None:
        raise fault("stop", "stop strings are found in text", list(stop), "a tokenizer beside them, or stop_ids")
    steps = [step for step, _ in Writing(work, tokenizer, stop) if step is not None] if stop else list(work)
    new = torch.stack([step.ids for step in steps], dim=1)
    scores = torch.stack([s.logprobs for s in steps if s.logprobs is not None], dim=1) if work.logprobs else None
    return Completion(new, tuple(work.lengths), tuple(work.finish), scores)


def generate(
    decoder: Decoder,
    ids: Tensor,
    max_new_tokens: int,
    padding_mask: Tensor | None = None,
    temperature: float = 0.0,
    seed: int | Sequence[int] = 0,
    *,
    top_k: int | str = "all",
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop_ids: Sequence[int] = (),
    stop: Sequence[str] = (),
    tokenizer: Any = None,
    pad_id: int = 0,
    rope_length: int | None = None,
) -> Tensor:
    """Continue every row of ``ids``: greedy at temperature 0, else sampled.

    Args:
        ids: (B, T) prompts; ``padding_mask`` (B, T), 1 = token, 0 = pad, pads left or right.
        seed: one for every row, or one a row. A row's stream is its seed's alone, so a row is the same in any batch,
            and equal prompts with equal seeds give equal text: for several samples of a prompt give several seeds.
        top_k, top_p, min_p, repetition_penalty: see :mod:`assay.decoding.sampling`, where their order is.
        stop_ids: ids that end a row, and are its last. ``stop``: strings that do, across token borders too; they need
            ``tokenizer``, anything with ``decode(ids) -> str``.
        pad_id: what stands after a row's end.
        rope_length: see :class:`Decoding`.

    Returns:
        The new ids alone, (B, N), N ≤ max_new_tokens: the longest row's length. The batch stops with its last row.

    Raises:
        DecodingError: an option, a prompt or a model that cannot be used.
    """
    sampling = Sampling.of(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    return complete(
        decoder, ids, max_new_tokens, padding_mask, sampling=sampling, seed=seed, stop=stop, tokenizer=tokenizer,
        stop_ids=stop_ids, pad_id=pad_id, rope_length=rope_length,
    ).ids  # fmt: skip
