"""Synthetic data with a known answer: planted anchors A* and a sparse T* ≥ 0, observed as ratings, labelled bags or tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from antembed.data.documents import Documents
from antembed.data.ratings import Ratings
from antembed.data.vocabulary import SPECIAL, Vocabulary
from antembed.kernels.draw import draw_ratings


def zipf(V: int, exponent: float) -> np.ndarray:
    """Popularity of V objects, p_i ∝ 1/(i + 1)^exponent: (V,), sums to 1."""
    p = 1.0 / np.arange(1, V + 1) ** exponent
    return p / p.sum()


@dataclass(frozen=True)
class Planted:
    """The answer: E* = T*·A*, every object a mix of `per_object` of the K* anchors; and the popularity of each object."""

    T: np.ndarray  # (V, K*) ≥ 0
    A: np.ndarray  # (K*, d), orthonormal rows where K* ≤ d
    popularity: np.ndarray  # (V,)

    @property
    def E(self) -> np.ndarray:
        return self.T @ self.A


def planted(
    V: int,
    d: int = 16,
    *,
    anchors: int = 6,
    per_object: int = 2,
    exponent: float = 1.0,
    seed: int = 0,
    like: Planted | None = None,
) -> Planted:
    """A planted table. Popular objects differ from rare ones only in how often they occur (Zipf).

    `like`: use that table's anchors, so that users and items are mixes of the same ones.
    """
    if like is not None:
        anchors, d = like.A.shape
    if not 1 <= per_object <= anchors:
        raise ValueError(f"per_object must be between 1 and the {anchors} anchors, got {per_object}")
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((anchors, d))
    if like is not None:
        A = like.A
    elif anchors <= d:
        A = np.linalg.qr(A.T)[0].T
    T = np.zeros((V, anchors))
    chosen = np.argsort(rng.random((V, anchors)), axis=1)[:, :per_object]
    np.put_along_axis(T, chosen, 0.5 + rng.random((V, per_object)), axis=1)
    return Planted(T, A, zipf(V, exponent))


def ratings(users: Planted, items: Planted, n: int, *, mean: float = 3.5, noise: float = 0.1, seed: int = 0) -> Ratings:
    """n ratings mean + e_u·e_i + noise; both sides planted in the same dimension, objects drawn by popularity."""
    if users.A.shape[1] != items.A.shape[1]:
        raise ValueError(f"users have {users.A.shape[1]} dimensions, items {items.A.shape[1]}; plant both with one d")
    rng = np.random.default_rng(seed)
    u = rng.choice(len(users.T), n, p=users.popularity)
    i = rng.choice(len(items.T), n, p=items.popularity)
    # Piece by piece, to save memory.
    scores = np.concatenate(
        [np.einsum("nd,nd->n", users.E[u[s : s + 65536]], items.E[i[s : s + 65536]]) for s in range(0, n, 65536)]
    )
    values = (mean + scores + noise * rng.standard_normal(n)).astype(np.float32)
    return Ratings(
        u.astype(np.int32),
        i.astype(np.int32),
        values,
        pl.Series("user", np.arange(len(users.T))),
        pl.Series("item", np.arange(len(items.T))),
    )


def stream(
    objects: tuple[int, int],
    n: int,
    *,
    anchors: int = 6,
    exponents: tuple[float, float] = (0.6, 0.9),
    mean: float = 3.5,
    noise: float = 0.5,
    seed: int = 0,
    piece: int = 1 << 22,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """n ratings of `objects` users and items, piece by piece: planted like `ratings`, at any size, without a table."""
    if anchors < 2 or not all(0 <= exponent < 1 for exponent in exponents):
        raise ValueError(f"anchors must be ≥ 2 and exponents in [0, 1), got {anchors} and {exponents}")
    for first in range(0, n, piece):
        size = min(piece, n - first)
        columns = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.float32)
        draw_ratings(first, seed, *objects, exponents, anchors, mean, noise, *columns)
        yield columns


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
