"""Decoded vectors kept in memory, for ids that come again."""

from collections.abc import Callable

import numpy as np

from antembed.tables.optional_kernels import take_rows

Decode = Callable[[np.ndarray], np.ndarray]  # ids (n,) → vectors (n, d)


class Cache:
    """ids (n,) → vectors (n, d): at most `rows` are kept. An id has one place, id mod rows; who comes last stays there."""

    def __init__(self, decode: Decode, rows: int, width: int):
        self._decode = decode
        self._ids, self._vectors = np.full(rows, -1, np.int64), np.empty((rows, width), np.float32)
        self.hits = self.misses = 0

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        places = ids % len(self._ids)
        missed = np.flatnonzero(self._ids[places] != ids)
        self.misses += len(missed)
        self.hits += len(ids) - len(missed)
        vectors = take_rows(self._vectors, places)
        if not len(missed):
            return vectors
        distinct, where = np.unique(ids[missed], return_inverse=True)
        fresh = self._decode(distinct)
        vectors[missed] = fresh[where]
        own, last = np.unique((distinct % len(self._ids))[::-1], return_index=True)  # of two with one place, one
        chosen = len(distinct) - 1 - last
        self._ids[own], self._vectors[own] = distinct[chosen], fresh[chosen]
        return vectors
