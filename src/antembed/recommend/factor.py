"""A factor of a matrix factorization (users, or items): its ratings by rows, T, A, biases; and how many anchors it needs.

An anchor stays only if the weights it carries are worth it (eq. 5). With the other factor held, rows are independent, so what
an anchor brings is known exactly, without trying it out:

    added:    the direction a in which the rows' slopes agree most, with each row's best weight: Σ (½·(g·a)²/(aᵀ·S·a) − l0)₊
    removed:  setting all its weights to zero: Σ (½·t²·aᵀ·S·a − t·g·a − l0)

Both change the objective by just that, less or plus the anchor's own penalty. Where dense rows are at hand, `fewest` tries
numbers of anchors one by one.

Rows are T (K wide) or, before there are anchors, vectors. Processes that train together work on some rows each and hand them
to all; the anchors' systems are added up. So every process has the same state after each turn, and one process alone has it,
too, up to the order of sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from antembed.layer.factorize import descend_codes, nonnegative_factorize
from antembed.layer.sharded.collectives import Ranks
from antembed.native.large_arrays import along

MANY, EACH = 20_000, 64  # rows; of more than these, anchors are made from some: so many for each anchor
ITERATIONS = 30  # of the factorization that makes anchors
INIT_PENALTY = 1e-3  # ℓ1, on weights of vectors of length 1
NO_BIAS = 1e30  # a ridge under which a bias is nothing
MARGIN = 3e-3  # of what all anchors but one are worth
PATIENCE = 4  # numbers of anchors that are tried though they are no better
MOST = 64  # anchors of a factor; beyond that the bitmap of a row is longer than its weights


@dataclass(frozen=True)
class Penalties:
    """What the objective adds to the summed ½·squared error."""

    l0: float  # of a non-zero
    ridge: float  # ½·ridge·‖e‖²
    ridge_per_rating: float  # and as much again for each rating of the object
    bias_ridge: float
    unobserved_weight: float = 0.0  # of every pair there is, as if rated 0: for lists of items rather than ratings
    biases: bool = False  # biases that are not zero cost l0 too


@dataclass(frozen=True)
class Past:
    """What ratings of earlier batches say about a factor: −g·(z − z_old) + ½·n·(z − z_old)ᵀ·C·(z − z_old) for a row that stood
    at z_old = [e, b] with n ratings, of objects with the mean moments C, and slope g. Rows that are not in the batch count for
    the anchors alone."""

    n: np.ndarray  # (V,): how many, or the sum of their weights
    count: np.ndarray  # (V,): how many, for the ridge
    z: np.ndarray  # (V, d + 1)
    g: np.ndarray  # (V, d + 1)
    C: np.ndarray  # (d + 1, d + 1)
    A: np.ndarray  # (K, d): the anchors that the rows outside the batch were left with,
    weighted_gram: np.ndarray  # (K, K): their Σ n·t⊗t,
    ridge_gram: np.ndarray  # (K, K): their Σ ridge·t⊗t,
    linear: np.ndarray  # (K, d): their Σ t⊗g

    def penalty(self, z: np.ndarray, A: np.ndarray) -> float:
        """The sum of the above, over rows here and elsewhere, but for a constant."""
        moved, A = z - self.z, A[: len(self.A)]
        turned = A - self.A
        rows = 0.5 * np.einsum("r,ra,ab,rb->", self.n, moved, self.C, moved, optimize=True) - (self.g * moved).sum()
        curved = 0.5 * (self.weighted_gram * (turned @ self.C[:-1, :-1] @ turned.T)).sum()
        elsewhere = curved + 0.5 * (self.ridge_gram * (A @ A.T)).sum()
        return float(rows + elsewhere - (self.linear * turned).sum())

    def anchor_system(self, k: int, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What rows elsewhere add to the quadratic in anchor k: curvature (d, d) and downhill direction (d)."""
        C, A = self.C[:-1, :-1], A[: len(self.A)]
        H = self.weighted_gram[k, k] * C + self.ridge_gram[k, k] * np.eye(len(C))
        return H, self.linear[k] - C @ (self.weighted_gram[k] @ (A - self.A)) - self.ridge_gram[k] @ A


