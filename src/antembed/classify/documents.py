"""Labelled text → ids: document n is tokens[starts[n]:starts[n + 1]], of class labels[n].

Text is read piece by piece, and its words are numbered in the order of their appearance (classify/tokenizer.py); at the end they are
renumbered by count, so that ids depend neither on the order of the documents nor on the number of threads.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.classify.labelled_text import PIECE, Chosen, LabelledText, OtherDialect
from antembed.classify.tokenizer import THREADS, Numberer
from antembed.classify.tokenizer_kernel import count_words
from antembed.data.cache import CACHED_FROM, CacheEntry, Column
from antembed.data.delimited import DECIMAL_COMMA, is_number
from antembed.data.text_file import DataError, check_unicode
from antembed.data.vocabulary import PADDING, SPECIAL, UNKNOWN, Vocabulary
from antembed.files import JSON

# MERGED The classes of documents: numbered in the order of their appearance, and by sorted name at the end.
# Documents of large files, kept in the cache: read once, then mapped into memory, and shared by the processes of a machine.
# How long documents are before they are cut.
#
# Only documents that fill the limit can be longer. Their words are counted in a sample of them, so that reading stays as fast.

SEPARATORS = "|;,"  # of several labels in one field
FEWEST = 20  # documents from which on the number of classes can be judged
MOST, MOST_FRACTIONS = 0.5, 0.1  # classes per document; of labels that are numbers, not all of them whole


class ClassLabels:
    """Labels, piece by piece."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.column: Column | None = None

    def add(self, frame: pl.DataFrame) -> None:
        if "label" not in frame.columns:
            return
        for name in frame["label"].unique(maintain_order=True).drop_nulls():
            if "\0" in name:  # what the reader of JSON makes of a lone surrogate
                row = len(self.column or ()) + int((frame["label"] == name).arg_max() or 0)
                raise DataError(f"label {row} is {name!r}: a NUL or a lone surrogate is no text; correct it, or remove the row")
            self.numbers.setdefault(name, len(self.numbers))
        self.column = self.column or Column(np.int32, None)
        numbered = frame["label"].replace_strict(self.numbers, default=-1, return_dtype=pl.Int32)
        self.column.append(numbered.fill_null(-1).to_numpy())

    def finish(self, source: str, classes: Sequence[str] | None, n: int) -> tuple[np.ndarray, list[str], str]:
        """The label of each document, the classes, and a complaint."""
        if self.column is None:
            return np.full(n, -1, np.int32), list(classes or ()), ""
        found = self.column.finish()
        if classes is None:
            counts = np.bincount(found[found >= 0], minlength=len(self.numbers)).tolist()
            check_single(source, dict(zip(self.numbers, counts, strict=True)))
            check_classes(source, self.numbers, int((found >= 0).sum()), n)
            classes = in_order(self.numbers)
        ids = {name: number for number, name in enumerate(classes)}
        rank = np.array([*(ids.get(name, -1) for name in self.numbers), -1], np.int32)  # the last one is for −1, no label
        labels = rank[found]
        unknown, without = [name for name in self.numbers if name not in ids], int((labels < 0).sum())
        complaint = ""
        if without:
            example = f" (for example {unknown[0]!r})" if unknown else ""
            complaint = (
                f"{source}: {without} of {n} documents have none of the {len(classes)} classes{example}; their label is −1"
            )
        return labels, list(classes), complaint


def check_single(source: str, documents: Mapping[str, int]) -> None:
    """Refuse several labels a document, in lists or separated: each combination would be a class. `documents`: of each name."""
    several = _lists(documents) or next(filter(None, (_separated(documents, separator) for separator in SEPARATORS)), [])
    if several:
        n, example = sum(documents[name] for name in several), max(several, key=lambda name: documents[name])
        raise DataError(
            f"{source}: {n} of {sum(documents.values())} documents have several labels, as {example!r}, and a classifier has "
            f"one class a document: {len(several)} combinations would be classes of their own; keep one label a document, "
            "or train a classifier for each label, with a column that says whether a document has it (--label)"
        )


def _lists(names: Iterable[str]) -> list[str]:
    """Those that are lists of several labels, as JSON or Python writes them."""
    return [name for name in names if name[:1] == "[" and name[-1:] == "]" and _is_list_of_several(name)]


def _is_list_of_several(name: str) -> bool:
    try:
        return len(ast.literal_eval(name)) > 1
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _separated(documents: Mapping[str, int], separator: str) -> list[str]:
    """Names of several labels; [] if the separator is a part of ordinary names.

    It separates labels if most documents with it have parts that are all classes on their own, or if the same parts recur in
    many combinations of different lengths (a path as a/b or a/c/d has parts that do not recur)."""
    joined = (name for name in documents if separator in name and not DECIMAL_COMMA.fullmatch(name))
    parts = {name: [part.strip() for part in name.split(separator)] for name in joined}
    parts = {name: found for name, found in parts.items() if all(found)}
    alone = sum(documents[name] for name, found in parts.items() if all(part in documents for part in found))
    recurring = 2 * len({part for found in parts.values() for part in found}) <= len(parts)
    lengths = {len(found) for found in parts.values()}
    is_separator = 2 * alone >= sum(documents[name] for name in parts) or (recurring and len(lengths) > 1)
    return list(parts) if is_separator else []


