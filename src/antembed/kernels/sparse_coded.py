"""Sparse rows as bytes and back (rANS): which anchors, and how much of each; serving/sparse_coded.py describes the format and
has the plain twin of the decoder."""

from typing import Any

import numpy as np

from antembed.kernels.entries import last_entry, next_bytes, remember
from antembed.kernels.mixes import mix
from antembed.kernels.random_bits import compiled
from antembed.kernels.vector import LIMITS, count_reached

PRECISION = 16
TOTAL = 1 << PRECISION
LOW = 1 << 23  # the state stays within [LOW, 256·LOW)
GUESS = 4  # lower bits of a slot that a guess leaves out


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
def _next_anchor(after: int, slot: int, ends: Any, reach: Any, places: Any, anchors: Any) -> tuple[int, int, int]:
    """The anchor (K: no further one) whose slots hold this one, and the first of its slots and of those behind. `places` and
    `anchors` say which it is, or nearly."""
    K = len(ends) - 1
    place = ends[after] + places[slot + (slot * (K - after) >> PRECISION) >> GUESS]  # as if none were set aside
    k: Any = max(np.int64(anchors[place]), after) if place < ends[K] else K
    first = first_slot(after, k, ends, reach)
    behind = first_slot(after, k + 1, ends, reach) if k < K else TOTAL
    while first > slot:
        k -= 1
        first, behind = first_slot(after, k, ends, reach), first
    while behind <= slot:
        k += 1
        first, behind = behind, (first_slot(after, k + 1, ends, reach) if k < K else TOTAL)
    return k, first, behind


@compiled
def _taken(state: int, first: int, behind: int, byte: int, data: Any) -> tuple[int, int]:
    """State and next byte after a symbol of the slots [first, behind)."""
    state = (behind - first) * (state >> PRECISION) + (state & (TOTAL - 1)) - first
    need: Any = np.int64(state < LOW) + np.int64(state < LOW >> 8)
    return state << 8 * need | next_bytes(data, byte) >> 32 - 8 * need, byte + need


@compiled
def decode_row(
    state: int, byte: int, data: Any, ends: Any, reach: Any, places: Any, anchors: Any, group: Any, firsts: Any,
    norm_firsts: Any, k: Any, t: Any,
) -> tuple[int, int, int, int]:  # fmt: skip
    """A row → its anchors k and values t. → how many they are, its norm, and where the next row begins: state and byte."""
    K, n, norm, after = len(ends) - 1, 0, 0, 0
    if len(norm_firsts) > 1:
        norm = _found(norm_firsts, state & (TOTAL - 1))
        state, byte = _taken(state, norm_firsts[norm], norm_firsts[norm + 1], byte, data)
    while True:
        now, first, behind = _next_anchor(after, state & (TOTAL - 1), ends, reach, places, anchors)
        state, byte = _taken(state, first, behind, byte, data)
        if now == K:
            return n, norm, state, byte
        own, slot, value, more = group[now], state & (TOTAL - 1), 0, LIMITS
        while more == LIMITS:  # all of them; a group's last numbers are 2¹⁶, more than any slot
            more = count_reached(firsts, own * firsts.shape[1] + value, slot)
            value += more
        state, byte = _taken(state, np.int64(firsts[own, value - 1]), np.int64(firsts[own, value]), byte, data)
        k[n], t[n] = now, np.float32(value)
        n, after = n + 1, now + 1


@compiled
def decode_sparse(
    data: Any, offsets: Any, wanted: Any, rows: int, ends: Any, reach: Any, places: Any, anchors: Any, group: Any, firsts: Any,
    norm_firsts: Any, step: Any, scales: Any, weights: Any, entries: Any, onto: Any, order: Any, uses: Any, out: Any,
) -> int:  # fmt: skip
    """Rows `wanted` (sorted, each once), divided by `weights`, times `onto` (K + 1, width) → out[order[uses[i] : uses[i + 1]]].
    → −1, or the block that is damaged."""
    K = len(ends) - 1
    k, t = np.empty(K + 1, np.int64), np.empty(K + 1, np.float32)
    for at in range(len(wanted)):
        row, byte, stop, state = last_entry(wanted[at], rows, data, offsets, entries)
        while row <= wanted[at]:
            n, norm, state, byte = (
                decode_row(state, byte, data, ends, reach, places, anchors, group, firsts, norm_firsts, k, t)
                if stop >= 0
                else (0, 0, 0, 0)
            )
            if byte > stop:
                return row // rows
            row += 1
            remember(row, rows, offsets, byte, state, entries)
        factor = scales[norm] / weights[at]
        for j in range(n):
            t[j] = t[j] * step * factor
        k[n], t[n] = K, scales[norm]
        mix(n + 1, k, t, onto, out, order[uses[at]])
        for copy in range(uses[at] + 1, uses[at + 1]):
            out[order[copy]] = out[order[uses[at]]]
    return -1
