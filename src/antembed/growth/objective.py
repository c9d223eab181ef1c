"""The two objectives of SPEC §1, in one place: what training minimises, and what chooses the number of anchors."""

from antembed.optim.base import ProximalOptimizer


def nbant_objective(mean_loss: float, nnz: int, anchors: int, lambda1: float, lambda2: float) -> float:
    """mean D + λ2·‖T‖₀ + (λ1 − λ2)·K: eq. 5 of the paper with D the mean over examples (its Appendix L adds up that way)."""
    return mean_loss + lambda2 * nnz + (lambda1 - lambda2) * anchors


def penalties(optimiser: ProximalOptimizer) -> float:
    """What ANT's objective adds to the mean loss: λ2·‖T‖₁ for every T, with λ2 read from the parameter groups."""
    optimiser.flush()
    return sum(
        float(group["prox"].penalty(weight.detach()))
        for group in optimiser.param_groups
        if group.get("prox") is not None
        for weight in group["params"]
    )
