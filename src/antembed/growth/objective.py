"""The two objectives of SPEC §1, in one place: what training minimises, and what chooses the number of anchors."""

from dataclasses import replace

from antembed.optim.base import ProximalOptimizer


def nbant_objective(mean_loss: float, nnz: int, anchors: int, lambda1: float, lambda2: float) -> float:
    """mean D + λ2·‖T‖₀ + (λ1 − λ2)·K: eq. 5 of the paper with D the mean over examples (its Appendix L adds up that way)."""
    return mean_loss + lambda2 * nnz + (lambda1 - lambda2) * anchors


def penalties(optimiser: ProximalOptimizer, strength: float | None = None) -> float:
    """What ANT's objective adds to the mean loss: λ2·‖T‖₁ over every T, λ2 as in the groups, or `strength` for all."""
    optimiser.flush()
    total = 0.0
    for group in optimiser.param_groups:
        if group["prox"] is not None and group["prox"].priced:
            prox = group["prox"] if strength is None else replace(group["prox"], strength=strength)
            total += sum(float(prox.penalty(weight.detach())) for weight in group["params"])
    return total
