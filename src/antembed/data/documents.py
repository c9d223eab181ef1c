"""Labelled text → ids: document n is tokens[starts[n]:starts[n + 1]], of class labels[n]."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from antembed.data.text import DataError
from antembed.data.vocabulary import PADDING, SPECIAL, Vocabulary

LENGTH = 100  # words of a document that count, as in the paper's base


@dataclass(frozen=True)
class Documents:
    """Documents one after the other. A document may be empty; a label of −1 is none, or a class that was not known."""

    tokens: np.ndarray  # (total,) int32
    starts: np.ndarray  # (n + 1,) int64
    labels: np.ndarray  # (n,) int32
    vocabulary: Vocabulary
    classes: list[str]
    complaint: str = ""  # about labels that are −1 and should not be

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, n: int) -> np.ndarray:
        """The words of one document."""
        return self.tokens[self.starts[n] : self.starts[n + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64"""
        return np.diff(self.starts)

    def take(self, rows: np.ndarray) -> "Documents":
        """These documents, in this order, with the same vocabulary and classes."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(self, tokens=self.tokens[places], starts=starts, labels=self.labels[rows])

    def padded(self, rows: np.ndarray, length: int = LENGTH) -> np.ndarray:
        """The first `length` words of these documents, shorter ones filled up with 0: (B, length) int64."""
        rows = np.asarray(rows, np.int64)
        places = np.arange(length)
        there = places < self.lengths[rows][:, None]
        out = np.full(there.shape, PADDING, np.int64)
        out[there] = self.tokens[(self.starts[rows][:, None] + places)[there]]
        return out


def documents_of(
    texts: Iterable[str | None],
    labels: Iterable[object] | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    classes: Sequence[str] | None = None,
    min_count: int = 1,
    max_vocab: int | None = None,
    length: int | None = LENGTH,
) -> Documents:
    """Documents from memory. A given vocabulary and classes are used as they are."""
    split = [re.findall(r"[^\W_]+", (text or "").lower())[:length] for text in texts]
    if vocabulary is None:
        counts = Counter(word for words in split for word in words)
        seen = Counter(word for words in split for word in set(words))
        kept = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        kept = kept[: None if max_vocab is None else max(max_vocab - 2, 0)]
        left = counts.keys() - set(kept)
        vocabulary = Vocabulary(
            [*SPECIAL, *kept],
            np.array([0, sum(counts[word] for word in left), *(counts[word] for word in kept)], np.int64),
            np.array([0, sum(1 for words in split if left & set(words)), *(seen[word] for word in kept)], np.int64),
            len(split),
        )
    names = [None if label is None else str(label) for label in labels] if labels is not None else [None] * len(split)
    known = list(classes) if classes is not None else sorted({name for name in names if name is not None})
    place = {name: n for n, name in enumerate(known)}
    return Documents(
        vocabulary.ids(word for words in split for word in words),
        np.concatenate([[0], np.cumsum([len(words) for words in split], dtype=np.int64)]),
        np.array([-1 if name is None else place.get(name, -1) for name in names], np.int32),
        vocabulary,
        known,
    )


def read_documents(
    path: str | Path,
    *,
    text: str | int | Sequence[str | int] | None = None,
    label: str | int | None = None,
    vocabulary: Vocabulary | None = None,
    classes: Sequence[str] | None = None,
    min_count: int = 1,
    max_vocab: int | None = None,
    length: int | None = LENGTH,
) -> Documents:
    """Read labelled text. (So far: CSV without header, class and texts.)"""
    if text is not None or label is not None:
        raise DataError(f"{path}: columns cannot be chosen yet")
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return documents_of(
        [" ".join(row[1:]) for row in rows],
        [row[0] for row in rows],
        vocabulary=vocabulary,
        classes=classes,
        min_count=min_count,
        max_vocab=max_vocab,
        length=length,
    )
