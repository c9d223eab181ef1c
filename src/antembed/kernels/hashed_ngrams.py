"""Coordinate descent for a linear classifier of n-grams: an object's row is a small Newton problem over its documents.

    min over rows r_j :  Σ_i −Y_i·log softmax(s_i) + ½·Σ_j r_jᵀ·(ridge_j + noise·H_j)·r_j      s_i = scale_i·Σ_{j in i} r_j + b

Object j occurs in documents[starts[j]:starts[j + 1]], and counts there as often as `times` says. With all others fixed, the
loss in r_j is, to second order about its present value, −g·r + ½·rᵀ·H·r, and g (C) and H (C, C) are sums over its documents.
After each change the scores S and probabilities P of these documents are updated.

noise·H is the mean effect of dropout, to second order: if each object is kept in a document with probability q and scaled by
1/q, the scores are right on average, and the object's share of their variance is (1 − q)/q·scale²·r·rᵀ; half of that times the
curvature of the loss is the added loss, so noise = (1 − q)/q.
"""

from typing import Any

import numpy as np

from antembed.kernels.random_bits import compiled

MANY = 40  # classes, beyond which only the diagonals of the curvatures are used: all of them take C² for each occurrence
TINY = 1e-6  # added to the diagonal: a softmax is invariant to a common shift, so H alone is singular


@compiled
def accumulate(
    documents: Any, times: Any, first: int, stop: int, scales: Any, Y: Any, P: Any, r: Any, noise: float, g: Any, H: Any
) -> None:
    """g and (1 + noise)·H of an object whose row is r, without ridge; g is taken at r = 0."""
    C = len(r)
    g[:] = 0
    if C > MANY:
        for a in range(C):
            H[a, a] = TINY
        for position in range(first, stop):
            i = documents[position]
            scale = times[position] * scales[i]
            for a in range(C):
                g[a] += scale * (Y[i, a] - P[i, a])
                # Without − p·pᵀ, and no less than ¼ for a document's own class, whose p rises a long way from 1/C.
                H[a, a] += scale * scale * max(P[i, a], 0.25 * Y[i, a])
        for a in range(C):
            g[a] += H[a, a] * r[a]
            H[a, a] *= 1.0 + noise
        return
    H[:] = 0
    for position in range(first, stop):
        i = documents[position]
        scale = times[position] * scales[i]
        square = scale * scale
        for a in range(C):
            p = P[i, a]
            g[a] += scale * (Y[i, a] - p)
            H[a, a] += square * p
            for c in range(a + 1):
                H[a, c] -= square * p * P[i, c]
    for a in range(C):
        H[a, a] += TINY
        for c in range(a):
            H[c, a] = H[a, c]
    for a in range(C):
        for c in range(C):
            g[a] += H[a, c] * r[c]
    H *= 1.0 + noise


@compiled
def update_scores(documents: Any, times: Any, first: int, stop: int, scales: Any, change: Any, S: Any, P: Any) -> None:
    """Scores and probabilities after an object's row has changed."""
    C = len(change)
    for position in range(first, stop):
        i = documents[position]
        most, total = -np.inf, 0.0
        for a in range(C):
            S[i, a] += times[position] * scales[i] * change[a]
            most = max(most, S[i, a])
        for a in range(C):
            P[i, a] = np.exp(S[i, a] - most)
            total += P[i, a]
        for a in range(C):
            P[i, a] /= total


@compiled
def solve(H: Any, g: Any) -> None:
    """Solve H·x = g; g becomes x, and H its Cholesky factor; with many classes by the diagonal alone. For a few classes this
    is faster than a call of LAPACK."""
    C = len(g)
    if C > MANY:
        for a in range(C):
            g[a] /= H[a, a]
        return
    for a in range(C):
        for c in range(a + 1):
            rest = H[a, c]
            for b in range(c):
                rest -= H[a, b] * H[c, b]
            H[a, c] = np.sqrt(rest) if a == c else rest / H[c, c]
        for b in range(a):
            g[a] -= H[a, b] * g[b]
        g[a] /= H[a, a]
    for a in range(C - 1, -1, -1):
        for b in range(a + 1, C):
            g[a] -= H[b, a] * g[b]
        g[a] /= H[a, a]


