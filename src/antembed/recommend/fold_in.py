"""Vectors of users whose row of T is empty, from what they have rated: the row problem of coordinate descent. NumPy alone.

With the items' table and the users' anchors A fixed, a row t ≥ 0 and a bias b minimise

    ½·Σ w·(r − mean − b − b_i − t·A·e_i)²  +  ½·(ridge + ridge_per_rating·n)·‖t·A‖²  +  ½·bias_ridge·b²

over its n ratings; for events also ½·unobserved_weight·Σ(…)² over all items, as if rated 0. There is no penalty on non-zeros:
it has made the row empty.
"""

from dataclasses import dataclass

import numpy as np

from antembed.files import JSON
from antembed.tables.model_folder import RunError
from antembed.tables.table import Table

RIDGE, RIDGE_PER_RATING, BIAS_RIDGE = 6.3, 0.018, 6.0  # that suit most ratings with a standard deviation of 1
UNOBSERVED = 20  # all pairs without an event weigh this much more than all events
ROWS = 256  # that are solved at a time
PASSES, SETTLED = 1000, 1e-7  # over the coordinates, at most; the relative change that ends them


def likely_weight(events: int, users: int, items: int) -> float:
    """The weight of a pair without an event that suits most data."""
    return float(f"{min(UNOBSERVED * events / max(users * items, 1), 1.0):.4g}")


@dataclass(frozen=True)
class Ridges:
    """What the row problem adds to the squared error."""

    vector: float
    per_rating: float
    bias: float | None  # None: the model has no biases
    unobserved_weight: float = 0.0

    @classmethod
    def of(cls, config: JSON, ratings: np.ndarray, sizes: tuple[int, int]) -> "Ridges":
        """Those of a run's config (config.json) whose training ratings are these; sizes: users, items."""
        try:
            solver, biases = config["solver"], config["tables"]["biases"]
            if "penalties" in solver:
                found = [float(solver["penalties"][name]) for name in ("ridge", "ridge_per_rating", "bias_ridge")]
            else:  # the stochastic solver: those that were given, else the usual ones
                scale = float(np.std(ratings)) or 1.0
                usual = {"l2_penalty": RIDGE * scale, "l2_per_rating": RIDGE_PER_RATING * scale, "bias_l2_penalty": BIAS_RIDGE}
                found = [float(usual[name] if solver[name] is None else solver[name]) for name in usual]
            unobserved = float(solver.get("unobserved_weight", 0.0))
            if config["task"] == "recommend-events" and not unobserved:
                unobserved = likely_weight(len(ratings), *sizes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"config.json has no ridges ({type(error).__name__}: {error}); export the run anew") from error
        return cls(found[0], found[1], found[2] if biases else None, unobserved)


class FoldIn:
    """What the ratings of users say about their vectors, given a model."""

    def __init__(self, users: Table, items: Table, ridges: Ridges):
        self.ridges, d = ridges, items.embedding_dim
        self.Z = np.column_stack([items[:], np.ones(len(items))]).astype(np.float64)  # [e_i, 1]
        self.rest = items.bias_of(np.arange(len(items))).astype(np.float64)  # mean + b_i
        weight = ridges.unobserved_weight
        self.S, self.v = weight * self.Z.T @ self.Z, -weight * self.rest @ self.Z
        # Without anchors (full tables, or all rows empty, so that the file has none) the vector itself is sought.
        self.signed = users.anchors is None or not len(users.anchors)
        anchors = np.eye(d) if users.anchors is None or self.signed else users.anchors.astype(np.float64)
        self.B = np.zeros((len(anchors) + 1, d + 1))  # [t, b]·B = [e, b]
        self.B[:-1, :-1], self.B[-1, -1] = anchors, 1.0

    def __call__(
        self, starts: np.ndarray, items: np.ndarray, ratings: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """User u has rated items[starts[u]:starts[u + 1]] → vectors (n, d), biases (n,)."""
        n, d = len(starts) - 1, self.Z.shape[1] - 1
        found = np.zeros((n, d + 1))
        for first in range(0, n, ROWS):
            rows = range(first, min(first + ROWS, n))
            parts = [slice(starts[row], starts[row + 1]) for row in rows]
            equations = [self.equations(items[p], ratings[p], None if weights is None else weights[p]) for p in parts]
            S, v = (np.stack(each) for each in zip(*equations, strict=True))
            found[rows.start : rows.stop] = self.minimize(S, v) @ self.B
        return found[:, :d].astype(np.float32), found[:, d].astype(np.float32)

    def equations(self, items: np.ndarray, ratings: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """½·zᵀ·S·z − v·z of z = [e, b], the ridges included, for a user with these ratings."""
        Z = self.Z[items]
        weighted = Z if weights is None else Z * weights[:, None]
        S, v = self.S + Z.T @ weighted, self.v + (ratings - self.rest[items]) @ weighted
        ridge = self.ridges.vector + self.ridges.per_rating * len(items)
        S[np.diag_indices(len(S))] += np.append(np.full(len(S) - 1, ridge), self.ridges.bias or 0.0)
        return S, v

    def minimize(self, S: np.ndarray, v: np.ndarray) -> np.ndarray:
        """[t, b] of rows (n, K + 1), one coordinate after the other, in all rows at once."""
        H, slope = self.B @ S @ self.B.T, v @ self.B.T
        curvature = np.maximum(np.einsum("nkk->nk", H), 1e-12)
        found = np.zeros_like(slope)
        last = slope.shape[1] - (1 if self.ridges.bias is None else 0)
        for _ in range(PASSES):
            before = found.copy()
            for k in range(last):
                best = found[:, k] + slope[:, k] / curvature[:, k]
                if not self.signed and k < slope.shape[1] - 1:
                    best = np.maximum(best, 0.0)
                slope -= (best - found[:, k])[:, None] * H[:, k]
                found[:, k] = best
            if np.abs(found - before).max() <= SETTLED * np.abs(found).max():
                break
        return found
