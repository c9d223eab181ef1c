"""The other solver: alternating coordinate descent on the ℓ0 objective itself (eq. 5), for matrix factorisation.

    Σ ½(r − mean − b_u − b_i − t_u·A_u·A_iᵀ·t_i)²  +  ½·ridge·(Σ‖e‖² + …Σ b²)  +  price·(‖T_u‖₀ + ‖T_i‖₀ + ‖b‖₀)

over T ≥ 0, A of any sign, and the biases (which may be free of the price). It starts from dense rows (alternating least
squares), makes anchors of them, and takes the sides in turn, the price rising to its full height on the way. Every step is an
exact minimum over some of the unknowns, so at the full price the objective never rises. Without anchors it stays with the
dense rows: plain biased factorisation, the opponent. With `unseen` every pair of a user and an item counts a little, as if
rated 0, at the cost of two small matrices: a model of what is chosen rather than of how it is rated, for lists of items.

kernels/descent.py has the arithmetic; it needs (d + 1)² numbers an object.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from antembed.embedding.factorize import nonnegative_factorize
from antembed.kernels import descent as kernel
from antembed.kernels.threads import parallel_for
from antembed.training.market import curvature, sell

DENSE_SWEEPS, INNER, PASSES = 8, 2, 12
RAMP = 0.6  # share of the sweeps over which the price rises
START = 0.1  # of the first random vectors
LARGEST = 16e9  # bytes
PIECE = 1 << 20  # ratings
NO_BIAS = 1e30  # a ridge under which a bias is nothing


@dataclass(frozen=True)
class Prices:
    """What the objective charges, beside the summed ½·squared error."""

    nonzero: float
    ridge: float  # ½·ridge·‖e‖²
    ridge_each: float  # and as much again for each rating of the object
    bias_ridge: float
    unseen: float = 0.0  # the weight of every pair there is, as if rated 0: for lists of items rather than ratings
    biases: bool = False  # pay the price of a non-zero too


@dataclass(frozen=True)
class Past:
    """What ratings that are gone say about a side, −g·(z − z_old) + ½·n·(z − z_old)ᵀ·C·(z − z_old) for a row that stood at
    z_old = [e, b]: it had n of them, about objects with the mean moments C, and they pulled it by g. Rows that are not here
    have a say in the anchors alone.
    """

    n: np.ndarray  # (V,): how many, or the sum of their weights
    count: np.ndarray  # (V,): how many, for the ridge
    z: np.ndarray  # (V, d + 1)
    g: np.ndarray  # (V, d + 1)
    C: np.ndarray  # (d + 1, d + 1)
    A: np.ndarray  # (K, d): the anchors as the rows that are not here know them,
    crowd: np.ndarray  # (K, K): their Σ n·t⊗t,
    ridged: np.ndarray  # (K, K): their Σ ridge·t⊗t,
    pull: np.ndarray  # (K, d): their Σ t⊗g

    def penalty(self, z: np.ndarray, A: np.ndarray) -> float:
        """The sum of the above, over rows here and elsewhere, but for a constant."""
        moved, A = z - self.z, A[: len(self.A)]
        turned = A - self.A
        rows = 0.5 * np.einsum("r,ra,ab,rb->", self.n, moved, self.C, moved, optimize=True) - (self.g * moved).sum()
        crowd = 0.5 * (self.crowd * (turned @ self.C[:-1, :-1] @ turned.T)).sum() + 0.5 * (self.ridged * (A @ A.T)).sum()
        return float(rows + crowd - (self.pull * turned).sum())

    def anchor_system(self, k: int, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What rows elsewhere add to the quadratic in anchor k: curvature (d, d) and downhill direction (d)."""
        C, A = self.C[:-1, :-1], A[: len(self.A)]
        H = self.crowd[k, k] * C + self.ridged[k, k] * np.eye(len(C))
        return H, self.pull[k] - C @ (self.crowd[k] @ (A - self.A)) - self.ridged[k] @ A


