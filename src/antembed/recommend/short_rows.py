"""Descent on a side whose rows have fewer pairs than dimensions, without normal equations (recommend/short_rows_kernel.py).

Weights and biases move as everywhere, in single precision; each visit starts from slopes that are worked out anew. The anchors
move together: their quadratic (K·d unknowns) is never written out, conjugate gradients ask for its product with a direction,
which takes one look at all pairs. Each step is a minimum along a line, so the objective does not rise, but for rounding.

Sums over rows are taken part by part, as in normal_equations.py: the result does not depend on the number of threads.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from antembed.native.blocks import across, along
from antembed.native.threads import take_turns
from antembed.native.vector import padded_columns
from antembed.recommend import short_rows_kernel as kernel
from antembed.recommend.factor import ALONE, Penalties, RowShare, Side
from antembed.recommend.normal_equations import PARTS, shared_cuts

STEPS, ENOUGH = 8, 0.1  # of conjugate gradients, at most; one that brings less than this share of all before is the last
RANK = 1e-4  # beside diagonals of 1: eigenvalues below are too near the rounding of single precision
Work = Callable[[int, int, int], object]  # part, first, stop
Diagonals = tuple[np.ndarray, np.ndarray, np.ndarray]
Product = Callable[[np.ndarray], np.ndarray]


def is_short(side: Side) -> bool:
    """Whether its rows have fewer pairs than dimensions, on average."""
    V, d = side.E.shape
    return side.past is None and len(side.others) <= d * V


class ShortRows:
    """A side to descend on, the other held."""

    def __init__(self, own: Side, other: Side, mean: float, penalties: Penalties, threads: int, share: RowShare = ALONE):
        self.own, self.other, self.mean, self.threads, self.share = own, other, mean, threads, share
        self.ridges = penalties.ridge, penalties.ridge_per_rating, penalties.bias_ridge
        self.pairs = own.starts, own.others, own.ratings, own.weights
        self.d, weight = own.E.shape[1], penalties.unobserved_weight
        self.S, self.v = np.zeros((self.d + 1, self.d + 1)), np.zeros(self.d + 1)  # of all pairs there are
        if weight:
            Z = np.column_stack([other.E, np.ones(len(other.E))])
            self.S, self.v = across(weight * Z, Z), across(weight * Z, -mean - other.bias)

    def descend_rows(self, l0: float, bias_l0: float, frozen: bool, passes: int) -> None:
        """Weights and biases of all rows, the anchors held."""
        own, d = self.own, self.d
        seen = single(along(self.other.E, own.A.T))
        H, gram = own.A @ self.S[:d, :d] @ own.A.T, own.A @ own.A.T
        lines = np.diag(H), np.diag(gram), own.A @ self.v[:d], own.A @ self.S[:d, d]
        common = (single(H), single(gram), *(single(line[None])[0] for line in lines), float(self.S[d, d]), float(self.v[d]))
        given = self.pairs, seen, self.other.bias, self.mean, common, own.T, own.bias, self.ridges, l0, bias_l0, frozen, passes
        self._visit(lambda _, first, stop: kernel.descend_short_rows(*given, first, stop), self.share)
        self.share.gather(shared_cuts(own), own.T, own.bias)

    def move_anchors(self) -> None:
        """All anchors towards their minimum, the weights held; then the same vectors from anchors of length 1."""
        own, slope, curve, near = self.own, *self.quadratic()
        own.A += conjugate_gradients(curve, slope, near)
        self.share.same(own.A)
        norms = np.linalg.norm(own.A, axis=1)
        norms[norms == 0] = 1.0
        own.A /= norms[:, None]
        A = padded_columns(own.A)
        self._visit(lambda _, first, stop: kernel.mix_rows(own.T, A, norms, own.E, first, stop))

    def quadratic(self) -> "tuple[np.ndarray, Product, Kroneckers]":
        """In all anchors: the direction downhill (K, d), its curvature times a direction, and what is near that curvature."""
        A, d, (ridge, per_pair, _) = self.own.A, self.d, self.ridges
        crowd, counted, sums = self._uses()
        ridged = ridge * crowd + per_pair * counted
        S, v, s = self.S[:d, :d], self.v[:d], self.S[:d, d]
        slope = self._slopes(A, padded_columns(self.other.E), 1.0)
        slope += np.outer(sums[0], v) - np.outer(sums[1], s) - crowd @ A @ S - ridged @ A
        near = Kroneckers(crowd, counted, self._near)
        E = single(self.other.E)  # a direction need not be known to the last digit, and most of the time is spent here
        return slope, lambda D: crowd @ D @ S + ridged @ D - self._slopes(D, E, 0.0), near

    def _visit(self, work: Work, share: RowShare = ALONE) -> None:
        """Call work for all rows of this process, a part at a time."""
        cuts = shared_cuts(self.own)
        own_first, own_stop = share.rows(cuts)

        def part(number: int) -> None:
            first, stop = max(int(cuts[number]), own_first), min(int(cuts[number + 1]), own_stop)
            if first < stop:
                work(number, first, stop)

        take_turns(part, len(cuts) - 1, self.threads)

    def _slopes(self, A: np.ndarray, E: np.ndarray, errors: float) -> np.ndarray:
        """What pairs say about anchors (K, d): add_anchor_slopes, over all rows, in the precision of E."""
        own, wide = self.own, padded_columns(A).astype(E.dtype)
        sums = np.zeros((PARTS, *wide.shape), E.dtype)
        given = self.pairs, E, self.other.bias, self.mean, own.T, own.bias, wide, errors
        self._visit(lambda part, first, stop: kernel.add_anchor_slopes(*given, sums[part], first, stop), self.share)
        return self.share.summed(np.ascontiguousarray(sums.sum(0, np.float64)[:, : self.d]))

    def _uses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Σ t⊗t and Σ n·t⊗t (K, K), Σ t and Σ b·t (2, K): add_uses, over all rows."""
        own, K = self.own, len(self.own.A)
        sums = np.zeros((PARTS, 2 * K + 2, K))

        def work(part: int, first: int, stop: int) -> None:
            crowd, counted, rest = np.split(sums[part], [K, 2 * K])
            kernel.add_uses(own.starts, own.T, own.bias, crowd, counted, rest, first, stop)

        self._visit(work, self.share)
        total = self.share.summed(sums.sum(0))
        crowd, counted = (np.tril(part) + np.tril(part, -1).T for part in (total[:K], total[K : 2 * K]))
        return crowd, counted, total[2 * K :]

    @cached_property
    def _near(self) -> Diagonals:
        """What is near S of a row, and of each of its pairs: as if all pairs had the mean moments."""
        ridge, per_pair, _ = self.ridges
        return both_diagonal(
            self.S[: self.d, : self.d] + ridge * np.eye(self.d), self._mean_moments() + per_pair * np.eye(self.d)
        )

    def _mean_moments(self) -> np.ndarray:
        """The mean of w·e⊗e over all pairs: (d, d)."""
        other = self.other
        counts = np.diff(other.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        weights = np.bincount(rows, other.weights, len(counts)) if len(other.weights) else counts
        return across(other.E * weights[:, None], other.E) / max(len(rows), 1)


def single(rows: np.ndarray) -> np.ndarray:
    """Padded, in single precision."""
    return padded_columns(rows).astype(np.float32)


class Kroneckers:
    """Solves B·X·C + D·X·F = R for X (K, d), rows of zeros in B left alone; all four are symmetric and have no negative
    eigenvalues. `right` is both_diagonal(C, F)."""

    def __init__(self, B: np.ndarray, D: np.ndarray, right: Diagonals):
        self.used = np.flatnonzero(np.diag(B))
        some = np.ix_(self.used, self.used)
        self.left, b, d = both_diagonal(B[some], D[some])
        self.right, c, f = right
        both = np.outer(b, c) + np.outer(d, f)
        self.both = np.maximum(both, 1e-9 * both.max(initial=0.0))

    def solve(self, R: np.ndarray) -> np.ndarray:
        X = np.zeros_like(R)
        X[self.used] = self.left @ ((self.left.T @ R[self.used] @ self.right) / self.both) @ self.right.T
        return X


def both_diagonal(B: np.ndarray, D: np.ndarray) -> Diagonals:
    """X such that Xᵀ·B·X and Xᵀ·D·X are diagonal, and these diagonals. X leaves out directions in which there is nothing but
    rounding: weights that only one row has can be shifted between its anchors without end."""
    B_size, D_size = (float(np.trace(part)) or 1.0 for part in (B, D))
    whole = B / B_size + D / D_size
    scale = 1 / np.sqrt(np.diag(whole))
    sizes, axes = np.linalg.eigh(np.outer(scale, scale) * whole)
    some = sizes > RANK
    X = scale[:, None] * axes[:, some] / np.sqrt(sizes[some])
    X = X @ np.linalg.eigh(X.T @ (B / B_size) @ X)[1]
    return X, *(np.einsum("ij,ij->j", X, part @ X) for part in (B, D))


def conjugate_gradients(curve: Product, slope: np.ndarray, near: Kroneckers) -> np.ndarray:
    """Towards the minimum of ½·X·curve(X) − slope·X, from 0, until a step brings little."""
    X, direction, last, fallen = np.zeros_like(slope), np.zeros_like(slope), 1.0, 0.0
    for _ in range(STEPS):
        better = near.solve(slope)
        along = float((slope * better).sum())
        direction = better + along / last * direction
        bent = curve(direction)
        curved = float((direction * bent).sum())
        if not (along > 0 and curved > 0):  # it is there
            break
        X += along / curved * direction
        slope = slope - along / curved * bent
        last, gain = along, 0.5 * along * along / curved
        fallen += gain
        if gain < ENOUGH * fallen:
            break
    return X
