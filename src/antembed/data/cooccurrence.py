"""Co-occurrence of words: counts in a window, filtered by count and PMI, as relations; and features made of them."""

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from antembed.data.vocabulary import RESERVED

WINDOW = 10  # words on each side, as in the paper
TOKENS = 1 << 20  # whose pairs are in memory at a time


def cooccurrences(
    tokens: np.ndarray,
    starts: np.ndarray,
    V: int,
    *,
    window: int = WINDOW,
    min_count: int = 3,
    min_pmi: float = 1.0,
    reserved: int = RESERVED,
) -> sparse.csr_array:
    """How often two words occur within `window` positions of each other in a document: (V, V), symmetric, no diagonal.

    It keeps pairs with at least `min_count` occurrences and a PMI, ln(count·total / (neighbours of u · neighbours of v)), of at
    least `min_pmi`. The paper keeps all pairs (1 and −inf; features are made of those too), but then frequent words are
    related to nearly every word. `tokens` may be a memory map."""
    counts = sparse.csr_array((V, V), dtype=np.int32)
    ends = np.repeat(starts[1:], np.diff(starts))  # of each token's document
    for first in range(0, len(tokens), TOKENS):
        pairs = []
        for distance in range(1, window + 1):
            right = np.asarray(tokens[first + distance : first + distance + TOKENS])
            left = np.asarray(tokens[first : first + len(right)])
            near = np.arange(first, first + len(right)) + distance < ends[first : first + len(right)]
            near &= (left != right) & (left >= reserved) & (right >= reserved)
            pairs.append((left[near], right[near]))
        u, v = map(np.concatenate, zip(*pairs, strict=True))
        counts = counts + sparse.csr_array((np.ones(len(u), np.int32), (u, v)), shape=(V, V))
    counts = sparse.csr_array(counts + counts.T)
    totals = counts.sum(0, dtype=np.int64)
    rows = np.repeat(np.arange(V), np.diff(counts.indptr))
    pmi = np.log(counts.data * float(totals.sum()) / (totals[rows] * totals[counts.indices]))
    kept = (counts.data >= min_count) & (pmi >= min_pmi)
    found = sparse.csr_array((counts.data[kept], (rows[kept], counts.indices[kept])), shape=(V, V))
    found.sort_indices()
    return found


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