@compiled
def descend_dense(
    starts: Any, documents: Any, times: Any, scales: Any, Y: Any, ridge: Any, noise: float, order: Any, longest: float,
    R: Any, S: Any, P: Any,
) -> None:  # fmt: skip
    """One Newton step for each row of R (V, C), in this order. Steps are limited to `longest`, since H is valid only nearby."""
    C = R.shape[1]
    g, H = np.empty(C), np.empty((C, C))
    for j in order:
        accumulate(documents, times, starts[j], starts[j + 1], scales, Y, P, R[j], noise, g, H)
        for a in range(C):
            H[a, a] += ridge[j]
        solve(H, g)
        most = 0.0
        for a in range(C):
            g[a] -= R[j, a]
            most = max(most, abs(g[a]))
        for a in range(C):
            if most > longest:
                g[a] *= longest / most
            R[j, a] += g[a]
        update_scores(documents, times, starts[j], starts[j + 1], scales, g, S, P)


@compiled
def descend_codes(
    starts: Any, documents: Any, times: Any, scales: Any, Y: Any, ridge: Any, noise: float, order: Any, B: Any, values: Any,
    l0_penalty: float, frozen: bool, anchors: Any, levels: Any, gains: Any, R: Any, S: Any, P: Any,
) -> None:  # fmt: skip
    """The best row values[q]·B[k] for each object in this order, or none if it lowers the loss by no more than the penalty.

    anchors, levels: k and q, −1 for none. R holds the present rows (any values) and becomes the coded ones. gains: how much the
    best code lowers the loss, compared with none; 0 if not more than the penalty. With `frozen`, objects only change their
    code.
    """
    K, C = B.shape
    g, H, change = np.empty(C), np.empty((C, C)), np.empty(C)
    squares, slopes = (B * B).sum(axis=1), np.empty(K)
    needed = 0.0 if frozen else l0_penalty
    for j in order:
        accumulate(documents, times, starts[j], starts[j + 1], scales, Y, P, R[j], noise, g, H)
        best, anchor, level = needed, -1, -1
        likely = 0
        for k in range(K):
            slopes[k] = 0.0
            for a in range(C):
                slopes[k] += B[k, a] * g[a]
            if max(slopes[k], 0.0) ** 2 * squares[likely] > max(slopes[likely], 0.0) ** 2 * squares[k]:
                likely = k
        for position in range(-1, K):
            k = likely if position < 0 else position
            slope, curvature = slopes[k], ridge[j] * squares[k]
            # No value gains more than slope²/(2·curvature), and H only adds to the curvature: this excludes most anchors.
            if slope <= 0 or slope * slope <= 2 * best * curvature:
                continue
            for a in range(C):
                for c in range(a if C <= MANY else 0):
                    curvature += 2 * B[k, a] * H[a, c] * B[k, c]
                curvature += B[k, a] * H[a, a] * B[k, a]
            for q in range(len(values)):
                gain = values[q] * (slope - 0.5 * values[q] * curvature)
                if gain > best:
                    best, anchor, level = gain, k, q
        gains[j] = best if anchor >= 0 else 0.0
        if frozen and anchor < 0:
            continue
        anchors[j], levels[j] = anchor, level
        for a in range(C):
            row = B[anchor, a] * values[level] if anchor >= 0 else 0.0
            change[a] = row - R[j, a]
            R[j, a] = row
        if np.abs(change).max() > 0:
            update_scores(documents, times, starts[j], starts[j + 1], scales, change, S, P)


@compiled
def gather_codes(starts: Any, documents: Any, times: Any, anchors: Any, weights: Any, Z: Any, squares: Any) -> None:
    """Add the weights of each document's objects to Z (n, K), by anchor, and their squares to squares (n, K)."""
    for j in range(len(anchors)):
        k = anchors[j]
        if k >= 0:
            for position in range(starts[j], starts[j + 1]):
                i = documents[position]
                weight = times[position] * weights[j]
                Z[i, k] += weight
                squares[i, k] += weight * weight
