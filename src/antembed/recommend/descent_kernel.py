"""Coordinate descent for matrix factorization, one factor at a time: with the other fixed, a row's problem is quadratic.

A rating is y ≈ z_u·[e_i, 1] with z_u = [t_u·A, b_u] of user u; e_i, the bias of i and the mean are fixed. The normal equations
of row u are S_u = Σ [e_i, 1]⊗[e_i, 1] and v_u = Σ y·[e_i, 1]:

    ½·Σ (y − z·[e_i, 1])²  +  ½·zᵀ·R_u·z  +  l0_penalty·‖t_u‖₀  +  bias_l0_penalty·‖b_u‖₀      R_u = ridge on e_u, and on b_u

A block of rows at a time has them in memory (S then includes R). Rows are minimised exactly, one weight or bias at a time, and
anchors from sums over the rows: the objective never rises.

Rows of numbers are padded with zeros to registers: P ≥ d of vectors, Q ≥ d + 1 of S (n, d + 1, Q), KP ≥ K of weights.
"""

from typing import Any

import numpy as np

from antembed.native.compile import compiled
from antembed.native.vector import VECTOR, add_gram, add_scaled, dot, elementwise, hard_threshold, padded, prefetch

TINY = 1e-9  # on every diagonal: rows with few or no ratings have a solution too
SINGULAR = 1e-14  # of a diagonal: what is left of it below that is rounding
CHUNK = 32  # ratings whose vectors are copied side by side
AHEAD = 8  # ratings whose vectors are on their way

_take = elementwise(lambda x, v, s, y, w: (x, w * x, v + y * x, s + w * x))
_add_four = elementwise(lambda a, b, c, d, y, i, j, k, m: (y + i * a + j * b + k * c + m * d,))
_scale = elementwise(lambda x, a: (a * x,))


def triangle(d: int) -> tuple[int, np.ndarray]:
    """How many numbers the lower triangle of (d, d) takes, rows padded, and where each number of the full matrix is: (d, d)."""
    starts = np.cumsum([0, *(padded(a + 1) for a in range(d))])
    row, column = np.indices((d, d))
    return int(starts[-1]), starts[np.maximum(row, column)] + np.minimum(row, column)


@compiled
def accumulate_normal_equations(
    starts: Any, others: Any, ratings: Any, weights: Any, E: Any, biases: Any, mean: float, ridges: Any, S_all: Any, v_all: Any,
    S: Any, v: Any, first: int, stop: int,
) -> None:  # fmt: skip
    """S + R and v of rows [first, stop), from S[0] and v[0] on. Row r's ratings are ratings[starts[r]:starts[r + 1]], of
    the objects `others`, whose vectors E are (n, P).

    ridges: on e, on e for each rating of the row, on the bias. S_all and v_all are common to all rows (unobserved pairs).
    """
    d, P = v.shape[1] - 1, E.shape[1]
    X, Y, gram = np.empty((CHUNK, P)), np.empty((CHUNK, P)), np.empty((P, P))
    linear, weight = np.empty(P), np.empty(P)
    last = starts[stop]
    for r in range(first, stop):
        gram[:], linear[:], weight[:] = 0.0, 0.0, 0.0
        all_weight = bias_linear = 0.0
        for start in range(starts[r], starts[r + 1], CHUNK):
            n = min(CHUNK, starts[r + 1] - start)
            for p in range(start, start + n):
                if p + AHEAD < last:
                    ahead = np.int64(others[p + AHEAD]) * P
                    for line in range(0, P, 8):
                        prefetch(E, ahead + line)
                i, w = np.int64(others[p]), np.float64(weights[p]) if weights.shape[0] else 1.0
                y, at_pair = w * (ratings[p] - mean - biases[i]), (p - start) * P
                all_weight += w
                bias_linear += y
                _take(P, (E, linear, weight), (i * P, 0, 0), (X, Y, linear, weight), (at_pair, at_pair, 0, 0), (y, w))
            add_gram(n, P, Y, X, gram)
        q, ridge = r - first, TINY + ridges[0] + ridges[1] * (starts[r + 1] - starts[r])
        for a in range(d):
            v[q, a] = v_all[a] + linear[a]
            S[q, d, a] = S[q, a, d] = S_all[d, a] + weight[a]
            for c in range(a + 1):
                S[q, a, c] = S[q, c, a] = S_all[a, c] + gram[a, c]
            S[q, a, a] += ridge
        v[q, d] = v_all[d] + bias_linear
        S[q, d, d] = S_all[d, d] + all_weight + TINY + ridges[2]


