"""The paper's two objectives: the one that training minimises, and the one that chooses the number of anchors."""

from dataclasses import replace

from antembed.layer.optim.proximal import ProximalOptimizer


def nbant_objective(mean_loss: float, nnz: int, anchors: int, anchor_penalty: float, l0_penalty: float) -> float:
    """mean D + λ2·‖T‖₀ + (λ1 − λ2)·K with λ1 = anchor_penalty, λ2 = l0_penalty: eq. 5 of the paper with D the mean over
    examples (which reproduces the numbers of its Appendix L)."""
    return mean_loss + l0_penalty * nnz + (anchor_penalty - l0_penalty) * anchors


def penalties(optimizer: ProximalOptimizer, strength: float | None = None) -> float:
    """The penalty term of ANT's objective: Σ λ2·‖T‖₁ over every T, with λ2 from the groups, or `strength` for all."""
    optimizer.flush()
    total = 0.0
    for group in optimizer.param_groups:
        if group["prox"] is not None and group["prox"].scheduled:
            prox = group["prox"] if strength is None else replace(group["prox"], strength=strength)
            own = sum(prox.penalty(weight.detach()) for weight in group["params"])
            total += float(own if group["table"] is None else group["table"].summed(own))
    return total
