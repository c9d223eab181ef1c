"""Rows as few non-negative multiples of many anchors: descent with a price for each bit, and the anchors that fit them best."""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel, compiled

TOGETHER = 8  # rows whose products with the anchors are found in one pass over these
SETTLED = 1e-9  # a gain below this is none


@compiled
def choose_rows(
    X: Any, A: Any, G: Any, anchor_bits: Any, value_bits: Any, group: Any, step: float, price: float, index: Any, value: Any,
    count: Any, first: int, stop: int,
) -> None:  # fmt: skip
    """Rows [first, stop) of X (n, d): anchors index[i, :count[i]] times value·step, value = 1 … LARGEST, that make
    ‖x − Σ value·step·anchor‖² + price·bits small. A (d, K): unit anchors, one a column; G = AᵀA. An anchor costs
    anchor_bits[k] + value_bits[group[k], value]. In each step the best of: one more anchor, another value, one anchor less."""
    d, K = A.shape
    slopes = np.empty((TOGETHER, K), np.float32)
    threshold = (price * anchor_bits).astype(np.float32)
    at = first
    while at < stop:
        rows = min(TOGETHER, stop - at)
        slopes[:] = 0
        for j in range(d):
            for r in range(rows):
                x = X[at + r, j]
                for k in range(K):
                    slopes[r, k] += x * A[j, k]
        for r in range(rows):
            i = at + r
            count[i] = _descend(slopes[r], G, threshold, anchor_bits, value_bits, group, step, price, index[i], value[i])
        at += rows


@compile_kernel(nogil=True, fastmath={"nnan", "nsz", "reassoc"})
def _largest_gain(slope: Any, threshold: Any) -> Any:
    """Of one more anchor; a loop of its own, in which the processor compares many at a time."""
    top = np.float32(-1e30)
    for k in range(len(slope)):
        top = max(top, _gain(slope[k], threshold[k]))
    return top


@compiled
def _gain(slope: Any, threshold: Any) -> Any:
    return slope * slope - threshold if slope > 0 else np.float32(-1e30)


@compiled
def _descend(
    slope: Any, G: Any, threshold: Any, anchor_bits: Any, value_bits: Any, group: Any, step: float, price: float, index: Any,
    value: Any,
) -> int:  # fmt: skip
    """One row: `slope` holds what each anchor has in common with what is left of it."""
    K, most, largest, n = len(slope), len(index), value_bits.shape[1] - 1, 0
    for _ in range(4 * most):
        best, place, anchor, number = SETTLED, -1, -1, 0
        top, k = _largest_gain(slope, threshold), 0
        while k < K and _gain(slope[k], threshold[k]) != top:
            k += 1
        fresh = k < K and n < most and slope[k] > 0
        for s in range(n):
            if index[s] == k:
                fresh = False
        if fresh:
            x = np.float64(slope[k])
            low = min(int(x / step), largest)
            for q in range(max(low, 1), min(low + 1, largest) + 1):
                y = q * step
                gain = 2 * y * x - y * y - price * (anchor_bits[k] + value_bits[group[k], q])
                if gain > best:
                    best, place, anchor, number = gain, n, k, q
        for s in range(n):
            k = index[s]
            left = np.float64(slope[k]) * slope[k]
            if left + price * (value_bits[group[k], value[s]] + max(anchor_bits[k], 0.0)) <= best:
                continue  # even without any bits it would gain less
            x = slope[k] + value[s] * step
            low = min(int(max(x, 0.0) / step), largest)
            for c in range(3):
                q = 0 if c == 2 else low + c
                if q > largest or q == value[s]:
                    continue
                bits = value_bits[group[k], q] if q > 0 else -anchor_bits[k]
                gain = left - (x - q * step) * (x - q * step) - price * (bits - value_bits[group[k], value[s]])
                if gain > best:
                    best, place, anchor, number = gain, s, k, q
        if place < 0:
            break
        change = number * step
        if place == n:
            index[n], value[n] = anchor, number
            n += 1
        else:
            change -= value[place] * step
            value[place] = number
            if number == 0:
                n -= 1
                index[place], value[place] = index[n], value[n]
        moved = np.float32(change)
        for other in range(K):
            slope[other] -= moved * G[anchor, other]
    return n


@compiled
def add_products(X: Any, index: Any, value: Any, count: Any, step: float, TT: Any, TX: Any, first: int, stop: int) -> None:
    """TT += TᵀT and TX += TᵀX over rows [first, stop), T being the chosen values times step."""
    d = X.shape[1]
    for i in range(first, stop):
        for s in range(count[i]):
            k, v = index[i, s], value[i, s] * step
            for other in range(count[i]):
                TT[k, index[i, other]] += v * value[i, other] * step
            for j in range(d):
                TX[k, j] += v * X[i, j]


@compiled
def anchor_products(A: Any, by_column: Any, out: Any, first: int, stop: int) -> None:
    """out += A·Aᵀ, rows [first, stop); by_column is Aᵀ."""
    for k in range(first, stop):
        for j in range(A.shape[1]):
            for other in range(len(A)):
                out[k, other] += A[k, j] * by_column[j, other]


@compiled
def add_combined(index: Any, value: Any, count: Any, step: float, A: Any, out: Any) -> None:
    """out += T·A, T being the chosen values times step."""
    for i in range(len(count)):
        for s in range(count[i]):
            for j in range(A.shape[1]):
                out[i, j] += value[i, s] * step * A[index[i, s], j]


@compiled
def fit_anchors(A: Any, TT: Any, TX: Any, passes: int) -> None:
    """A (K, d), one anchor after the other the best for the others: least squares of T·A = X by blocks. Unused ones stay."""
    K, d = A.shape
    best = np.empty(d)
    for _ in range(passes):
        for k in range(K):
            if TT[k, k] <= 0:
                continue
            for j in range(d):
                best[j] = TX[k, j]
            for other in range(K):
                t = TT[k, other]
                if other != k and t != 0:
                    for j in range(d):
                        best[j] -= t * A[other, j]
            for j in range(d):
                A[k, j] = best[j] / TT[k, k]
