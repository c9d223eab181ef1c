"""Coordinate descent on a stream: batches of ratings come, are learned until nothing moves, and are never seen again.

Of the past only the tables are left, how many ratings each row has had, and where they still pull it: together these stand for
the ratings that are gone (side.Past), so a weight that no batch alone would justify can be justified by many. Users and items
appear as they come. Anchors are added where they help (anchor_search.py); those that do not are removed in the first batch,
later only those that nobody uses, since rows outside the batch have no part in the decision. What a batch costs depends on the
rows it touches and, for a few products, on the table's size; nothing grows with the length of the stream.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from antembed.files import JSON
from antembed.recommend.anchor_search import add_anchor, prune_anchors
from antembed.recommend.descent import Descent
from antembed.recommend.factor import Past, Penalties, Side
from antembed.train.checkpoint import Checkpoint

MOST_ADDED = 8  # anchors of a side at once
SETTLED = 20  # ratings for each object, from which on l0 has its full height
PARTS = ("T", "A", "bias", "n", "count", "g")
ENOUGH = 1e-4  # a sweep that lowers the objective by less than this share is the last


@dataclass
class OnlineState:
    """One side, all that is left of the past."""

    T: np.ndarray
    A: np.ndarray
    bias: np.ndarray
    n: np.ndarray  # the weights of its ratings so far, 1 each if they have none
    count: np.ndarray  # and how many they were
    g: np.ndarray  # (V, d + 1): where they pull [e, b], the ridge left out

    @classmethod
    def empty(cls, d: int) -> "OnlineState":
        return cls(np.zeros((0, 0)), np.zeros((0, d)), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros((0, d + 1)))

    def grow(self, V: int) -> None:
        """Room for objects that are new. Doubling would save copies; a batch costs more than one."""
        more = V - len(self.T)
        if more > 0:
            self.T, self.g = (np.vstack([old, np.zeros((more, old.shape[1]))]) for old in (self.T, self.g))
            self.bias, self.n, self.count = (np.concatenate([old, np.zeros(more)]) for old in (self.bias, self.n, self.count))

    @classmethod
    def of(cls, T: np.ndarray, A: np.ndarray, bias: np.ndarray, n: np.ndarray, penalties: Penalties) -> "OnlineState":
        """From a table that was trained elsewhere on n ratings a row: at the minimum they pull a row as hard as its ridge."""
        T, A, bias, n = (np.asarray(part, np.float64) for part in (T, A, bias, n))
        if not len(A):  # nobody used any
            T, A = np.zeros((len(T), 1)), np.zeros((1, A.shape[1]))
        pull = (penalties.ridge + penalties.ridge_per_rating * n)[:, None] * (T @ A)
        return cls(T, A, bias, n, n.copy(), np.column_stack([pull, penalties.bias_ridge * bias]))

    def reorder(self, order: np.ndarray) -> None:
        """Row order[r] becomes row r."""
        for part in ("T", "bias", "n", "count", "g"):
            setattr(self, part, getattr(self, part)[order])

    def moments(self) -> np.ndarray:
        """The mean of [e, 1]⊗[e, 1] over the ratings so far: (d + 1, d + 1)."""
        Z = np.column_stack([self.T @ self.A, np.ones(len(self.T))])
        return (Z * self.n[:, None]).T @ Z / max(float(self.n.sum()), 1.0)


class OnlineDescent:
    """users, items, ratings (n,) a batch → two tables of width d that have learned all batches so far."""

    def __init__(
        self,
        d: int,
        penalties: Penalties,
        *,
        anchors: tuple[int, int] = (8, 8),
        auto: bool = True,
        sweeps: int = 20,
        seed: int = 0,
        threads: int = 1,
    ):
        self.d, self.penalties, self.anchors, self.auto = d, penalties, anchors, auto
        self.sweeps, self.seed, self.threads = sweeps, seed, threads
        self.users, self.items = OnlineState.empty(d), OnlineState.empty(d)
        self.mean, self.batches, self.ratings = 0.0, 0, 0

    def learn(self, columns: tuple[np.ndarray, ...]) -> JSON:
        """Learn a batch to the end; → what happened. Ids count from 0; one beyond the table is a new object."""
        ids = [np.unique(column, return_inverse=True) for column in columns[:2]]
        states = (self.users, self.items)
        for state, (here, _) in zip(states, ids, strict=True):
            state.grow(int(here.max(initial=-1)) + 1)
        compact = tuple(np.ascontiguousarray(places, dtype=np.int32) for _, places in ids)
        first = self.batches == 0
        full = self._l0(len(columns[0]))
        descent = Descent(
            (*compact, *columns[2:]),
            (len(ids[0][0]), len(ids[1][0])),
            self.anchors,
            self.d,
            replace(self.penalties, l0=full),
            sweeps=self.sweeps,
            seed=self.seed,
            threads=self.threads,
        )
        if first:
            self.mean = descent.mean
            descent.init_weights()
        else:
            descent.mean = self.mean  # biases follow, if it moves
            moments = self.items.moments(), self.users.moments()  # what each side's ratings were about
            for side, state, (here, _), C in zip((descent.users, descent.items), states, ids, moments, strict=True):
                self.recall(side, state, here, C)
        objective, sweep = float("inf"), 0
        for sweep in range(1, self.sweeps + 1):
            l0 = descent.l0_of(sweep) if first else full
            descent.alternate(partial(self._improve, descent, l0))
            before, objective = objective, descent.objective() + full * self.d * self._anchors(descent)
            if l0 == full and before - objective < ENOUGH * abs(objective):
                break
        descent.accumulate_normal_equations(descent.users, descent.items)  # what is said of users now that the items have moved
        for side, state, (here, _) in zip((descent.users, descent.items), states, ids, strict=True):
            self._remember(side, state, here)
        self.batches += 1
        self.ratings += len(columns[0])
        return {
            "batch": self.batches,
            "ratings": self.ratings,
            "num_embeddings": {"users": len(self.users.T), "items": len(self.items.T)},
            "anchors": {"users": len(self.users.A), "items": len(self.items.A)},
            "nnz": {"users": int(np.count_nonzero(self.users.T)), "items": int(np.count_nonzero(self.items.T))},
            "train_loss": descent.loss() / len(columns[0]),
            "sweeps": sweep,
        }

    def _improve(self, descent: Descent, l0: float, side: Side) -> None:
        """One side's turn: how many anchors, then weights and anchors."""
        if self.auto:
            if side.past is None:  # else rows that are not here may need them
                prune_anchors(side, l0, l0 * self.d)
            for _ in range(MOST_ADDED):
                if add_anchor(side, l0, l0 * self.d) <= 0:
                    break
        descent.descend(side, l0)

    def _l0(self, more: int) -> float:
        """The ℓ0 penalty with so many more ratings: little at first, or nothing would be learned from small batches, and where
        both sides are zero nothing can be. Weights that came early go later, when their rows come again.
        """
        objects = len(self.users.T) + len(self.items.T)
        return self.penalties.l0 * min(1.0, (self.ratings + more) / (SETTLED * objects))

    def _anchors(self, descent: Descent) -> int:
        return len(descent.users.A) + len(descent.items.A)

    def recall(self, side: Side, state: OnlineState, here: np.ndarray, C: np.ndarray) -> None:
        """Start the batch's rows from what is known of them."""
        side.T, side.A, side.bias = state.T[here], state.A.copy(), state.bias[here]
        side.E = side.T @ side.A
        away = np.ones(len(state.T), bool)
        away[here] = False
        T, n = state.T[away], state.n[away]
        ridges = self.penalties.ridge + self.penalties.ridge_per_rating * state.count[away]
        side.past = Past(
            state.n[here],
            state.count[here],
            np.column_stack([side.E, side.bias]),
            state.g[here],
            C,
            state.A.copy(),
            crowd=(T * n[:, None]).T @ T,
            ridged=(T * ridges[:, None]).T @ T,
            pull=T.T @ state.g[away, :-1],
        )

    def _remember(self, side: Side, state: OnlineState, here: np.ndarray) -> None:
        """Put the batch's rows back; anchors that nobody uses any more go."""
        if side.past is None:
            state.T = np.zeros((len(state.T), len(side.A)))
        elif len(side.A) > state.T.shape[1]:
            state.T = np.column_stack([state.T, np.zeros((len(state.T), len(side.A) - state.T.shape[1]))])
        state.T[here], state.A, state.bias[here] = side.T, side.A, side.bias
        z = np.column_stack([side.E, side.bias])
        ridges = np.column_stack(
            [np.repeat(side.ridges(self.penalties)[:, None], self.d, 1), np.full(len(z), self.penalties.bias_ridge)]
        )
        state.g[here] = side.v - np.einsum("rab,rb->ra", side.S, z) + ridges * z
        if side.past is not None:  # rows elsewhere have moved with the anchors, and are pulled the less
            away = np.ones(len(state.T), bool)
            away[here] = False
            moved = state.T[away, : len(side.past.A)] @ (side.A[: len(side.past.A)] - side.past.A)
            state.g[away] -= state.n[away, None] * (moved @ side.past.C[:-1])
        counts = np.diff(side.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        state.count[here] += counts
        state.n[here] += np.bincount(rows, side.weights, len(counts)) if len(side.weights) else counts
        used = (state.T != 0).any(axis=0)
        used[0] |= not used.any()  # never fewer than one
        state.T, state.A = state.T[:, used], state.A[used]

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Ratings of pairs; objects that have not come yet have the mean."""
        found = np.full(len(users), self.mean)
        known = [ids < len(state.T) for ids, state in ((users, self.users), (items, self.items))]
        found[known[0]] += self.users.bias[users[known[0]]]
        found[known[1]] += self.items.bias[items[known[1]]]
        both = known[0] & known[1]
        E_users, E_items = (state.T @ state.A for state in (self.users, self.items))
        found[both] += np.einsum("nd,nd->n", E_users[users[both]], E_items[items[both]])
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """All that the next batch starts from."""
        tables = {
            f"{name}/{part}": torch.from_numpy(np.ascontiguousarray(getattr(state, part)))
            for name, state in (("users", self.users), ("items", self.items))
            for part in PARTS
        }
        return tables | {"progress": torch.tensor([self.mean, self.batches, self.ratings], dtype=torch.float64)}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Go on where `state` was taken."""
        saved = Checkpoint(state)
        self.users, self.items = (self._loaded(saved, name) for name in ("users", "items"))
        self.mean, batches, ratings = (float(value) for value in saved.array("progress", 3))
        self.batches, self.ratings = int(batches), int(ratings)

    def _loaded(self, saved: Checkpoint, name: str) -> OnlineState:
        A = saved.array(f"{name}/A", None, self.d)
        T = saved.array(f"{name}/T", None, len(A))
        bias, n, count = (saved.array(f"{name}/{part}", len(T)) for part in ("bias", "n", "count"))
        return OnlineState(T, A, bias, n, count, saved.array(f"{name}/g", len(T), self.d + 1))
