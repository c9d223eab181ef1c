"""The anchors' step where rows have fewer ratings than dimensions: all together, without the moments of every pair of anchors.

The quadratic in all anchors (K·d unknowns) is never written out: conjugate gradients ask for its product with a direction,
which takes one look at all ratings. Each step is a minimum along a line, so the objective does not rise, but for rounding.

Sums over rows are taken part by part, as in normal_equations.py: the result does not depend on the number of threads.
"""

from collections.abc import Callable

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from antembed.native.large_arrays import blocks
from antembed.native.threads import take_turns
from antembed.native.vector import padded_columns
from antembed.recommend import descent_kernel as kernel
from antembed.recommend.factor import ALONE, Factor, Penalties, RowShare
from antembed.recommend.normal_equations import PARTS, all_pairs, shared_cuts

STEPS, PRECISE = 8, 0.1  # of conjugate gradients, at most; the share of the slope that ends them
Product = Callable[[np.ndarray], np.ndarray]


def is_short(factor: Factor) -> bool:
    """Whether its rows have fewer ratings than dimensions, on average."""
    V, d = factor.E.shape
    return factor.past is None and len(factor.others) <= d * V


class AnchorQuadratic:
    """½·D·curvature(D) − slope·D of a change D (K, d) of a factor's anchors, its weights and the other factor held."""

    def __init__(self, own: Factor, other: Factor, mean: float, penalties: Penalties, threads: int, share: RowShare = ALONE):
        self.own, self.threads, self.share, self.d = own, threads, share, own.E.shape[1]
        self.given = own.starts, own.others, own.ratings, own.weights
        self.biases, self.mean = other.bias, mean
        # A direction need not be known to the last digit, and most of the time is spent here.
        self.E = padded_columns(other.E).astype(np.float32)
        S, v = all_pairs(other, mean, penalties.unobserved_weight)
        self.S, s = S[: self.d, : self.d], S[: self.d, self.d]
        counts, K = np.diff(own.starts), len(own.A)
        self.gram, counted = np.zeros((K, K)), np.zeros((K, K))  # Σ t⊗t, and for each rating of the row
        for rows in blocks(len(own.T), 2 * K * K):
            T = own.T[rows]
            self.gram += T.T @ T
            counted += (T * counts[rows, None]).T @ T
        self.ridges = penalties.ridge * self.gram + penalties.ridge_per_rating * counted
        self.slope = self._slopes(own.A, padded_columns(other.E), 1.0) - self.gram @ own.A @ self.S - self.ridges @ own.A
        self.slope += np.outer(own.T.sum(0), v[: self.d]) - np.outer(own.bias @ own.T, s)
        # About the curvature's diagonal: as if all ratings had the mean square of the other factor's vectors.
        others = np.diff(other.starts)
        squares = others @ np.square(other.E) / max(others.sum(), 1)
        self.diagonal = np.outer(np.diag(self.gram), np.diag(self.S)) + np.outer(np.diag(counted), squares)
        self.diagonal += np.diag(self.ridges)[:, None]

    def curvature(self, D: np.ndarray) -> np.ndarray:
        """Times a direction."""
        found: np.ndarray = self.gram @ D @ self.S + self.ridges @ D - self._slopes(D, self.E, 0.0)
        return found

    def minimize(self) -> np.ndarray:
        """A change that comes near the minimum; 0 where no row uses an anchor."""
        scale = np.where(self.diagonal > 1e-9 * self.diagonal.max(initial=0.0), self.diagonal, np.inf)

        def operator(product: Product) -> LinearOperator:
            shape = (self.slope.size, self.slope.size)
            return LinearOperator(shape, lambda x: product(x.reshape(self.slope.shape)).reshape(-1), dtype=np.float64)

        scaled = operator(lambda R: R / scale)
        found: np.ndarray = cg(operator(self.curvature), self.slope.reshape(-1), rtol=PRECISE, maxiter=STEPS, M=scaled)[0]
        return found.reshape(self.slope.shape)

    def _slopes(self, A: np.ndarray, E: np.ndarray, errors: float) -> np.ndarray:
        """What ratings say about anchors (K, d): add_anchor_slopes, over all rows, in the precision of E."""
        own, wide = self.own, padded_columns(A).astype(E.dtype)
        sums, cuts = np.zeros((PARTS, *wide.shape), E.dtype), shared_cuts(own)
        given = self.given, E, self.biases, self.mean, own.T, own.bias, wide, errors
        first, stop = self.share.rows(cuts)

        def part(number: int) -> None:
            if first <= cuts[number] < stop:
                kernel.add_anchor_slopes(*given, sums[number], int(cuts[number]), int(cuts[number + 1]))

        take_turns(part, len(cuts) - 1, self.threads)
        return self.share.summed(np.ascontiguousarray(sums.sum(0, np.float64)[:, : self.d]))
