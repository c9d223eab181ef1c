"""Alternating coordinate descent on the ℓ0 objective itself (eq. 5), for matrix factorization.

    Σ ½(r − mean − b_u − b_i − t_u·A_u·A_iᵀ·t_i)²  +  ½·ridge·(Σ‖e‖² + …Σ b²)  +  l0·(‖T_u‖₀ + ‖T_i‖₀ + ‖b‖₀)

over T ≥ 0, A of any sign, and the biases (which l0 may leave alone). It starts from dense rows (alternating least squares),
makes anchors of them, and takes the sides in turn, l0 rising to its full height on the way. Every step is an exact minimum over
some of the unknowns, so at the full penalty the objective never rises. Without anchors it stays with the dense rows: plain
biased factorization, the baseline. With `unobserved_weight` every pair of a user and an item counts a little, as if rated 0, at
the cost of two small matrices: a model of what is chosen rather than of how it is rated, for lists of items.

recommend/descent_kernel.py has the arithmetic, recommend/short_rows_kernel.py where rows have fewer pairs than dimensions. It needs (d + 1)²
numbers an object only to find out how many anchors there should be; else as many as the tables have.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch

from antembed.native.blocks import along
from antembed.native.threads import take_turns
from antembed.native.vector import padded, padded_columns
from antembed.recommend import descent_kernel as kernel
from antembed.recommend.anchor_search import fewest, prune_anchors
from antembed.recommend.factor import ALONE, Penalties, RowShare, Side
from antembed.recommend.normal_equations import (
    HELD_BYTES,
    PARTS,
    AnchorMoments,
    NormalEquations,
    balanced_cuts,
    minimize_anchors,
    shared_cuts,
)
from antembed.recommend.short_rows import ShortRows, is_short
from antembed.train.checkpoint import Checkpoint

DENSE_SWEEPS, INNER, PASSES = 8, 2, 12
RAMP = 0.6  # share of the sweeps over which l0 rises
INIT = 0.1  # scale of the first random vectors
LARGEST = 16e9  # bytes
WARM, WARM_RIDGE, WARM_PER_RATING = 6, 7.0, 0.02  # sweeps with more ridge, and how much at first, beside the ratings' scale
WEAK, LEAST_RIDGE = 0.1, 1e-4  # of that: below the first a ridge is weak, and the second is the least to fall to
NARROW = 8  # dimensions up to which rows begin with twice as many
TRIED = 6  # descents of a side, to see what a number of anchors is worth


class Descent:
    """users, items, ratings (n,), weights (n,) or None → tables for so many users and items of width d."""

    def __init__(
        self,
        columns: tuple[np.ndarray, ...],
        num_embeddings: tuple[int, int],
        anchors: tuple[int, int] | None,
        d: int,
        penalties: Penalties,
        *,
        sweeps: int,
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
        self.users = Side(users, items, ratings, weight, num_embeddings[0], d)
        self.items = Side(items, users, ratings, weight, num_embeddings[1], d)
        self.columns, self.anchors, self.penalties = columns, anchors, penalties
        self.sweeps, self.seed, self.threads = sweeps, seed, threads
        self.auto, self.share = auto, share
        self.frozen = False  # polishing: what is zero stays so
        self.use(penalties)

    def use(self, penalties: Penalties) -> None:
        """Other penalties; the mean depends on what pairs without a rating count."""
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
        """The same where the ridge is weak and vectors are short: from rows twice as long, which find their way more surely,
        cut to the directions that carry most."""
        self.init_dense(scale)
        d = self.items.E.shape[1]
        if d > NARROW or not self.weak or self.anchors is None:
            return
        sizes = len(self.users.E), len(self.items.E)
        wide = Descent(self.columns, sizes, None, 2 * d, self.penalties, sweeps=1, seed=self.seed, threads=self.threads)
        wide.share = self.share
        wide.init_dense(scale)
        for number in range(WARM):
            wide.sweep_warm(number)
        self.items.E, self.items.bias = np.ascontiguousarray(narrowed(wide.items.E, d)), wide.items.bias
        self.share.same(self.items.E)

    def sweep_dense(self) -> None:
        """All users and items, once, without anchors: alternating least squares."""
        for side in self._sides():
            self._solve_dense(side)

    def sweep_warm(self, number: int) -> None:
        """The same in sweep 0, 1, … from random vectors: with ridges that fall to their own in the first WARM of them. With
        hardly any ridge the first sweeps would learn noise by heart, from which they do not return."""
        own = self.penalties
        if number < WARM and self.weak:
            share, first, each = 1 - number / WARM, WARM_RIDGE * self.scale, WARM_PER_RATING * self.scale
            self.penalties = replace(
                own,
                ridge=first**share * max(own.ridge, LEAST_RIDGE * first) ** (1 - share),
                ridge_per_rating=each**share * max(own.ridge_per_rating, LEAST_RIDGE * each) ** (1 - share),
            )
        self.sweep_dense()
        self.penalties = own

    def make_anchors(self) -> None:
        """Anchors, and weights ≥ 0, that come near the dense rows."""
        l0 = self.usual_l0() if self.auto else 0.0
        for number, (side, K) in enumerate(zip(self._sides(), self.anchors or (), strict=False)):
            if self.auto and side.past is None:
                K = self._count_anchors(side, self.items if side is self.users else self.users, K, self.seed + number, l0)
            side.make_anchors(K, self.seed + number, self.threads)
            side.T = np.ascontiguousarray(side.T)
            self.share.same(side.T, side.A)
            side.E = along(side.T, side.A)

    def usual_l0(self) -> float:
        """What a parameter must bring by the Bayesian information criterion: ½·σ²·log n of the summed ½·squared error."""
        n = len(self.columns[2])
        return self.loss() / n * float(np.log(max(n, 2)))

    def _count_anchors(self, side: Side, other: Side, most: int, seed: int, l0: float) -> int:
        """How many anchors the dense rows of a side are best made of, the other side held: 1, 2, … until more cost more."""
        self.accumulate_normal_equations(side, other)
        rows = side.E.copy(), side.bias.copy()

        def cost(K: int) -> float:
            side.E, side.bias = rows[0].copy(), rows[1].copy()
            side.make_anchors(K, seed, self.threads)
            for step in range(TRIED):
                self.descend(side, l0 * min((step + 1) / (TRIED - 2), 1.0))
            return side.quadratic() + l0 * (np.count_nonzero(side.T) + K * side.E.shape[1])

        best = fewest(cost, min(most, max(len(rows[0]), 1)))
        side.E, side.bias = rows
        return best

    def make_axes(self) -> None:
        """Anchors that are the principal axes of both sides, and their opposites: the same vectors, without a search."""
        _, axes = np.linalg.eigh(sum(side.E.T @ side.E for side in self._sides()))
        axes = np.ascontiguousarray(axes)
        self.share.same(axes)
        for side in self._sides():
            side.E = side.E @ axes
            self._split_axes(side)

    def sweep_axes(self, l0: float) -> None:
        """All users and items, once, on these anchors: weights that are not worth l0 are dropped, for good."""
        for side in self._sides():
            side.E = side.T @ side.A  # as it is after `load`, too
        for side in self._sides():
            self._solve_support(side, l0)
            self._split_axes(side)

    def _solve_support(self, side: Side, l0: float) -> None:
        bias_l0 = l0 if self.penalties.biases else 0.0
        given = side.E, side.bias
        self._equations(side).visit(lambda _, a, b, S, v: kernel.solve_support(*given, S, v, l0, bias_l0, a, b))
        self.share.gather(shared_cuts(side), *given)

    def _split_axes(self, side: Side) -> None:
        d = side.E.shape[1]
        side.A = np.vstack([np.eye(d), -np.eye(d)])
        side.T = np.hstack([np.maximum(side.E, 0), np.maximum(-side.E, 0)])

    def l0_of(self, sweep: int) -> float:
        """The ℓ0 penalty in sweep 1, 2, …: it rises to its full height."""
        return self.penalties.l0 * min(sweep / max(RAMP * self.sweeps, 1), 1.0)

    def sweep(self, number: int) -> None:
        """All users and items, once."""
        self.sweep_at(self.l0_of(number))

    def sweep_at(self, l0: float) -> None:
        """The same with another ℓ0 penalty."""
        if self.anchors is None:
            self.sweep_dense()
        elif self.auto and not self.frozen:
            self.alternate(partial(self._turn, l0))
        else:
            for side in self._sides():
                self.descend(side, l0)

    def _turn(self, l0: float, side: Side) -> None:
        prune_anchors(side, l0, l0 * side.A.shape[1])
        self.descend(side, l0)

    def weight_values(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """By how much the objective would rise without each weight (V, K) and each bias (V,), of users and items."""
        return [self._values_of(side) for side in self._sides()]

    def _values_of(self, side: Side) -> tuple[np.ndarray, np.ndarray]:
        weights, biases, d = np.empty_like(side.T), np.empty_like(side.bias), side.E.shape[1]

        def work(part: int, a: int, b: int, S: np.ndarray, v: np.ndarray) -> None:
            S = S[: b - a, :, : d + 1]
            weights[a:b] = 0.5 * side.T[a:b] ** 2 * np.einsum("rkd,kd->rk", side.A @ S[:, :d, :d], side.A)
            biases[a:b] = 0.5 * side.bias[a:b] ** 2 * S[:, d, d]

        self._equations(side).visit(work)
        self.share.gather(shared_cuts(side), weights, biases)
        return weights, biases

    def _sides(self) -> tuple[Side, Side]:
        return self.users, self.items

    def alternate(self, work: Callable[[Side], None]) -> None:
        """Users, then items, with their normal equations at hand."""
        for own, other in ((self.users, self.items), (self.items, self.users)):
            self.accumulate_normal_equations(own, other)
            work(own)

    def accumulate_normal_equations(self, own: Side, other: Side) -> None:
        """Add up what the ratings say about all rows of one side, the other held, and keep it."""
        S, own.v = self._equations(own, ALONE).hold()  # of all rows: what a number of anchors is worth is asked of them all
        own.S = S[:, :, : own.E.shape[1] + 1]

    def _equations(self, side: Side, share: RowShare | None = None) -> NormalEquations:
        """What the ratings say about a side, the other as it is now."""
        other = self.items if side is self.users else self.users
        return NormalEquations(side, other, self.mean, self.penalties, self.threads, share or self.share)

    def _solve_dense(self, side: Side) -> None:
        self._equations(side).visit(lambda _, a, b, S, v: kernel.solve_rows(side.E, side.bias, S, v, a, b))
        self.share.gather(shared_cuts(side), side.E, side.bias)

    def descend(self, side: Side, l0: float) -> None:
        """Weights and biases of all rows, then the anchors; twice, with the other side held."""
        if is_short(side):
            self._descend_short(side, l0)
            return
        equations = self._equations(side)
        if equations.nbytes <= HELD_BYTES:
            equations.hold()
        for _ in range(INNER):
            self.descend_rows(side, l0, equations, moments := AnchorMoments(*side.A.shape))
            self._move_anchors(side, moments)

    def _descend_short(self, side: Side, l0: float) -> None:
        """The same where rows have few pairs."""
        other = self.items if side is self.users else self.users
        rows = ShortRows(side, other, self.mean, self.penalties, self.threads, self.share)
        for _ in range(INNER):
            rows.descend_rows(l0, l0 if self.penalties.biases else 0.0, self.frozen, PASSES)
            rows.move_anchors()

    def descend_rows(
        self, side: Side, l0: float, equations: NormalEquations | None = None, moments: AnchorMoments | None = None
    ) -> None:
        """Weights and biases of all rows, the anchors held. `moments` are to be those of the rows that come out."""
        bias_l0 = l0 if self.penalties.biases else 0.0
        A = padded_columns(side.A)
        across = padded_columns(np.ascontiguousarray(A.T))
        floors = side.ridges(self.penalties)

        def work(part: int, a: int, b: int, S: np.ndarray, v: np.ndarray) -> None:
            kernel.descend_rows(side.T, side.bias, A, across, S, v, floors, l0, bias_l0, self.frozen, PASSES, a, b)
            if moments is not None:
                moments.add(part, side.T, side.bias, A, S, v, a, b)

        (equations or self._equations(side)).visit(work, moments.parts if moments else PARTS)
        self.share.gather(shared_cuts(side), side.T, side.bias)
        side.E = side.T @ side.A

    def descend_anchors(self, side: Side) -> None:
        """One anchor after the other, the weights held."""
        moments, A = AnchorMoments(*side.A.shape), padded_columns(side.A)
        self._equations(side).visit(lambda part, a, b, S, v: moments.add(part, side.T, side.bias, A, S, v, a, b), moments.parts)
        self._move_anchors(side, moments)

    def _move_anchors(self, side: Side, moments: AnchorMoments) -> None:
        minimize_anchors(side, *moments.total(self.share))
        self.share.same(side.A)
        if side.past is None:  # else rows that are not here use them as they are
            # The same vectors from anchors of length 1: neither the ridge on e nor the count of non-zeros notices.
            norms = np.linalg.norm(side.A, axis=1)
            norms[norms == 0] = 1.0
            side.A /= norms[:, None]
            side.T *= norms
        side.E = side.T @ side.A

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        own, other = self.users, self.items
        return self.mean + own.bias[users] + other.bias[items] + np.einsum("nd,nd->n", own.E[users], other.E[items])

    def loss(self) -> float:
        """Σ ½·squared error over the ratings."""
        own, other = self.users, self.items
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
        """unobserved_weight·Σ ½·prediction² over all pairs, from the two sides' second moments."""
        if not self.penalties.unobserved_weight:
            return 0.0
        U = np.column_stack([self.users.E, np.ones(len(self.users.E)), self.mean + self.users.bias])
        V = np.column_stack([self.items.E, self.items.bias, np.ones(len(self.items.E))])
        return 0.5 * self.penalties.unobserved_weight * float(((U.T @ U) * (V.T @ V)).sum())

    def penalty(self) -> float:
        """What the objective adds to the loss, at the full l0."""
        return sum(side.penalty(self.penalties) for side in self._sides())

    def objective(self) -> float:
        """What is minimised."""
        return self.loss() + self.penalty()

    def state(self) -> dict[str, torch.Tensor]:
        """All that a sweep starts from."""
        return {
            f"{name}/{part}": torch.from_numpy(getattr(side, part))
            for name, side in (("users", self.users), ("items", self.items))
            for part in ("T", "A", "E", "bias")
        }

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """What `state` gave, checked: the kernels trust the shapes."""
        saved = Checkpoint(state)
        for name, side in (("users", self.users), ("items", self.items)):
            V, d = side.E.shape
            A = saved.array(f"{name}/A", None, d)
            T, E, bias = saved.array(f"{name}/T", V, len(A)), saved.array(f"{name}/E", V, d), saved.array(f"{name}/bias", V)
            side.T, side.A, side.E, side.bias = T, A, E, bias


def narrowed(rows: np.ndarray, width: int) -> np.ndarray:
    """The columns, after a rotation, that carry most."""
    _, directions = np.linalg.eigh(rows.T @ rows)  # the largest last, and as many as columns, however few the rows
    return rows @ directions[:, ::-1][:, :width]