class Factor:
    """Ratings by rows, T, A, E = T·A and biases; and the normal equations S, v of all rows, where anchors are searched for."""

    def __init__(self, ids: np.ndarray, others: np.ndarray, ratings: np.ndarray, weights: np.ndarray | None, V: int, d: int):
        order = np.argsort(ids, kind="stable")
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=V))])
        self.others, self.ratings = others[order], ratings[order].astype(np.float32)
        self.weights = np.empty(0, np.float32) if weights is None else weights[order].astype(np.float32)
        self.E, self.bias = np.zeros((V, d)), np.zeros(V)
        self.T, self.A = np.zeros((V, 0)), np.zeros((0, d))
        self.S, self.v = np.empty((0, d + 1, d + 1)), np.empty((0, d + 1))
        self.past: Past | None = None

    def make_anchors(self, K: int, seed: int, threads: int = 1) -> None:
        """T ≥ 0 and A from the dense rows; of many rows, A from some of them, the longer the likelier."""
        E = torch.from_numpy(self.E)
        squares = np.square(self.E).sum(1)
        size = float(np.sqrt(squares.mean())) or 1.0  # the penalty is for vectors of length 1
        count, rows = min(EACH * K, MANY), None
        if np.count_nonzero(squares) > MANY:
            rows = np.random.default_rng(seed).choice(len(E), count, replace=False, p=squares / squares.sum())
        some = E / size if rows is None else E[np.sort(rows)] / size
        descend = partial(descend_codes, threads=threads)
        T, A, _ = nonnegative_factorize(some, K, l1_penalty=INIT_PENALTY, iterations=ITERATIONS, seed=seed, descend=descend)
        if rows is not None:
            T = torch.from_numpy(along(self.E, A.T.numpy()))
            T.div_(size * K).clamp_(min=0)  # in place: of many rows, T is what takes memory
            descend(E / size, A, T, INIT_PENALTY, sweeps=6)
        self.T, self.A = T.mul_(size).numpy(), A.numpy().copy()
        self.E = along(self.T, self.A)

    def split_axes(self) -> None:
        """Anchors that are the axes and their opposites; T is the positive part of E beside the negative one."""
        d = self.E.shape[1]
        self.A = np.vstack([np.eye(d), -np.eye(d)])
        self.T = np.hstack([np.maximum(self.E, 0), np.maximum(-self.E, 0)])

    def quadratic(self) -> float:
        """½·Σ squared errors and ridges of the rows as they are, the other factor held, but for a constant."""
        z = np.column_stack([self.E, self.bias])
        return float(0.5 * np.einsum("ra,rab,rb->", z, self.S, z, optimize=True) - (self.v * z).sum())

    def ridges(self, penalties: Penalties) -> np.ndarray:
        """On e, row by row: (V,)."""
        counts = np.diff(self.starts) + (0 if self.past is None else self.past.count)
        return penalties.ridge + penalties.ridge_per_rating * counts

    def penalty(self, penalties: Penalties) -> float:
        squares = float((self.ridges(penalties) * np.square(self.E).sum(1)).sum())
        if penalties.bias_ridge < NO_BIAS:
            squares += penalties.bias_ridge * float(np.square(self.bias).sum())
        if self.past is not None:
            squares += 2 * self.past.penalty(np.column_stack([self.E, self.bias]), self.A)
        counted = np.count_nonzero(self.T) + (np.count_nonzero(self.bias) if penalties.biases else 0)
        return 0.5 * squares + penalties.l0 * counted


