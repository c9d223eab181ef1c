"""Weighted sums over bags of a batch whose ids repeat: each distinct row is read once, and gets one gradient."""

from typing import Any

from antembed.kernels.compiled import compile_kernel

compiled = compile_kernel(nogil=True, error_model="numpy")


@compiled
def sum_bags(start: int, stop: int, bounds: Any, group: Any, weights: Any, rows: Any, out: Any) -> None:
    """out[b] = Σ weights[p]·rows[group[p]] over the positions p of bag b, from bounds[b] to bounds[b + 1]."""
    K = rows.shape[1]
    for b in range(start, stop):
        total = out[b]
        for k in range(K):
            total[k] = 0
        for p in range(bounds[b], bounds[b + 1]):
            row, w = rows[group[p]], weights[p]
            for k in range(K):
                total[k] += w * row[k]


@compiled
def bag_gradients(
    start: int,
    stop: int,
    starts: Any,
    order: Any,
    bag: Any,
    weights: Any,
    rows: Any,
    arriving: Any,
    of_rows: Any,
    of_weights: Any,
) -> None:
    """The gradients of the distinct rows [start, stop) and of the weights of their places, given those of the bags."""
    K = rows.shape[1]
    for u in range(start, stop):
        row, total = rows[u], of_rows[u]
        for k in range(K):
            total[k] = 0
        for j in range(starts[u], starts[u + 1]):
            p = order[j]
            g, w = arriving[bag[p]], weights[p]
            product = w * 0
            for k in range(K):
                total[k] += w * g[k]
                product += g[k] * row[k]
            of_weights[p] = product
