"""Factorize a given table as E ≈ T·A with T ≥ 0: alternate least squares for A and coordinate descent for T."""

from collections.abc import Callable

import torch
from torch import Tensor

from antembed.layer.factorize import can_be_compiled, descend_codes
from antembed.native.threads import usable_cpus


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
    if can_be_compiled(E) and T.is_contiguous():
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
    norm = A.norm(dim=1)
    idle = (norm == 0) | (T.amax(dim=0) == 0)
    if idle.any():
        residual = E - T @ A
        worst = residual.norm(dim=1).topk(min(int(idle.sum()), len(E))).indices
        A[idle.nonzero()[: len(worst), 0]] = residual[worst]
        norm = A.norm(dim=1)
    norm = torch.where(norm > 0, norm, torch.ones_like(norm))
    return A / norm[:, None], T * norm
