"""A corpus as examples: streams that are read side by side, some words at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from antembed.data import find_data
from antembed.data.corpus import Corpus, read_corpus
from antembed.data.vocabulary import Vocabulary
from antembed.tasks.base import Batch, Part, Splits
from antembed.tasks.language.config import CorpusInput, LanguageConfig

EMPTY = np.empty(0, np.int32)


@dataclass(frozen=True)
class Streams:
    """The words of a part, cut into streams of equal length. A batch is the next `length` words of every stream: inputs (L, B),
    whether an epoch begins, and targets (L·B,). The words that are left over come at the end, as one stream more."""

    words: np.ndarray = field(default_factory=lambda: EMPTY)  # (n,) int32, perhaps mapped
    length: int = 35
    device: str = "cpu"
    first: int = 0  # where the streams begin in this epoch: sequences are cut elsewhere each time
    epochs: int = 1  # in which all words are read once

    def __len__(self) -> int:
        """Words that are predicted in an epoch (the longest, where they are not equal)."""
        return -(-max(len(self.words) - 1, 0) // self.epochs)

    def shuffled(self, seed: int, epoch: int) -> "Streams":
        """The words of an epoch (1, 2, …) in their order, with other cuts each time: streams begin somewhere within a first
        sequence, and end with what comes before."""
        n, part = max(len(self.words) - 1, 0), (epoch - 1) % self.epochs
        words = self.words[part * n // self.epochs : (part + 1) * n // self.epochs + 1]
        first = int(np.random.default_rng((seed, epoch)).integers(self.length)) if len(words) > 4 * self.length + 1 else 0
        return Streams(words, self.length, self.device, first)

    def batches(self, size: int) -> Iterator[Batch]:
        """`size` words at a time."""
        words, B = self.words, max(size // self.length, 1)
        span = (len(words) - 1 - self.first) // B
        if span < 1:
            B, span = 1, len(words) - 1 - self.first
        begin = True
        for at in range(0, span, self.length):
            n = min(self.length, span - at)
            rows = self.first + at + np.arange(B)[:, None] * span + np.arange(n + 1)
            block = np.asarray(words)[rows.T].astype(np.int64)
            yield self._batch(block, begin)
            begin = False
        for a, b in ((self.first + B * span, len(words) - 1), (0, self.first)):  # what is left
            for at in range(a, b, self.length):
                yield self._batch(np.asarray(words[at : min(at + self.length, b) + 1]).astype(np.int64)[:, None], at == a)

    def _batch(self, block: np.ndarray, begin: bool) -> Batch:
        found = torch.from_numpy(block).to(self.device)
        return found[:-1], torch.tensor(begin), found[1:].reshape(-1)


@dataclass
class LanguageSplits(Splits):
    """Streams of each part, and the words."""

    train: Streams = field(default_factory=Streams)
    validation: Streams = field(default_factory=Streams)
    test: Streams = field(default_factory=Streams)
    vocabulary: Vocabulary | None = None
    features: np.ndarray | None = None  # (V, width) of the words
    relations: sparse.csr_array | None = None  # (V, V): words that are related
    corpus_digest: str = ""

    def streams(self, part: Part) -> Streams:
        return {"train": self.train, "validation": self.validation, "test": self.test}[part]

    @property
    def digest(self) -> str:
        return self.corpus_digest

    def save(self, folder: Path) -> None:
        """vocabulary.parquet: which row is which word."""
        if self.vocabulary is not None:
            self.vocabulary.write(folder / "vocabulary.parquet")


def read_input(source: CorpusInput) -> Corpus:
    """The corpus; the last one stays open for a sweep."""
    path = find_data(source.data)
    if path.is_dir():
        stamps = tuple((file.name, file.stat().st_mtime_ns) for file in sorted(path.iterdir()))
    else:
        stamps = ((path.name, path.stat().st_mtime_ns if path.exists() else 0),)
    return _read(str(path), stamps, source.min_count, source.max_vocab)


@lru_cache(maxsize=1)
def _read(path: str, stamps: tuple[tuple[str, int], ...], min_count: int, max_vocab: int) -> Corpus:
    return read_corpus(path, min_count=min_count, max_vocab=max_vocab or None)


def make_splits(corpus: Corpus, config: LanguageConfig) -> LanguageSplits:
    own, length, device = config.input, config.solver.train.sequence_length, config.solver.train.device
    measured = slice(own.measured_words + 1 if own.measured_words else None)
    validation, test = (Streams(part[measured], length, device) for part in (corpus.validation, corpus.test))
    epochs = max(round(len(corpus.train) / own.epoch_words), 1) if own.epoch_words else 1
    return LanguageSplits(
        Streams(corpus.train, length, device, epochs=epochs),
        validation,
        test,
        complaints=corpus.notes,
        vocabulary=corpus.vocabulary,
        corpus_digest=corpus.digest,
    )
