"""Normal equations of one factor's rows, the other factor held: built for a block of rows when they are needed.

They take (d + 1)² numbers a row, so they are never there for all rows at once; only a search for the number of anchors keeps
them. Rows come in parts, whose number depends on the problem alone, and sums over rows are taken part by part: the result does
not depend on the number of threads.
"""

from collections.abc import Callable

import numpy as np

from antembed.native.large_arrays import across
from antembed.native.threads import take_turns
from antembed.native.vector import padded, padded_columns
from antembed.recommend import descent_kernel as kernel
from antembed.recommend.factor import ALONE, Factor, Penalties, RowShare

BLOCK_BYTES = 1 << 19  # of the equations of a block: they stay in the cache
HELD_BYTES = 1 << 26  # equations of all rows that are kept while they are needed again
PARTS, LEAST_PARTS = 32, 4  # that threads and processes share; the least where the sums of a part are large
PART_BYTES = 1 << 24  # of what all parts sum up
ROW_COST = 64  # of a row beside its ratings, in ratings
Visit = Callable[[int, int, int, np.ndarray, np.ndarray], object]  # part, first, stop, S, v


class NormalEquations:
    """S (n, d + 1, Q) and v (n, d + 1) of any rows of `own`, as `other` is now (recommend/descent_kernel.py)."""

    def __init__(self, own: Factor, other: Factor, mean: float, penalties: Penalties, threads: int, share: RowShare = ALONE):
        self.own, self.penalties, self.threads, self.share = own, penalties, threads, share
        self.d = own.E.shape[1]
        self.held: tuple[np.ndarray, np.ndarray] | None = None
        ridges = penalties.ridge, penalties.ridge_per_rating, penalties.bias_ridge
        rated = own.starts, own.others, own.ratings, own.weights, padded_columns(other.E), other.bias
        self.given = *rated, mean, ridges, *all_pairs(other, mean, penalties.unobserved_weight)

    def into(self, S: np.ndarray, v: np.ndarray, first: int, stop: int) -> None:
        """Those of rows [first, stop); the padding of S must be zero."""
        kernel.accumulate_normal_equations(*self.given, S, v, first, stop)
        if self.own.past is not None:
            past, d, rows = self.own.past, self.d, slice(first, stop)
            S, v = S[: stop - first, :, : d + 1], v[: stop - first]
            S += past.n[rows, None, None] * past.C
            S[:, range(d), range(d)] += self.penalties.ridge_per_rating * past.count[rows, None]
            v += past.n[rows, None] * (past.z[rows] @ past.C) + past.g[rows]

    @property
    def nbytes(self) -> int:
        """Of the equations of all rows."""
        return 8 * len(self.own.E) * (self.d + 1) * (padded(self.d + 1) + 1)

    def hold(self) -> tuple[np.ndarray, np.ndarray]:
        """Those of all rows, for this and all later visits."""
        held = self._empty(len(self.own.E))
        self.visit(lambda _, a, b, S, v: None, held=held)
        self.held = held
        return held

    def _empty(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((rows, self.d + 1, padded(self.d + 1))), np.empty((rows, self.d + 1))

    def visit(self, work: Visit, parts: int = PARTS, held: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        """Call work for all rows of this process, a block at a time; the blocks of a part follow each other. `held` takes all
        that is found."""
        cuts = balanced_cuts(self.own.starts, parts)
        own_first, own_stop = self.share.rows(shared_cuts(self.own))
        size = max(BLOCK_BYTES // (8 * (self.d + 1) * padded(self.d + 1)), 8)

        def part(number: int) -> None:
            begin, end = max(int(cuts[number]), own_first), min(int(cuts[number + 1]), own_stop)
            if begin >= end:
                return
            all_rows = held or self.held
            S, v = (np.empty(0), np.empty(0)) if all_rows else self._empty(min(size, end - begin))
            for first in range(begin, end, size):
                stop = min(first + size, end)
                if all_rows:
                    S, v = (rows[first:stop] for rows in all_rows)
                if not self.held:
                    self.into(S, v, first, stop)
                work(number, first, stop, S, v)

        take_turns(part, len(cuts) - 1, self.threads)


def all_pairs(other: Factor, mean: float, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """S and v of every pair there is, each with this weight and as if rated 0: the same for all rows."""
    d = other.E.shape[1]
    if not weight:
        return np.zeros((d + 1, d + 1)), np.zeros(d + 1)
    Z = np.column_stack([other.E, np.ones(len(other.E))])
    return across(weight * Z, Z), across(weight * Z, -mean - other.bias)


def balanced_cuts(starts: np.ndarray, parts: int) -> np.ndarray:
    """Rows → at most so many parts of them, about as costly as each other; → where they begin, and the end."""
    V = len(starts) - 1
    cost = starts + ROW_COST * np.arange(V + 1)
    return np.unique(np.concatenate([[0], np.searchsorted(cost, cost[-1] * np.arange(1, parts) // parts), [V]]))


def shared_cuts(factor: Factor) -> np.ndarray:
    """The parts that processes share."""
    return balanced_cuts(factor.starts, PARTS)


class AnchorMoments:
    """The quadratic in all anchors at once, from sums over rows (recommend/descent_kernel.py, anchor_moments)."""

    def __init__(self, K: int, d: int):
        self.K, self.d, self.pairs = K, d, K * (K + 1) // 2
        self.size, self.positions = kernel.triangle(d)
        self.parts = int(np.clip(PART_BYTES // (8 * max(self.pairs * self.size, 1)), LEAST_PARTS, PARTS))
        self.sums: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}  # M, used, g of a part

    def add(
        self, part: int, T: np.ndarray, bias: np.ndarray, A: np.ndarray, S: np.ndarray, v: np.ndarray, a: int, b: int
    ) -> None:
        """Rows [a, b); A is (K, P)."""
        if part not in self.sums:
            used = np.zeros(self.pairs, np.bool_)
            self.sums[part] = np.zeros((self.pairs, self.size)), used, np.zeros((self.K, A.shape[1]))
        kernel.anchor_moments(T, bias, A, S, v, *self.sums[part], a, b)

    def total(self, share: RowShare = ALONE) -> tuple[np.ndarray, np.ndarray]:
        """Over the rows of all processes: the curvature of each pair k ≥ j, at [k·(k+1)/2 + j] (d, d), and the direction
        downhill (K, d)."""
        M, g = np.zeros((self.pairs, self.size)), np.zeros((self.K, self.d))
        for part in sorted(self.sums):
            more, used, slope = self.sums[part]
            rows = np.flatnonzero(used)
            if len(rows) > self.pairs // 2:
                M += more
            else:
                M[rows] += more[rows]
            g += slope[:, : self.d]
        return share.summed(M)[:, self.positions], share.summed(g)


def minimize_anchors(factor: Factor, M: np.ndarray, g: np.ndarray) -> None:
    """One anchor after the other to the minimum of this quadratic, the others as they have become."""
    K = len(factor.A)
    larger, smaller = np.maximum.outer(np.arange(K), np.arange(K)), np.minimum.outer(np.arange(K), np.arange(K))
    pairs = larger * (larger + 1) // 2 + smaller
    for k in range(K):
        H, slope = M[pairs[k, k]], g[k]
        if factor.past is not None and k < len(factor.past.A):
            more_H, more_slope = factor.past.anchor_system(k, factor.A)
            H, slope = H + more_H, slope + more_slope
        if H.any():  # else no row uses it
            change = np.linalg.lstsq(H, slope, rcond=1e-10)[0]
            factor.A[k] += change
            g -= M[pairs[k]] @ change
