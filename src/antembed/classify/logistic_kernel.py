"""Logistic regression: the loss and its gradient in one pass over the rows, on all cores.

    loss = Σ_i −log softmax(Z_i·B + bias)[labels_i]        d loss/dB = Zᵀ·(P − Y)        d loss/dbias = Σ_i (P_i − Y_i)

Rows are in PIECES pieces, each summed alone, and pieces are added in their order: the same numbers for any number of threads.
"""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel
from antembed.native.random_bits import compiled
from antembed.native.threads import take_turns

PIECES = 32
compile_sums: Any = compile_kernel(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})  # dot in vectors


@compile_sums
def _dot(one: Any, other: Any) -> float:
    total = 0.0
    for k in range(len(one)):
        total += one[k] * other[k]
    return total


@compiled
def probabilities_of(s: Any) -> Any:
    """s ← softmax(s), and the logarithm of Σ exp(s) before."""
    most, total = s[0], 0.0
    for a in range(1, len(s)):
        most = max(most, s[a])
    for a in range(len(s)):
        s[a] = np.exp(s[a] - most)
        total += s[a]
    for a in range(len(s)):
        s[a] /= total
    return most + np.log(total)


@compiled
def _sum_rows(Z: Any, labels: Any, columns: Any, bias: Any, first: int, stop: int, gradient: Any, slope: Any) -> float:
    """The loss of rows [first, stop); their gradients (C, K) and (C) are added. `columns` (C, K) is Bᵀ."""
    C, K = columns.shape
    s, z, loss = np.empty(C), np.empty(K), 0.0
    for i in range(first, stop):
        for k in range(K):
            z[k] = Z[i, k]
        for a in range(C):
            s[a] = bias[a] + _dot(z, columns[a])
        own = s[labels[i]]
        loss += probabilities_of(s) - own
        s[labels[i]] -= 1.0
        for a in range(C):
            slope[a] += s[a]
            for k in range(K):
                gradient[a, k] += s[a] * z[k]
    return loss


def logistic_loss(Z: Any, labels: Any, B: Any, bias: Any, threads: int = 1) -> tuple[float, Any, Any]:
    """The loss, and its gradients for B (K, C) and bias (C). Z (n, K), labels (n,) integers."""
    columns, bias = np.ascontiguousarray(B.T, np.float64), np.ascontiguousarray(bias, np.float64)
    losses, gradients, slopes = np.zeros(PIECES), np.zeros((PIECES, *columns.shape)), np.zeros((PIECES, len(bias)))
    cuts = [len(Z) * piece // PIECES for piece in range(PIECES + 1)]

    def work(piece: int) -> None:
        losses[piece] = _sum_rows(Z, labels, columns, bias, cuts[piece], cuts[piece + 1], gradients[piece], slopes[piece])

    take_turns(work, PIECES, threads)
    return float(losses.sum()), gradients.sum(0).T, slopes.sum(0)


@compiled
def _score_rows(Z: Any, columns: Any, bias: Any, first: int, stop: int, S: Any, P: Any) -> None:
    C, K = columns.shape
    z = np.empty(K)
    for i in range(first, stop):
        for k in range(K):
            z[k] = Z[i, k]
        for a in range(C):
            S[i, a] = bias[a] + _dot(z, columns[a])
            P[i, a] = S[i, a]
        probabilities_of(P[i])


def score_rows(Z: Any, B: Any, bias: Any, S: Any, P: Any, threads: int = 1) -> None:
    """S ← Z·B + bias, and P ← softmax(S)."""
    columns, cuts = np.ascontiguousarray(B.T, np.float64), [len(Z) * piece // PIECES for piece in range(PIECES + 1)]
    take_turns(lambda piece: _score_rows(Z, columns, bias, cuts[piece], cuts[piece + 1], S, P), PIECES, threads)
