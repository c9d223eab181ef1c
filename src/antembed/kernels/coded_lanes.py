"""A column of entropy-coded rows, number by number, without branches that depend on the numbers; where there is AVX-512,
kernels/coded_column.py does it in registers. serving/coded.py describes the format."""

from typing import Any

import numpy as np

from antembed.kernels.coded import CLASSES, LARGEST, LOW, MOST, MOVES, PRECISION, TOTAL
from antembed.kernels.compiled import compile_kernel
from antembed.kernels.entries import next_bytes
from antembed.kernels.vector import LIMITS, address, bit_length, count_reached
from antembed.kernels.whole import AVX512, WIDE

compiled: Any = compile_kernel(nogil=True, error_model="numpy")
LANES = 2 * WIDE if AVX512 else 8
HALF, LEAST = PRECISION - 1, LOW.bit_length() - 1  # bits
# Of each lane: its row, the wanted rows [AT, END) that it is to decode, the next byte, the end of the block, what the decoder
# knows, and whether it takes part: lanes of another level, or too far away in the file, wait.
ROW, AT, END, BYTE, STOP, STATE, LEVEL, TRELLIS, SEEN, GOES, FIELDS = range(11)
NEXT = sum(int(MOVES[s, b]) << 4 * (2 * s + b) for s in range(8) for b in range(2))
REACH = 1 << 30  # bytes
LINE = 64  # bytes of the memory that caches exchange


@compiled
def aligned(rows: int, width: int, kind: Any) -> Any:
    """(rows, width) numbers of four bytes, not filled, at the beginning of a cache line: else every other register would lie
    on two lines."""
    memory = np.empty(rows * width + LINE // 4, kind)
    start = -address(memory, 0) % LINE // 4
    return memory[start : start + rows * width].reshape(rows, width)


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
def columns_by_number(active: int, level: int, lanes: Any, data: Any, tables: Any, factors: Any, found: Any) -> None:
    """One row of each lane that takes part, times its factor → found (K or more, LANES). Behind its end a block has other
    numbers: the caller looks whether it was read that far."""
    limits, bases, firsts, shares, values, centres, step, _ = tables
    K = limits.shape[1]
    for lane in range(active):
        lanes[TRELLIS, lane], lanes[SEEN, lane] = 0, 0
    for j in range(K):
        for n in range(active):
            at: Any = np.uint64(n)  # unsigned, or each use asks whether it is below 0
            if lanes[GOES, at] == 0:
                continue
            trellis, state, byte = lanes[TRELLIS, at], lanes[STATE, at], lanes[BYTE, at]
            column = level * K + j
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
                value = (np.float32(2 * m - odd) - centres[context, 3]) * step * np.float32(1 - 2 * (more >> length))
            else:
                some = np.int64(m > 0)
                negative = state >> HALF & some
                state = (state >> PRECISION) << PRECISION - some | state & (1 << PRECISION - some) - 1
                need = np.int64(state < LOW)
                state = state << 8 * need | coming >> 24 - 8 * (byte - lanes[BYTE, at]) & 255 & -need
                byte += need
                value = values[symbol] * np.float32(1 - 2 * negative)
            found[np.uint64(j), at] = value * factors[at]
            lanes[STATE, at], lanes[BYTE, at] = state, byte
            lanes[TRELLIS, at] = NEXT >> 4 * (2 * trellis + (m & 1)) & 7
            lanes[SEEN, at] += min(m, MOST)