def check_classes(source: str, names: Iterable[str], labelled: int, n: int) -> None:
    """Refuse labels that are no classes: one for all, nearly one for each document, or quantities."""
    names = list(names)
    remedy = "check label= (--label), the column of the labels"
    if len(names) < 2:
        raise DataError(f"{source} has {len(names)} classes ({', '.join(names)}) in {n} documents, 2 are needed; {remedy}")
    if labelled < FEWEST or len(names) <= MOST_FRACTIONS * labelled:
        return
    numbers = all(map(is_number, names))
    fractions = numbers and not all(float(name).is_integer() for name in names)
    if not fractions and len(names) <= MOST * labelled:
        return
    if fractions:
        reason = "they are quantities, and this is no regression"
    elif numbers and len(names) == labelled:
        reason = "they number the documents"
    else:
        reason = "too many to learn from"
    raise DataError(f"{source} has {len(names)} classes in {labelled} documents, as {names[0]!r}: {reason}; {remedy}")


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted, numerically if all are numbers."""
    names = list(names)
    return sorted(names, key=lambda name: (float(name), name)) if all(map(is_number, names)) else sorted(names)


SAMPLE = 512  # documents of a piece whose words are all counted
SHARE = 0.95


class Lengths:
    """Count the words of documents that were cut at `limit` words; None: none were."""

    def __init__(self, limit: int | None):
        self.limit = limit
        self._whole: list[np.ndarray] = []  # lengths of sampled documents
        self._weights: list[np.ndarray] = []  # of how many each is an example

    def add(self, texts: pl.Series, sizes: np.ndarray) -> None:
        """A piece of texts and the words that were used of each."""
        if self.limit is None:
            return
        full = np.flatnonzero(sizes == self.limit)
        if not len(full):
            return
        some = full[:: -(-len(full) // SAMPLE)]
        with Numberer(list(SPECIAL), threads=1) as numberer:  # a fixed vocabulary, since only the number of words counts
            ((_, whole),) = numberer(texts.gather(some), None)
        self._whole.append(whole)
        self._weights.append(np.full(len(some), len(full) / len(some)))

    def finish(self, sizes: np.ndarray) -> tuple[int, int]:
        """How many documents are longer than the limit, and the length that 95 % do not exceed. `sizes`: of all, cut."""
        if not self._whole:
            return 0, int(np.quantile(sizes, SHARE, method="inverted_cdf"))
        whole, weights = np.concatenate(self._whole), np.concatenate(self._weights)
        assert self.limit is not None
        cut = round(float(weights[whole > self.limit].sum()))
        short = np.bincount(sizes[sizes < self.limit], minlength=1)  # (longest + 1,): documents of each length
        lengths = np.concatenate([np.arange(len(short)), whole])
        order = np.argsort(lengths, kind="stable")
        below = np.cumsum(np.concatenate([short, weights])[order])
        return cut, int(lengths[order][np.searchsorted(below, SHARE * len(sizes) - 1e-6)])


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


READER = 2  # of what is read from a file; a change invalidates cached documents
PLAIN = ("classes", "complaint", "notes", "limit", "cut", "length_95", "file_columns")


def cached_documents(path: str | Path, cache: Path, *, vocabulary: Vocabulary | None = None, **options: Any) -> Documents:
    """What `read_documents` gives with these options. Files of less than CACHED_FROM bytes are read each time: it is faster."""
    path = Path(path)
    if not path.is_file() or path.stat().st_size < CACHED_FROM:
        return read_documents(path, vocabulary=vocabulary, **options)
    words = None if vocabulary is None else hashlib.sha256(json.dumps(vocabulary.words).encode()).hexdigest()
    key = {**options, "documents": READER, "vocabulary": words}
    try:
        entry = CacheEntry.of(cache, "documents", path, key)
        with entry.locked():
            found = _reopen(entry, vocabulary)
            if found is None:
                _write(entry, read_documents(path, vocabulary=vocabulary, **options), vocabulary is None)
                found = _reopen(entry, vocabulary)
    except OSError as error:
        raise DataError(f"{path} could not be cached ({error}); set ANTEMBED_CACHE to another folder") from error
    if found is None:
        raise DataError(f"{entry.folder} changes while it is read; set ANTEMBED_CACHE to another folder")
    return found


def _write(entry: CacheEntry, documents: Documents, with_words: bool) -> None:
    words = documents.vocabulary
    columns: dict[str, np.ndarray] = {"tokens": documents.tokens, "starts": documents.starts, "labels": documents.labels}
    columns |= {"counts": words.counts, "document_counts": words.document_counts} if with_words else {}
    with entry.writing() as writer:
        for name, values in columns.items():
            writer.column(name, values.dtype).append(values)
        if with_words:
            writer.labels("words", pl.Series("word", words.words))
        writer.done({name: getattr(documents, name) for name in PLAIN} | {"documents": words.documents})


def _reopen(entry: CacheEntry, vocabulary: Vocabulary | None) -> Documents | None:
    about = entry.about()
    if about is None:
        return None
    columns = {name: entry.column(name, kind).view(np.ndarray) for name, kind in about["columns"].items()}
    if vocabulary is None:
        words = entry.labels("words").to_list()
        vocabulary = Vocabulary(words, columns["counts"], columns["document_counts"], about["documents"])
    tokens, starts, labels = (columns[name] for name in ("tokens", "starts", "labels"))
    if len(starts) != len(labels) + 1 or starts[-1] != len(tokens):
        return None
    plain = {name: about[name] for name in PLAIN} | {"notes": tuple(about["notes"])}
    return Documents(tokens, starts, labels, vocabulary, **plain)
