"""Vectors of sparse rows: e_i = Σ_k t_ik·a_k over the non-zeros, as files store them."""

from typing import Any

import numpy as np
from numba import njit

compiled = njit(nogil=True, cache=True, error_model="numpy")


@compiled
def mix_csr(
    start: int, stop: int, ids: Any, starts: Any, columns: Any, values: Any, anchors: Any, out: Any, damaged: Any
) -> None:
    """out[p] = the vector of row ids[p]; damaged[0]: a row whose columns are not those of `anchors`, if there is one."""
    K, d = anchors.shape
    for p in range(start, stop):
        i, vector = ids[p], out[p]
        vector[:] = 0
        for j in range(starts[i], starts[i + 1]):
            k = columns[j]
            if k >= K:
                damaged[0] = i
                return
            weight, anchor = np.float32(values[j]), anchors[k]
            for c in range(d):
                vector[c] += weight * anchor[c]


@compiled
def mix_bitmap(start: int, stop: int, ids: Any, starts: Any, bits: Any, values: Any, anchors: Any, out: Any) -> None:
    """out[p] = the vector of row ids[p]; bit k of its bits says whether anchor k has a value."""
    d = anchors.shape[1]
    for p in range(start, stop):
        i, vector = ids[p], out[p]
        vector[:] = 0
        j = starts[i]
        for byte in range(bits.shape[1]):
            left = bits[i, byte]
            k = 8 * byte
            while left:
                if left & 1:
                    weight, anchor = np.float32(values[j]), anchors[k]
                    for c in range(d):
                        vector[c] += weight * anchor[c]
                    j += 1
                left >>= 1
                k += 1
