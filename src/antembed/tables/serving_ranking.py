"""Lists of items, best first, made without the whole matrix of scores."""

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
