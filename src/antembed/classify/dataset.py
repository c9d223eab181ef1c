"""The data of a run on labelled text: documents, cut into parts, and what is known of their words."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antembed.classify.documents import Documents
from antembed.data.text_file import DataError
from antembed.files import JSON
from antembed.train.examples import RowExamples
from antembed.train.splits import permutation
from antembed.train.task import Batch, Part
from antembed.train.word_anchors import WordSplits

PIECE = 1 << 16  # documents
PARTS: tuple[Part, ...] = ("train", "validation", "test")
HELD_OUT = 10  # one in so many documents for validation, and as many again for the test, if there is no file of them


@dataclass(frozen=True)
class DocumentExamples(RowExamples):
    """Some documents; a batch is their words one after the other, where each begins, and their classes."""

    documents: Documents | None = None
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    device: str = "cpu"
    threads: int = 1
    word_dropout: float = 0.0  # while training: words that are left out, anew each time
    training: bool = False

    def batches(self, size: int) -> Iterator[Batch]:
        for first in range(0, len(self), size):
            yield self._range(first, first + size)

    def _range(self, a: int, b: int) -> Batch:
        assert self.documents is not None
        taken = self.documents.take(self.rows[a:b])
        words, starts, labels = (torch.from_numpy(part).to(self.device) for part in (taken.tokens, taken.starts, taken.labels))
        if self.training and self.word_dropout:
            words, starts = drop_words(words, starts, self.word_dropout)
        return words, starts, labels.long()

    def in_order(self, rows: np.ndarray) -> "DocumentExamples":
        return replace(self, rows=rows, training=True)


def drop_words(words: Tensor, starts: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Leave out each word with this probability: documents are not learned by heart, and no word is relied on alone."""
    kept = torch.rand(len(words), device=words.device) >= share
    before = torch.cat([starts.new_zeros(1), kept.cumsum(0)])
    return words[kept], before[starts]


@dataclass
class TextSplits(WordSplits):
    """Documents of each part; the words and classes of all."""

    train: DocumentExamples = DocumentExamples()
    validation: DocumentExamples = DocumentExamples()
    test: DocumentExamples = DocumentExamples()
    classes: list[str] = field(default_factory=list)
    without_vector: int = 0  # words that the pretrained vectors lack
    files: tuple[str, ...] = ()  # that were read
    columns: JSON | None = None  # of the training file, as they were taken

    @cached_property
    def digest(self) -> str:
        """Of the bytes of the files, or of the documents in memory."""
        found = hashlib.sha256()
        for name in self.files:
            with Path(name).open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        for part in () if self.files else (self.train, self.test):
            if part.documents is not None:
                found.update(part.documents.tokens.tobytes() + part.documents.labels.tobytes())
        return found.hexdigest()

    def lookups(self) -> Tensor:
        """How often each word occurs in the training documents: (V,)."""
        assert self.vocabulary is not None
        assert self.train.documents is not None
        counts = np.zeros(len(self.vocabulary), np.int64)
        for first in range(0, len(self.train), PIECE):  # no copy of all words
            chosen = self.train.documents.take(self.train.rows[first : first + PIECE])
            counts += np.bincount(chosen.tokens, minlength=len(counts))
        return torch.from_numpy(counts).float()

    def about(self) -> JSON:
        """What a run remembers of the documents."""
        documents = {part: len(self.part(part)) for part in PARTS}
        return {"classes": self.classes, "columns": self.columns, "documents": documents}


def cut(documents: Documents, test: Documents | None, seed: int) -> dict[str, np.ndarray]:
    """Rows of each part, seeded: a tenth for validation, and a tenth for the test if there is no file of it. Every model of
    text is given the same parts at the same seed. Documents without a class are left out."""
    labelled = np.flatnonzero(documents.labels >= 0)
    order = labelled[permutation(len(labelled), seed)]
    n = len(order) // HELD_OUT
    if n < 1:
        if documents.file_columns and documents.file_columns["label"] is None and documents.notes:
            raise DataError(documents.notes[-1])
        has = "a class is in a column of a .csv, .tsv or .jsonl file, and --label names it; .txt files have texts alone"
        raise DataError(f"{len(order)} documents with a class are too few, {HELD_OUT} are enough; {has}")
    if test is None:
        return {"validation": order[:n], "test": order[n : 2 * n], "train": order[2 * n :]}
    if not (test.labels >= 0).any():
        raise DataError(f"of {len(test)} test documents 0 are of a class that is trained; is --label right?")
    return {"validation": order[:n], "train": order[n:], "test": np.arange(len(test))}


def make_splits(
    documents: Documents, test: Documents | None, seed: int, *, device: str = "cpu", threads: int = 1, word_dropout: float = 0.0
) -> TextSplits:
    """The parts of these documents."""
    rows = cut(documents, test, seed)
    source = dict.fromkeys(rows, documents) | ({} if test is None else {"test": test})
    parts: JSON = {name: DocumentExamples(source[name], rows[name], device, threads, word_dropout) for name in rows}
    noticed = [_taken(documents.file_columns), *documents.notes, *(() if test is None else test.notes)]
    noticed += [documents.complaint, "" if test is None else test.complaint]
    noticed += [_header(documents) or _single(documents), documents.truncated]
    complaints = tuple(line for line in noticed if line)
    about: JSON = {"vocabulary": documents.vocabulary, "classes": documents.classes, "columns": documents.file_columns}
    return TextSplits(**parts, complaints=complaints, **about)


def _taken(columns: JSON | None) -> str:
    """Which columns of a file are used, where it was read from one."""
    if columns is None:
        return ""
    return f"columns: text from {', '.join(columns['text'])}, the class from {columns['label']}; others with --text, --label"


def _header(documents: Documents) -> str:
    """Whether the first row looks like a header that was taken for a document."""
    first, classes = int(documents.labels[0]), len(documents.classes)
    if first >= 0 and (documents.labels == first).sum() == 1 < classes < len(documents) / 10:
        name = documents.classes[first]
        return f"only the first row has the class {name!r}: if it is a header, say so with --text NAME --label NAME"
    return ""


def _single(documents: Documents) -> str:
    """Whether there are classes with one document only."""
    single = int((np.bincount(documents.labels[documents.labels >= 0]) == 1).sum())
    if not single:
        return ""
    return f"{single} of {len(documents.classes)} classes have a single document: they are not learned, or not tested"


def largest_class(splits: TextSplits) -> dict[str, float]:
    """The test accuracy of saying the most frequent class of the training documents, whatever the text."""
    train, test = splits.train, splits.test
    if train.documents is None or test.documents is None or not len(test):
        return {}
    counts = np.bincount(train.documents.labels[train.rows], minlength=len(splits.classes))
    return {"the largest class": float((test.documents.labels[test.rows] == counts.argmax()).mean())}
