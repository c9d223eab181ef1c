"""Cross-entropy of a tied softmax over a sparse T: logits T·x + bias, their loss and all gradients, in one pass over blocks of
tokens. What is held is a block's logits, never tokens × V; what is computed is nnz(T) products a token, not V·d.

`F.cross_entropy(X @ T.T + bias, targets)` is the plain twin.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from antembed.kernels.compiled import compile_kernel
from antembed.kernels.threads import run_workers

LANES = 64  # tokens of a block: the columns of every array in it
LOG2E = np.float32(1.4426950408889634)
# 2^f on [0, 1), to 2e-7
P = tuple(np.float32(c) for c in (1.0, 0.6931471806, 0.2402265069, 0.0555041086, 0.0096181291, 0.0013333558, 0.000154035))
LOWEST = np.float32(-126.0)
f32 = np.float32


@compile_kernel(nogil=True, fastmath={"nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"})
def _exponentials(row: Any, largest: Any, total: Any, whole: Any, power: Any) -> None:
    """row ← exp(row − largest), total += row. `power` is the memory of `whole` (int32), read as float32."""
    for b in range(len(row)):
        y = (row[b] - largest[b]) * LOG2E
        y = max(y, LOWEST)
        n = np.floor(y)
        f = y - n
        whole[b] = (np.int32(n) + np.int32(127)) << np.int32(23)
        row[b] = P[0] + f * (P[1] + f * (P[2] + f * (P[3] + f * (P[4] + f * (P[5] + f * P[6])))))
    for b in range(len(row)):
        row[b] *= power[b]
        total[b] += row[b]


@compile_kernel(nogil=True, fastmath={"nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"})
def cross_entropy_block(
    x: Any, starts: Any, columns: Any, values: Any, bias: Any, targets: Any, scores: Any, dx: Any, dvalues: Any, dbias: Any
) -> float:
    """x (K, LANES): states of the block's tokens in anchor space; targets (n ≤ LANES,). → the sum of losses; gradients of that
    sum: dx is written, dvalues and dbias are added to. scores (V, LANES) is scratch."""
    K, B = x.shape
    V, n = len(starts) - 1, len(targets)
    largest, total = np.full(B, f32(-3e38)), np.zeros(B, np.float32)
    whole = np.zeros(B, np.int32)
    power = whole.view(np.float32)
    for v in range(V):
        row = scores[v]
        for b in range(B):
            row[b] = bias[v]
        for p in range(starts[v], starts[v + 1]):
            t, source = values[p], x[columns[p]]
            for b in range(B):
                row[b] += t * source[b]
        for b in range(B):
            largest[b] = max(largest[b], row[b])
    loss = 0.0
    for b in range(n):
        loss += largest[b] - scores[targets[b], b]
    for v in range(V):
        _exponentials(scores[v], largest, total, whole, power)
    for b in range(n):
        loss += np.log(total[b])
    for b in range(B):
        total[b] = f32(1) / total[b] if b < n else f32(0)
    for k in range(K):
        for b in range(B):
            dx[k, b] = 0
    for v in range(V):
        row = scores[v]
        for b in range(B):
            row[b] *= total[b]
        for b in range(n):
            if targets[b] == v:
                row[b] -= f32(1)
        whole_row = f32(0)
        for b in range(B):
            whole_row += row[b]
        dbias[v] += whole_row
        for p in range(starts[v], starts[v + 1]):
            k = columns[p]
            t, source, out, dot = values[p], x[k], dx[k], f32(0)
            for b in range(B):
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
    states, gradients = np.zeros((K, LANES), np.float32), np.empty((K, LANES), np.float32)
    loss = 0.0
    for start in range(first, last, LANES):
        n = min(LANES, last - start)
        for b in range(n):
            for k in range(K):
                states[k, b] = x[start + b, k]
        for b in range(n, LANES):
            for k in range(K):
                states[k, b] = 0
        loss += cross_entropy_block(
            states, starts, columns, values, bias, targets[start : start + n], scores, gradients, dvalues, dbias
        )
        for b in range(n):
            for k in range(K):
                dx[start + b, k] = gradients[k, b]
    return loss


@compile_kernel(nogil=True)
def _scores(x: Any, starts: Any, columns: Any, values: Any, bias: Any, first: int, last: int, out: Any) -> None:
    """out[first:last] of (n, V): logits, blocks of tokens by blocks of rows."""
    V, K = len(starts) - 1, x.shape[1]
    states = np.zeros((K, LANES), np.float32)
    rows = 256
    block = np.empty((rows, LANES), np.float32)
    for start in range(first, last, LANES):
        n = min(LANES, last - start)
        for b in range(n):
            for k in range(K):
                states[k, b] = x[start + b, k]
        for v0 in range(0, V, rows):
            m = min(rows, V - v0)
            for r in range(m):
                row = block[r]
                for b in range(LANES):
                    row[b] = bias[v0 + r]
                for p in range(starts[v0 + r], starts[v0 + r + 1]):
                    t, source = values[p], states[columns[p]]
                    for b in range(LANES):
                        row[b] += t * source[b]
            for b in range(n):
                for r in range(m):
                    out[start + b, v0 + r] = block[r, b]


def _shared(work: Callable[[int, int, int], object], n: int, threads: int) -> None:
    """work(first, last, part) over n tokens in whole blocks, by several threads."""
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


def sparse_logits(x: np.ndarray, T: Sparse, bias: np.ndarray, threads: int) -> np.ndarray:
    """x (n, K), T (V, K) → x·Tᵀ + bias: (n, V)."""
    out = np.empty((len(x), len(bias)), np.float32)
    _shared(lambda first, last, part: _scores(x, *T, bias, first, last, out), len(x), threads)
    return out