class Side:
    """One side: its ratings by rows, its T, A and biases, and what the ratings say given the other side."""

    def __init__(self, ids: np.ndarray, others: np.ndarray, ratings: np.ndarray, weights: np.ndarray | None, V: int, d: int):
        order = np.argsort(ids, kind="stable")
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=V))])
        self.others, self.ratings = others[order], ratings[order].astype(np.float64)
        self.weights = np.empty(0) if weights is None else weights[order].astype(np.float64)
        self.E, self.bias = np.zeros((V, d)), np.zeros(V)
        self.T, self.A = np.zeros((V, 0)), np.zeros((0, d))
        self.S, self.v = np.empty((V, d + 1, d + 1)), np.empty((V, d + 1))
        self.past: Past | None = None

    def make_anchors(self, K: int, seed: int) -> None:
        """T ≥ 0 and A from the dense rows."""
        T, A, _ = nonnegative_factorize(torch.from_numpy(self.E), K, l1_penalty=1e-3, iterations=30, seed=seed)
        self.T, self.A = T.numpy().copy(), A.numpy().copy()
        self.E = self.T @ self.A

    def ridges(self, prices: Prices) -> np.ndarray:
        """On e, row by row: (V,)."""
        counts = np.diff(self.starts) + (0 if self.past is None else self.past.count)
        return prices.ridge + prices.ridge_each * counts

    def penalty(self, prices: Prices) -> float:
        squares = float((self.ridges(prices) * np.square(self.E).sum(1)).sum())
        if prices.bias_ridge < NO_BIAS:
            squares += prices.bias_ridge * float(np.square(self.bias).sum())
        if self.past is not None:
            squares += 2 * self.past.penalty(np.column_stack([self.E, self.bias]), self.A)
        priced = np.count_nonzero(self.T) + (np.count_nonzero(self.bias) if prices.biases else 0)
        return 0.5 * squares + prices.nonzero * priced