@compiled
def _combine(count: int, width: int, X: Any, X_at: int, stride: int, x: Any, x_at: int, out: Any, out_at: int) -> None:
    """out += Σ_a x_a·X_a over `count` rows of X, `width` numbers of each; x and out have one dimension."""
    four = count - count % 4
    for a in range(0, four, 4):
        at, b = X_at + a * stride, x_at + a
        positions = (at, at + stride, at + 2 * stride, at + 3 * stride, out_at)
        _add_four(width, (X, X, X, X, out), positions, (out,), (out_at,), (x[b], x[b + 1], x[b + 2], x[b + 3]))
    for a in range(four, count):
        add_scaled(width, (X, out), (X_at + a * stride, out_at), (out,), (out_at,), (x[x_at + a],))


@compiled
def _slope(t: Any, b: float, A: Any, S: Any, v: Any, q: int, z: Any, slope: Any, minus: Any) -> None:
    """z = t·A, and slope = v − S·[z, b] of e in the quadratic q of a block: downhill. Beyond d they mean nothing."""
    d, P, Q = v.shape[1] - 1, A.shape[1], S.shape[2]
    z[:] = 0.0
    for k in range(A.shape[0]):
        if t[k] != 0.0:
            add_scaled(P, (A, z), (k * P, 0), (z,), (0,), (t[k],))
    for a in range(P):
        slope[a], minus[a] = v[q, a] if a < d else 0.0, -z[a]
    at = q * (d + 1) * Q
    _combine(d, P, S, at, Q, minus, 0, slope, 0)
    add_scaled(P, (S, slope), (at + d * Q, 0), (slope,), (0,), (-b,))


@compiled
def descend_rows(
    T: Any, bias: Any, A: Any, transposed: Any, S: Any, v: Any, floors: Any, l0_penalty: float, bias_l0_penalty: float,
    frozen: bool, passes: int, first: int, stop: int,
) -> None:  # fmt: skip
    """Minimise over the weights and biases of rows [first, stop), a coordinate at a time, until nothing changes.

    A weight's best value is max(0, −slope/curvature); it is kept only if it lowers the rest by more than the penalty. With
    `frozen`, zeros stay zero. A is (K, P), `transposed` its transpose (P, KP), S and v are those rows', and the curvature of a
    vector of length 1 is at least floors[r].

    Slopes of all weights follow each change. What an anchor's weight does to the others is worked out when it first moves, and
    its curvature when it first might: most anchors are of no use to a row, and the bound says so.
    """
    K, P, KP, d, Q = A.shape[0], A.shape[1], transposed.shape[1], v.shape[1] - 1, S.shape[2]
    t, slope, coupled, known = np.zeros(KP), np.empty(KP), np.empty(KP), np.empty(K, np.int8)
    SA, H, h, least = np.empty(K * P), np.empty(K * KP), np.empty(K), np.empty(K)
    z, x, minus, total = np.empty(P), np.empty(P), np.empty(P), np.empty(P)
    flat = A.reshape(-1)
    for k in range(K):
        least[k] = 2.0 * l0_penalty * dot(P, A, k * P, A, k * P)
    for r in range(first, stop):
        q, b = r - first, bias[r]
        at = q * (d + 1) * Q
        for k in range(K):
            t[k], known[k] = T[r, k], 0
        _slope(t, b, A, S, v, q, z, x, minus)
        for a in range(P):
            total[a] = S[q, d, a] if a < d else 0.0
        slope[:], coupled[:] = 0.0, 0.0
        _combine(d, KP, transposed, 0, KP, x, 0, slope, 0)
        _combine(d, KP, transposed, 0, KP, total, 0, coupled, 0)
        held = dot(P, total, 0, z, 0)
        curved = S[q, d, d]
        settled = False
        for step in range(passes + 1):
            if not (frozen and b == 0.0):
                best = hard_threshold((v[q, d] - held) / curved, curved, bias_l0_penalty)
                if best != b:
                    add_scaled(KP, (coupled, slope), (0, 0), (slope,), (0,), (b - best,))
                    b = best
            if settled or step == passes:
                break
            settled = True
            for k in range(K):
                now, up = t[k], slope[k]
                if now == 0.0 and (frozen or up <= 0.0 or up * up <= floors[r] * least[k]):
                    continue
                if known[k] == 0:
                    known[k] = 1
                    SA[k * P : (k + 1) * P] = 0.0
                    _combine(d, P, S, at, Q, flat, k * P, SA, k * P)
                    h[k] = dot(P, A, k * P, SA, k * P)
                best = 0.0
                if h[k] > 1e-12:  # else a zero anchor
                    best = hard_threshold(max(now + up / h[k], 0.0), h[k], l0_penalty)
                if best == now:
                    continue
                if abs(best - now) > 1e-7 * (abs(best) + 1e-3):
                    settled = False
                if known[k] == 1:
                    known[k] = 2
                    H[k * KP : (k + 1) * KP] = 0.0
                    _combine(d, KP, transposed, 0, KP, SA, k * P, H, k * KP)
                add_scaled(KP, (H, slope), (k * KP, 0), (slope,), (0,), (now - best,))
                held += (best - now) * coupled[k]
                t[k] = best
        bias[r] = b
        for k in range(K):
            T[r, k] = t[k]


