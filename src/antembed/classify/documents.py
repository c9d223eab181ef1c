"""Labelled text → ids: document n is tokens[starts[n]:starts[n + 1]], of class labels[n].

Text is read piece by piece, and its words are numbered in the order of their appearance (classify/tokenizer.py); at the end they are
renumbered by count, so that ids depend neither on the order of the documents nor on the number of threads.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
import polars as pl

from antembed.classify.data_classes import ClassLabels
from antembed.classify.data_lengths import Lengths
from antembed.classify.data_text_columns import Chosen
from antembed.classify.labelled_text import PIECE, LabelledText, OtherDialect
from antembed.classify.tokenizer import THREADS, Numberer
from antembed.classify.tokenizer_kernel import count_words
from antembed.data.cache import Column
from antembed.data.data_plain import DataError, check_unicode
from antembed.data.vocabulary import PADDING, SPECIAL, UNKNOWN, Vocabulary
from antembed.files import JSON

LENGTH = 100  # words of a document that are used, as in the paper's baseline


@dataclass(frozen=True)
class Documents:
    """Documents, concatenated. A document may be empty; the label −1 means none, or an unknown class."""

    tokens: np.ndarray  # (total,) int32
    starts: np.ndarray  # (n + 1,) int64
    labels: np.ndarray  # (n,) int32
    vocabulary: Vocabulary
    classes: list[str]
    complaint: str = ""  # a warning about missing or unknown labels
    notes: tuple[str, ...] = ()  # what was assumed of the file, a line each
    limit: int = 0  # words of a document that were used at most; 0: all
    cut: int = 0  # documents that are longer; estimated if there are many
    length_95: int = 0  # so many words have 95 % of the documents at most, before they were cut
    file_columns: JSON | None = None  # of a file: those of the "text" (a list), and that of the "label", or None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, n: int) -> np.ndarray:
        """The words of one document."""
        return self.tokens[self.starts[n] : self.starts[n + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64"""
        return np.diff(self.starts)

    def take(self, rows: "np.ndarray | Sequence[int]") -> "Documents":
        """These documents, in this order, with the same vocabulary and classes."""
        rows, begins, lengths = self._spans(rows)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(self, tokens=self.tokens[positions], starts=starts, labels=self.labels[rows])

    def padded(self, rows: "np.ndarray | Sequence[int]", length: int = LENGTH) -> np.ndarray:
        """The first `length` words of these documents, shorter ones padded with 0: (B, length) int64."""
        _, begins, lengths = self._spans(rows)
        positions = np.arange(length)
        there = positions < lengths[:, None]
        out = np.full(there.shape, PADDING, np.int64)
        out[there] = self.tokens[(begins[:, None] + positions)[there]]
        return out

    def _spans(self, rows: "np.ndarray | Sequence[int]") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows as an array, and the start and length of each document."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} are not all within the {len(self)} documents")
        return rows, self.starts[rows], self.starts[rows + 1] - self.starts[rows]


def documents_of(
    texts: Iterable[str | None],
    labels: Iterable[object] | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    classes: Sequence[str] | None = None,
    min_count: int = 1,
    max_vocab: int | None = None,
    length: int | None = LENGTH,
    threads: int = THREADS,
) -> Documents:
    """Documents from memory, like read_documents from a file. Labels are converted to text; None is no text, or no label."""
    return _collect("the texts given", _frames(texts, labels), vocabulary, classes, min_count, max_vocab, length, threads)


def read_documents(
    path: str | Path,
    *,
    text: Chosen | Sequence[Chosen] | None = None,
    label: Chosen | None = None,
    vocabulary: Vocabulary | None = None,
    classes: Sequence[str] | None = None,
    min_count: int = 1,
    max_vocab: int | None = None,
    length: int | None = LENGTH,
    threads: int = THREADS,
) -> Documents:
    """Read text, labelled or not, from CSV, TSV, JSON lines or Parquet (classify/labelled_text.py).

    `text`, `label`: columns, by name or by number from 1; by default those with usual names, or the first for the label.

    The first `length` words of each document are used (None or 0: all), and `cut` counts longer documents. Words with less
    than `min_count` occurrences are unknown; so are all but the most frequent ones with `max_vocab`, the number of rows of the
    table (including padding and unknown). Pass `vocabulary` and `classes` for test files and predictions. Classes have the
    names in the file, sorted. A missing text has no words; a missing label or one that is none of the classes becomes −1, and
    `complaint` counts them.
    """
    more = (vocabulary, classes, min_count, max_vocab, length, threads)
    frames = LabelledText(Path(path), text, label)
    try:
        documents = _collect(str(path), frames, *more)
    except OtherDialect as found:
        frames = LabelledText(Path(path), text, label, found.dialect)
        documents = _collect(str(path), frames, *more)
    return replace(documents, notes=frames.notes, file_columns=frames.columns)


