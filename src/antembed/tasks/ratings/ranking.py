"""Lists of items, best first: how to make them without the whole matrix of scores, and how good they are."""

from collections.abc import Iterator

import numpy as np

ITEMS_AT_ONCE = 1 << 15


def best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest of every row, largest first, ties by place: scores (n, m) → places (n, k), scores (n, k)."""
    k = min(k, scores.shape[1])
    places = (
        np.argpartition(-scores, k - 1, axis=1)[:, :k] if k < scores.shape[1] else np.argsort(-scores, axis=1, kind="stable")
    )
    places = np.sort(places, axis=1)
    found = np.take_along_axis(scores, places, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1), np.take_along_axis(found, order, axis=1)


def top(
    queries: np.ndarray, vectors: np.ndarray, bias: np.ndarray, k: int, hidden: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k items with the largest queries·vectors + bias: (n, d), (m, d), (m,) → items (n, k), scores (n, k).

    `hidden`: (row, item) pairs that are left out; their scores are −inf. Never more than n × 32 768 scores at once.
    """
    items = np.empty((len(queries), 0), np.int64)
    scores = np.empty((len(queries), 0), np.float32)
    for start in range(0, len(vectors), ITEMS_AT_ONCE):
        part = slice(start, start + ITEMS_AT_ONCE)
        found = queries @ vectors[part].T + bias[part]
        if hidden is not None:
            rows, which = hidden
            here = (which >= start) & (which < start + found.shape[1])
            found[rows[here], which[here] - start] = -np.inf
        places, values = best(found, k)
        items, scores = np.hstack([items, places + start]), np.hstack([scores, values])
        order, scores = best(scores, k)
        items = np.take_along_axis(items, order, axis=1)
    return items, scores


def hits(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
    """For each list: which of its places are wanted, and how many are wanted in all."""
    for items, those in zip(lists, wanted, strict=True):
        yield np.isin(items, those), len(those)


def recall_at(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> float:
    """Mean over lists of: wanted items in the list ÷ as many as could be there. Lists without any wanted are left out."""
    shares = [found.sum() / min(n, len(found)) for found, n in hits(lists, wanted) if n]
    return float(np.mean(shares)) if shares else float("nan")


def ndcg_at(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> float:
    """Mean over lists of: Σ over wanted items of 1/log2(place + 1) ÷ the best such sum. Lists without any are left out."""
    gains = []
    for found, n in hits(lists, wanted):
        if n:
            discount = 1 / np.log2(np.arange(2, len(found) + 2))
            gains.append((found * discount).sum() / discount[: min(n, len(found))].sum())
    return float(np.mean(gains)) if gains else float("nan")
