"""Sparse rows as bytes and back (rANS): which anchors, and how much of each; serving/sparse_coded.py describes the format and
has the plain twin of the decoder."""

from typing import Any

import numpy as np

from antembed.kernels.random_bits import compiled

PRECISION = 16
TOTAL = 1 << PRECISION
LOW = 1 << 23  # the state stays within [LOW, 256·LOW)


@compiled
def first_slot(after: int, anchor: int, ends: Any, reach: Any) -> int:
    """Where the slots of `anchor` (K: no further one) begin, if the row's anchors so far are below `after`."""
    K = len(ends) - 1
    return anchor - after + ((TOTAL - (K - after) - 1) * reach[ends[anchor] - ends[after]] >> PRECISION)


@compiled
def encode_sparse(
    index: Any, value: Any, count: Any, norms: Any, ends: Any, reach: Any, group: Any, firsts: Any, norm_firsts: Any, rows: int,
    out: Any, offsets: Any,
) -> int:  # fmt: skip
    """Rows of ascending anchors → bytes in `out`, blocks of `rows` rows; offsets (blocks + 1,). `firsts` (groups, values + 1)
    and `norm_firsts` (norms + 1) are cumulative frequencies; len(norms) is 0 where lengths are not apart. → how many bytes, or
    −1 if `out` is too small."""
    n, most = index.shape
    K = len(ends) - 1
    starts, sizes = np.empty(rows * (2 * most + 2), np.int64), np.empty(rows * (2 * most + 2), np.int64)
    piece = np.empty(rows * (2 * most + 2) * 3 + 64, np.uint8)
    end = 0
    for block in range((n + rows - 1) // rows):
        symbols = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            if len(norms):
                starts[symbols] = norm_firsts[norms[i]]
                sizes[symbols] = norm_firsts[norms[i] + 1] - starts[symbols]
                symbols += 1
            after = 0
            for s in range(count[i] + 1):
                k = index[i, s] if s < count[i] else K
                starts[symbols] = first_slot(after, k, ends, reach)
                sizes[symbols] = (first_slot(after, k + 1, ends, reach) if k < K else TOTAL) - starts[symbols]
                symbols += 1
                if k < K:
                    starts[symbols] = firsts[group[k], value[i, s] - 1]
                    sizes[symbols] = firsts[group[k], value[i, s]] - starts[symbols]
                    symbols += 1
                    after = k + 1
        state, written = LOW, 0
        for s in range(symbols - 1, -1, -1):
            while state >= ((LOW >> PRECISION) << 8) * sizes[s]:
                piece[written] = state & 255
                written += 1
                state >>= 8
            state = (state // sizes[s] << PRECISION) + state % sizes[s] + starts[s]
        for b in range(4):
            piece[written + b] = state >> (8 * b) & 255
        written += 4
        if end + written > len(out):
            return -1
        for b in range(written):  # the decoder reads forward
            out[end + b] = piece[written - 1 - b]
        end += written
        offsets[block + 1] = end
    return end


@compiled
def _found(firsts: Any, slot: int) -> int:
    """The symbol whose slots hold this one."""
    low, high = 0, len(firsts) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if firsts[middle] <= slot:
            low = middle
        else:
            high = middle
    return low


@compiled
def decode_sparse(
    data: Any, offsets: Any, wanted: Any, rows: int, total: int, ends: Any, reach: Any, group: Any, firsts: Any,
    norm_firsts: Any, step: Any, onto: Any, out: Any, norms: Any,
) -> int:  # fmt: skip
    """Rows `wanted` (sorted, each once): out += value·step·onto[anchor], and norms. → −1, or the block that is damaged."""
    K, at = len(ends) - 1, 0
    while at < len(wanted):
        block = wanted[at] // rows
        p, stop = offsets[block], offsets[block + 1]
        if stop - p < 4 or p < 0 or stop > len(data):
            return block
        state: Any = 0
        for b in range(4):
            state = state << 8 | np.int64(data[p + b])
        p += 4
        for i in range(block * rows, min((block + 1) * rows, total)):
            if at >= len(wanted) or wanted[at] // rows != block:
                break
            keep = wanted[at] == i
            if len(norm_firsts) > 1:
                slot = state & (TOTAL - 1)
                norm = _found(norm_firsts, slot)
                state = (norm_firsts[norm + 1] - norm_firsts[norm]) * (state >> PRECISION) + slot - norm_firsts[norm]
                while state < LOW:
                    if p >= stop:
                        return block
                    state = state << 8 | np.int64(data[p])
                    p += 1
                if keep:
                    norms[at] = norm
            after = 0
            while True:
                slot = state & (TOTAL - 1)
                low, high = after, K + 1
                while high - low > 1:
                    middle = (low + high) >> 1
                    if first_slot(after, middle, ends, reach) <= slot:
                        low = middle
                    else:
                        high = middle
                first = first_slot(after, low, ends, reach)
                size = (first_slot(after, low + 1, ends, reach) if low < K else TOTAL) - first
                state = size * (state >> PRECISION) + slot - first
                while state < LOW:
                    if p >= stop:
                        return block
                    state = state << 8 | np.int64(data[p])
                    p += 1
                if low == K:
                    break
                after = low + 1
                own = firsts[group[low]]
                slot = state & (TOTAL - 1)
                q = _found(own, slot)
                state = (own[q + 1] - own[q]) * (state >> PRECISION) + slot - own[q]
                while state < LOW:
                    if p >= stop:
                        return block
                    state = state << 8 | np.int64(data[p])
                    p += 1
                if keep:
                    weight = np.float32(q + 1) * step
                    for j in range(onto.shape[1]):
                        out[at, j] += weight * onto[low, j]
            if keep:
                at += 1
    return -1