def _frames(texts: Iterable[str | None], labels: Iterable[object] | None) -> Iterator[pl.DataFrame]:
    """Like LabelledText, from memory."""
    missing, done = object(), 0
    pairs = ((text, None) for text in texts) if labels is None else zip_longest(texts, labels, fillvalue=missing)
    while piece := list(islice(pairs, PIECE)):
        for number, (text, label) in enumerate(piece, done):
            if text is missing or label is missing:
                more, fewer = ("labels", "texts") if text is missing else ("texts", "labels")
                raise DataError(f"there are {number} {fewer}, and more {more}; give equally many")
            if text is not None and not isinstance(text, str):
                raise DataError(f"text {number} is of type {type(text).__name__}; give a string, or None")
        done += len(piece)
        columns = {"text": [text for text, _ in piece]}
        if labels is not None:
            columns["label"] = [None if label is None else str(label) for _, label in piece]
        try:
            yield pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
        except UnicodeEncodeError:
            for role, values in columns.items():
                check_unicode(values, role, done - len(piece))
            raise


def _collect(
    source: str,
    frames: Iterable[pl.DataFrame],
    vocabulary: Vocabulary | None,
    classes: Sequence[str] | None,
    min_count: int,
    max_vocab: int | None,
    length: int | None,
    threads: int,
) -> Documents:
    _check(min_count, max_vocab, length)
    tokens, sizes, labels = Column(np.int32, None), Column(np.int64, None), ClassLabels()
    whole = Lengths(length or None)
    with Numberer(vocabulary.words if vocabulary else None, threads) as numberer:
        lexicons = numberer.lexicons
        for frame in frames:
            parts = numberer(frame["text"], length or None)
            for owner, (numbers, lengths) in enumerate(parts):
                # With a given vocabulary, lexicons give ids; otherwise each has its own numbers.
                tokens.append(numbers if vocabulary else numbers * np.int32(len(lexicons)) + np.int32(owner))
                sizes.append(lengths)
            whole.add(frame["text"], np.concatenate([lengths for _, lengths in parts]))
            labels.add(frame)
    if not len(sizes):
        raise DataError(f"{source} has no documents: 0 rows")
    lengths = sizes.finish()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    if vocabulary is not None:
        ids = tokens.finish()
    else:
        words, id_of = _ranked([(lexicon.words, lexicon.counts) for lexicon in lexicons], min_count, max_vocab)
        ids = tokens.finish(lambda numbers: id_of[numbers])
        counts, document_counts = np.zeros(len(words), np.int64), np.zeros(len(words), np.int64)
        count_words(ids, starts, counts, document_counts)
        vocabulary = Vocabulary(words, counts, document_counts, len(starts) - 1)
    numbered, classes, complaint = labels.finish(source, classes, len(starts) - 1)
    cut, length_95 = whole.finish(lengths)
    return Documents(ids, starts, numbered, vocabulary, classes, complaint, limit=length or 0, cut=cut, length_95=length_95)


def _check(min_count: int, max_vocab: int | None, length: int | None) -> None:
    if min_count < 1:
        raise ValueError(f"min_count must be ≥ 1, got {min_count}")
    if max_vocab is not None and max_vocab <= len(SPECIAL):
        raise ValueError(f"max_vocab must be > {len(SPECIAL)}, the rows of padding and of unknown words; got {max_vocab}")
    if length is not None and length < 0:
        raise ValueError(f"length must be ≥ 1, or 0 or None for all words; got {length}")


def _ranked(
    lexicons: list[tuple[list[str], np.ndarray]], min_count: int, max_vocab: int | None
) -> tuple[list[str], np.ndarray]:
    """The special words, then all words by falling count, ties alphabetically; and id_of[n · lexicons + k], the id of number n
    of lexicon k.
    """
    parts = [
        pl.DataFrame({"word": words, "count": counts}, schema={"word": pl.String, "count": pl.Int64})
        .with_row_index("number")
        .with_columns(position=pl.col("number").cast(pl.Int64) * len(lexicons) + owner)
        for owner, (words, counts) in enumerate(lexicons)
    ]
    seen = pl.concat(parts)
    ranked = seen.group_by("word").agg(pl.col("count").sum()).filter(pl.col("count") >= min_count)
    ranked = ranked.sort("count", "word", descending=[True, False])
    if max_vocab is not None:
        ranked = ranked.head(max_vocab - len(SPECIAL))
    found = seen.join(ranked.select("word").with_row_index("id", len(SPECIAL)), on="word", how="inner")
    id_of = np.full(len(lexicons) * max(map(len, parts)), UNKNOWN, np.int32)
    id_of[found["position"].to_numpy()] = found["id"].to_numpy()
    return [*SPECIAL, *ranked["word"].to_list()], id_of