@compiled
def anchor_moments(T: Any, bias: Any, A: Any, S: Any, v: Any, M: Any, used: Any, g: Any, first: int, stop: int) -> None:
    """Add what rows [first, stop) say about all anchors: the curvature Σ t_k·t_j·S of each pair k ≥ j, M[k·(k+1)/2 + j], marked
    in `used` where it is not zero, and the direction downhill Σ t_k·(v − S·z), g (K, P). Of S only the lower triangle is kept,
    each row up to a full register (`triangle`).
    """
    K, P, d, Q, L = A.shape[0], A.shape[1], v.shape[1] - 1, S.shape[2], M.shape[1]
    active, t, packed = np.empty(K, np.int64), np.empty(K), np.empty(L)
    z, x, minus = np.empty(P), np.empty(P), np.empty(P)
    for r in range(first, stop):
        n = 0
        for k in range(K):
            t[k] = T[r, k]
            if t[k] != 0.0:
                active[n] = k
                n += 1
        if n == 0:
            continue
        q = r - first
        at, at_pair = q * (d + 1) * Q, 0
        for a in range(d):
            width = a + VECTOR - a % VECTOR
            _scale(width, (S,), (at + a * Q,), (packed,), (at_pair,), (1.0,))
            at_pair += width
        _slope(t, bias[r], A, S, v, q, z, x, minus)
        for i in range(n):
            k = active[i]
            add_scaled(P, (x, g), (0, k * P), (g,), (k * P,), (t[k],))
            for j in range(i + 1):
                pair = k * (k + 1) // 2 + active[j]
                used[pair] = True
                add_scaled(L, (packed, M), (0, pair * L), (M,), (pair * L,), (t[k] * t[active[j]],))


