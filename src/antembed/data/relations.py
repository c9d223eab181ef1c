"""Which objects are related: a sparse symmetric (V, V) matrix of weights without a diagonal; and the free entries of T.

Sources are wordnet.py, cooccurrence.py, and files of edges, read here.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path

import numpy as np
from scipy import sparse

from antembed.data.cache import CacheEntry, Part
from antembed.data.cooccurrence import cooccurrences, svd_features
from antembed.data.delimited import is_number, split_fields
from antembed.data.text_file import DataError, numbered_lines
from antembed.data.wordnet import find_wordnet, related_words

Tokens = tuple[np.ndarray, np.ndarray]  # ids of words, and where each document begins
FEATURES = 64  # width of the vectors made from co-occurrences


def from_pairs(u: np.ndarray, v: np.ndarray, V: int, weights: np.ndarray | None = None) -> sparse.csr_array:
    """Pairs as a symmetric matrix without a diagonal; of several weights for a pair the largest."""
    u, v = np.asarray(u, np.int64), np.asarray(v, np.int64)
    values = np.ones(len(u), np.float32) if weights is None else np.asarray(weights, np.float32)
    different = u != v
    u, v, values = u[different], v[different], values[different]
    keys, values = np.concatenate([u * V + v, v * V + u]), np.concatenate([values, values])
    order = np.lexsort((-values, keys))
    keys, first = np.unique(keys[order], return_index=True)
    return sparse.csr_array((values[order][first], (keys // V, keys % V)), shape=(V, V))


def union(*relations: sparse.csr_array) -> sparse.csr_array:
    """Pairs that are related in any of the relations; the weight is the largest."""
    return reduce(lambda joined, more: joined.maximum(more), (matrix.astype(np.float32) for matrix in relations))


def free_entries(relations: sparse.csr_array, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(objects, anchor columns), int64: entries of T without a penalty, where the object is the anchor or is related to it.
    Pass FreeEntries(*free_entries(relations, anchors), (V, K)) to a penalty."""
    anchors = np.asarray(anchors, np.int64)
    columns, objects = relations[anchors].nonzero()  # rows instead of columns: the matrix is symmetric, and rows are cheap
    K = len(anchors)
    flat = np.unique(np.concatenate([objects.astype(np.int64) * K + columns, anchors * K + np.arange(K)]))
    return flat // max(K, 1), flat % max(K, 1)


def read_wordnet(words: Sequence[str], folder: str | Path | None = None) -> sparse.csr_array:
    """Words that are related in WordNet."""
    one, other = related_words(words, folder).T
    return from_pairs(one, other, len(words))


def read_edges(path: str | Path, words: Sequence[str]) -> sparse.csr_array:
    """Read two columns of words, separated by commas or tabs, and an optional weight > 0; also .gz and .zst. Edges with a word
    that is not in `words` are skipped; it is an error if none is left."""
    path = Path(path)
    ids = {word: number for number, word in enumerate(words)}
    found: list[tuple[int, int, float]] = []
    separator, edges = "", 0
    for number, line in numbered_lines(path):
        text = line.decode("utf-8", "replace").strip("\r\n")
        if not text.strip():
            continue
        separator = separator or ("\t" if "\t" in text else ",")
        fields = [field.strip() for field in split_fields(text, separator)]
        if len(fields) not in (2, 3):
            expected = "instead of 2 or 3 (word, word, weight)"
            raise DataError(f"{path}, line {number}: {len(fields)} fields {expected}: {text[:80]!r}")
        if len(fields) == 3 and not (is_number(fields[2]) and float(fields[2]) > 0):
            if number == 1 and not is_number(fields[2]):
                continue  # a header
            raise DataError(f"{path}, line {number}: the weight {fields[2]!r} is no number > 0; remove such edges")
        edges += 1
        if fields[0] in ids and fields[1] in ids:
            found.append((ids[fields[0]], ids[fields[1]], float(fields[2]) if len(fields) == 3 else 1.0))
    if not found:
        raise DataError(f"{path}: of {edges} edges 0 are between two of the {len(words)} words; is it about other words?")
    u, v, weights = map(np.array, zip(*found, strict=True))
    return from_pairs(u, v, len(words), weights)


def relation_of(name: str, wordnet: str, words: list[str], text: Tokens, cache: Path) -> sparse.csr_array:
    """Which words are related: by "wordnet", by "cooccurrence", or by a file of pairs."""
    if name == "wordnet":
        folder = find_wordnet(wordnet or None)
        return cached(partial(read_wordnet, words, folder), cache, name, words, folder)
    if name == "cooccurrence":
        return cached(lambda: cooccurrences(*text, len(words)), cache, name, len(words), *text)
    return read_edges(name, words)


def features_of(text: Tokens, V: int, seed: int, cache: Path) -> np.ndarray:
    """Vectors of words, made from which other words they occur with: (V, width)."""
    counts = cached(lambda: cooccurrences(*text, V, min_count=1, min_pmi=-np.inf), cache, "all co-occurrences", V, *text)
    return svd_features(counts, min(FEATURES, V - 1), seed).astype(np.float32)


def cached(make: Callable[[], sparse.csr_array], cache: Path, *parts: Part) -> sparse.csr_array:
    """make(), or its cached result for the same parts: arrays, words, numbers, and files or folders by their contents.

    cached(lambda: read_wordnet(words, folder), default_cache(), "wordnet", find_wordnet(folder), words)"""
    entry = CacheEntry.of(cache, "relations", *parts)
    if (about := entry.about()) is not None:
        data, indices, indptr = (np.array(entry.column(name, kind)) for name, kind in about["columns"].items())
        return sparse.csr_array((data, indices, indptr), shape=(about["V"], about["V"]))
    matrix = make()
    with entry.writing() as writer:
        for name in ("data", "indices", "indptr"):
            array = getattr(matrix, name)
            writer.column(name, array.dtype).append(array)
        writer.done({"V": matrix.shape[0]})
    return matrix