class RowShare:
    """The rows that this process works on; `ranks` is None where there is one alone."""

    def __init__(self, ranks: Ranks | None = None):
        self.ranks = ranks

    def rows(self, cuts: np.ndarray, rank: int | None = None) -> tuple[int, int]:
        """The rows that this process (or `rank`) works on: some of the parts that `cuts` are the bounds of."""
        if self.ranks is None:
            return 0, int(cuts[-1])
        parts, rank = len(cuts) - 1, self.ranks.rank if rank is None else rank
        return int(cuts[parts * rank // self.ranks.size]), int(cuts[parts * (rank + 1) // self.ranks.size])

    def gather(self, cuts: np.ndarray, *arrays: np.ndarray) -> None:
        """Take the rows of all arrays from those who have worked on them, in place."""
        if self.ranks is None:
            return
        for array in arrays:
            for rank in range(self.ranks.size):
                first, stop = self.rows(cuts, rank)
                if first < stop:
                    self._broadcast(array[first:stop], rank)

    def same(self, *arrays: np.ndarray) -> None:
        """Take these arrays from rank 0, in place: other processors round otherwise."""
        if self.ranks is not None:
            for array in arrays:
                self._broadcast(array, 0)

    def _broadcast(self, array: np.ndarray, rank: int) -> None:
        assert self.ranks is not None
        with self.ranks.reporting("sending rows"):
            dist.broadcast(torch.from_numpy(array), group=self.ranks.group, group_src=rank)

    def summed(self, array: np.ndarray) -> np.ndarray:
        """The sum over processes."""
        return array if self.ranks is None else self.ranks.sum(torch.from_numpy(array)).numpy()

    def agreed(self, number: float) -> float:
        """That of rank 0, so that all decide alike."""
        return number if self.ranks is None else float(self.ranks.from_first({"number": number})["number"])


ALONE = RowShare()


def fewest(cost: Callable[[int], float], most: int) -> int:
    """The least number of 1 … `most` whose cost is as low as any: but for MARGIN, since each cost is a local minimum's.
    The search ends when PATIENCE more in a row were no better."""
    costs = [cost(1)]
    while len(costs) < min(most, int(np.argmin(costs)) + 1 + PATIENCE):
        costs.append(cost(len(costs) + 1))
    lowest = min(costs)
    return next(K for K, each in enumerate(costs, 1) if each <= lowest + MARGIN * (costs[0] - lowest))


def add_anchor(factor: Factor, l0: float, anchor_penalty: float) -> float:
    """Add the most promising anchor if it is worth its penalty; → by how much the objective falls, 0 if none is."""
    if len(factor.A) >= MOST:
        return 0.0
    g = row_slopes(factor)
    weight = g / np.sqrt(np.maximum(np.trace(factor.S, axis1=1, axis2=2), 1e-12))[:, None]
    directions = np.linalg.eigh(weight.T @ weight)[1].T[::-1][:3]
    best, found = 0.0, None
    for anchor in np.concatenate([directions, -directions]):
        for _ in range(3):  # rows that gain decide where the anchor points
            along, curved = g @ anchor, curvature(factor, anchor)
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
        factor.A = np.vstack([factor.A, found[0]])
        factor.T = np.column_stack([factor.T, found[1]])
        factor.E = factor.T @ factor.A
    return best


def prune_anchors(factor: Factor, l0: float, anchor_penalty: float) -> float:
    """Remove anchors that are not worth their penalty, the worst first, but the last; → by how much the objective falls."""
    fallen = 0.0
    while len(factor.A) > 1:
        g = row_slopes(factor)
        costs = [
            float((0.5 * factor.T[:, k] ** 2 * curvature(factor, a) + factor.T[:, k] * (g @ a)).sum())
            - l0 * np.count_nonzero(factor.T[:, k])
            for k, a in enumerate(factor.A)
        ]
        worst = int(np.argmin(costs))
        if costs[worst] >= anchor_penalty:
            break
        fallen += anchor_penalty - costs[worst]
        factor.A, factor.T = np.delete(factor.A, worst, axis=0), np.delete(factor.T, worst, axis=1)
        factor.E = factor.T @ factor.A
    return fallen


def row_slopes(factor: Factor) -> np.ndarray:
    """−∂/∂e of each row's quadratic where it stands: (V, d)."""
    d = factor.E.shape[1]
    return factor.v[:, :d] - np.einsum("rab,rb->ra", factor.S[:, :d, :d], factor.E) - factor.S[:, :d, d] * factor.bias[:, None]


def curvature(factor: Factor, anchor: np.ndarray) -> np.ndarray:
    """aᵀ·S·a of each row: (V,)."""
    d = len(anchor)
    return np.einsum("rab,a,b->r", factor.S[:, :d, :d], anchor, anchor, optimize=True)
