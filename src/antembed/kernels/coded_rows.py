"""Rows of entropy-coded numbers (kernels/coded.py writes them), several at a time; serving/coded.py has the plain twin.

A symbol waits for the one before it, so one row alone leaves the processor idle: LANES rows of different blocks are decoded
column by column side by side, without branches that depend on their numbers. Limits of `seen` take the place of the ratio of
seen and promised, since what is promised depends on the column and the row's class alone.
"""

from typing import Any

import numpy as np

from antembed.kernels.coded import CLASSES, LARGEST, LOW, MOST, MOVES, PRECISION, TOTAL
from antembed.kernels.compiled import compile_kernel
from antembed.kernels.entries import last_entry, next_bytes, remember
from antembed.kernels.vector import LIMITS, bit_length, count_reached

compiled: Any = compile_kernel(nogil=True, error_model="numpy")
LANES = 8
HALF, LEAST = PRECISION - 1, LOW.bit_length() - 1  # bits
# Of each lane: its row, the wanted rows [AT, END) that are left in its block, the next byte, the end of the block, and what the
# decoder knows.
ROW, AT, END, BYTE, STOP, STATE, LEVEL, TRELLIS, SEEN, FIELDS = range(10)
NEXT = sum(int(MOVES[s, b]) << 4 * (2 * s + b) for s in range(8) for b in range(2))


@compiled
def _bits(count: int, state: int, byte: int, data: Any) -> tuple[int, int, int]:
    """So many bits, least significant first: as many at once as can be taken before the next byte. → they, state, byte."""
    found, taken = 0, 0
    while taken < count:
        some = max(min(count - taken, bit_length(state | 1) - LEAST), 1)
        found |= (state >> HALF & (1 << some) - 1) << taken
        state = state >> HALF + some << HALF | state & (1 << HALF) - 1
        if state < LOW:
            state = state << 8 | next_bytes(data, byte) >> 24
            byte += 1
        taken += some
    return found, state, byte


@compiled
def _decode_columns(
    active: int, lanes: Any, data: Any, limits: Any, bases: Any, firsts: Any, shares: Any, values: Any, centres: Any, step: Any,
    out: Any,
) -> None:  # fmt: skip
    """One row in each active lane → out (LANES, K). Behind its end a block has other numbers: the caller looks whether it was
    read that far."""
    K = out.shape[1]
    for lane in range(active):
        lanes[TRELLIS, lane], lanes[SEEN, lane], lanes[LEVEL, lane] = 0, 0, lanes[LEVEL, lane] * K
    for j in range(K):
        for n in range(active):
            at: Any = np.uint64(n)  # unsigned, or each use asks whether it is below 0
            trellis, state, byte = lanes[TRELLIS, at], lanes[STATE, at], lanes[BYTE, at]
            column = lanes[LEVEL, at] + j
            odd, slot = trellis & 1, state & (TOTAL - 1)
            context = bases[np.uint64(column)] + count_reached(limits, column * LIMITS, lanes[SEEN, at]) + odd * CLASSES
            symbol = np.uint64(context * LIMITS + count_reached(firsts, context * LIMITS, slot) - 1)
            state = shares[symbol] * (state >> PRECISION) + slot - firsts[symbol]
            need, coming = np.int64(state < LOW) + np.int64(state < LOW >> 8), next_bytes(data, byte)
            state, byte = state << 8 * need | coming >> 32 - 8 * need, byte + need
            m = np.int64(symbol) & (LIMITS - 1)
            if m == LARGEST:
                length, state, byte = _bits(5, state, byte, data)
                more, state, byte = _bits(length + 1, state, byte, data)  # the last bit is the sign
                m = LARGEST + (more & (1 << length) - 1 | 1 << length) - 1
                value = (np.float32(2 * m - odd) - centres[context, 3]) * step
                out[at, np.uint64(j)] = value * np.float32(1 - 2 * (more >> length))
            else:
                some = np.int64(m > 0)
                negative = state >> HALF & some
                state = (state >> PRECISION) << PRECISION - some | state & (1 << PRECISION - some) - 1
                need = np.int64(state < LOW)
                state = state << 8 * need | coming >> 24 - 8 * (byte - lanes[BYTE, at]) & 255 & -need
                byte += need
                out[at, np.uint64(j)] = values[symbol] * np.float32(1 - 2 * negative)
            lanes[STATE, at], lanes[BYTE, at] = state, byte
            lanes[TRELLIS, at] = NEXT >> 4 * (2 * trellis + (m & 1)) & 7
            lanes[SEEN, at] += min(m, MOST)


@compiled
def _seek(lane: int, lanes: Any, data: Any, offsets: Any, wanted: Any, rows: int, entries: Any) -> bool:
    """Begin where the next wanted row does, or as near before it as is known. → False: the block has no bytes."""
    row, byte, stop, state = last_entry(wanted[lanes[AT, lane]], rows, data, offsets, entries)
    lanes[ROW, lane], lanes[BYTE, lane], lanes[STOP, lane], lanes[STATE, lane] = row, byte, stop, state
    return bool(stop >= 0)


@compiled
def decode_rows(
    data: Any, offsets: Any, wanted: Any, factors: Any, places: Any, rows: int, limits: Any, bases: Any,
    firsts: Any, shares: Any, values: Any, centres: Any, step: Any, entries: Any, out: Any,
) -> int:  # fmt: skip
    """The values of rows `wanted` (sorted, each once) times their `factors` → out (len(wanted), K or more). → −1, or the block
    that is damaged. limits (levels, K, LIMITS), bases (levels·K): a row's level is how many of `places` are ≤ its number."""
    lanes, found = np.zeros((FIELDS, LANES), np.int64), np.empty((LANES, limits.shape[1]), np.float32)
    active, at = 0, 0
    while True:
        while active < LANES and at < len(wanted):  # a block for each lane
            lanes[AT, active] = at
            block = wanted[at] // rows
            while at < len(wanted) and wanted[at] // rows == block:
                at += 1
            lanes[END, active] = at
            if not _seek(active, lanes, data, offsets, wanted, rows, entries):
                return block
            active += 1
        if active == 0:
            return -1
        for lane in range(active):
            lanes[LEVEL, lane] = min(np.searchsorted(places, lanes[ROW, lane], side="right"), len(limits) - 1)
        _decode_columns(active, lanes, data, limits, bases, firsts, shares, values, centres, step, found)
        for lane in range(active):
            row, at_row = lanes[ROW, lane], lanes[AT, lane]
            if lanes[BYTE, lane] > lanes[STOP, lane]:
                return row // rows
            remember(row + 1, rows, offsets, lanes[BYTE, lane], lanes[STATE, lane], entries)
            if wanted[at_row] == row:
                lanes[AT, lane] += 1
                for j in range(found.shape[1]):
                    out[at_row, j] = found[lane, j] * factors[at_row]
        for lane in range(active - 1, -1, -1):
            if lanes[AT, lane] == lanes[END, lane]:
                active -= 1
                lanes[:, lane] = lanes[:, active]
            elif not _seek(lane, lanes, data, offsets, wanted, rows, entries):
                return lanes[ROW, lane] // rows
