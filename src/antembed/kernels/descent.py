"""Coordinate descent for matrix factorization, one side at a time: with the other side fixed, a row's problem is quadratic.

A rating is y ≈ z_u·[e_i, 1] with z_u = [t_u·A, b_u] of user u; e_i, the bias of i and the mean are fixed. The normal equations
of row u are S_u = Σ [e_i, 1]⊗[e_i, 1] and v_u = Σ y·[e_i, 1]:

    ½·Σ (y − z·[e_i, 1])²  +  ½·zᵀ·R_u·z  +  l0_penalty·‖t_u‖₀  +  bias_l0_penalty·‖b_u‖₀      R_u = ridge on e_u, and on b_u

One pass over the ratings computes them (S then includes R). After that, rows and anchors are minimised exactly, one weight, one
bias or one anchor at a time, any number of times: the objective never rises.
"""

from typing import Any

import numpy as np

from antembed.kernels.random_bits import compiled

TINY = 1e-9  # on every diagonal: rows with few or no ratings have a solution too


@compiled
def accumulate_normal_equations(
    starts: Any, others: Any, ratings: Any, weights: Any, E: Any, biases: Any, mean: float, ridges: Any, S_all: Any, v_all: Any,
    S: Any, v: Any, first: int, stop: int,
) -> None:  # fmt: skip
    """S + R and v of rows [first, stop). Row r's ratings are ratings[starts[r]:starts[r + 1]], of the objects `others`.

    ridges: on e, on e for each rating of the row, on the bias. S_all and v_all are common to all rows (unobserved pairs).
    """
    d = E.shape[1]
    total, side = np.empty((d + 1, d + 1)), np.empty(d + 1)
    for r in range(first, stop):
        total[:] = S_all
        side[:] = v_all
        for p in range(starts[r], starts[r + 1]):
            i, w = others[p], weights[p] if weights.shape[0] else 1.0
            y = ratings[p] - mean - biases[i]
            for a in range(d):
                e = w * E[i, a]
                side[a] += y * e
                for c in range(a + 1):
                    total[a, c] += e * E[i, c]
                total[d, a] += e
            side[d] += w * y
            total[d, d] += w
        for a in range(d):
            total[a, a] += TINY + ridges[0] + ridges[1] * (starts[r + 1] - starts[r])
        total[d, d] += TINY + ridges[2]
        for a in range(d + 1):
            v[r, a] = side[a]
            for c in range(a + 1):
                S[r, a, c] = S[r, c, a] = total[a, c]


@compiled
def hard_threshold(best: float, curvature: float, l0_penalty: float) -> float:
    """The minimum `best` of a parabola, or 0 if it lowers the parabola by no more than the penalty."""
    return best if 0.5 * curvature * best * best > l0_penalty else 0.0


@compiled
def descend_rows(
    T: Any,
    bias: Any,
    A: Any,
    S: Any,
    v: Any,
    l0_penalty: float,
    bias_l0_penalty: float,
    frozen: bool,
    passes: int,
    first: int,
    stop: int,
) -> None:
    """Minimise over the weights and biases of rows [first, stop), a coordinate at a time, until nothing changes.

    A weight's best value is max(0, −slope/curvature); it is kept only if it lowers the rest by more than the penalty. With
    `frozen`, zeros stay zero.
    """
    K, d = A.shape
    H, AS, c, side = np.empty((K, K)), np.empty((K, d)), np.empty(K), np.empty(K)
    for r in range(first, stop):
        for k in range(K):
            for a in range(d):
                total = 0.0
                for e in range(d):
                    total += A[k, e] * S[r, e, a]
                AS[k, a] = total
            c[k] = side[k] = 0.0
            for a in range(d):
                c[k] += A[k, a] * v[r, a]
                side[k] += A[k, a] * S[r, a, d]
        for k in range(K):
            for j in range(k + 1):
                total = 0.0
                for a in range(d):
                    total += AS[k, a] * A[j, a]
                H[k, j] = H[j, k] = total
        for _ in range(passes):
            moved = False
            left = v[r, d]
            for k in range(K):
                left -= side[k] * T[r, k]
            if not (frozen and bias[r] == 0.0):
                bias[r] = hard_threshold(left / S[r, d, d], S[r, d, d], bias_l0_penalty)
            for k in range(K):
                if frozen and T[r, k] == 0.0:
                    continue
                if H[k, k] <= 1e-12:
                    T[r, k] = 0.0  # a zero anchor
                    continue
                slope = c[k] - side[k] * bias[r]
                for j in range(K):
                    slope -= H[k, j] * T[r, j]
                best = hard_threshold(max(T[r, k] + slope / H[k, k], 0.0), H[k, k], l0_penalty)
                if abs(best - T[r, k]) > 1e-7 * (abs(best) + 1e-3):
                    moved = True
                T[r, k] = best
            if not moved:
                break
        left = v[r, d]
        for k in range(K):
            left -= side[k] * T[r, k]
        if not (frozen and bias[r] == 0.0):
            bias[r] = hard_threshold(left / S[r, d, d], S[r, d, d], bias_l0_penalty)


@compiled
def anchor_system(T: Any, E: Any, bias: Any, k: int, S: Any, v: Any, H: Any, g: Any) -> None:
    """The quadratic in anchor k, all else fixed: curvature H (d, d) and descent direction g (d)."""
    d = E.shape[1]
    H[:] = 0
    g[:] = 0
    for r in range(T.shape[0]):
        t = T[r, k]
        if t == 0:
            continue
        for a in range(d):
            slope = v[r, a] - S[r, a, d] * bias[r]
            for e in range(d):
                slope -= S[r, a, e] * E[r, e]
                H[a, e] += t * t * S[r, a, e]
            g[a] += t * slope


@compiled
def solve_rows(E: Any, bias: Any, S: Any, v: Any, first: int, stop: int) -> None:
    """Dense rows: z = (S + R)⁻¹·v."""
    d = E.shape[1]
    for r in range(first, stop):
        z = np.linalg.solve(S[r], v[r])
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
                m[i] = v[r, index[i]]
                for j in range(n):
                    M[i, j] = S[r, index[i], index[j]]
            z = np.linalg.solve(M, m)
            dropped = False
            for i in range(n):
                a = index[i]
                if a < d:
                    E[r, a] = z[i]
                else:
                    bias[r] = z[i]
                if turn == 0 and 0.5 * S[r, a, a] * z[i] * z[i] <= (l0_penalty if a < d else bias_l0_penalty):
                    used[a], dropped = False, True
                    if a < d:
                        E[r, a] = 0.0
                    else:
                        bias[r] = 0.0
            if not dropped:
                break
