"""Sums and products of a table's vectors without the full table: bags, scores, lengths."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from antembed.tables.rows import Decode, Rows

ITEMS_AT_ONCE = 1 << 15  # rows decoded and multiplied at a time
CHUNK = 1 << 16  # rows at a time
TURNED = 256  # columns of side_by_side at a time


def best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest of every row, largest first, ties by place: scores (n, m) → positions (n, k), scores (n, k)."""
    n, m = scores.shape
    k = min(k, m)
    positions = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1) if k < m else np.tile(np.arange(m), (n, 1))
    found = np.take_along_axis(scores, positions, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(positions, order, axis=1), np.take_along_axis(found, order, axis=1)


def best_items(
    queries: np.ndarray, vectors: np.ndarray, bias: np.ndarray, k: int, hidden: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k items with the largest queries·vectors + bias: (n, d), (m, d), (m,) → items (n, k), scores (n, k).

    `hidden`: (row, item) pairs that are left out; their scores are −inf. Never more than n × 32 768 scores at once."""

    def scores() -> Iterator[np.ndarray]:
        for start in range(0, len(vectors), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            found = queries @ vectors[part].T + bias[part]
            if hidden is not None:
                rows, which = hidden
                here = (which >= start) & (which < start + found.shape[1])
                found[rows[here], which[here] - start] = -np.inf
            yield found

    return top(scores(), len(queries), k)


def chunks(total: int) -> Iterator[np.ndarray]:
    """The ids 0 … total − 1, some at a time."""
    for start in range(0, total, CHUNK):
        yield np.arange(start, min(start + CHUNK, total))


def bag_starts(ids: np.ndarray, offsets: ArrayLike | None) -> np.ndarray:
    """Where each bag begins in the flat ids, (B,)."""
    if offsets is None:
        if ids.ndim != 2:
            raise ValueError(f"ids have the shape {ids.shape} and there are no offsets; give ids (bags, n), or offsets")
        return np.arange(ids.shape[0]) * ids.shape[1]
    if ids.ndim != 1:
        raise ValueError(f"ids have the shape {ids.shape}; with offsets they are one row, (n,)")
    starts = np.asarray(offsets)
    if starts.ndim != 1 or (starts.size and starts.dtype.kind not in "iu"):
        raise ValueError(f"offsets are integers (bags,), got {starts.dtype} of the shape {starts.shape}")
    starts = starts.astype(np.int64)
    if len(starts) == 0 and len(ids):
        raise ValueError(f"{len(ids)} ids and no bag; the first offset is 0")
    if len(starts) and (starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > len(ids)):
        raise ValueError(f"offsets begin with 0, rise, and end at {len(ids)} at most, the number of ids")
    return starts


def bag_sums(rows: Decode, width: int, ids: np.ndarray, starts: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Σ of the rows of each bag, (B, width): sums of rows of T are multiplied by A once a bag, not once an id."""
    sums = np.zeros((len(starts), width), np.float32)
    for where in chunks(len(ids)):
        found = rows(ids[where])
        if weights is not None:
            found = found * weights[where, None]
        owners = np.searchsorted(starts, where, side="right") - 1
        first = np.flatnonzero(np.diff(owners, prepend=-1))
        sums[owners[first]] += np.add.reduceat(found, first, axis=0)
    return sums


def products(rows: Rows, anchors: np.ndarray | None, total: int, hidden: np.ndarray, nonzeros: float) -> Iterator[np.ndarray]:
    """E·h in chunks of objects: hidden (n, d) → (n, objects of the chunk). As T·(A·h) where that is less work than (T·A)·h; a
    row has so many `nonzeros` on average, and they alone are multiplied where the encoding of the rows allows it."""
    if anchors is None:
        for ids in chunks(total):
            yield hidden @ rows(ids).T
        return
    n, d = hidden.shape
    in_anchor_space = n * nonzeros <= nonzeros * d + n * d
    queries = np.ascontiguousarray((hidden @ anchors.T).T) if in_anchor_space else hidden.T
    for ids in chunks(total):
        yield rows.vectors(ids, queries).T if in_anchor_space else (rows.vectors(ids, anchors) @ queries).T


def side_by_side(scores: Iterator[np.ndarray], n: int, total: int) -> np.ndarray:
    """Scores that come in chunks (n, some) as one array (n, total). A chunk lies in memory column after column, so it is turned
    a part at a time, which stays in the cache."""
    out, start = np.empty((n, total), np.float32), 0
    for some in scores:
        for at in range(0, some.shape[1], TURNED):
            part = some[:, at : at + TURNED]
            out[:, start + at : start + at + part.shape[1]] = part
        start += some.shape[1]
    return out


def top(scores: Iterator[np.ndarray], n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best of scores that come in chunks (n, some): ids (n, k) and scores (n, k), best first, ties by id."""
    ids, values, start = np.empty((n, 0), np.int64), np.empty((n, 0), np.float32), 0
    for some in scores:
        positions, found = best(some, k)
        order, values = best(np.hstack([values, found]), k)
        ids = np.take_along_axis(np.hstack([ids, positions + start]), order, axis=1)
        start += some.shape[1]
    return ids, values


def lengths(rows: Decode, anchors: np.ndarray | None, total: int) -> np.ndarray:
    """‖E_i‖ of all objects, (V,)."""
    found = np.empty(total, np.float32)
    for ids in chunks(total):
        some = rows(ids)
        found[ids] = np.linalg.norm(some if anchors is None else some @ anchors, axis=1)
    return found
