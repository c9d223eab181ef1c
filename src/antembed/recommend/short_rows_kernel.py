"""Coordinate descent (recommend/descent_kernel.py) where most rows have fewer pairs than their vectors have dimensions.

The normal equations of a row are then never written out: they are those of all pairs, the same for every row, a ridge, and one
outer product for each pair of the row. With A·S·Aᵀ of the first two at hand, and what every object of the other side is to the
anchors, p_i = A·e_i (n, KP), a row's problem in its weights t is

    H = A·S_all·Aᵀ + ridge·A·Aᵀ + Σ w·p_i⊗p_i          slope = A·v_all + Σ y·p_i − H·t − b·(A·s_all + Σ w·p_i)

so a weight that moves costs K for each pair, and no row needs memory of its own.
"""

from typing import Any

import numpy as np

from antembed.native.random_bits import compiled
from antembed.native.vector import add_scaled, dot, elementwise, hard_threshold, prefetch, sqrt
from antembed.recommend.descent_kernel import AHEAD, TINY, _combine

CLOSE = 1e-5  # of a weight: a smaller change is rounding, in single precision
ROUNDING = 1e-4  # of a diagonal: what is left of it below that is too near the rounding of its terms to step by

_copy = elementwise(lambda x: (x,))
_limit = elementwise(lambda h, twice: (sqrt(h * twice),))
_sum = elementwise(lambda x, y, a: (x + a * y,))


@compiled
def longest(starts: Any, first: int, stop: int) -> int:
    """The most pairs that one of rows [first, stop) has."""
    most = 0
    for r in range(first, stop):
        most = max(most, starts[r + 1] - starts[r])
    return most


