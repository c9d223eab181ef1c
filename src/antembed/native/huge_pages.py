"""Huge pages for large tables whose rows are read in no order: with pages of 4 KB most reads also wait for the page table."""

import ctypes
import mmap
from collections.abc import Callable
from functools import cache

HUGE = 1 << 21  # bytes
LARGE = 1 << 22  # bytes from which on a table is worth it: a page table of 4 KB pages no longer fits into its cache


def ask_for_huge_pages(address: int, size: int) -> None:
    """Ask the system to hold this fresh memory, not yet written to, in pages of 2 MB; it may not."""
    madvise = _madvise() if size >= LARGE else None
    if madvise is not None:
        first = -(-address // HUGE) * HUGE
        madvise(ctypes.c_void_p(first), ctypes.c_size_t((address + size) // HUGE * HUGE - first), mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Callable[[ctypes.c_void_p, ctypes.c_size_t, int], int] | None:
    """The C library's; None where there are no huge pages to ask for."""
    return getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_HUGEPAGE") else None
