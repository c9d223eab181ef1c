"""Alternating coordinate descent on the ℓ0 objective itself (eq. 5), for matrix factorization.

    Σ ½(r − mean − b_u − b_i − t_u·A_u·A_iᵀ·t_i)²  +  ½·ridge·Σ‖e‖²  +  ½·bias_ridge·Σb²  +  l0·(‖T_u‖₀ + ‖T_i‖₀ + ‖b‖₀)

over T ≥ 0, A of any sign, and the biases (l0 counts them with `Penalties.biases`). It starts from dense rows (alternating least
squares), makes anchors of them, and takes users and items in turn while l0 rises to its full height. Every step is an exact
minimum over some of the unknowns, so at the full penalty the objective never rises. Without anchors it stays with the dense
rows: plain biased factorization, the baseline. With `unobserved_weight` every pair of a user and an item counts a little, as if
rated 0, at the cost of two small matrices: a model of what is chosen rather than of how it is rated, for lists of items.

Who calls what, in this order:

    a solver (descent_solver.py)    init_weights (init_warm, sweep_warm 0, 1, …, make_anchors), then sweep_at with rising l0
    a tolerance (tolerance.py)      init_warm, sweep_warm 0, 1, …, make_anchors, then sweep_at with the searched l0
    a tolerance with --basis axes   init_warm, sweep_warm 0, 1, …, make_axes, then sweep_axes with the searched l0
    a dense model (search.py)       init_dense, then sweep_dense

`split_axes` writes E as T·A where anchors are the axes and their opposites: T has the positive and the negative part of E.

recommend/descent_kernel.py has the arithmetic, recommend/short_rows.py the anchors of rows with few pairs. Memory: the tables;
the search for the number of anchors adds (d + 1)² numbers per object.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from antembed.native.large_arrays import along
from antembed.native.threads import take_turns
from antembed.native.vector import padded, padded_columns
from antembed.recommend import descent_kernel as kernel
from antembed.recommend.factor import ALONE, Factor, Penalties, RowShare, fewest, prune_anchors
from antembed.recommend.normal_equations import (
    HELD_BYTES,
    PARTS,
    AnchorMoments,
    NormalEquations,
    balanced_cuts,
    minimize_anchors,
    shared_cuts,
)
from antembed.recommend.short_rows import AnchorQuadratic, is_short
from antembed.train.checkpoint import Checkpoint

DENSE_SWEEPS = 8  # of alternating least squares before anchors are made
INNER = 2  # times that a sweep goes over a factor's rows, then its anchors
PASSES = 12  # over the weights of a row, at most
RAMP = 0.6  # share of the sweeps over which l0 rises
INIT = 0.1  # scale of the first random vectors
LARGEST = 16e9  # bytes
WARM = 6  # sweeps with more ridge, where the ridge is weak
WARM_RIDGE, WARM_PER_RATING = 7.0, 0.02  # that of the first sweep, in standard deviations of the ratings
WEAK = 0.1  # a ridge below this share of WARM_RIDGE is weak
LEAST_RIDGE = 1e-4  # lower bound of the falling ridge, as a share of the first
NARROW = 8  # dimensions: rows at most this wide start twice as wide, where the ridge is weak
TRIED = 6  # descents of a factor, to see what a number of anchors is worth


class Descent:
    """`columns` (users, items, ratings and, if there are any, weights, each (n,)) → tables of width `d` for `num_embeddings`
    users and items, with so many `anchors` each; None: dense rows."""

    def __init__(
        self,
        columns: tuple[np.ndarray, ...],
        num_embeddings: tuple[int, int],
        anchors: tuple[int, ...] | None,
        d: int,
        penalties: Penalties,
        *,
        sweeps: int = 1,
        seed: int = 0,
        threads: int = 1,
        auto: bool = False,  # find out how many anchors: each costs as much as d weights
        share: RowShare = ALONE,  # the rows that are worked on here
    ):
        # Weights and vectors, the latter twice for a moment, and the model's copy of the weights in single precision.
        needed = sum(V * (16 * d + 12 * K) for V, K in zip(num_embeddings, anchors or (0, 0), strict=True))
        if auto:
            needed += sum(num_embeddings) * (d + 1) * padded(d + 1) * 8
        if needed > LARGEST:
            raise ValueError(
                f"coordinate descent would need {needed / 1e9:.0f} GB for {sum(num_embeddings):,} objects of width {d}, "
                f"at most {LARGEST / 1e9:.0f} GB are allowed; use the stochastic solver"
            )
        users, items, ratings, *weights = columns
        weight = weights[0] if weights else None
        self.users = Factor(users, items, ratings, weight, num_embeddings[0], d)
        self.items = Factor(items, users, ratings, weight, num_embeddings[1], d)
        self.factors = self.users, self.items
        self.columns, self.anchors, self.sweeps, self.seed = columns, anchors, sweeps, seed
        self.threads, self.auto, self.share = threads, auto, share
        self.frozen = False  # polishing: what is zero stays so
        self.use(penalties)

    def use(self, penalties: Penalties) -> None:
        """Set the penalties; the mean depends on the weight of unobserved pairs."""
        _, _, ratings, *weights = self.columns
        counted = weights[0].astype(np.float64) if weights else np.ones(len(ratings))
        pairs = len(self.users.E) * len(self.items.E)
        self.penalties = penalties
        self.mean = float((counted * ratings).sum() / (counted.sum() + penalties.unobserved_weight * pairs))

    def init_weights(self) -> None:
        """Dense rows from small random vectors, then anchors."""
        self.init_warm()
        for number in range(DENSE_SWEEPS if self.anchors else 0):
            self.sweep_warm(number)
        self.make_anchors()

    def init_dense(self, scale: float = INIT) -> None:
        """Small random vectors of items; those of users follow from them."""
        self.items.E = scale * np.random.default_rng(self.seed).standard_normal(self.items.E.shape)

    @cached_property
    def scale(self) -> float:
        """The standard deviation of the ratings."""
        return float(np.std(self.columns[2])) or 1.0

    @property
    def weak(self) -> bool:
        """Whether the ridge is far below what ratings usually need: data with little noise."""
        return self.penalties.ridge < WEAK * WARM_RIDGE * self.scale and not self.penalties.unobserved_weight

    def init_warm(self, scale: float = INIT) -> None:
        """As `init_dense`; where the ridge is weak and vectors are narrow, from rows twice as wide, which converge more surely,
        cut to the directions that carry most variance."""
        self.init_dense(scale)
        d = self.items.E.shape[1]
        if d > NARROW or not self.weak or self.anchors is None:
            return
        sizes = len(self.users.E), len(self.items.E)
        wide = Descent(self.columns, sizes, None, 2 * d, self.penalties, seed=self.seed, threads=self.threads, share=self.share)
        wide.init_dense(scale)
        for number in range(WARM):
            wide.sweep_warm(number)
        self.items.E, self.items.bias = np.ascontiguousarray(narrowed(wide.items.E, d)), wide.items.bias
        self.share.same(self.items.E)

    def sweep_dense(self) -> None:
        """All users and items, once, without anchors: alternating least squares."""
        for factor in self.factors:
            self._solve(factor, kernel.solve_rows)

    def _solve(self, factor: Factor, solve: Callable[..., None], *limits: float) -> None:
        """Dense rows and biases by a function of the kernel."""
        given = factor.E, factor.bias
        self._equations(factor).visit(lambda _, a, b, S, v: solve(*given, S, v, *limits, a, b))
        self.share.gather(shared_cuts(factor), *given)

    def sweep_warm(self, number: int) -> None:
        """As `sweep_dense`, in sweep 0, 1, … from random vectors: ridges fall to their own in the first WARM. With hardly any
        ridge the first sweeps overfit and do not recover."""
        own = self.penalties
        if number < WARM and self.weak:
            left, first, each = 1 - number / WARM, WARM_RIDGE * self.scale, WARM_PER_RATING * self.scale
            ridge = first**left * max(own.ridge, LEAST_RIDGE * first) ** (1 - left)
            per_rating = each**left * max(own.ridge_per_rating, LEAST_RIDGE * each) ** (1 - left)
            self.penalties = replace(own, ridge=ridge, ridge_per_rating=per_rating)
        self.sweep_dense()
        self.penalties = own

    def make_anchors(self) -> None:
        """Anchors, and weights ≥ 0, that come near the dense rows."""
        n = len(self.columns[2])
        # By the Bayesian information criterion a parameter must lower Σ ½·error² by at least ½·σ²·log n.
        l0 = self.loss() / n * float(np.log(max(n, 2))) if self.auto else 0.0
        for number, (factor, K) in enumerate(zip(self.factors, self.anchors or (), strict=False)):
            if self.auto and factor.past is None:
                K = self._count_anchors(factor, K, self.seed + number, l0)
            factor.make_anchors(K, self.seed + number, self.threads)
            factor.T = np.ascontiguousarray(factor.T)
            self.share.same(factor.T, factor.A)
            factor.E = along(factor.T, factor.A)

    def _count_anchors(self, factor: Factor, most: int, seed: int, l0: float) -> int:
        """How many anchors suit the dense rows best, the other factor held: 1, 2, … until more cost more."""
        self.accumulate_normal_equations(factor)
        rows = factor.E.copy(), factor.bias.copy()

        def cost(K: int) -> float:
            factor.E, factor.bias = rows[0].copy(), rows[1].copy()
            factor.make_anchors(K, seed, self.threads)
            for step in range(TRIED):
                self.descend(factor, l0 * min((step + 1) / (TRIED - 2), 1.0))
            return factor.quadratic() + l0 * (np.count_nonzero(factor.T) + K * factor.E.shape[1])

        best = fewest(cost, min(most, max(len(rows[0]), 1)))
        factor.E, factor.bias = rows
        return best

    def make_axes(self) -> None:
        """Anchors that are the principal axes of both factors, and their opposites: the same vectors, without a search."""
        _, axes = np.linalg.eigh(sum(factor.E.T @ factor.E for factor in self.factors))
        axes = np.ascontiguousarray(axes)
        self.share.same(axes)
        for factor in self.factors:
            factor.E = factor.E @ axes
            factor.split_axes()

    def sweep_axes(self, l0: float) -> None:
        """All users and items, once, on these anchors: weights that are not worth l0 are dropped, for good."""
        for factor in self.factors:
            factor.E = factor.T @ factor.A  # as it is after `load`, too
        for factor in self.factors:
            self._solve(factor, kernel.solve_support, l0, l0 if self.penalties.biases else 0.0)
            factor.split_axes()

    def l0_of(self, sweep: int) -> float:
        """The ℓ0 penalty in sweep 1, 2, …: it rises to its full height."""
        return self.penalties.l0 * min(sweep / max(RAMP * self.sweeps, 1), 1.0)

    def sweep(self, number: int) -> None:
        """All users and items, once."""
        self.sweep_at(self.l0_of(number))

    def sweep_at(self, l0: float) -> None:
        """As `sweep`, with another ℓ0 penalty."""
        if self.anchors is None:
            self.sweep_dense()
            return
        for factor in self.factors:
            if self.auto and not self.frozen:
                self.accumulate_normal_equations(factor)
                prune_anchors(factor, l0, l0 * factor.A.shape[1])
            self.descend(factor, l0)

    def weight_values(self, factor: Factor) -> tuple[np.ndarray, np.ndarray]:
        """By how much the objective would rise without each weight (V, K) and each bias (V,)."""
        weights, biases, d = np.empty_like(factor.T), np.empty_like(factor.bias), factor.E.shape[1]

        def work(part: int, a: int, b: int, S: np.ndarray, v: np.ndarray) -> None:
            S = S[: b - a, :, : d + 1]
            weights[a:b] = 0.5 * factor.T[a:b] ** 2 * np.einsum("rkd,kd->rk", factor.A @ S[:, :d, :d], factor.A)
            biases[a:b] = 0.5 * factor.bias[a:b] ** 2 * S[:, d, d]

        self._equations(factor).visit(work)
        self.share.gather(shared_cuts(factor), weights, biases)
        return weights, biases

    def accumulate_normal_equations(self, factor: Factor) -> None:
        """Keep the normal equations S·z = v of all rows of a factor, the other held; in every process those of all."""
        S, factor.v = self._equations(factor, ALONE).hold()
        factor.S = S[:, :, : factor.E.shape[1] + 1]

    def _other(self, factor: Factor) -> Factor:
        return self.items if factor is self.users else self.users

    def _equations(self, factor: Factor, share: RowShare | None = None) -> NormalEquations:
        """Of a factor's rows, the other as it is now."""
        return NormalEquations(factor, self._other(factor), self.mean, self.penalties, self.threads, share or self.share)

    def descend(self, factor: Factor, l0: float) -> None:
        """Weights and biases of all rows, then the anchors; twice, with the other factor held."""
        equations, short = self._equations(factor), is_short(factor)
        if equations.nbytes <= HELD_BYTES:
            equations.hold()
        for _ in range(INNER):
            moments = None if short else AnchorMoments(*factor.A.shape)
            self.descend_rows(factor, l0, equations, moments)
            self.move_anchors(factor, moments)

    def descend_rows(
        self, factor: Factor, l0: float, equations: NormalEquations | None = None, moments: AnchorMoments | None = None
    ) -> None:
        """Weights and biases of all rows, the anchors held. `moments` is filled from the updated rows."""
        bias_l0 = l0 if self.penalties.biases else 0.0
        A = padded_columns(factor.A)
        transposed = padded_columns(np.ascontiguousarray(A.T))
        floors = factor.ridges(self.penalties)

        def work(part: int, a: int, b: int, S: np.ndarray, v: np.ndarray) -> None:
            given = factor.T, factor.bias, A, transposed, S, v, floors
            kernel.descend_rows(*given, l0, bias_l0, self.frozen, PASSES, a, b)
            if moments is not None:
                moments.add(part, factor.T, factor.bias, A, S, v, a, b)

        (equations or self._equations(factor)).visit(work, moments.parts if moments else PARTS)
        self.share.gather(shared_cuts(factor), factor.T, factor.bias)
        factor.E = factor.T @ factor.A

    def move_anchors(self, factor: Factor, moments: AnchorMoments | None) -> None:
        """The anchors, the weights held. With moments: one anchor after the other, exactly; else conjugate gradients on all."""
        if moments is None:
            other = self._other(factor)
            factor.A += AnchorQuadratic(factor, other, self.mean, self.penalties, self.threads, self.share).minimize()
        else:
            minimize_anchors(factor, *moments.total(self.share))
        self.share.same(factor.A)
        if factor.past is None:  # else it is a stream (online.py): rows that are not in this batch use the anchors as they are
            # The same vectors from anchors of length 1: neither the ridge on e nor the count of non-zeros notices.
            norms = np.linalg.norm(factor.A, axis=1)
            norms[norms == 0] = 1.0
            factor.A /= norms[:, None]
            factor.T *= norms
        factor.E = factor.T @ factor.A

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        own, other = self.factors
        return self.mean + own.bias[users] + other.bias[items] + np.einsum("nd,nd->n", own.E[users], other.E[items])

    def loss(self) -> float:
        """Σ ½·squared error over the ratings, and unobserved_weight·Σ ½·prediction² over all pairs."""
        own, other = self.factors
        cuts = balanced_cuts(own.starts, PARTS)
        squares = np.zeros(len(cuts) - 1)
        first, stop = self.share.rows(cuts)
        given = own.starts, own.others, own.ratings, own.weights, padded_columns(own.E), own.bias
        others = padded_columns(other.E), other.bias, self.mean

        def part(number: int) -> None:
            if first <= cuts[number] < stop:
                squares[number] = kernel.squared_error(*given, *others, int(cuts[number]), int(cuts[number + 1]))

        take_turns(part, len(squares), self.threads)
        return 0.5 * float(self.share.summed(squares).sum()) + self._loss_of_unobserved()

    def _loss_of_unobserved(self) -> float:
        """From the second moments of both factors."""
        if not self.penalties.unobserved_weight:
            return 0.0
        U = np.column_stack([self.users.E, np.ones(len(self.users.E)), self.mean + self.users.bias])
        V = np.column_stack([self.items.E, self.items.bias, np.ones(len(self.items.E))])
        return 0.5 * self.penalties.unobserved_weight * float(((U.T @ U) * (V.T @ V)).sum())

    def penalty(self) -> float:
        """What the objective adds to the loss, at the full l0."""
        return sum(factor.penalty(self.penalties) for factor in self.factors)

    def objective(self) -> float:
        """What is minimised."""
        return self.loss() + self.penalty()

    def state(self) -> dict[str, torch.Tensor]:
        """All that a sweep starts from."""
        named, parts = {"users": self.users, "items": self.items}, ("T", "A", "E", "bias")
        return {f"{name}/{part}": torch.from_numpy(getattr(own, part)) for name, own in named.items() for part in parts}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """What `state` gave, checked: the kernels trust the shapes."""
        saved = Checkpoint(state)
        for name, factor in (("users", self.users), ("items", self.items)):
            V, d = factor.E.shape
            A = saved.array(f"{name}/A", None, d)
            T, E, bias = saved.array(f"{name}/T", V, len(A)), saved.array(f"{name}/E", V, d), saved.array(f"{name}/bias", V)
            factor.T, factor.A, factor.E, factor.bias = T, A, E, bias


def narrowed(rows: np.ndarray, width: int) -> np.ndarray:
    """The columns, after a rotation, that carry most variance."""
    _, directions = np.linalg.eigh(rows.T @ rows)  # the largest last, and as many as columns, however few the rows
    return rows @ directions[:, ::-1][:, :width]
