"""Vectors of sparse rows: e_i = Σ_k t_ik·a_k over the non-zeros, as files store them."""

from typing import Any

import numpy as np

from antembed.kernels.compiled import compile_kernel

compiled = compile_kernel(nogil=True, error_model="numpy")


@compiled
def _add_four(vector: Any, first: bool, anchors: Any, k: Any, weights: Any) -> None:
    """vector ← (0 if first, else itself) + Σ of four anchors: read and written once for all four."""
    a, b, c, d = anchors[k[0]], anchors[k[1]], anchors[k[2]], anchors[k[3]]
    s, t, u, v = weights[0], weights[1], weights[2], weights[3]
    if first:
        for j in range(len(vector)):
            vector[j] = s * a[j] + t * b[j] + u * c[j] + v * d[j]
    else:
        for j in range(len(vector)):
            vector[j] += s * a[j] + t * b[j] + u * c[j] + v * d[j]


@compiled
def mix_csr(
    start: int, stop: int, ids: Any, starts: Any, columns: Any, values: Any, anchors: Any, out: Any, damaged: Any
) -> None:
    """out[p] = the vector of row ids[p]; damaged[0]: a row whose columns are not those of `anchors`, if there is one."""
    K = len(anchors)
    k, weights = np.zeros(4, np.int64), np.zeros(4, np.float32)
    for p in range(start, stop):
        i, vector = ids[p], out[p]
        begin, end = np.int64(starts[i]), np.int64(starts[i + 1])
        if begin == end:
            vector[:] = 0
        for four in range(begin, end, 4):
            for n in range(4):
                if four + n < end:
                    k[n], weights[n] = columns[four + n], np.float32(values[four + n])
                    if k[n] >= K:
                        damaged[0] = i
                        return
                else:
                    weights[n] = 0
            _add_four(vector, four == begin, anchors, k, weights)


@compiled
def mix_bitmap(start: int, stop: int, ids: Any, starts: Any, bits: Any, values: Any, anchors: Any, out: Any) -> None:
    """out[p] = the vector of row ids[p]; bit k of its bits says whether anchor k has a value."""
    k, weights = np.zeros(4, np.int64), np.zeros(4, np.float32)
    for p in range(start, stop):
        i, vector = ids[p], out[p]
        first, j, n = True, np.int64(starts[i]), 0
        for byte in range(bits.shape[1]):
            left, column = bits[i, byte], 8 * byte
            while left:
                if left & 1:
                    k[n], weights[n] = column, np.float32(values[j])
                    j, n = j + 1, n + 1
                    if n == 4:
                        _add_four(vector, first, anchors, k, weights)
                        first, n = False, 0
                left >>= 1
                column += 1
        if n or first:
            weights[n:] = 0
            _add_four(vector, first, anchors, k, weights)
