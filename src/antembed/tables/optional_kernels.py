"""Compiled kernels where Numba is installed; look-up does without them."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np

from antembed.tables.container import DamagedError

COPIED_FROM = 1 << 20  # numbers; for fewer it does not pay to import Numba
LINE = 64  # bytes of the memory that caches exchange


@cache
def kernels(name: str) -> ModuleType | None:
    """The module antembed.NAME, if Numba is installed."""
    try:
        return import_module(f"antembed.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("numba", "llvmlite"):
            raise
        return None


def on_all_cores(work: Callable[[int, int], object], rows: int, width: int) -> None:
    """work(start, stop) over [0, rows), in parts."""
    threads = kernels("native.threads")
    assert threads is not None
    threads.parallel_for(work, rows, width, threads.usable_cpus())


def empty_rows(rows: int, width: int) -> np.ndarray:
    """(rows, width) float32, not filled, at the beginning of a cache line: tables/sparse_product_kernel.py, streams."""
    memory = np.empty(rows * width + LINE // 4, np.float32)
    start = -memory.ctypes.data % LINE // 4
    return memory[start : start + rows * width].reshape(rows, width)


def take_rows(rows: np.ndarray, where: np.ndarray) -> np.ndarray:
    """rows[where], of float32 rows; compiled, where there are many."""
    out = empty_rows(len(where), rows.shape[1])
    if out.size < COPIED_FROM or (kernel := kernels("tables.sparse_product_kernel")) is None:
        return np.take(rows, where, 0, out=out, mode="clip")  # without a copy; `where` is in range
    on_all_cores(lambda a, b: kernel.copy_rows(a, b, rows, where, out), *out.shape)
    return out


def decode_on_all_cores(decode: Callable[[int, int], int], rows: int, width: int) -> None:
    """decode(start, stop) → −1, or the block that is damaged."""

    def work(start: int, stop: int) -> None:
        if (block := decode(start, stop)) >= 0:
            raise DamagedError(f"block {block} ends too soon")

    on_all_cores(work, rows, width)
