"""How many anchors, by coordinate descent: an anchor stays only if the weights it carries pay for it (eq. 5).

With the other side held, rows are independent, so what an anchor brings is known exactly, without trying it out:

    bought:  the direction a in which the rows' slopes agree most, with each row's best weight: Σ (½·(g·a)²/(aᵀ·S·a) − price)₊
    sold:    setting all its weights to zero: Σ (½·t²·aᵀ·S·a − t·g·a − price)

Both change the objective by just that, less or plus the anchor's own price.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from antembed.training.descent import Side

MOST = 64  # anchors of a side; beyond that the bitmap of a row is longer than its weights


def slopes(side: "Side") -> np.ndarray:
    """−∂/∂e of each row's quadratic where it stands: (V, d)."""
    d = side.E.shape[1]
    return side.v[:, :d] - np.einsum("rab,rb->ra", side.S[:, :d, :d], side.E) - side.S[:, :d, d] * side.bias[:, None]


def curvature(side: "Side", anchor: np.ndarray) -> np.ndarray:
    """aᵀ·S·a of each row: (V,)."""
    d = len(anchor)
    return np.einsum("rab,a,b->r", side.S[:, :d, :d], anchor, anchor, optimize=True)


def buy(side: "Side", price: float, anchor_price: float) -> float:
    """Add the most promising anchor if it pays; → by how much the objective falls, 0 if none is worth its price."""
    if len(side.A) >= MOST:
        return 0.0
    g = slopes(side)
    weight = g / np.sqrt(np.maximum(np.trace(side.S, axis1=1, axis2=2), 1e-12))[:, None]
    directions = np.linalg.eigh(weight.T @ weight)[1].T[::-1][:3]
    best, found = 0.0, None
    for anchor in np.concatenate([directions, -directions]):
        for _ in range(3):  # rows that gain say where the anchor should point
            along, curved = g @ anchor, curvature(side, anchor)
            gains = np.where(along > 0, 0.5 * along**2 / np.maximum(curved, 1e-12), 0.0) - price
            takers = gains > 0
            gain = float(gains[takers].sum()) - anchor_price
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


def sell(side: "Side", price: float, anchor_price: float) -> float:
    """Take away anchors that do not pay, the worst first, as long as there is another; → by how much the objective falls."""
    fallen = 0.0
    while len(side.A) > 1:
        g = slopes(side)
        costs = [
            float((0.5 * side.T[:, k] ** 2 * curvature(side, a) + side.T[:, k] * (g @ a)).sum())
            - price * np.count_nonzero(side.T[:, k])
            for k, a in enumerate(side.A)
        ]
        worst = int(np.argmin(costs))
        if costs[worst] >= anchor_price:
            break
        fallen += anchor_price - costs[worst]
        side.A, side.T = np.delete(side.A, worst, axis=0), np.delete(side.T, worst, axis=1)
        side.E = side.T @ side.A
    return fallen
