"""What of a run and its corpus does not fit, found before the first update."""

from __future__ import annotations

from assay.recipe.errors import Problem
from assay.recipe.recipe import Recipe
from assay.training.data.corpus import Corpus
from assay.training.data.order import n_windows
from assay.training.data.spec import DataConfig


def data_problems(
    data: DataConfig, corpus: Corpus, recipe: Recipe, seq_len: int, batch_size: int, samples: int
) -> list[Problem]:
    """Every fault; ``batch_size`` is that of the largest update, ``samples`` the windows of the whole run."""
    problems = []
    if recipe.vocab_size < corpus.vocab_size:
        message = f"smaller than the tokenizer's {corpus.vocab_size} ({corpus.tokenizer})"
        problems.append(Problem("recipe.vocab_size", message, recipe.vocab_size, f">= {corpus.vocab_size}", "", True))
    need = batch_size * seq_len + 1
    if corpus.train_tokens < need:
        message = f"one batch needs {need:,} tokens, the training split has {corpus.train_tokens:,}"
        problems.append(Problem("batch_size", message, batch_size, "a smaller batch or a larger corpus", "", True))
    for part, epochs in zip(corpus.parts, corpus.epochs(samples, seq_len), strict=True):
        if n_windows(part.train.size, seq_len) < 1:
            message = f"{part.name}: {part.train.size:,} tokens, no window of {seq_len} + 1"
            problems.append(Problem("seq_len", message, seq_len, "a shorter one or a larger corpus", "", True))
        elif data.max_epochs != "any" and epochs > data.max_epochs:
            message = f"the run reads {part.name} {epochs:.2f} times"
            allowed = f"at most {data.max_epochs:g}; a larger corpus, fewer steps, or another weight"
            problems.append(Problem("data.max_epochs", message, data.max_epochs, allowed, "", True))
        if part.held.stream.size <= seq_len:
            where = f"the validation split of {part.name}" if len(corpus.parts) > 1 else "the validation split"
            message = f"{where} has {part.held.stream.size:,} tokens, no window of {seq_len} + 1"
            problems.append(Problem("data.val_bytes", message, data.val_bytes, "a larger val_bytes", "", True))
    return problems