@compiled
def _look_ahead(others: Any, p: int, last: int, rows: Any) -> None:
    """Ask for the row of a pair to come."""
    if p + AHEAD < last:
        ahead = np.int64(others[p + AHEAD]) * rows.shape[1]
        for line in range(0, rows.shape[1], 64 // rows.itemsize):
            prefetch(rows, ahead + line)


@compiled
def _see_pairs(
    pairs: Any, seen: Any, biases: Any, mean: float, r: int, last: int, t: Any, X: Any, w: Any, y: Any, slope: Any, side: Any
) -> tuple[float, float]:
    """Add row r's pairs to slope and side, and copy what they are to the anchors to X (n, KP), their weights to w; → the sums
    of the weights and of w·(rating − mean − bias)."""
    starts, others, ratings, weights = pairs
    KP, total, pull, n = seen.shape[1], 0.0, 0.0, starts[r + 1] - starts[r]
    for m in range(n):
        p = starts[r] + m
        _look_ahead(others, p, last, seen)
        i = np.int64(others[p])
        _copy(KP, (seen,), (i * KP,), (X,), (m * KP,), ())
        w[m] = weights[p] if weights.shape[0] else np.float32(1.0)
        left = w[m] * (ratings[p] - mean - biases[i])
        total += w[m]
        pull += left
        y[m] = left - w[m] * dot(KP, t, 0, seen, i * KP)
    _combine(n, KP, X, 0, KP, y, 0, slope, 0)
    _combine(n, KP, X, 0, KP, w, 0, side, 0)
    return total, pull


@compiled
def _curvature(k: int, n: int, X: Any, w: Any, KP: int) -> float:
    """Σ w·p_k² over n pairs."""
    total = 0.0
    for m in range(n):
        total += w[m] * X[m * KP + k] * X[m * KP + k]
    return total


@compiled
def _curvatures(k: int, n: int, ridge: float, H_all: Any, gram: Any, X: Any, w: Any, y: Any, H: Any) -> None:
    """Row k of H, from what n pairs are to the anchors; y is room to work in."""
    KP = H_all.shape[1]
    _sum(KP, (H_all, gram), (k * KP, k * KP), (H,), (k * KP,), (ridge,))
    for m in range(n):
        y[m] = w[m] * X[m * KP + k]
    _combine(n, KP, X, 0, KP, y, 0, H, k * KP)


@compiled
def _solve(n: int, M: Any, x: Any) -> bool:
    """x = M⁻¹·x in place, of M (n, n) flat and symmetric the lower triangle; → whether M is positive.

    M = L·D·Lᵀ, one column after the other: L·D stays below the diagonal, L goes above it, and 1/D on it.
    """
    for j in range(n):
        whole, left = M[j * n + j], M[j * n + j]
        for m in range(j):
            left -= M[j * n + m] * M[m * n + j]
        if left <= ROUNDING * whole:
            return False
        M[j * n + j] = 1.0 / left
        for m in range(j):
            x[j] -= M[m * n + j] * x[m]
        for i in range(j + 1, n):
            below = M[i * n + j]
            for m in range(j):
                below -= M[i * n + m] * M[m * n + j]
            M[i * n + j], M[j * n + i] = below, below * M[j * n + j]
    for i in range(n - 1, -1, -1):
        x[i] *= M[i * n + i]
        for m in range(i + 1, n):
            x[i] -= M[i * n + m] * x[m]
    return True


@compiled
def _move_together(t: Any, b: float, slope: Any, side: Any, H: Any, curved: float, free: float, room: Any) -> float:
    """All weights that are not zero, and b if it is not, to their minimum at once, or so far towards it that none is below 0;
    slope follows. `free`: downhill in b. → the new b.
    """
    index, M, x = room
    KP, n, share = slope.shape[0], 0, 1.0
    for k in range(index.shape[0] - 1):
        if t[k] != 0.0:
            index[n] = k
            n += 1
    size = n + (1 if b != 0.0 else 0)
    for i in range(n):
        x[i] = slope[index[i]]
        for j in range(i + 1):
            M[i * size + j] = H[index[i] * KP + index[j]]
    if size > n:
        x[n], M[n * size + n] = free, curved
        for i in range(n):
            M[n * size + i] = side[index[i]]
    if not _solve(size, M, x):
        return b
    for i in range(n):
        if t[index[i]] + x[i] < 0.0:
            share = min(share, -t[index[i]] / x[i])
    for i in range(n):
        k = index[i]
        now = t[k]
        t[k] = now + share * x[i]
        if t[k] <= 1e-12 * now:  # it is the one that stops the others
            t[k] = 0.0
        add_scaled(KP, (H, slope), (k * KP, 0), (slope,), (0,), (now - t[k],))
    if size > n:
        add_scaled(KP, (side, slope), (0, 0), (slope,), (0,), (-share * x[n],))
        return b + share * x[n]
    return b


@compiled
def _open_row(
    pairs: Any, seen: Any, biases: Any, mean: float, common: Any, r: int, last: int, ridge: float, t: Any, b: float,
    slope: Any, side: Any, h: Any, X: Any, w: Any, y: Any,
) -> tuple[float, float]:  # fmt: skip
    """slope and side of row r, where it stands, and h, the diagonal of H but for its pairs; → s and v of its bias."""
    H_all, gram, H_diagonal, gram_diagonal, v_all, s_all, s_bias, v_bias = common
    K, KP = gram.shape
    slope[:], side[:] = v_all, s_all
    _sum(KP, (H_diagonal, gram_diagonal), (0, 0), (h,), (0,), (ridge,))
    for k in range(K):
        if t[k] != 0.0:
            add_scaled(KP, (H_all, slope), (k * KP, 0), (slope,), (0,), (-t[k],))
            add_scaled(KP, (gram, slope), (k * KP, 0), (slope,), (0,), (-t[k] * ridge,))
    total, pull = _see_pairs(pairs, seen, biases, mean, r, last, t, X, w, y, slope, side)
    add_scaled(KP, (side, slope), (0, 0), (slope,), (0,), (-b,))
    return s_bias + total, v_bias + pull


@compiled
def descend_short_rows(
    pairs: Any, seen: Any, biases: Any, mean: float, common: Any, T: Any, bias: Any, ridges: Any, l0_penalty: float,
    bias_l0_penalty: float, frozen: bool, passes: int, first: int, stop: int,
) -> None:  # fmt: skip
    """What kernels.descent.descend_rows does, for rows [first, stop); after each pass over the weights, those that are not zero
    move together. pairs: starts, others, ratings, weights. seen: A·e_i of the other side's objects (n, KP), whose biases are
    `biases`. common: A·S_all·Aᵀ and A·Aᵀ (K, KP), the diagonals of both, A·v_all and A·s_all (KP), s and v of the bias.
    ridges: on e, on e for each pair of the row, on the bias.
    """
    starts, H_all, gram = pairs[0], common[0], common[1]
    K, KP, most, last, number = gram.shape[0], seen.shape[1], longest(starts, first, stop), starts[stop], seen.dtype
    t, slope, side, h = np.zeros(KP, number), np.empty(KP, number), np.empty(KP, number), np.empty(KP, number)
    X, w, y, H = np.empty(most * KP, number), np.empty(most, number), np.empty(most, number), np.empty(K * KP, number)
    room, known = (np.empty(K + 1, np.int64), np.empty((K + 1) * (K + 1)), np.empty(K + 1)), np.empty(K, np.int8)
    least = np.empty(KP, number)  # slope at which a weight is worth its penalty
    for r in range(first, stop):
        n, b, ridge = starts[r + 1] - starts[r], bias[r], TINY + ridges[0] + ridges[1] * (starts[r + 1] - starts[r])
        for k in range(K):
            t[k], known[k] = T[r, k], 0
        curved, pull = _open_row(pairs, seen, biases, mean, common, r, last, ridge, t, b, slope, side, h, X, w, y)
        curved += TINY + ridges[2]
        _limit(KP, (h,), (0,), (least,), (0,), (l0_penalty + l0_penalty,))
        if frozen:
            least[:] = np.inf
        settled = False
        for step in range(passes + 1):
            if not (frozen and b == 0.0):
                best = hard_threshold((pull - dot(KP, side, 0, t, 0)) / curved, curved, bias_l0_penalty)
                if best != b:
                    add_scaled(KP, (side, slope), (0, 0), (slope,), (0,), (b - best,))
                    b = best
            if settled or step == passes:
                break
            settled = True
            for k in range(K):
                now, up = t[k], slope[k]
                if now == 0.0 and up <= least[k]:
                    continue
                if known[k] == 0:
                    known[k] = 1
                    h[k] += _curvature(k, n, X, w, KP)
                best = np.float32(0.0)
                if h[k] > 1e-12:  # else a zero anchor
                    best = hard_threshold(max(now + up / h[k], np.float32(0.0)), h[k], l0_penalty)
                if known[k] == 1 and (now != 0.0 or best != 0.0):
                    known[k] = 2
                    _curvatures(k, n, ridge, H_all, gram, X, w, y, H)
                if abs(best - now) > CLOSE * (abs(best) + 1e-3):
                    settled = False
                if best != now:
                    add_scaled(KP, (H, slope), (k * KP, 0), (slope,), (0,), (now - best,))
                    t[k] = best
            if not settled:
                free = pull - dot(KP, side, 0, t, 0) - curved * b
                b = _move_together(t, b, slope, side, H, curved, free, room)
        bias[r] = b
        for k in range(K):
            T[r, k] = t[k]


@compiled
def add_anchor_slopes(
    pairs: Any, E: Any, biases: Any, mean: float, T: Any, bias: Any, A: Any, errors: float, out: Any, first: int, stop: int
) -> None:
    """Add Σ t_k·w·(errors·(rating − mean − b − b_i) − e_i·(t·A))·e_i over the pairs of rows [first, stop) to out (K, P); E is
    (n, P): with errors = 1 the direction downhill in all anchors, with 0 minus the curvature times A."""
    starts, others, ratings, weights = pairs
    K, P, last = A.shape[0], A.shape[1], starts[stop]
    active, e, x = np.empty(K, np.int64), np.empty(P, E.dtype), np.empty(P, E.dtype)
    for r in range(first, stop):
        n, e[:], x[:] = 0, 0.0, 0.0
        for k in range(K):
            if T[r, k] != 0.0:
                active[n] = k
                n += 1
                add_scaled(P, (A, e), (k * P, 0), (e,), (0,), (T[r, k],))
        if n == 0:
            continue
        for p in range(starts[r], starts[r + 1]):
            _look_ahead(others, p, last, E)
            i, w = np.int64(others[p]), np.float64(weights[p]) if weights.shape[0] else 1.0
            c = w * (errors * (ratings[p] - mean - bias[r] - biases[i]) - dot(P, E, i * P, e, 0))
            add_scaled(P, (E, x), (i * P, 0), (x,), (0,), (c,))
        for j in range(n):
            k = active[j]
            add_scaled(P, (x, out), (0, k * P), (out,), (k * P,), (T[r, k],))


@compiled
def add_uses(starts: Any, T: Any, bias: Any, crowd: Any, counted: Any, sums: Any, first: int, stop: int) -> None:
    """Add over rows [first, stop): Σ t⊗t (K, K) and Σ n·t⊗t for n pairs, their lower triangles; Σ t and Σ b·t (2, K)."""
    K = T.shape[1]
    active = np.empty(K, np.int64)
    for r in range(first, stop):
        n, pairs = 0, np.float64(starts[r + 1] - starts[r])
        for k in range(K):
            if T[r, k] != 0.0:
                active[n] = k
                n += 1
        for i in range(n):
            k = active[i]
            t = T[r, k]
            sums[0, k] += t
            sums[1, k] += bias[r] * t
            for j in range(i + 1):
                both = t * T[r, active[j]]
                crowd[k, active[j]] += both
                counted[k, active[j]] += pairs * both


@compiled
def mix_rows(T: Any, A: Any, norms: Any, E: Any, first: int, stop: int) -> None:
    """T·norms and E = T·A of rows [first, stop), in place; A is (K, P), E (V, d)."""
    K, P, d = A.shape[0], A.shape[1], E.shape[1]
    e = np.empty(P)
    for r in range(first, stop):
        e[:] = 0.0
        for k in range(K):
            if T[r, k] != 0.0:
                T[r, k] *= norms[k]
                add_scaled(P, (A, e), (k * P, 0), (e,), (0,), (T[r, k],))
        for a in range(d):
            E[r, a] = e[a]
