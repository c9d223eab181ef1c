"""Labelled text as numbers: document n is tokens[starts[n]:starts[n + 1]], of class labels[n].

Words are numbered as they come, and at the end by their counts, so that ids do not depend on the order of the documents.
"""

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.classify.labelled_text import PIECE, Chosen, LabelledText, OtherDialect
from antembed.classify.tokenizer import tokenize
from antembed.data.cache import CACHED_FROM, CacheEntry
from antembed.data.delimited import DECIMAL_COMMA, is_number
from antembed.data.text_file import DataError, check_unicode
from antembed.data.vocabulary import SPECIAL, Vocabulary
from antembed.files import JSON

SLICE = 1 << 24  # bytes of text that are tokenized at a time: their words take some ten times as much memory


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
    truncated: str = ""  # a warning about documents that are longer than what is used of them
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
        rows = np.asarray(rows, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} are not all within the {len(self)} documents")
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(self, tokens=self.tokens[positions], starts=starts, labels=self.labels[rows])


def documents_of(texts: Iterable[str | None], labels: Iterable[object] | None = None, **options: Any) -> Documents:
    """Documents in memory, with the options of `read_documents`. Labels become text; None is no text, or no label."""
    return _number("the texts given", iter([_frame(list(texts), labels)]), **options)


def read_documents(
    path: str | Path, *, text: Chosen | Sequence[Chosen] | None = None, label: Chosen | None = None, **options: Any
) -> Documents:
    """Read text, labelled or not, from CSV, TSV, JSON lines or Parquet (classify/labelled_text.py).

    `text`, `label`: columns, by name or by number from 1; by default those with usual names, or the first for the label.

    Options: the first `length` words of each document are used (0: all). Words with fewer than `min_count` occurrences are
    unknown; so are all but the most frequent ones with `max_vocab`, the number of rows of the table (including padding and
    unknown). Pass `vocabulary` and `classes` for test files and predictions. Classes have the names in the file, sorted. A
    missing text has no words; a missing label or one that is none of the classes becomes −1, and `complaint` counts them.
    """
    frames = LabelledText(Path(path), text, label)
    try:
        documents = _number(str(path), frames, **options)
    except OtherDialect as found:
        frames = replace(frames, dialect=found.dialect, notes=())
        documents = _number(str(path), frames, **options)
    return replace(documents, notes=frames.notes, file_columns=frames.columns)


def _frame(texts: list[str | None], labels: Iterable[object] | None) -> pl.DataFrame:
    """Like LabelledText, from memory."""
    columns = {"text": texts}
    if labels is not None:
        columns["label"] = [None if label is None else str(label) for label in labels]
        if len(columns["label"]) != len(texts):
            raise DataError(f"there are {len(texts)} texts and {len(columns['label'])} labels; give equally many")
    for number, text in enumerate(texts):
        if text is not None and not isinstance(text, str):
            raise DataError(f"text {number} is of type {type(text).__name__}; give a string, or None")
    try:
        return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
    except UnicodeEncodeError:
        for role, values in columns.items():
            check_unicode(values, role)
        raise


