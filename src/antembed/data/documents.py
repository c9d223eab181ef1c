"""Labelled text → ids: document n is tokens[starts[n]:starts[n + 1]], of class labels[n].

Text is read piece by piece, and its words are numbered as they come (data/words.py); at the end they are renumbered by how
often they were seen, so that ids depend neither on the order of the documents nor on the number of threads.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.cache import Column
from antembed.data.layouts import PIECE, Chosen, labelled_text
from antembed.data.text import DataError, is_number
from antembed.data.vocabulary import PADDING, SPECIAL, UNKNOWN, Vocabulary
from antembed.data.words import THREADS, Numberer
from antembed.kernels.words import count_words

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

    def take(self, rows: "np.ndarray | Sequence[int]") -> "Documents":
        """These documents, in this order, with the same vocabulary and classes."""
        rows, begins, lengths = self._spans(rows)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(self, tokens=self.tokens[places], starts=starts, labels=self.labels[rows])

    def padded(self, rows: "np.ndarray | Sequence[int]", length: int = LENGTH) -> np.ndarray:
        """The first `length` words of these documents, shorter ones filled up with 0: (B, length) int64."""
        _, begins, lengths = self._spans(rows)
        places = np.arange(length)
        there = places < lengths[:, None]
        out = np.full(there.shape, PADDING, np.int64)
        out[there] = self.tokens[(begins[:, None] + places)[there]]
        return out

    def _spans(self, rows: "np.ndarray | Sequence[int]") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows as an array, where their documents begin, and how long they are."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} are not all among the {len(self)} documents there are")
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
    """Documents from memory, as read_documents makes them of a file. Labels are taken as text; None is no text, or no label."""
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
    """Read text, labelled or not, from CSV, TSV, JSON lines or Parquet (data/layouts.py).

    `text`, `label`: columns, by name or by number from 1; else those with usual names, or the first for the label.

    Of each document the first `length` words count (None: all). Words seen less than `min_count` times are unknown, and so are
    all but the most frequent if the table is to have at most `max_vocab` rows (padding and unknown are two of them). A
    vocabulary or classes that are given are used as they are: for test files and predictions. Classes are named as in the file,
    in order. A missing text has no words; a label that is missing or none of the classes is −1, and `complaint` counts them.
    """
    frames = labelled_text(Path(path), text, label)
    return _collect(str(path), frames, vocabulary, classes, min_count, max_vocab, length, threads)


def _frames(texts: Iterable[str | None], labels: Iterable[object] | None) -> Iterator[pl.DataFrame]:
    """Like labelled_text, of what is in memory."""
    missing, done = object(), 0
    pairs = ((text, None) for text in texts) if labels is None else zip_longest(texts, labels, fillvalue=missing)
    while piece := list(islice(pairs, PIECE)):
        for number, (text, label) in enumerate(piece, done):
            if text is missing or label is missing:
                more, fewer = ("labels", "texts") if text is missing else ("texts", "labels")
                raise DataError(f"there are {number} {fewer}, and more {more}; give as many of both")
            if text is not None and not isinstance(text, str):
                raise DataError(f"text {number} is of type {type(text).__name__}; give strings, or None for none")
        done += len(piece)
        columns = {"text": [text for text, _ in piece]}
        if labels is not None:
            columns["label"] = [None if label is None else str(label) for _, label in piece]
        try:
            yield pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
        except UnicodeEncodeError as error:
            raise DataError(f"a text among {done - len(piece)} to {done - 1} is no Unicode: {error}") from error


def _collect(
    source: str,
    frames: Iterator[pl.DataFrame],
    vocabulary: Vocabulary | None,
    classes: Sequence[str] | None,
    min_count: int,
    max_vocab: int | None,
    length: int | None,
    threads: int,
) -> Documents:
    _check(min_count, max_vocab, length)
    tokens, sizes, labels = Column(np.int32, None), Column(np.int64, None), _Labels()
    with Numberer(vocabulary.words if vocabulary else None, threads) as numberer:
        lexicons = numberer.lexicons
        for frame in frames:
            for owner, (numbers, lengths) in enumerate(numberer(frame["text"], length)):
                # Of a vocabulary that is given all lexicons have the ids; else each has numbers of its own.
                tokens.append(numbers if vocabulary else numbers * np.int32(len(lexicons)) + np.int32(owner))
                sizes.append(lengths)
            labels.add(frame)
    if not len(sizes):
        raise DataError(f"{source} has no documents: 0 rows")
    starts = np.concatenate([[0], np.cumsum(sizes.finish())])
    if vocabulary is not None:
        ids = tokens.finish()
    else:
        words, places = _ranked([(lexicon.words, lexicon.counts) for lexicon in lexicons], min_count, max_vocab)
        ids = tokens.finish(lambda numbers: places[numbers])
        counts, document_counts = np.zeros(len(words), np.int64), np.zeros(len(words), np.int64)
        count_words(ids, starts, counts, document_counts)
        vocabulary = Vocabulary(words, counts, document_counts, len(starts) - 1)
    return Documents(ids, starts, *labels.finish(source, classes, len(starts) - 1, vocabulary))


def _check(min_count: int, max_vocab: int | None, length: int | None) -> None:
    if min_count < 1:
        raise ValueError(f"min_count must be ≥ 1, got {min_count}")
    if max_vocab is not None and max_vocab <= len(SPECIAL):
        raise ValueError(f"max_vocab must be > {len(SPECIAL)}, the rows of padding and of unknown words; got {max_vocab}")
    if length is not None and length < 1:
        raise ValueError(f"length must be ≥ 1, or None for all words; got {length}")


def _ranked(
    lexicons: list[tuple[list[str], np.ndarray]], min_count: int, max_vocab: int | None
) -> tuple[list[str], np.ndarray]:
    """All words by falling count, ties by the alphabet, behind the special ones; and for number n of lexicon k the id, at
    places[n · lexicons + k].
    """
    parts = [
        pl.DataFrame({"word": words, "count": counts}, schema={"word": pl.String, "count": pl.Int64})
        .with_row_index("number")
        .with_columns(place=pl.col("number").cast(pl.Int64) * len(lexicons) + owner)
        for owner, (words, counts) in enumerate(lexicons)
    ]
    seen = pl.concat(parts)
    ranked = seen.group_by("word").agg(pl.col("count").sum()).filter(pl.col("count") >= min_count)
    ranked = ranked.sort("count", "word", descending=[True, False])
    if max_vocab is not None:
        ranked = ranked.head(max_vocab - len(SPECIAL))
    found = seen.join(ranked.select("word").with_row_index("id", len(SPECIAL)), on="word", how="inner")
    places = np.full(len(lexicons) * max(map(len, parts)), UNKNOWN, np.int32)
    places[found["place"].to_numpy()] = found["id"].to_numpy()
    return [*SPECIAL, *ranked["word"].to_list()], places


class _Labels:
    """Labels, numbered as they come; by their order at the end."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.column: Column | None = None

    def add(self, frame: pl.DataFrame) -> None:
        if "label" not in frame.columns:
            return
        for name in frame["label"].unique(maintain_order=True).drop_nulls():
            self.numbers.setdefault(name, len(self.numbers))
        self.column = self.column or Column(np.int32, None)
        numbered = frame["label"].replace_strict(self.numbers, default=-1, return_dtype=pl.Int32)
        self.column.append(numbered.fill_null(-1).to_numpy())

    def finish(
        self, source: str, classes: Sequence[str] | None, n: int, vocabulary: Vocabulary
    ) -> tuple[np.ndarray, Vocabulary, list[str], str]:
        """The rest of a Documents."""
        if self.column is None:
            return np.full(n, -1, np.int32), vocabulary, list(classes or ()), ""
        if classes is None:
            if len(self.numbers) < 2:
                raise DataError(
                    f"{source} has {len(self.numbers)} classes ({', '.join(self.numbers)}) in {n} documents, 2 are needed; "
                    "is label= (--label) the right column?"
                )
            classes = in_order(self.numbers)
        places = {name: place for place, name in enumerate(classes)}
        rank = np.array([*(places.get(name, -1) for name in self.numbers), -1], np.int32)  # −1, none, is the last of them
        labels = self.column.finish(lambda numbers: rank[numbers])
        strangers, without = [name for name in self.numbers if name not in places], int((labels < 0).sum())
        complaint = ""
        if without:
            told = f", {strangers[0]!r} for one," if strangers else ""
            complaint = f"{source}: {without} of {n} documents have none of the {len(classes)} classes{told} and count as −1"
        return labels, vocabulary, list(classes), complaint


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted: as numbers if all are numbers."""
    names = list(names)
    return sorted(names, key=lambda name: (float(name), name)) if all(map(is_number, names)) else sorted(names)