class Descent:
    """users, items, ratings (n,), weights (n,) or None → tables for `objects` users and items of width d."""

    def __init__(
        self,
        columns: tuple[np.ndarray, ...],
        objects: tuple[int, int],
        anchors: tuple[int, int] | None,
        d: int,
        prices: Prices,
        *,
        sweeps: int,
        seed: int = 0,
        threads: int = 1,
        auto: bool = False,  # take away anchors that do not pay: each costs as much as d weights
    ):
        needed = sum(objects) * (d + 1) ** 2 * 8
        if needed > LARGEST:
            raise ValueError(
                f"coordinate descent would need {needed / 1e9:.0f} GB for {sum(objects):,} objects of width {d}, "
                f"at most {LARGEST / 1e9:.0f} GB are allowed; use the stochastic solver"
            )
        users, items, ratings, *weights = columns
        weight = weights[0] if weights else None
        self.users = Side(users, items, ratings, weight, objects[0], d)
        self.items = Side(items, users, ratings, weight, objects[1], d)
        self.columns, self.anchors, self.prices = columns, anchors, prices
        self.sweeps, self.seed, self.threads = sweeps, seed, threads
        self.auto = auto
        self.frozen = False  # polishing: what is zero stays so
        counted = np.ones(len(ratings)) if weight is None else weight.astype(np.float64)
        self.mean = float((counted * ratings).sum() / (counted.sum() + prices.unseen * objects[0] * objects[1]))

    def start(self) -> None:
        """Dense rows from small random vectors, then anchors."""
        self.items.E = START * np.random.default_rng(self.seed).standard_normal(self.items.E.shape)
        for _ in range(DENSE_SWEEPS if self.anchors else 0):
            self.alternate(self._solve_dense)
        for number, (side, K) in enumerate(zip(self._sides(), self.anchors or (), strict=False)):
            side.make_anchors(K, self.seed + number)

    def price(self, sweep: int) -> float:
        """What a non-zero costs in sweep 1, 2, …"""
        return self.prices.nonzero * min(sweep / max(RAMP * self.sweeps, 1), 1.0)

    def sweep(self, number: int) -> None:
        """All users and items, once."""
        self.sweep_at(self.price(number))

    def sweep_at(self, price: float) -> None:
        """The same with a price of one's own."""
        self.alternate(self._solve_dense if self.anchors is None else partial(self._turn, price))

    def _turn(self, price: float, side: Side) -> None:
        if self.auto and not self.frozen:
            sell(side, price, price * side.A.shape[1])
        self.descend(side, price)

    def values(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """By how much the objective would rise without each weight (V, K) and each bias (V,), of users and items."""
        found = []
        for own, other in ((self.users, self.items), (self.items, self.users)):
            self.look(own, other)
            weights = [0.5 * own.T[:, k] ** 2 * curvature(own, anchor) for k, anchor in enumerate(own.A)]
            found.append((np.stack(weights, axis=1), 0.5 * own.bias**2 * own.S[:, -1, -1]))
        return found

    def _sides(self) -> tuple[Side, Side]:
        return self.users, self.items

    def alternate(self, work: Callable[[Side], None]) -> None:
        for own, other in ((self.users, self.items), (self.items, self.users)):
            self.look(own, other)
            work(own)

    def look(self, own: Side, other: Side) -> None:
        """Add up what the ratings say about one side, the other held."""
        ridges = self.prices.ridge, self.prices.ridge_each, self.prices.bias_ridge
        Z = np.column_stack([other.E, np.ones(len(other.E))])
        S_all, v_all = self.prices.unseen * Z.T @ Z, self.prices.unseen * Z.T @ (-self.mean - other.bias)
        given = (
            own.starts,
            own.others,
            own.ratings,
            own.weights,
            other.E,
            other.bias,
            self.mean,
            ridges,
            S_all,
            v_all,
            own.S,
            own.v,
        )
        self._share(own, lambda a, b: kernel.accumulate_normal_equations(*given, a, b))
        if own.past is not None:
            past, d = own.past, own.E.shape[1]
            own.S += past.n[:, None, None] * past.C
            own.S[:, range(d), range(d)] += self.prices.ridge_each * past.count[:, None]
            own.v += past.n[:, None] * (past.z @ past.C) + past.g

    def _share(self, side: Side, work: Callable[[int, int], object]) -> None:
        parallel_for(work, len(side.E), side.E.shape[1] ** 3, self.threads)

    def _solve_dense(self, side: Side) -> None:
        self._share(side, lambda a, b: kernel.solve_rows(side.E, side.bias, side.S, side.v, a, b))

    def descend(self, side: Side, price: float) -> None:
        for _ in range(INNER):
            self.descend_rows(side, price)
            self.descend_anchors(side)

    def descend_rows(self, side: Side, price: float) -> None:
        """Weights and biases of all rows, the anchors held."""
        bias_price = price if self.prices.biases else 0.0
        given = side.T, side.bias, side.A, side.S, side.v, price, bias_price, self.frozen, PASSES
        self._share(side, lambda a, b: kernel.descend_rows(*given, a, b))
        side.E = side.T @ side.A

    def descend_anchors(self, side: Side) -> None:
        """One anchor after the other, the weights held."""
        d = side.A.shape[1]
        H, g = np.empty((d, d)), np.empty(d)
        for k in range(len(side.A)):
            kernel.anchor_system(side.T, side.E, side.bias, k, side.S, side.v, H, g)
            if side.past is not None and k < len(side.past.A):
                more_H, more_g = side.past.anchor_system(k, side.A)
                H += more_H
                g += more_g
            if H.any():  # else nobody uses it
                change = np.linalg.lstsq(H, g, rcond=1e-10)[0]
                side.A[k] += change
                side.E += np.outer(side.T[:, k], change)
        if side.past is not None:  # rows that are not here use them as they are
            return
        # The same vectors from anchors of length 1: neither the ridge on e nor the count of non-zeros notices.
        norms = np.linalg.norm(side.A, axis=1)
        norms[norms == 0] = 1.0
        side.A /= norms[:, None]
        side.T *= norms

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        own, other = self.users, self.items
        return self.mean + own.bias[users] + other.bias[items] + np.einsum("nd,nd->n", own.E[users], other.E[items])

    def loss(self) -> float:
        """Σ ½·squared error over the ratings."""
        total = self._loss_of_unseen()
        for start in range(0, len(self.columns[0]), PIECE):  # all vectors of all ratings at once might not fit
            users, items, ratings, *weights = (column[start : start + PIECE] for column in self.columns)
            squares = np.square(ratings - self.predict(users, items))
            total += 0.5 * float((squares * weights[0]).sum() if weights else squares.sum())
        return total

    def _loss_of_unseen(self) -> float:
        """unseen·Σ ½·prediction² over all pairs, from the two sides' second moments."""
        if not self.prices.unseen:
            return 0.0
        U = np.column_stack([self.users.E, np.ones(len(self.users.E)), self.mean + self.users.bias])
        V = np.column_stack([self.items.E, self.items.bias, np.ones(len(self.items.E))])
        return 0.5 * self.prices.unseen * float(((U.T @ U) * (V.T @ V)).sum())

    def penalty(self) -> float:
        """What the objective adds to the loss, at the full price."""
        return sum(side.penalty(self.prices) for side in self._sides())

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
        for key, tensor in state.items():
            name, part = key.split("/")
            setattr(getattr(self, name), part, tensor.numpy().copy())
