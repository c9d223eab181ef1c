"""Factorize a given table within a size: E ≈ T·A with T ≥ 0 and as many non-zeros as a budget allows."""

import warnings

import torch
from torch import Tensor

from antembed.budget import Budget, BudgetController, anchors_within
from antembed.layer.embedding_factorize import best_anchors, descend, nonnegative_factorize
from antembed.tables.save import file_size

DENSE = 4  # rounds of the dense start: more of them gained nothing on MiniLM's table
ROUNDS = 16  # in which T becomes sparse: at once it would lose more
MOST = 4  # anchors a dimension
FAR = 0.5  # ‖E − T·A‖/‖E‖ from which on a model hardly works without training
BYTES = {"anchor": 4.0, "weight": 5.5}  # of a number of A, and of one of T with its place


def anchors_for_table(allowed: Budget, V: int, d: int) -> int:
    """How many anchors suit a budget of one table; many more than dimensions take long, and gain little."""
    parameters = allowed.amount / (BYTES["weight"] if allowed.unit == "bytes" else 1.0)
    return max(min(anchors_within(parameters, d), MOST * d, V), 1)


@torch.no_grad()
def factorize_within(E: Tensor, allowed: Budget, K: int, *, seed: int = 0) -> tuple[Tensor, Tensor, float]:
    """E (V, d) → T (V, K), A (K, d) of at most this size, and ‖E − T·A‖/‖E‖.

    From the dense factorization on, the smallest contributions t_k·‖a_k‖ are dropped in rounds; after each, the anchors and the
    weights that are left are fitted anew.
    """
    T, A, _ = nonnegative_factorize(E, K, iterations=DENSE, seed=seed)
    first, last = max(int(T.count_nonzero()), 1), _weights(allowed, A)
    for step in range(1, ROUNDS + 1):
        T = _largest(T, A, round(first * (last / first) ** (step / ROUNDS)) if last < first else first)
        support = T > 0
        A, T = best_anchors(E, A, T)
        T *= support  # without what a reused anchor began with
        descend(E, A, T, 0.0, support=support)
    fitted = T

    def keep(n: int) -> None:
        nonlocal T
        T = _largest(fitted, A, n)

    def size() -> float:
        if allowed.unit == "bytes":
            return float(file_size(T.cpu().numpy(), A.cpu().numpy()))
        return float(T.count_nonzero() + int((T != 0).any(0).sum()) * A.shape[1])

    BudgetController(allowed, size, 1.0, 1, 1.0).trim(int(fitted.count_nonzero()), keep)
    descend(E, A, T, 0.0, support=T > 0)
    error = float((E - T @ A).norm()) / max(float(E.norm()), torch.finfo(E.dtype).tiny)
    if error > FAR:
        warnings.warn(
            f"within {allowed}, vectors are off by {100 * error:.0f} % of their length: train on (freeze_support keeps "
            "the size), allow more, or use antembed.compress, whose entropy-coded files lose less at the same size",
            stacklevel=4,
        )
    return T, A, error


def _weights(allowed: Budget, A: Tensor) -> int:
    """About how many non-zeros a budget allows beside the anchors."""
    if allowed.unit == "bytes":
        return max(int((allowed.amount - BYTES["anchor"] * A.numel()) / BYTES["weight"]), 1)
    return max(int(allowed.amount - A.numel()), 1)


def _largest(T: Tensor, A: Tensor, n: int) -> Tensor:
    """The n largest contributions, zeros elsewhere."""
    contributions = (T * A.norm(dim=1)).reshape(-1)
    kept = contributions.topk(min(n, contributions.numel())).indices
    mask = torch.zeros_like(contributions, dtype=torch.bool)
    mask[kept] = True
    return T * mask.view_as(T)
