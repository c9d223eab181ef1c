"""Documents of large files, kept in the cache: read once, then mapped into memory, and shared by the processes of a machine."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.classify.documents import Documents, read_documents
from antembed.data.cache import CacheEntry
from antembed.data.data_plain import DataError
from antembed.data.vocabulary import Vocabulary
from antembed.recommend.read_ratings import CACHED_FROM

READER = 2  # of what is read from a file; a change invalidates cached documents
PLAIN = ("classes", "complaint", "notes", "limit", "cut", "length_95", "file_columns")


def cached_documents(path: str | Path, cache: Path, *, vocabulary: Vocabulary | None = None, **options: Any) -> Documents:
    """What `read_documents` gives with these options. Files of less than CACHED_FROM bytes are read each time: it is faster."""
    path = Path(path)
    if not path.is_file() or path.stat().st_size < CACHED_FROM:
        return read_documents(path, vocabulary=vocabulary, **options)
    words = None if vocabulary is None else hashlib.sha256(json.dumps(vocabulary.words).encode()).hexdigest()
    key: dict[str, object] = {**options, "documents": READER, "name": path.name, "vocabulary": words}
    try:
        entry = CacheEntry.of_file(cache, path, key, "documents")
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
    columns = {name: _column(entry, name, kind) for name, kind in about["columns"].items()}
    if vocabulary is None:
        words = entry.labels("words").to_list()
        vocabulary = Vocabulary(words, columns["counts"], columns["document_counts"], about["documents"])
    tokens, starts, labels = (columns[name] for name in ("tokens", "starts", "labels"))
    if len(starts) != len(labels) + 1 or starts[-1] != len(tokens):
        return None
    plain = {name: about[name] for name in PLAIN} | {"notes": tuple(about["notes"])}
    return Documents(tokens, starts, labels, vocabulary, **plain)


def _column(entry: CacheEntry, name: str, kind: str) -> np.ndarray:
    """A mapped column; files without contents cannot be mapped."""
    assert entry.folder is not None
    empty = (entry.folder / name).stat().st_size == 0
    return np.empty(0, np.dtype(kind)) if empty else entry.column(name, kind).view(np.ndarray)
