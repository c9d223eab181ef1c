"""Entropy coding (rANS): what both entropy-coded encodings share, and `coded` rows as bytes (tables/entropy_rows.py).

A number's context is its column's class (how large its numbers are, in quarter octaves), moved by how large the row's numbers
have been so far beside what their columns promise. All of it is integer arithmetic: every machine finds the same contexts.
"""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel, compiled, features
from antembed.native.vector import LIMITS, address, bit_length, count_reached, four_bytes

AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq"} <= features()
WIDE = 16  # numbers in a register of AVX-512
LOW = 1 << 23  # the state stays within [LOW, 256·LOW)


@compiled
def encode_symbols(starts: Any, sizes: Any, count: int, precision: int, out: Any, end: int) -> int:
    """`count` symbols, each of which has sizes[s] of 2^precision slots from starts[s] on, as the bytes of a block behind
    out[:end]. → where they end, or −1 if `out` is too small."""
    state, begin = LOW, end
    for s in range(count - 1, -1, -1):
        share = np.int64(sizes[s])
        while state >= (LOW >> precision << 8) * share:
            if end + 5 > len(out):
                return -1
            out[end] = state & 255
            end += 1
            state >>= 8
        state = (state // share << precision) + state % share + starts[s]
    if end + 4 > len(out):
        return -1
    for b in range(4):
        out[end + b] = state >> 8 * b & 255
    end += 4
    for b in range((end - begin) // 2):  # the decoder reads forward
        out[begin + b], out[end - 1 - b] = out[end - 1 - b], out[begin + b]
    return end


# Rows of a block follow each other, so a row is found by decoding those before it: once. `entries` (V,) int64 remembers where
# rows begin, byte of the block · 2³² + state of the decoder; 0: not yet known. Look-ups fill it. Threads that write the same
# entry write the same number.


@compiled
def last_entry(row: int, rows: int, data: Any, offsets: Any, entries: Any) -> tuple[int, int, int, int]:
    """The last known entry up to a row: its row, next byte, end of the block, state. A block without bytes ends at −1."""
    first, begin, stop = row // rows * rows, offsets[row // rows], offsets[row // rows + 1]
    if begin < 0 or stop - begin < 4 or stop > len(data):
        return row, 0, -1, 0
    while row > first and entries[row] == 0:
        row -= 1
    if row > first:
        return row, begin + (entries[row] >> 32), stop, entries[row] & 0xFFFFFFFF
    return row, begin + 4, stop, four_bytes(data, begin)


@compiled
def remember(row: int, rows: int, offsets: Any, byte: int, state: int, entries: Any) -> None:
    """Where this row begins; the first of a block needs no entry."""
    if row < len(entries) and row % rows:
        entries[row] = byte - offsets[row // rows] << 32 | state


@compiled
def next_bytes(data: Any, byte: int) -> int:
    """Four bytes from this one on as a number, most significant first; behind the data they are 0."""
    held = min(byte, len(data) - 4)
    return four_bytes(data, held) << 8 * min(byte - held, 4) & 0xFFFFFFFF


PRECISION = 14  # bits of a symbol's share
TOTAL = 1 << PRECISION
CLASSES, LARGEST = 48, 15  # contexts; numbers from LARGEST on are escaped
UNIT, WEIGHT = 64, 4 * 64  # a number of 1, and how much is assumed of a row before its first number
SHIFTS = 6  # quarter octaves by which a row can be larger or smaller
THRESHOLDS = np.array([round(1024 * 2 ** ((k + 0.5) / 4)) for k in range(-SHIFTS, SHIFTS)], np.int64)
MOST = 64  # a single number counts at most so much
# Trellis-coded quantization: even states know the numbers 0, ±2, ±4, …, odd ones 0, ±1, ±3, …; a number's parity says which
# state comes next. So the grid is twice as fine as what a number costs.
MOVES = np.array([[0, 1], [3, 2], [5, 4], [6, 7], [1, 0], [2, 3], [4, 5], [7, 6]], np.int64)


@compile_kernel(nogil=True)
def moved_class(column: int, shift: int) -> int:
    """The class of a column in a row that is so much larger, in quarter octaves."""
    return min(max(column + shift, 0), CLASSES - 1)


@compile_kernel(nogil=True)
def quantize_rows(
    X: Any, shifts: Any, classes: Any, promise: Any, bits: Any, centres: Any, rate: float, thresholds: Any, moves: Any, Q: Any,
    C: Any,
) -> None:  # fmt: skip
    """X (n, K) in steps → integers Q and their contexts C: for each row, of all paths through the states (Viterbi), the
    one of least Σ (x − what the number stands for)² + rate·bits. `shifts` (n,): how much larger rows are known to be."""
    n, K = X.shape
    S = len(moves)
    cost, new_cost = np.empty(S), np.empty(S)
    seen, new_seen = np.empty(S, np.int64), np.empty(S, np.int64)
    came, number, where = np.empty((K, S), np.int8), np.empty((K, S), np.int32), np.empty((K, S), np.uint8)
    reached = np.empty(len(thresholds), np.int64)
    for i in range(n):
        for s in range(S):
            cost[s] = 1e30
        cost[0], seen[0], promised = 0.0, 0, 0
        for j in range(K):
            x, column = abs(X[i, j]), moved_class(classes[j], shifts[i])
            for s in range(S):
                new_cost[s] = 1e30
            for k in range(len(thresholds)):
                reached[k] = thresholds[k] * (promised + WEIGHT)
            for s in range(S):
                if cost[s] >= 1e30:
                    continue
                odd, moved = s & 1, -SHIFTS  # the class is moved by how large the row's numbers are beside what is promised
                for k in range(len(thresholds)):
                    moved += int((seen[s] + WEIGHT) * 1024 >= reached[k])
                c = moved_class(column, moved) + odd * CLASSES
                low = int((x + odd) / 2)
                for k in range(3):
                    m = 0 if k == 2 else low + k
                    if k == 2 and low <= 0:
                        continue
                    y = 0.0 if m == 0 else 2 * m - odd - centres[c, min(m, 3)]
                    found = cost[s] + (x - y) * (x - y) + rate * bits[c, min(m, LARGEST)]
                    if m >= LARGEST:
                        found += rate * (5 + np.log2(m - LARGEST + 1.0))
                    to = moves[s, m & 1]
                    if found < new_cost[to]:
                        new_cost[to], new_seen[to] = found, seen[s] + min(m, MOST) * UNIT
                        came[j, to], number[j, to], where[j, to] = s, m, c
            for s in range(S):
                cost[s], seen[s] = new_cost[s], new_seen[s]
            promised += promise[column]
        s = 0
        for other in range(1, S):
            if cost[other] < cost[s]:
                s = other
        for j in range(K - 1, -1, -1):
            Q[i, j] = number[j, s] if X[i, j] >= 0 else -number[j, s]
            C[i, j] = where[j, s]
            s = came[j, s]


@compile_kernel(nogil=True)
def encode_blocks(Q: Any, C: Any, shares: Any, firsts: Any, rows: int, out: Any, offsets: Any) -> int:
    """Q (n, K) with contexts C → bytes in `out`, blocks of `rows` rows; offsets (blocks + 1,). → how many bytes, or −1 if `out`
    is too small."""
    n, K = Q.shape
    largest = 0
    for i in range(n):
        for j in range(K):
            largest = max(largest, int(abs(np.int64(Q[i, j]))))
    symbols = 7 + bit_length(largest + 1)  # of a number at most: its symbol, a length of five bits, so many bits, its sign
    starts, sizes = np.empty(rows * K * symbols, np.int32), np.empty(rows * K * symbols, np.int32)
    end, half = 0, TOTAL >> 1
    for block in range((n + rows - 1) // rows):
        count = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            for j in range(K):
                q, c = np.int64(Q[i, j]), C[i, j]
                m, bits, length = abs(q), 0, 0
                symbol = min(m, LARGEST)
                starts[count], sizes[count] = firsts[c, symbol], shares[c, symbol]
                count += 1
                if m >= LARGEST:
                    v = m - LARGEST + 1
                    more = bit_length(v) - 1
                    bits, length = more | (v & (1 << more) - 1) << 5, 5 + more
                if m:
                    bits, length = bits | int(q < 0) << length, length + 1
                for b in range(length):
                    starts[count], sizes[count] = (bits >> b & 1) * half, half
                    count += 1
        end = encode_symbols(starts, sizes, count, PRECISION, out, end)
        if end < 0:
            return -1
        offsets[block + 1] = end
    return end


# A column of entropy-coded rows, number by number, without branches that depend on the numbers; where there is AVX-512,
# tables/entropy_avx512_kernel.py does it in registers.

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
