"""Cross-entropy of a tied softmax over a sparse T: logits T·x + bias, their loss and all gradients, in one pass over blocks of
tokens. What is held is a block's logits, never tokens × V; what is computed is nnz(T) products a token, not V·d.

`F.cross_entropy(X @ T.T + bias, targets)` is the plain twin.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel
from antembed.native.threads import run_workers
from antembed.native.vector import VECTOR
from antembed.tables.sparse_product_kernel import WIDE, mix

LANES = WIDE * VECTOR  # tokens of a block, the columns of every array in it: their sums stay in registers
ROWS = 256  # of T at a time: their scores stay in the cache
LEAST = np.float32(-3e38)
LOG2E = np.float32(1.4426950408889634)
# 2^f on [0, 1), to 2e-7
P = tuple(np.float32(c) for c in (1.0, 0.6931471806, 0.2402265069, 0.0555041086, 0.0096181291, 0.0013333558, 0.000154035))
LOWEST = np.float32(-126.0)
f32 = np.float32


FAST = {"nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"}


@compile_kernel(nogil=True, fastmath=FAST)
def _raise(largest: Any, row: Any) -> None:
    """largest ← max(largest, row)."""
    for b in range(LANES):
        largest[b] = max(largest[b], row[b])


@compile_kernel(nogil=True, fastmath=FAST)
def _exponentials(row: Any, largest: Any, total: Any, exponents: Any, power: Any) -> None:
    """row ← exp(row − largest), total += row. `power` is the memory of `exponents` (int32), read as float32."""
    for b in range(len(row)):
        y = (row[b] - largest[b]) * LOG2E
        y = max(y, LOWEST)
        n = np.floor(y)
        f = y - n
        exponents[b] = (np.int32(n) + np.int32(127)) << np.int32(23)
        row[b] = P[0] + f * (P[1] + f * (P[2] + f * (P[3] + f * (P[4] + f * (P[5] + f * P[6])))))
    for b in range(len(row)):
        row[b] *= power[b]
        total[b] += row[b]


@compile_kernel(nogil=True)
def _score(
    v: int, x: Any, starts: Any, columns: Any, values: Any, bias: Any, index: Any, weights: Any, out: Any, r: int
) -> None:
    """out[r] = T[v]·x + bias[v]; the last row of x (K + 1, LANES) is 1. index and weights (K + 1,) are scratch."""
    first, n = starts[v], starts[v + 1] - starts[v]
    for p in range(n):
        index[p], weights[p] = columns[first + p], values[first + p]
    index[n], weights[n] = len(x) - 1, bias[v]
    mix(0, n + 1, index, weights, x, out, r, False)


@compile_kernel(nogil=True)
def _states(x: Any, first: int, n: int, out: Any) -> None:
    """The tokens first … first + n − 1 of x (tokens, K) as columns of out (K + 1, LANES); others are 0, the last row is 1."""
    for b in range(LANES):
        for k in range(x.shape[1]):
            out[k, b] = x[first + b, k] if b < n else f32(0)
        out[x.shape[1], b] = 1


@compile_kernel(nogil=True, fastmath=FAST)
def cross_entropy_block(
    x: Any, starts: Any, columns: Any, values: Any, bias: Any, targets: Any, scores: Any, dx: Any, dvalues: Any, dbias: Any
) -> float:
    """x (K + 1, LANES): states of the block's tokens in anchor space; targets (n ≤ LANES,). → the sum of losses; gradients of
    that sum: dx is written, dvalues and dbias are added to. scores (V, LANES) is scratch."""
    K, V, n = len(x) - 1, len(starts) - 1, len(targets)
    largest, total = np.full(LANES, LEAST), np.zeros(LANES, np.float32)
    exponents = np.zeros(LANES, np.int32)
    power = exponents.view(np.float32)
    index, weights = np.empty(K + 1, np.int64), np.empty(K + 1, np.float32)
    for v in range(V):
        _score(v, x, starts, columns, values, bias, index, weights, scores, v)
        _raise(largest, scores[v])
    loss = 0.0
    for b in range(n):
        loss += largest[b] - scores[targets[b], b]
    for v in range(V):
        _exponentials(scores[v], largest, total, exponents, power)
    for b in range(n):
        loss += np.log(total[b])
    for b in range(LANES):
        total[b] = f32(1) / total[b] if b < n else f32(0)
    for v in range(V):
        row = scores[v]
        for b in range(LANES):
            row[b] *= total[b]
    for b in range(n):
        scores[targets[b], b] -= f32(1)
    dx[:] = 0
    for v in range(V):
        row, row_sum = scores[v], f32(0)
        for b in range(LANES):
            row_sum += row[b]
        dbias[v] += row_sum
        for p in range(starts[v], starts[v + 1]):
            k = columns[p]
            t, source, out, dot = values[p], x[k], dx[k], f32(0)
            for b in range(LANES):
                out[b] += t * row[b]
                dot += row[b] * source[b]
            dvalues[p] += dot
    return loss


@compile_kernel(nogil=True)
def _tokens(
    x: Any,
    starts: Any,
    columns: Any,
    values: Any,
    bias: Any,
    targets: Any,
    first: int,
    last: int,
    dx: Any,
    dvalues: Any,
    dbias: Any,
) -> float:
    """The tokens first … last − 1, a block at a time."""
    K = x.shape[1]
    scores = np.empty((len(starts) - 1, LANES), np.float32)
    states, gradients = np.empty((K + 1, LANES), np.float32), np.empty((K, LANES), np.float32)
    loss = 0.0
    for start in range(first, last, LANES):
        n = min(LANES, last - start)
        _states(x, start, n, states)
        loss += cross_entropy_block(
            states, starts, columns, values, bias, targets[start : start + n], scores, gradients, dvalues, dbias
        )
        for b in range(n):
            for k in range(K):
                dx[start + b, k] = gradients[k, b]
    return loss


@compile_kernel(nogil=True)
def _log_totals(x: Any, starts: Any, columns: Any, values: Any, bias: Any, first: int, last: int, out: Any) -> None:
    """out[first:last] of (n,): log Σ_v exp(logit), blocks of tokens by blocks of rows; the sum of blocks is of doubles."""
    V, K = len(starts) - 1, x.shape[1]
    states, block = np.empty((K + 1, LANES), np.float32), np.empty((ROWS, LANES), np.float32)
    index, weights = np.empty(K + 1, np.int64), np.empty(K + 1, np.float32)
    largest, some, total = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES)
    exponents = np.zeros(LANES, np.int32)
    power = exponents.view(np.float32)
    for start in range(first, last, LANES):
        n = min(LANES, last - start)
        _states(x, start, n, states)
        largest[:], total[:] = LEAST, 0
        for v0 in range(0, V, ROWS):
            m = min(ROWS, V - v0)
            for b in range(LANES):
                some[b] = largest[b]
            for r in range(m):
                _score(v0 + r, states, starts, columns, values, bias, index, weights, block, r)
                _raise(some, block[r])
            for b in range(LANES):
                if some[b] > largest[b]:
                    total[b] *= np.exp(np.float64(largest[b]) - np.float64(some[b]))
                    largest[b] = some[b]
                some[b] = 0
            for r in range(m):
                _exponentials(block[r], largest, some, exponents, power)
            for b in range(LANES):
                total[b] += some[b]
        for b in range(n):
            out[start + b] = largest[b] + np.log(total[b])


def _shared(work: Callable[[int, int, int], object], n: int, threads: int) -> None:
    """work(first, last, part) over n tokens in full blocks, by several threads."""
    blocks = -(-n // LANES)
    parts = max(min(threads, blocks), 1)
    cuts = [min(blocks * part // parts * LANES, n) for part in range(parts + 1)]
    run_workers(lambda part: work(cuts[part], cuts[part + 1], part), parts, lambda: None)


Sparse = tuple[np.ndarray, np.ndarray, np.ndarray]  # starts (V + 1,), columns (nnz,), values (nnz,): T by rows


def sparse_cross_entropy(
    x: np.ndarray, T: Sparse, bias: np.ndarray, targets: np.ndarray, threads: int
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """x (n, K), T (V, K), targets (n,) → the sum of the losses, and its gradients in x, T's values and the bias."""
    starts, columns, values = T
    dx = np.empty_like(x)
    dvalues, dbias = np.zeros((threads, len(values)), np.float32), np.zeros((threads, len(bias)), np.float32)

    losses = np.zeros(threads)

    def work(first: int, last: int, part: int) -> None:
        losses[part] = _tokens(x, starts, columns, values, bias, targets, first, last, dx, dvalues[part], dbias[part])

    _shared(work, len(x), threads)
    return float(losses.sum()), dx, dvalues.sum(0), dbias.sum(0)


def sparse_log_totals(x: np.ndarray, T: Sparse, bias: np.ndarray, threads: int) -> np.ndarray:
    """x (n, K), T (V, K) → log Σ_v exp(x·T[v] + bias[v]) of each token, (n,), in double precision. No scores are kept."""
    out = np.empty(len(x))
    _shared(lambda first, last, part: _log_totals(x, *T, bias, first, last, out), len(x), threads)
    return out
