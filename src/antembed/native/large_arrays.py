"""Large arrays: products a block of rows at a time, and memory in huge pages."""

import ctypes
import mmap
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

LITTLE = 1 << 17  # multiplications of a block: OpenBLAS takes threads from 2¹⁸ on
HUGE = 1 << 21  # bytes of a huge page
LARGE = 1 << 22  # bytes from which on huge pages are worth it: a page table of 4 KB pages no longer fits into its cache

# Blocks are so small that BLAS starts no threads for them. Where cores are busy its threads wait for each other, some 100 ms a
# product; and a sum must not depend on how many there are.


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of so many rows, each of which takes `width` multiplications; at least one."""
    size = max(LITTLE // max(width, 1), 1)
    return (slice(first, first + size) for first in range(0, max(rows, 1), size))


def across(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Xᵀ·Y."""
    width = X.shape[1] * (Y.shape[1] if Y.ndim > 1 else 1)
    products = (X[rows].T @ Y[rows] for rows in blocks(len(X), width))
    total: np.ndarray = next(products)
    for product in products:
        total += product
    return total


def along(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """X·Y."""
    out = np.empty((len(X), Y.shape[1]))
    for rows in blocks(len(X), Y.size):
        np.matmul(X[rows], Y, out=out[rows])
    return out


def ask_for_huge_pages(address: int, size: int) -> None:
    """Ask the system to hold this fresh memory, not yet written to, in pages of 2 MB; it may not. With pages of 4 KB most reads
    of a large table, whose rows are in no order, also wait for the page table."""
    madvise = _madvise() if size >= LARGE else None
    if madvise is not None:
        first = -(-address // HUGE) * HUGE
        madvise(ctypes.c_void_p(first), ctypes.c_size_t((address + size) // HUGE * HUGE - first), mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Callable[[ctypes.c_void_p, ctypes.c_size_t, int], int] | None:
    """The C library's; None where there are no huge pages to ask for."""
    return getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_HUGEPAGE") else None
