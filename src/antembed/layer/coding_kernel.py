"""Rows of T found by coordinate descent, one weight at a time: for given vectors (ℓ1), or on a model of the loss (ℓ0)."""

from typing import Any

import numpy as np

from antembed.native.compile import compiled
from antembed.native.vector import add_scaled, hard_threshold

SETTLED = 1e-5  # a change below this share of a weight is none
FLAT = 1e-30  # curvature below which a row is never looked up


@compiled
def descend_codes(T: Any, target: Any, gram: Any, support: Any, sweeps: int, first: int, stop: int) -> None:
    """Non-negative least squares with ℓ1, rows [first, stop) of T (V, K): `sweeps` times each weight in turn to the minimum of
    ½·tᵀ·gram·t − target·t over t ≥ 0.

    target is (stop − first, KP), gram (K, KP), padded with zeros; target is used up. Only weights of `support` (V, K) move,
    unless it is empty.
    """
    K, KP = gram.shape
    for r in range(first, stop):
        q = (r - first) * KP
        for k in range(K):
            if T[r, k] != 0:
                add_scaled(KP, (gram, target), (k * KP, q), (target,), (q,), (-T[r, k],))
        for _ in range(sweeps):
            settled = True
            for k in range(K):
                now, slope = T[r, k], target[r - first, k]
                if (now == 0 and slope <= 0) or gram[k, k] <= 0 or (len(support) and not support[r, k]):
                    continue
                best = max(now + slope / gram[k, k], 0.0)
                if best != now:
                    settled = False
                    T[r, k] = best
                    add_scaled(KP, (gram, target), (k * KP, q), (target,), (q,), (now - best,))
            if settled:
                break


@compiled
def recode_rows(
    T: Any, G: Any, h: Any, ridge: Any, P: Any, Q: Any, penalty: Any, damp: float, floor: float, passes: int, out: Any,
    first: int, stop: int,
) -> None:  # fmt: skip
    """ℓ0 on a quadratic model of a loss: out[r] = the weights of rows [first, stop), all ≥ floor (0, or −inf for both signs).

    Row r has the gradient G_r, the curvature H_r = h_r·P + ridge_r·Q (P and Q common to all rows) and a damping that holds it
    near its present weights T_r. What is minimised, one weight at a time, until nothing changes, so that it never rises:

        G_r·(t − T_r)  +  ½·(t − T_r)ᵀ·H_r·(t − T_r)  +  ½·damp·Σ_k H_r,kk·(t_k − T_r,k)²  +  Σ_k penalty_k·[t_k ≠ 0]

    A row with no curvature at all becomes zero.
    """
    K = T.shape[1]
    slope = np.empty(K)
    for r in range(first, stop):
        for k in range(K):
            slope[k] = G[r, k]
            out[r, k] = T[r, k]
        for _ in range(passes):
            moved = False
            for k in range(K):
                curvature = h[r] * P[k, k] + ridge[r] * Q[k, k]
                now = np.float64(out[r, k])
                best = 0.0
                if curvature > FLAT:
                    damped = curvature * (1 + damp)
                    best = now - (slope[k] + damp * curvature * (now - T[r, k])) / damped
                    best = hard_threshold(max(best, floor), damped, penalty[k])
                change = best - now
                if abs(change) > SETTLED * abs(now) or (now == 0.0 and best != 0.0):
                    moved = True
                    out[r, k] = best
                    if ridge[r] == 0.0:  # the same numbers, with half of the reads
                        for j in range(K):
                            slope[j] += h[r] * P[k, j] * change
                        continue
                    for j in range(K):
                        slope[j] += (h[r] * P[k, j] + ridge[r] * Q[k, j]) * change
            if not moved:
                break
