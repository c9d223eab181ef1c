"""Vectors of sparse rows: e_i = Σ_k t_ik·a_k over the non-zeros, as files store them."""

from typing import Any

import numpy as np

from antembed.kernels.compiled import compile_kernel
from antembed.kernels.vector import VECTOR, elementwise, prefetch, weighted_sum

compiled = compile_kernel(nogil=True, error_model="numpy")
AHEAD = 8  # ids: a row's numbers are fetched so far ahead, and where they begin twice as far
WIDE = 8  # registers in which sums are held: half of AVX2's
sum_wide, sum_narrow = weighted_sum(WIDE), weighted_sum(1)
copy_whole = elementwise(lambda x, one: (x,))


@compiled
def mix(n: int, k: Any, t: Any, anchors: Any, out: Any, p: int) -> None:
    """out[p] = Σ t_j·anchors[k_j] over j < n; k is int64, the others are float32."""
    width, column = out.shape[1], 0
    while column + WIDE * VECTOR <= width:
        sum_wide(n, k, t, anchors, width, column, out, p * width + column)
        column += WIDE * VECTOR
    while column + VECTOR <= width:
        sum_narrow(n, k, t, anchors, width, column, out, p * width + column)
        column += VECTOR
    for j in range(column, width):
        total = np.float32(0)
        for i in range(n):
            total += t[i] * anchors[k[i], j]
        out[p, j] = total


@compiled
def mix_csr(
    start: int, stop: int, ids: Any, starts: Any, columns: Any, values: Any, anchors: Any, out: Any, damaged: Any
) -> None:
    """out[p] = the vector of row ids[p]; damaged[0]: a row whose columns are not those of `anchors`, if there is one."""
    K = len(anchors)
    k, t = np.empty(K, np.int64), np.empty(K, np.float32)
    for p in range(start, stop):
        if p + 2 * AHEAD < stop:
            prefetch(starts, ids[p + 2 * AHEAD])
            soon = np.int64(starts[ids[p + AHEAD]])
            prefetch(columns, soon)
            prefetch(values, soon)
        begin, n = np.int64(starts[ids[p]]), np.int64(starts[ids[p] + 1]) - np.int64(starts[ids[p]])
        if n > K:
            damaged[0] = ids[p]
            return
        for j in range(n):
            k[j], t[j] = columns[begin + j], np.float32(values[begin + j])
            if k[j] >= K:
                damaged[0] = ids[p]
                return
        mix(n, k, t, anchors, out, p)


@compiled
def mix_bitmap(start: int, stop: int, ids: Any, starts: Any, bits: Any, values: Any, anchors: Any, out: Any) -> None:
    """out[p] = the vector of row ids[p]; bit k of its bits says whether anchor k has a value."""
    k, t = np.empty(8 * bits.shape[1], np.int64), np.empty(8 * bits.shape[1], np.float32)
    for p in range(start, stop):
        i, n = ids[p], 0
        begin = np.int64(starts[i])
        for byte in range(bits.shape[1]):
            left, column = bits[i, byte], 8 * byte
            while left:
                if left & 1:
                    k[n], t[n] = column, np.float32(values[begin + n])
                    n += 1
                left >>= 1
                column += 1
        mix(n, k, t, anchors, out, p)


@compiled
def copy_rows(start: int, stop: int, rows: Any, where: Any, out: Any) -> None:
    """out[p] = rows[where[p]]."""
    width = out.shape[1]
    for p in range(start, stop):
        copy_whole(width // VECTOR * VECTOR, (rows,), (where[p] * width,), (out,), (p * width,), (np.float32(1),))
        for j in range(width // VECTOR * VECTOR, width):
            out[p, j] = rows[where[p], j]
