"""Synthetic labelled text of any size: Zipf-distributed words, each of which is more frequent in one class."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from antembed.classify.documents import Documents
from antembed.data.vocabulary import SPECIAL, Vocabulary
from antembed.files import write_atomically
from antembed.recommend.synthetic import Planted, zipf

PIECE = 1 << 15  # documents at a time
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TITLE = 4  # words


def names(V: int) -> list[str]:
    """V words, the most frequent first: a, b, …, z, aa, ba, …"""
    found: list[str] = []
    last = [""]
    while len(found) < V:
        last = [head + letter for letter in LETTERS for head in last]
        found += last
    return found[:V]


def topics(
    n: int, V: int, *, classes: int = 4, length: int = 50, purity: float = 0.3, exponent: float = 1.0, seed: int = 0
) -> Iterator[pl.DataFrame]:
    """n documents of `length` words, piece by piece: class (from 1), title, text.

    Word w belongs to class w mod classes. Words are drawn by Zipf's law; with probability `purity` a word is replaced by its
    neighbour in rank that belongs to the document's class. Each of the V words occurs at least once, if there is room.
    """
    if not (0 <= purity <= 1 and 2 <= classes <= V and length > TITLE):
        raise ValueError(
            f"0 ≤ purity ≤ 1, 2 ≤ classes ≤ V and length > {TITLE} are required, "
            f"got purity {purity}, {classes} classes, V = {V}, length {length}"
        )
    rng = np.random.default_rng(seed)
    words, below = pl.Series("word", names(V)), np.cumsum(zipf(V, exponent))
    apart = n * length // V  # distance between guaranteed words; 0: no room for them
    for first in range(0, n, PIECE):
        size = min(PIECE, n - first)
        about = rng.integers(0, classes, size)
        ids = np.minimum(np.searchsorted(below, rng.random((size, length))), V - 1)
        home = ids - ids % classes + about[:, None]
        ids = np.where((rng.random(ids.shape) < purity) & (home < V), home, ids)
        if apart:
            positions = np.arange(first * length, (first + size) * length)
            guaranteed = (positions % apart == 0) & (positions // apart < V)
            ids.reshape(-1)[guaranteed] = positions[guaranteed] // apart
        parts = [
            words.gather(part.reshape(-1)).reshape((size, part.shape[1])).arr.join(" ")
            for part in (ids[:, :TITLE], ids[:, TITLE:])
        ]
        yield pl.DataFrame({"class": about + 1, "title": parts[0], "text": parts[1]})


def write_topics(path: str | Path, n: int, V: int, **how: float) -> None:
    """The same as a CSV file in the layout of AG-News."""
    write_atomically(path, map(_csv, topics(n, V, **how)))  # type: ignore[arg-type]


def _csv(frame: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.write_csv(out, include_header=False, quote_style="always")
    return out.getvalue()


@dataclass(frozen=True)
class Bags:
    """Document n is ids[offsets[n]:offsets[n+1]] with label labels[n]."""

    ids: np.ndarray
    offsets: np.ndarray  # (documents + 1,)
    labels: np.ndarray


def labelled_bags(words: Planted, documents: int, *, length: int = 20, seed: int = 0) -> Bags:
    """Documents about one anchor each: words are drawn by popularity × weight on the anchor, which is the label."""
    rng = np.random.default_rng(seed)
    V, K = words.T.shape
    labels = rng.integers(0, K, documents)
    ids = np.empty((documents, length), np.int64)
    for k in range(K):
        weight = words.popularity * words.T[:, k]
        about_k = np.flatnonzero(labels == k)
        ids[about_k] = rng.choice(V, (len(about_k), length), p=weight / weight.sum())
    return Bags(ids.reshape(-1), np.arange(0, documents * length + 1, length), labels)


def labelled_documents(
    documents: int, classes: int, *, words: int = 500_000, length: int = 50, class_share: float = 0.1, seed: int = 0
) -> Documents:
    """Documents of Poisson lengths and Zipf words, of which `class_share` tell the class: of each `classes` words that are
    about as frequent, they are the class's own. 560 000 of 14 classes have DBPedia's shape."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, documents).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(rng.poisson(length, documents))])
    ids = np.searchsorted(np.cumsum(zipf(words, 1.0)), rng.random(starts[-1], np.float32)).astype(np.int32)
    ids = np.minimum(ids, words - classes - 1)
    telling = np.flatnonzero(rng.random(starts[-1], np.float32) < class_share)
    owners = labels[np.searchsorted(starts, telling, side="right") - 1]
    ids[telling] += owners - ids[telling] % classes
    ids += len(SPECIAL)
    counts = np.bincount(ids, minlength=words + len(SPECIAL))
    names = [*SPECIAL, *(f"w{n}" for n in range(words))]
    vocabulary = Vocabulary(names, counts, np.minimum(counts, documents), documents)
    return Documents(ids, starts, labels, vocabulary, [f"class {n}" for n in range(classes)])


def tokens(words: Planted, n: int, *, seed: int = 0) -> np.ndarray:
    """A stream of n ids with hidden topics (anchors).

    The topic stays the same with probability 0.9; a word is drawn by popularity × weight on the topic.
    """
    rng = np.random.default_rng(seed)
    V, K = words.T.shape
    changed = rng.random(n) > 0.9
    changed[0] = True
    topics = rng.integers(0, K, n)[np.maximum.accumulate(np.where(changed, np.arange(n), 0))]
    stream = np.empty(n, np.int64)
    for k in range(K):
        weight = words.popularity * words.T[:, k]
        here = np.flatnonzero(topics == k)
        stream[here] = rng.choice(V, len(here), p=weight / weight.sum())
    return stream