def _number(
    source: str,
    frames: Iterable[pl.DataFrame],
    *,
    vocabulary: Vocabulary | None = None,
    classes: Sequence[str] | None = None,
    min_count: int = 1,
    max_vocab: int | None = None,
    length: int | None = None,
) -> Documents:
    if min_count < 1:
        raise ValueError(f"min_count must be ≥ 1, got {min_count}")
    if max_vocab is not None and max_vocab <= len(SPECIAL):
        raise ValueError(f"max_vocab must be > {len(SPECIAL)}, the rows of padding and of unknown words; got {max_vocab}")
    if length is not None and length < 0:
        raise ValueError(f"length must be ≥ 1, or 0 or None for all words; got {length}")
    categories = pl.Categorical(pl.Categories.random())
    tokens, sizes, labels = list[pl.Series](), list[np.ndarray](), list[pl.Series]()
    for frame in frames:
        for part in frame.iter_slices(max(len(frame) * SLICE // int(frame["text"].str.len_bytes().sum() + 1), 1)):
            words, counts = tokenize(part["text"])
            if length:
                words = words.filter(np.arange(len(words)) - np.repeat(np.cumsum(counts) - counts, counts) < length)
            tokens.append(words.cast(categories))
            sizes.append(counts)
        labels += [frame["label"]] if "label" in frame.columns else []
    if not sizes:
        raise DataError(f"{source} has no documents: 0 rows")
    lengths = np.concatenate(sizes)
    starts = np.concatenate([[0], np.cumsum(np.minimum(lengths, length) if length else lengths)])
    if vocabulary is None:
        ids, vocabulary = _ranked(pl.concat(tokens), starts, min_count, max_vocab)
    else:
        ids = _ids(pl.concat(tokens), vocabulary.ids)
    numbers, classes, complaint = _classes(source, pl.concat(labels) if labels else None, classes, len(lengths))
    return Documents(ids, starts, numbers, vocabulary, classes, complaint, truncated=_truncated(lengths, length))


def _ids(words: pl.Series, number: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """The number of each word (n,) int32; `number` is asked for each of these categories once."""
    distinct = words.unique()
    physical = distinct.to_physical().to_numpy()
    id_of = np.zeros(physical.max(initial=0) + 1, np.int32)
    id_of[physical] = number(distinct.cast(pl.String).to_list())
    return id_of[words.to_physical().to_numpy()]


def _ranked(words: pl.Series, starts: np.ndarray, min_count: int, max_vocab: int | None) -> tuple[np.ndarray, Vocabulary]:
    """The ids of the words, by their vocabulary: the special words, then all by falling count, ties alphabetically."""
    ranked = words.alias("word").value_counts().cast({"word": pl.String}).filter(pl.col("count") >= min_count)
    ranked = ranked.sort("count", "word", descending=[True, False])[: max_vocab - len(SPECIAL) if max_vocab else None]
    names = [*SPECIAL, *ranked["word"].to_list()]
    ids = _ids(words, Vocabulary(names, np.empty(0), np.empty(0), 0).ids)
    documents, counts = len(starts) - 1, np.zeros(len(names), np.int64)
    for first in range(0, documents, PIECE):  # sorted, since that is faster than a table of pairs
        some = starts[first : first + PIECE + 1]
        pairs = np.sort(np.repeat(np.arange(len(some) - 1), np.diff(some)) << 32 | ids[some[0] : some[-1]])
        counts += np.bincount(pairs[np.diff(pairs, prepend=-1) > 0] & 0xFFFFFFFF, minlength=len(names))
    return ids, Vocabulary(names, np.bincount(ids, minlength=len(names)), counts, documents)


def _truncated(lengths: np.ndarray, limit: int | None) -> str:
    """Whether more than one document in a hundred is longer than what is used of it."""
    share = float((lengths > limit).mean()) if limit else 0.0
    if share <= 0.01:
        return ""
    return (
        f"{100 * share:.0f} % of the documents are longer than --max-length {limit} words and are cut; "
        f"95 % have at most {int(np.quantile(lengths, 0.95, method='inverted_cdf'))}"
    )


# The classes of documents.

SEPARATORS = "|;,"  # of several labels in one field
FEWEST = 20  # documents from which on the number of classes is checked
MOST, MOST_FRACTIONS = 0.5, 0.1  # classes per document; of labels that are numbers, some with fractions


def _classes(source: str, labels: pl.Series | None, classes: Sequence[str] | None, n: int) -> tuple[np.ndarray, list[str], str]:
    """The class of each of the n documents, the names of the classes, and a complaint."""
    if labels is None:
        return np.full(n, -1, np.int32), list(classes or ()), ""
    found = labels.drop_nulls().unique(maintain_order=True)
    if len(odd := found.filter(found.str.contains("\0", literal=True))):  # what the reader of JSON makes of a lone surrogate
        row = int((labels == odd[0]).arg_max() or 0)
        raise DataError(f"label {row} is {odd[0]!r}: a NUL or a lone surrogate is no text; correct it, or remove the row")
    if classes is None:
        counts = dict(labels.drop_nulls().value_counts().iter_rows())
        check_single(source, {name: counts[name] for name in found})
        check_classes(source, found, sum(counts.values()), n)
        classes = in_order(found)
    numbers = labels.replace_strict(classes, range(len(classes)), default=-1, return_dtype=pl.Int32).fill_null(-1).to_numpy()
    complaint = ""
    if without := int((numbers < 0).sum()):
        unknown = [name for name in found if name not in set(classes)]
        example = f" (for example {unknown[0]!r})" if unknown else ""
        complaint = f"{source}: {without} of {n} documents have none of the {len(classes)} classes{example}; their label is −1"
    return numbers, list(classes), complaint


def check_single(source: str, documents: Mapping[str, int]) -> None:
    """Refuse several labels a document, in lists or separated: each combination would be a class. `documents`: of each name."""
    several = [name for name in documents if _is_list_of_several(name)] or next(
        filter(None, (_separated(documents, separator) for separator in SEPARATORS)), []
    )
    if several:
        n, example = sum(documents[name] for name in several), max(several, key=lambda name: documents[name])
        raise DataError(
            f"{source}: {n} of {sum(documents.values())} documents have several labels, as {example!r}, and a classifier has "
            f"one class a document: {len(several)} combinations would be classes of their own; keep one label a document, "
            "or train a classifier for each label, with a column that says whether a document has it (--label)"
        )


def _is_list_of_several(name: str) -> bool:
    """As JSON or Python writes them."""
    try:
        return name[:1] == "[" and name[-1:] == "]" and len(ast.literal_eval(name)) > 1
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


READER = 3  # of what is read from a file; a change invalidates cached documents
PLAIN = ("classes", "complaint", "notes", "truncated", "file_columns")


def cached_documents(path: str | Path, cache: Path, *, vocabulary: Vocabulary | None = None, **options: Any) -> Documents:
    """What `read_documents` gives with these options. Large files are read once, then mapped into memory, which the processes
    of a machine share; smaller ones are faster to read than to look up."""
    path = Path(path)
    if not path.is_file() or path.stat().st_size < CACHED_FROM:
        return read_documents(path, vocabulary=vocabulary, **options)
    words = None if vocabulary is None else hashlib.sha256(json.dumps(vocabulary.words).encode()).hexdigest()
    key = {**options, "documents": READER, "vocabulary": words}
    try:
        entry = CacheEntry.of(cache, "documents", path, key)
        with entry.locked():
            if entry.about() is None:
                _write(entry, read_documents(path, vocabulary=vocabulary, **options), vocabulary is None)
            return _reopen(entry, vocabulary)
    except OSError as error:
        raise DataError(f"{path} could not be cached ({error}); set ANTEMBED_CACHE to another folder") from error


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


def _reopen(entry: CacheEntry, vocabulary: Vocabulary | None) -> Documents:
    about = entry.about()
    if about is None:
        raise DataError(f"{entry.folder} changes while it is read; set ANTEMBED_CACHE to another folder")
    columns = {name: entry.column(name, kind).view(np.ndarray) for name, kind in about["columns"].items()}
    if vocabulary is None:
        words = entry.labels("words").to_list()
        vocabulary = Vocabulary(words, columns["counts"], columns["document_counts"], about["documents"])
    plain = {name: about[name] for name in PLAIN} | {"notes": tuple(about["notes"])}
    return Documents(columns["tokens"], columns["starts"], columns["labels"], vocabulary, **plain)
