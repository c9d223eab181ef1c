"""A corpus as examples: streams that are read side by side, some words at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from antembed.language.config import LanguageConfig
from antembed.language.corpus import END, Corpus
from antembed.train.examples import Pieces
from antembed.train.task import Batch, Part
from antembed.train.word_anchors import WordSplits

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
        return (self._batch(*block, 0, block[1]) for block in self._blocks(size))

    def pieces(self, size: int, n: int) -> Iterator[Pieces]:
        """The same batches in n pieces, some of the streams each."""
        for block in self._blocks(size):
            yield Pieces.cut(block[1], n, partial(self._batch, *block), each=block[3])

    def _blocks(self, size: int) -> Iterator[tuple[int, int, int, int, bool]]:
        """Where the first stream of a batch is, how many streams there are, their distance, the words of each, and whether they
        begin."""
        end, B = len(self.words) - 1, max(size // self.length, 1)
        span = (end - self.first) // B
        if span < 1:
            B, span = 1, end - self.first
        for at in range(0, span, self.length):
            yield self.first + at, B, span, min(self.length, span - at), at == 0
        for a, b in ((self.first + B * span, end), (0, self.first)):  # what is left
            for at in range(a, b, self.length):
                yield at, 1, 0, min(self.length, b - at), at == a

    def _batch(self, at: int, streams: int, span: int, n: int, begin: bool, a: int, b: int) -> Batch:
        """Streams a … b of a batch, and the words that follow."""
        rows = at + np.arange(a, b)[:, None] * span + np.arange(n + 1)
        found = torch.from_numpy(np.asarray(self.words)[rows.T].astype(np.int64)).to(self.device)
        return found[:-1], torch.tensor(begin), found[1:].reshape(-1)


@dataclass
class LanguageSplits(WordSplits):
    """Streams of each part, and the words."""

    train: Streams = field(default_factory=Streams)
    validation: Streams = field(default_factory=Streams)
    test: Streams = field(default_factory=Streams)
    corpus_digest: str = ""

    def streams(self, part: Part) -> Streams:
        return {"train": self.train, "validation": self.validation, "test": self.test}[part]

    @property
    def objects(self) -> int:
        return 0 if self.vocabulary is None else len(self.vocabulary)

    @property
    def digest(self) -> str:
        return self.corpus_digest


def make_splits(corpus: Corpus, config: LanguageConfig) -> LanguageSplits:
    own, length, device = config.input, config.solver.train.sequence_length, config.solver.train.device
    measured = slice(own.measured_words + 1 if own.measured_words else None)
    validation, test = (Streams(part[measured], length, device) for part in (corpus.validation, corpus.test))
    epochs = max(round(len(corpus.train) / own.epoch_words), 1) if own.epoch_words else 1
    train, words, digest = Streams(corpus.train, length, device, epochs=epochs), corpus.vocabulary, corpus.digest
    return LanguageSplits(train, validation, test, complaints=corpus.notes, vocabulary=words, corpus_digest=digest)


DOCUMENT = 1000  # words, where a corpus has no lines


def gather(config: LanguageConfig, splits: LanguageSplits) -> None:
    """Put what the config asks for into the splits; co-occurrences are those of the training part."""
    own, words = config.anchors, splits.vocabulary
    if words is None or not (own.relations or own.anchor_init == "kmeans"):
        return
    tokens = np.asarray(splits.train.words)
    end = words.words.index(END) if END in words.words else -1
    ends = np.flatnonzero(tokens == end) + 1 if end >= 0 else np.arange(DOCUMENT, len(tokens), DOCUMENT)
    starts = np.unique(np.concatenate([[0], ends, [len(tokens)]])).astype(np.int64)
    splits.gather((tokens, starts), own.relations, own.wordnet, config.machine.seed, own.anchor_init == "kmeans")
