"""Co-occurrence of words: counts in a window, filtered by count and PMI, as relations; and features made of them."""

from itertools import pairwise

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from antembed.data.cooccurrence_kernel import count_rows, find_positions, neighbour_counts
from antembed.data.vocabulary import RESERVED

WINDOW = 10
POSITIONS = 1 << 24  # tokens in memory at a time, 16 bytes each; more take several passes
BUFFER = 1 << 20


def cooccurrences(
    tokens: np.ndarray,
    starts: np.ndarray,
    V: int,
    *,
    window: int = WINDOW,
    min_count: int = 3,
    min_pmi: float = 1.0,
    reserved: int = RESERVED,
    positions: int = POSITIONS,
) -> sparse.csr_array:
    """How often two words occur within `window` positions of each other in a document: (V, V), symmetric, no diagonal.

    It keeps pairs with at least `min_count` occurrences and a PMI, ln(count·total / (neighbours of u · neighbours of v)), of at
    least `min_pmi`. The paper keeps all pairs (1 and −inf; features are made of those too), but then frequent words are
    related to nearly every word. Memory: the result, the positions of `positions` tokens, and a few numbers per word. `tokens`
    may be a memory map.
    """
    if window < 1 or min_count < 1:
        raise ValueError(f"window and min_count must be ≥ 1, got {window} and {min_count}")
    if starts[0] != 0 or starts[-1] != len(tokens) or (np.diff(starts) < 0).any():
        raise ValueError(f"starts must rise from 0 to {len(tokens)}, the number of tokens; got {starts[0]} to {starts[-1]}")
    frequencies = np.zeros(V, np.int64)
    for first in range(0, len(tokens), POSITIONS):
        piece = tokens[first : first + POSITIONS]
        if len(piece) and not (piece.min() >= 0 and piece.max() < V):
            wrong = piece.min() if piece.min() < 0 else piece.max()
            raise ValueError(f"token {wrong} is none of the {V} words; pass the vocabulary of these tokens")
        frequencies += np.bincount(piece, minlength=V)
    totals = np.zeros(V, np.int64)
    neighbour_counts(tokens, starts, window, reserved, totals)
    columns, counts, ends = [np.empty(0, np.int32)], [np.empty(0, np.int32)], [np.zeros(reserved + 1, np.int64)]
    size, scratch, touched = max(V, BUFFER), np.zeros(V, np.int32), np.empty(V, np.int32)
    done = 0
    for low, high in _parts(frequencies, reserved, positions):
        begins = np.concatenate([[0], np.cumsum(frequencies[low:high])])
        where, document = np.empty(begins[-1], np.int64), np.empty(begins[-1], np.int64)
        find_positions(tokens, starts, low, high, begins[:-1].copy(), where, document)
        row = low
        while row < high:
            found = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(high - row, np.int64)
            stopped = count_rows(
                tokens, starts, window, reserved, low, row, high, begins, where, document, totals, float(totals.sum()),
                min_count, min_pmi, scratch, touched, found[2], found[0], found[1],
            )  # fmt: skip
            filled = int(found[2][stopped - row - 1])  # one row always fits
            columns.append(found[0][:filled].copy())
            counts.append(found[1][:filled].copy())
            ends.append(done + found[2][: stopped - row])
            done, row = done + filled, stopped
    kept = np.concatenate(counts), np.concatenate(columns), np.concatenate(ends)[: V + 1]
    matrix = sparse.csr_array(kept, shape=(V, V))
    matrix.sort_indices()
    return matrix


def cooccurrence_plain(tokens: np.ndarray, starts: np.ndarray, V: int, window: int, reserved: int = RESERVED) -> np.ndarray:
    """The same without filters in plain Python, for tests: all counts, (V, V)."""
    counts = np.zeros((V, V), np.int64)
    for first, last in pairwise(starts):
        for i in range(first, last):
            for j in range(first, last):
                u, v = tokens[i], tokens[j]
                if i != j and abs(i - j) <= window and u != v and min(u, v) >= reserved:
                    counts[u, v] += 1
    return counts


def positive_pmi(counts: sparse.csr_array) -> sparse.csr_array:
    """max(ln(count·total / (row sum · column sum)), 0) of a symmetric matrix of counts."""
    sums = np.asarray(counts.sum(1), np.float64).ravel()
    pairs = counts.tocoo()
    rows, columns = pairs.coords
    pmi = np.maximum(np.log(pairs.data * sums.sum() / (sums[rows] * sums[columns])), 0.0)
    matrix = sparse.csr_array((pmi, (rows, columns)), shape=counts.shape)
    matrix.eliminate_zeros()
    return matrix


def svd_features(counts: sparse.csr_array, width: int, seed: int = 0) -> np.ndarray:
    """U·√S of the positive PMI's largest `width` singular values: (V, width). A word without neighbours has zeros."""
    V = counts.shape[0]
    if not 1 <= width < V:
        raise ValueError(f"{V} objects cannot have {width} features; take between 1 and {V - 1}")
    pmi = positive_pmi(counts)
    U, S, _ = svds(pmi, width, v0=np.random.default_rng(seed).standard_normal(V))
    order = np.argsort(-S)
    features = (U * np.sqrt(np.maximum(S, 0)))[:, order]
    features[np.diff(pmi.indptr) == 0] = 0.0  # exactly
    sign = np.sign(features[np.abs(features).argmax(0), np.arange(width)])  # the sign of a singular vector is arbitrary: fix it
    return (features * np.where(sign == 0, 1.0, sign)).astype(np.float32)


def _parts(frequencies: np.ndarray, reserved: int, positions: int) -> list[tuple[int, int]]:
    """Ranges of words with at most `positions` occurrences together, or of one word."""
    parts, low = [], reserved
    ends = np.cumsum(frequencies)
    while low < len(frequencies):
        before = ends[low - 1] if low else 0
        high = max(int(np.searchsorted(ends, before + positions, side="right")), low + 1)
        parts.append((low, high))
        low = high
    return parts
