"""Vectors of sparse rows: e_i = Σ_k t_ik·a_k over the non-zeros, as files store them."""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel, compiled
from antembed.native.vector import VECTOR, address, fence, prefetch, weighted_sum

inlined = compile_kernel(nogil=True, error_model="numpy", forceinline=True)  # a call with so many arrays takes some 100 ns
AHEAD = 8  # ids: a row's numbers are fetched so far ahead, and where they begin twice as far
WIDE = 8  # registers in which sums are held: half of AVX2's
STREAMED_FROM = 1 << 20  # numbers of a result: 4 MB, more than a core's own caches hold
ALIGNED = 4 * VECTOR  # bytes of a register
sum_wide, sum_narrow = weighted_sum(WIDE), weighted_sum(1)
sum_streamed = weighted_sum(WIDE, streamed=True)


@compiled
def streams(out: Any) -> bool:
    """Whether a result is written past the caches: if it is large, it would be read before it is written, and push the anchors
    out. Registers have to be aligned: widths of a multiple of VECTOR only, and memory of tables/rows.py, empty_rows."""
    return out.size >= STREAMED_FROM and out.shape[1] % VECTOR == 0 and address(out, 0) % ALIGNED == 0


@inlined
def mix(first: int, n: int, k: Any, t: Any, anchors: Any, out: Any, p: int, streamed: bool) -> None:
    """out[p] = Σ t_j·anchors[k_j] over n j's from `first` on; k is int64, the others are float32. After streamed ones comes a
    fence."""
    width, stride, column = out.shape[1], anchors.shape[1], 0
    while column + WIDE * VECTOR <= width:
        if streamed:
            sum_streamed(first, n, k, t, anchors, stride, column, out, p * width + column)
        else:
            sum_wide(first, n, k, t, anchors, stride, column, out, p * width + column)
        column += WIDE * VECTOR
    while column + VECTOR <= width:
        sum_narrow(first, n, k, t, anchors, stride, column, out, p * width + column)
        column += VECTOR
    for j in range(column, width):
        total = np.float32(0)
        for i in range(first, first + n):
            total += t[i] * anchors[k[i], j]
        out[p, j] = total


@compiled
def mix_csr(
    start: int, stop: int, ids: Any, starts: Any, columns: Any, values: Any, anchors: Any, out: Any, damaged: Any
) -> None:
    """out[p] = the vector of row ids[p]; damaged[0]: a row whose columns are not those of `anchors`, if there is one."""
    K, streamed = len(anchors), streams(out)
    k, t = np.empty(K, np.int64), np.empty(K, np.float32)
    for p in range(start, stop):
        if p + 2 * AHEAD < stop:
            prefetch(starts, ids[p + 2 * AHEAD])
            soon = np.int64(starts[ids[p + AHEAD]])
            prefetch(columns, soon)
            prefetch(values, soon)
        begin = np.int64(starts[ids[p]])
        n: Any = np.int64(starts[ids[p] + 1]) - begin
        if n > K:
            damaged[0], n = ids[p], np.int64(0)
        for j in range(n):
            k[j], t[j] = columns[begin + j], np.float32(values[begin + j])
            if k[j] >= K:
                damaged[0], k[j] = ids[p], 0  # no return: with one, Numba counts references in every turn
        mix(0, n, k, t, anchors, out, p, streamed)
    fence()


@compiled
def mix_bitmap(start: int, stop: int, ids: Any, starts: Any, bits: Any, values: Any, anchors: Any, out: Any) -> None:
    """out[p] = the vector of row ids[p]; bit k of its bits says whether anchor k has a value."""
    k, t = np.empty(8 * bits.shape[1], np.int64), np.empty(8 * bits.shape[1], np.float32)
    streamed = streams(out)
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
        mix(0, n, k, t, anchors, out, p, streamed)
    fence()


@compiled
def copy_rows(start: int, stop: int, rows: Any, where: Any, out: Any) -> None:
    """out[p] = rows[where[p]]."""
    k, t = np.empty(1, np.int64), np.ones(1, np.float32)
    streamed = streams(out)
    for p in range(start, stop):
        if p + AHEAD < stop:
            prefetch(rows, where[p + AHEAD] * rows.shape[1])
        k[0] = where[p]
        mix(0, 1, k, t, rows, out, p, streamed)
    fence()
