"""Rows of whole numbers as bytes and back: context by context, entropy-coded (rANS), in blocks of rows that stand alone.

A number's context is its column's class (how large its numbers are, in quarter octaves), moved by how large the row's numbers
have been so far beside what their columns promise. All of it is integer arithmetic: every machine finds the same contexts.
serving/coded.py describes the format and has the plain twin of the decoder.
"""

from typing import Any

import numpy as np

from antembed.kernels.compiled import compile_kernel

PRECISION = 14
TOTAL = 1 << PRECISION
LOW = 1 << 23  # the state stays within [LOW, 256·LOW)
CLASSES, LARGEST = 48, 15  # contexts; numbers from LARGEST on are escaped
UNIT, WEIGHT = 64, 4 * 64  # a number of 1, and how much is assumed of a row before its first number
SHIFTS = 6  # quarter octaves by which a row can be larger or smaller
THRESHOLDS = np.array([round(1024 * 2 ** ((k + 0.5) / 4)) for k in range(-SHIFTS, SHIFTS)], np.int64)
MOST = 64  # a single number counts at most so much
# Trellis-coded quantization: even states know the numbers 0, ±2, ±4, …, odd ones 0, ±1, ±3, …; a number's parity says which
# state comes next. So the grid is twice as fine as what a number costs.
MOVES = np.array([[0, 1], [3, 2], [5, 4], [6, 7], [1, 0], [2, 3], [4, 5], [7, 6]], np.int64)


@compile_kernel(nogil=True)
def context(column: int, seen: int, promised: int, thresholds: Any) -> int:
    """The context of the next number of a row: `seen` and `promised` are sums over the numbers before it."""
    ratio = (seen + WEIGHT) * 1024 // (promised + WEIGHT)
    moved = 0
    for k in range(len(thresholds)):
        if ratio >= thresholds[k]:
            moved += 1
    found = column + moved - SHIFTS
    if found < 0:
        return 0
    return CLASSES - 1 if found >= CLASSES else found


@compile_kernel(nogil=True)
def moved_class(column: int, shift: int) -> int:
    """The class of a column in a row that is so much larger, in quarter octaves."""
    return min(max(column + shift, 0), CLASSES - 1)


@compile_kernel(nogil=True)
def quantize_rows(
    X: Any, shifts: Any, classes: Any, promise: Any, bits: Any, centres: Any, rate: float, thresholds: Any, moves: Any, Q: Any,
    C: Any,
) -> None:  # fmt: skip
    """X (n, K) in steps → whole numbers Q and their contexts C: for each row, of all paths through the states (Viterbi), the
    one of least Σ (x − what the number stands for)² + rate·bits. `shifts` (n,): how much larger rows are known to be."""
    n, K = X.shape
    S = len(moves)
    cost, new_cost = np.empty(S), np.empty(S)
    seen, new_seen = np.empty(S, np.int64), np.empty(S, np.int64)
    came, number, where = np.empty((K, S), np.int8), np.empty((K, S), np.int32), np.empty((K, S), np.uint8)
    for i in range(n):
        for s in range(S):
            cost[s] = 1e30
        cost[0], seen[0], promised = 0.0, 0, 0
        for j in range(K):
            x, column = abs(X[i, j]), moved_class(classes[j], shifts[i])
            for s in range(S):
                new_cost[s] = 1e30
            for s in range(S):
                if cost[s] >= 1e30:
                    continue
                odd = s & 1
                c = context(column, seen[s], promised, thresholds) + odd * CLASSES
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
def _length(v: int) -> int:
    n = 0
    while v > 1:
        v >>= 1
        n += 1
    return n


@compile_kernel(nogil=True)
def encode_blocks(Q: Any, C: Any, shares: Any, firsts: Any, rows: int, out: Any, offsets: Any) -> int:
    """Q (n, K) with contexts C → bytes in `out`, blocks of `rows` rows; offsets (blocks + 1,). → how many bytes, or −1 if `out`
    is too small."""
    n, K = Q.shape
    largest = 0
    for i in range(n):
        for j in range(K):
            largest = max(largest, int(abs(np.int64(Q[i, j]))))
    symbols = 7 + _length(largest + 1)  # of a number at most: its symbol, a length of five bits, so many bits, its sign
    starts, sizes = np.empty(rows * K * symbols, np.int32), np.empty(rows * K * symbols, np.int32)
    piece = np.empty(rows * K * 8 + 64, np.uint8)  # 14 bits for the first symbol, one for each of the others
    end, half = 0, TOTAL >> 1
    for block in range((n + rows - 1) // rows):
        count = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            for j in range(K):
                q = Q[i, j]
                m, c = abs(q), C[i, j]
                symbol = min(m, LARGEST)
                starts[count], sizes[count] = firsts[c, symbol], shares[c, symbol]
                count += 1
                if m >= LARGEST:
                    v = m - LARGEST + 1
                    length = _length(v)
                    for b in range(5):
                        starts[count], sizes[count] = (length >> b & 1) * half, half
                        count += 1
                    for b in range(length):
                        starts[count], sizes[count] = (v >> b & 1) * half, half
                        count += 1
                if m:
                    starts[count], sizes[count] = (1 if q < 0 else 0) * half, half
                    count += 1
        state, written = LOW, 0
        for s in range(count - 1, -1, -1):
            share = sizes[s]
            while state >= ((LOW >> PRECISION) << 8) * share:
                piece[written] = state & 255
                written += 1
                state >>= 8
            state = (state // share << PRECISION) + state % share + starts[s]
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
