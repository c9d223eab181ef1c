"""Factorize a table as E ≈ T·A with T ≥ 0, also within a size: least squares for A and coordinate descent for T in turn."""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from antembed.budget import Budget, BudgetController, anchors_within
from antembed.layer import coding_kernel as kernel
from antembed.native.large_arrays import along
from antembed.native.threads import take_turns, usable_cpus
from antembed.native.vector import padded, padded_columns
from antembed.tables.save import file_size

ROWS = 512  # at a time: their targets stay in the cache
DENSE = 4  # rounds of the dense start: more of them gained nothing on MiniLM's table
ROUNDS = 16  # in which T becomes sparse: at once it would lose more
MOST = 4  # anchors a dimension
FAR = 0.5  # ‖E − T·A‖/‖E‖ from which on a model hardly works without training
BYTES = {"anchor": 4.0, "weight": 5.5}  # of a number of A, and of one of T with its index


def descend_codes(
    E: Tensor, A: Tensor, T: Tensor, l1_penalty: float, sweeps: int = 2, support: Tensor | None = None, threads: int = 1
) -> None:
    """Set each weight of T to its minimum given the others, in place: the steps of descend_transform, row by row. With
    `support` (a mask like T) weights outside it stay as they are."""
    vectors, anchors, weights = E.numpy(), A.double().numpy(), T.numpy()
    gram, K = padded_columns(anchors @ anchors.T), len(anchors)
    free = np.empty((0, 0), np.bool_) if support is None else support.numpy()

    def work(chunk: int) -> None:
        first, stop = chunk * ROWS, min((chunk + 1) * ROWS, len(vectors))
        target = np.zeros((stop - first, padded(K)))
        target[:, :K] = along(vectors[first:stop], anchors.T)
        target[:, :K] -= l1_penalty
        kernel.descend_codes(weights, target, gram, free, sweeps, first, stop)

    take_turns(work, -(-len(vectors) // ROWS), threads)


def _far_rows(E: Tensor, K: int, generator: torch.Generator) -> Tensor:
    """k-means++ seeding: K row numbers, each drawn in proportion to its squared distance from those before it."""
    E = E - E.mean(0)  # squared distances below lose less to rounding
    squares = E.square().sum(1)

    def distances(index: int) -> Tensor:
        """‖e − e_index‖² as a product: no new array as large as E."""
        return (squares + squares[index]).addmv_(E, E[index], alpha=-2).clamp_(min=0)

    chosen = [int(torch.randint(len(E), (1,), generator=generator))]
    distance = distances(chosen[0])
    for _ in range(1, K):
        distance[chosen[-1]] = 0
        total = float(distance.sum())
        if total > 0:
            spot = torch.rand(1, generator=generator, dtype=torch.float64).to(E.device) * total
            index = int(torch.searchsorted(distance.double().cumsum(0), spot).clamp(max=len(E) - 1))
        else:  # fewer distinct rows than anchors
            index = int(torch.randint(len(E), (1,), generator=generator))
        chosen.append(index)
        distance = torch.minimum(distance, distances(index))
    return torch.tensor(chosen, device=E.device)


def descend_transform(
    E: Tensor, A: Tensor, T: Tensor, l1_penalty: float, sweeps: int = 2, support: Tensor | None = None
) -> None:
    """Set each column of T to its minimum given the others, in place; outside `support` (a mask like T) nothing moves."""
    gram, target = A @ A.T, E @ A.T - l1_penalty
    for _ in range(sweeps):
        for k in range(len(A)):
            if gram[k, k] > 0:
                best = (T[:, k] + (target[:, k] - T @ gram[:, k]) / gram[k, k]).clamp(min=0)
                T[:, k] = best if support is None else torch.where(support[:, k], best, T[:, k])


def descend(E: Tensor, A: Tensor, T: Tensor, l1_penalty: float, sweeps: int = 2, support: Tensor | None = None) -> None:
    """descend_transform, in compiled code on all cores where E is in the processor's memory: many times as fast."""
    if E.device.type == "cpu" and E.dtype in (torch.float32, torch.float64) and T.is_contiguous():
        descend_codes(E, A, T, l1_penalty, sweeps, support, usable_cpus())
    else:
        descend_transform(E, A, T, l1_penalty, sweeps, support)


@torch.no_grad()
def nonnegative_factorize(
    E: Tensor,
    K: int,
    *,
    l1_penalty: float = 0.0,
    iterations: int = 50,
    seed: int = 0,
    tolerance: float = 1e-5,
    descend: Callable[[Tensor, Tensor, Tensor, float], None] = descend,
) -> tuple[Tensor, Tensor, float]:
    """min over T ≥ 0, A:  ½‖E − T·A‖² + l1_penalty·‖T‖₁,  E (V, d) → T (V, K), A (K, d), and ‖E − T·A‖/‖E‖.

    Alternating: T column by column, then A by least squares, until the error no longer changes. Without a penalty each
    half-step lowers it. Anchors are normalized each time; otherwise scaling A up would lower the penalty without changing T·A.
    """
    if K < 1:
        raise ValueError(f"num_anchors must be ≥ 1, got {K}")
    size = float(E.norm())
    generator = torch.Generator().manual_seed(seed)
    if size == 0 or len(E) == 0:
        return E.new_zeros(len(E), K), torch.randn(K, E.shape[1], generator=generator).to(E), 0.0
    A = torch.nn.functional.normalize(E[_far_rows(E, K, generator)])
    dead = A.norm(dim=1) == 0
    A[dead] = torch.nn.functional.normalize(torch.randn(int(dead.sum()), E.shape[1], generator=generator).to(E))
    T = (E @ A.T).clamp(min=0) / K
    error = previous = float("inf")
    for _ in range(iterations):
        descend(E, A, T, l1_penalty)
        A, T = best_anchors(E, A, T)
        error = float((E - T @ A).norm()) / size
        if abs(previous - error) < tolerance * error:
            break
        previous = error
    descend(E, A, T, l1_penalty)
    return T, A, float((E - T @ A).norm()) / size


def best_anchors(E: Tensor, A: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares for A given T; an unused anchor is set to the row with the largest residual."""
    gram = T.T @ T
    gram.diagonal().add_(1e-6 * float(gram.diagonal().mean()) + torch.finfo(E.dtype).tiny)
    A = torch.linalg.solve(gram, T.T @ E)
    idle = (A.norm(dim=1) == 0) | (T.amax(dim=0) == 0)
    if idle.any():
        residual = E - T @ A
        worst = residual.norm(dim=1).topk(min(int(idle.sum()), len(E))).indices
        A[idle.nonzero()[: len(worst), 0]] = residual[worst]
    norm = A.norm(dim=1)
    norm[norm == 0] = 1
    return A / norm[:, None], T * norm


def anchors_for_table(allowed: Budget, V: int, d: int) -> int:
    """How many anchors suit a budget of one table; many more than dimensions take long, and gain little."""
    parameters = allowed.amount / (BYTES["weight"] if allowed.unit == "bytes" else 1.0)
    return max(min(anchors_within(parameters, d), MOST * d, V), 1)


@torch.no_grad()
def factorize_within(E: Tensor, allowed: Budget, K: int, *, seed: int = 0) -> tuple[Tensor, Tensor, float]:
    """E (V, d) → T (V, K), A (K, d) of at most this size, and ‖E − T·A‖/‖E‖.

    From the dense factorization on, the smallest contributions t_k·‖a_k‖ are dropped in rounds; after each, the anchors and the
    weights that are left are fitted anew."""
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
            stacklevel=5,
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
    return T * torch.zeros_like(contributions, dtype=torch.bool).index_fill(0, kept, True).view_as(T)
