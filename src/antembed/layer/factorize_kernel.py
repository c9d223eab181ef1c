"""Rows of T ≥ 0 that come near given vectors: non-negative least squares with an ℓ1 penalty, one weight at a time."""

from typing import Any

from antembed.native.random_bits import compiled
from antembed.native.vector import add_scaled


@compiled
def descend_codes(T: Any, target: Any, gram: Any, support: Any, sweeps: int, first: int, stop: int) -> None:
    """Rows [first, stop) of T (V, K): `sweeps` times each weight in turn to the minimum of ½·tᵀ·gram·t − target·t over t ≥ 0.

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
