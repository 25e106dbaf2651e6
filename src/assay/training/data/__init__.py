"""Tokens and their order. Tensors are made of them in :mod:`assay.training.data.batches`, which alone needs torch."""

from assay.training.data.bins import Bins, is_bins, open_bins
from assay.training.data.corpus import Corpus, bits_per_byte, open_corpus, open_data
from assay.training.data.errors import CorpusError
from assay.training.data.order import n_windows, permute, rank_range, window_starts
from assay.training.data.sources import Source, open_source
from assay.training.data.spec import DataConfig
from assay.training.data.tokenizer import open_tokenizer, train_bpe
from assay.training.data.write import write_bins

__all__ = [
    "Bins",
    "Corpus",
    "CorpusError",
    "DataConfig",
    "Source",
    "bits_per_byte",
    "is_bins",
    "n_windows",
    "open_bins",
    "open_corpus",
    "open_data",
    "open_source",
    "open_tokenizer",
    "permute",
    "rank_range",
    "train_bpe",
    "window_starts",
    "write_bins",
]
