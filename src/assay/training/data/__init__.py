"""Tokens and their order. Tensors are made of them in :mod:`assay.training.data.batches`, which alone needs torch."""

from assay.training.data.corpus import Corpus, CorpusError, bits_per_byte, open_corpus
from assay.training.data.order import n_windows, permute, window_starts

__all__ = ["Corpus", "CorpusError", "bits_per_byte", "n_windows", "open_corpus", "permute", "window_starts"]
