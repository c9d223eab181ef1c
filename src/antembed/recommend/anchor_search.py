"""How many anchors, by coordinate descent: an anchor stays only if the weights it carries are worth it (eq. 5).

With the other side held, rows are independent, so what an anchor brings is known exactly, without trying it out:

    added:    the direction a in which the rows' slopes agree most, with each row's best weight: Σ (½·(g·a)²/(aᵀ·S·a) − l0)₊
    removed:  setting all its weights to zero: Σ (½·t²·aᵀ·S·a − t·g·a − l0)

Both change the objective by just that, less or plus the anchor's own penalty. Where dense rows are at hand, `fewest` tries
numbers of anchors one by one.
"""

from collections.abc import Callable

import numpy as np

from antembed.recommend.factor import Side, curvature, slopes

MARGIN = 3e-3  # of what all anchors but one are worth
PATIENCE = 4  # numbers of anchors that are tried though they are no better
MOST = 64  # anchors of a side; beyond that the bitmap of a row is longer than its weights


def fewest(cost: Callable[[int], float], most: int) -> int:
    """The least number of 1 … `most` whose cost is as low as any: but for MARGIN, since each cost is a local minimum's.
    The search ends when PATIENCE more in a row were no better."""
    costs = [cost(1)]
    while len(costs) < min(most, int(np.argmin(costs)) + 1 + PATIENCE):
        costs.append(cost(len(costs) + 1))
    lowest = min(costs)
    return next(K for K, each in enumerate(costs, 1) if each <= lowest + MARGIN * (costs[0] - lowest))


def add_anchor(side: Side, l0: float, anchor_penalty: float) -> float:
    """Add the most promising anchor if it is worth its penalty; → by how much the objective falls, 0 if none is."""
    if len(side.A) >= MOST:
        return 0.0
    g = slopes(side)
    weight = g / np.sqrt(np.maximum(np.trace(side.S, axis1=1, axis2=2), 1e-12))[:, None]
    directions = np.linalg.eigh(weight.T @ weight)[1].T[::-1][:3]
    best, found = 0.0, None
    for anchor in np.concatenate([directions, -directions]):
        for _ in range(3):  # rows that gain decide where the anchor points
            along, curved = g @ anchor, curvature(side, anchor)
            gains = np.where(along > 0, 0.5 * along**2 / np.maximum(curved, 1e-12), 0.0) - l0
            takers = gains > 0
            gain = float(gains[takers].sum()) - anchor_penalty
            if gain > best:
                best, found = gain, (anchor, np.where(takers, along / np.maximum(curved, 1e-12), 0.0))
            if not takers.any():
                break
            anchor = weight[takers].sum(0)
            anchor /= np.linalg.norm(anchor)
    if found is not None:
        side.A = np.vstack([side.A, found[0]])
        side.T = np.column_stack([side.T, found[1]])
        side.E = side.T @ side.A
    return best


def prune_anchors(side: Side, l0: float, anchor_penalty: float) -> float:
    """Remove anchors that are not worth their penalty, the worst first, but the last; → by how much the objective falls."""
    fallen = 0.0
    while len(side.A) > 1:
        g = slopes(side)
        costs = [
            float((0.5 * side.T[:, k] ** 2 * curvature(side, a) + side.T[:, k] * (g @ a)).sum())
            - l0 * np.count_nonzero(side.T[:, k])
            for k, a in enumerate(side.A)
        ]
        worst = int(np.argmin(costs))
        if costs[worst] >= anchor_penalty:
            break
        fallen += anchor_penalty - costs[worst]
        side.A, side.T = np.delete(side.A, worst, axis=0), np.delete(side.T, worst, axis=1)
        side.E = side.T @ side.A
    return fallen