@compiled
def solve_rows(E: Any, bias: Any, S: Any, v: Any, first: int, stop: int) -> None:
    """Dense rows: z = (S + R)⁻¹·v, by Cholesky's factors UᵀU = S. A direction that is all rounding gets 0."""
    d, Q = E.shape[1], S.shape[2]
    U, z, y = np.empty((d + 1) * Q), np.empty(Q), np.empty(Q)
    inverse, known = np.empty(d + 1), np.empty(d + 1)
    for r in range(first, stop):
        q = r - first
        _scale((d + 1) * Q, (S,), (q * (d + 1) * Q,), (U,), (0,), (1.0,))
        z[:], y[:] = 0.0, 0.0
        for a in range(d + 1):  # y[: d + 1] = v[q] compiles slowly, with broadcasting and its error messages
            y[a] = v[q, a]
        for j in range(d + 1):
            left, line = U[j * Q + j], j - j % VECTOR
            inverse[j] = 1.0 / np.sqrt(left) if left > SINGULAR * S[q, j, j] else 0.0
            _scale(Q - line, (U,), (j * Q + line,), (U,), (j * Q + line,), (inverse[j],))
            known[j] = y[j] * inverse[j]
            add_scaled(Q - line, (U, y), (j * Q + line, line), (y,), (line,), (-known[j],))
            for i in range(j + 1, d + 1):
                line = i - i % VECTOR
                positions = (j * Q + line, i * Q + line)
                add_scaled(Q - line, (U, U), positions, (U,), (i * Q + line,), (-U[j * Q + i],))
        for j in range(d, -1, -1):
            line = j - j % VECTOR
            z[j] = (known[j] - dot(Q - line, U, j * Q + line, z, line)) * inverse[j]
        for a in range(d):
            E[r, a] = z[a]
        bias[r] = z[d]


@compiled
def solve_support(E: Any, bias: Any, S: Any, v: Any, l0_penalty: float, bias_l0_penalty: float, first: int, stop: int) -> None:
    """Dense rows whose zeros stay zero: solve for the others, drop what is not worth the penalty, solve again."""
    d = E.shape[1]
    index, used = np.empty(d + 1, np.int64), np.empty(d + 1, np.bool_)
    for r in range(first, stop):
        for a in range(d):
            used[a] = E[r, a] != 0.0
        used[d] = bias[r] != 0.0
        for turn in range(2):
            n = 0
            for a in range(d + 1):
                if used[a]:
                    index[n] = a
                    n += 1
            if n == 0:
                break
            M, m = np.empty((n, n)), np.empty(n)
            for i in range(n):
                m[i] = v[r - first, index[i]]
                for j in range(n):
                    M[i, j] = S[r - first, index[i], index[j]]
            z = np.linalg.solve(M, m)
            dropped = False
            for i in range(n):
                a = index[i]
                if a < d:
                    E[r, a] = z[i]
                else:
                    bias[r] = z[i]
                if turn == 0 and 0.5 * S[r - first, a, a] * z[i] * z[i] <= (l0_penalty if a < d else bias_l0_penalty):
                    used[a], dropped = False, True
                    if a < d:
                        E[r, a] = 0.0
                    else:
                        bias[r] = 0.0
            if not dropped:
                break


@compiled
def squared_error(
    starts: Any, others: Any, ratings: Any, weights: Any, E_own: Any, own_bias: Any, E: Any, bias: Any, mean: float,
    first: int, stop: int,
) -> float:  # fmt: skip
    """Σ weight·(rating − prediction)² over the ratings of rows [first, stop); E_own and E are (…, P)."""
    P, total = E.shape[1], 0.0
    for r in range(first, stop):
        known = mean + own_bias[r]
        for p in range(starts[r], starts[r + 1]):
            i, w = np.int64(others[p]), np.float64(weights[p]) if weights.shape[0] else 1.0
            error = ratings[p] - known - bias[i] - dot(P, E_own, r * P, E, i * P)
            total += w * error * error
    return total


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
            if p + AHEAD < last:
                for line in range(0, P, 64 // E.itemsize):
                    prefetch(E, np.int64(others[p + AHEAD]) * P + line)
            i, w = np.int64(others[p]), np.float64(weights[p]) if weights.shape[0] else 1.0
            c = w * (errors * (ratings[p] - mean - bias[r] - biases[i]) - dot(P, E, i * P, e, 0))
            add_scaled(P, (E, x), (i * P, 0), (x,), (0,), (c,))
        for j in range(n):
            k = active[j]
            add_scaled(P, (x, out), (0, k * P), (out,), (k * P,), (T[r, k],))
