"""Products of a tall matrix, a block of rows at a time: so small that BLAS starts no threads for it.

Where cores are busy its threads wait for each other, some 100 ms a product; and a sum must not depend on how many there are.
"""

from collections.abc import Iterator

import numpy as np

LITTLE = 1 << 17  # multiplications of a block: OpenBLAS takes threads from 2¹⁸ on


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of so many rows, each of which takes `width` multiplications; at least one."""
    size = max(LITTLE // max(width, 1), 1)
    return (slice(first, first + size) for first in range(0, max(rows, 1), size))


def across(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Xᵀ·Y."""
    first, *rest = blocks(len(X), X.shape[1] * (Y.shape[1] if Y.ndim > 1 else 1))
    total: np.ndarray = X[first].T @ Y[first]
    for rows in rest:
        total += X[rows].T @ Y[rows]
    return total


def along(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """X·Y."""
    out = np.empty((len(X), Y.shape[1]))
    for rows in blocks(len(X), Y.size):
        np.matmul(X[rows], Y, out=out[rows])
    return out
