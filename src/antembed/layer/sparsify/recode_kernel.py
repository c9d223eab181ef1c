"""Rows of T coded anew: the minimum of a quadratic model of the loss plus a penalty for each weight that is not zero.

Row r has the gradient G_r, the curvature H_r = h_r·P + ridge_r·Q (P and Q common to all rows) and a damping that holds it near
its present weights T_r:

    G_r·(t − T_r)  +  ½·(t − T_r)ᵀ·H_r·(t − T_r)  +  ½·damp·Σ_k H_r,kk·(t_k − T_r,k)²  +  Σ_k penalty_k·[t_k ≠ 0]

It is minimised one weight at a time, each exactly, until nothing changes: the sum never rises.
"""

from typing import Any

import numpy as np

from antembed.native.random_bits import compiled
from antembed.native.vector import hard_threshold

SETTLED = 1e-5  # a change below this share of a weight is none
FLAT = 1e-30  # curvature below which nobody looks a row up


@compiled
def recode_rows(
    T: Any, G: Any, h: Any, ridge: Any, P: Any, Q: Any, penalty: Any, damp: float, floor: float, passes: int, out: Any,
    first: int, stop: int,
) -> None:  # fmt: skip
    """out[r] = the weights of rows [first, stop), all ≥ floor (0, or −inf for weights of both signs). Row r with no curvature
    at all becomes zero."""
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
