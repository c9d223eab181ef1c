"""Look-up of rows: what each encoding gives, and what is put around it. Compiled where Numba is installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np

from antembed.tables.container import DamagedError

Decode = Callable[[np.ndarray], np.ndarray]  # ids (n,) → vectors (n, d)
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


class Rows:
    """Row look-up: ids (n,) → rows of T (n, K) in fp32."""

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Rows times `anchors` (K, d): (n, d)."""
        found: np.ndarray = self(ids) @ anchors
        return found


@dataclass(frozen=True)
class ScaledRows(Rows):
    """Row look-up in int8: codes times the scales of their columns."""

    inner: Rows
    scales: np.ndarray  # (K,)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(ids) * self.scales

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        return self.inner.vectors(ids, anchors * self.scales[:, None])


@dataclass(frozen=True)
class SharedRows(Rows):
    """Row look-up where objects share rows."""

    inner: Rows
    row_index: np.ndarray  # (V,)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(self.row_index[ids].astype(np.int64))

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        return self.inner.vectors(self.row_index[ids].astype(np.int64), anchors)


@dataclass(frozen=True)
class UncheckedRows(Rows):
    """Row look-up in a file that is too large to be checked when it is opened: what is wrong is found when it is used."""

    inner: Rows

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        with self._explained():
            return self.inner(ids)

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        with self._explained():
            return self.inner.vectors(ids, anchors)

    @staticmethod
    @contextmanager
    def _explained() -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            raise DamagedError(f"a row is damaged ({error}); load the file with verify=True, and copy it again") from None


class Cache:
    """ids (n,) → vectors (n, d): at most `rows` are kept. An id has one place, id mod rows; who comes last stays there."""

    def __init__(self, decode: Decode, rows: int, width: int):
        self._decode = decode
        self._ids, self._vectors = np.full(rows, -1, np.int64), np.empty((rows, width), np.float32)
        self.hits = self.misses = 0

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        positions = ids % len(self._ids)
        missed = np.flatnonzero(self._ids[positions] != ids)
        self.misses += len(missed)
        self.hits += len(ids) - len(missed)
        vectors = take_rows(self._vectors, positions)
        if not len(missed):
            return vectors
        distinct, where = np.unique(ids[missed], return_inverse=True)
        fresh = self._decode(distinct)
        vectors[missed] = fresh[where]
        own, last = np.unique((distinct % len(self._ids))[::-1], return_index=True)  # of two with one place, one
        chosen = len(distinct) - 1 - last
        self._ids[own], self._vectors[own] = distinct[chosen], fresh[chosen]
        return vectors
