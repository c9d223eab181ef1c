"""Coordinate descent on a stream: batches of ratings come, are learned until nothing moves, and are never seen again.

Of the past only the tables are left, how many ratings each row has had, and where they still pull it: together these stand for
the ratings that are gone (descent.Past), so a weight that no batch alone would pay for can be paid by many. Users and items
appear as they come. Anchors are bought where they pay (market.py); those that do not are sold in the first batch, later only
those go that nobody uses, since rows that are not here could not speak up. What a batch costs depends on the rows it touches
and, for a few products, on the table's size; nothing grows with the length of the stream.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from antembed.training.descent import Descent, Past, Prices, Side
from antembed.training.market import buy, sell

MOST_BOUGHT = 8  # anchors of a side in one go
SETTLED = 20  # ratings for each object, from which on the full price is due
PARTS = ("T", "A", "bias", "n", "count", "g")
ENOUGH = 1e-4  # a sweep that lowers the objective by less than this share is the last


@dataclass
class Memory:
    """One side, all that is left of the past."""

    T: np.ndarray
    A: np.ndarray
    bias: np.ndarray
    n: np.ndarray  # the weights of its ratings so far, 1 each if they have none
    count: np.ndarray  # and how many they were
    g: np.ndarray  # (V, d + 1): where they pull [e, b], the ridge left out

    @classmethod
    def empty(cls, d: int) -> "Memory":
        return cls(np.zeros((0, 0)), np.zeros((0, d)), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros((0, d + 1)))

    def grow(self, V: int) -> None:
        """Room for objects that are new. Doubling would save copies; a batch costs more than one."""
        more = V - len(self.T)
        if more > 0:
            self.T, self.g = (np.vstack([old, np.zeros((more, old.shape[1]))]) for old in (self.T, self.g))
            self.bias, self.n, self.count = (np.concatenate([old, np.zeros(more)]) for old in (self.bias, self.n, self.count))

    @classmethod
    def of(cls, T: np.ndarray, A: np.ndarray, bias: np.ndarray, n: np.ndarray, prices: Prices) -> "Memory":
        """From a table that was trained elsewhere on n ratings a row: at the minimum they pull a row as hard as its ridge."""
        T, A, bias, n = (np.asarray(part, np.float64) for part in (T, A, bias, n))
        if not len(A):  # nobody used any
            T, A = np.zeros((len(T), 1)), np.zeros((1, A.shape[1]))
        pull = (prices.ridge + prices.ridge_each * n)[:, None] * (T @ A)
        return cls(T, A, bias, n, n.copy(), np.column_stack([pull, prices.bias_ridge * bias]))

    def reorder(self, order: np.ndarray) -> None:
        """Row order[r] becomes row r."""
        for part in ("T", "bias", "n", "count", "g"):
            setattr(self, part, getattr(self, part)[order])

    def moments(self) -> np.ndarray:
        """The mean of [e, 1]⊗[e, 1] over the ratings so far: (d + 1, d + 1)."""
        Z = np.column_stack([self.T @ self.A, np.ones(len(self.T))])
        return (Z * self.n[:, None]).T @ Z / max(float(self.n.sum()), 1.0)


class Stream:
    """users, items, ratings (n,) a batch → two tables of width d that have learned all batches so far."""

    def __init__(
        self,
        d: int,
        prices: Prices,
        *,
        anchors: tuple[int, int] = (8, 8),
        auto: bool = True,
        sweeps: int = 20,
        seed: int = 0,
        threads: int = 1,
    ):
        self.d, self.prices, self.anchors, self.auto = d, prices, anchors, auto
        self.sweeps, self.seed, self.threads = sweeps, seed, threads
        self.users, self.items = Memory.empty(d), Memory.empty(d)
        self.mean, self.batches, self.ratings = 0.0, 0, 0

    def learn(self, columns: tuple[np.ndarray, ...]) -> dict[str, Any]:
        """Learn a batch to the end; → what happened. Ids count from 0; one beyond the table is a new object."""
        ids = [np.unique(column, return_inverse=True) for column in columns[:2]]
        memories = (self.users, self.items)
        for memory, (here, _) in zip(memories, ids, strict=True):
            memory.grow(int(here.max(initial=-1)) + 1)
        compact = tuple(np.ascontiguousarray(places, dtype=np.int32) for _, places in ids)
        first = self.batches == 0
        full = self._price(len(columns[0]))
        descent = Descent(
            (*compact, *columns[2:]),
            (len(ids[0][0]), len(ids[1][0])),
            self.anchors,
            self.d,
            replace(self.prices, nonzero=full),
            sweeps=self.sweeps,
            seed=self.seed,
            threads=self.threads,
        )
        if first:
            self.mean = descent.mean
            descent.start()
        else:
            descent.mean = self.mean  # biases follow, if it moves
            moments = self.items.moments(), self.users.moments()  # what each side's ratings were about
            for side, memory, (here, _), C in zip((descent.users, descent.items), memories, ids, moments, strict=True):
                self.remind(side, memory, here, C)
        objective, sweep = float("inf"), 0
        for sweep in range(1, self.sweeps + 1):
            price = descent.price(sweep) if first else full
            descent.alternate(partial(self._work, descent, price))
            before, objective = objective, descent.objective() + full * self.d * self._anchors(descent)
            if price == full and before - objective < ENOUGH * abs(objective):
                break
        descent.look(descent.users, descent.items)  # what is said of users now that the items have moved
        for side, memory, (here, _) in zip((descent.users, descent.items), memories, ids, strict=True):
            self._remember(side, memory, here)
        self.batches += 1
        self.ratings += len(columns[0])
        return {
            "batch": self.batches,
            "ratings": self.ratings,
            "objects": {"users": len(self.users.T), "items": len(self.items.T)},
            "anchors": {"users": len(self.users.A), "items": len(self.items.A)},
            "nnz": {"users": int(np.count_nonzero(self.users.T)), "items": int(np.count_nonzero(self.items.T))},
            "train_loss": descent.loss() / len(columns[0]),
            "sweeps": sweep,
        }

    def _work(self, descent: Descent, price: float, side: Side) -> None:
        """One side's turn: anchors that pay, then weights and anchors."""
        if self.auto:
            if side.past is None:  # rows that are not here could not speak up
                sell(side, price, price * self.d)
            for _ in range(MOST_BOUGHT):
                if buy(side, price, price * self.d) <= 0:
                    break
        descent.descend(side, price)

    def _price(self, more: int) -> float:
        """Of a non-zero, with so many more ratings: little at first, or nothing would be learned from small batches, and where
        both sides are zero nothing can be. Weights bought early are sold later, when their rows come again.
        """
        objects = len(self.users.T) + len(self.items.T)
        return self.prices.nonzero * min(1.0, (self.ratings + more) / (SETTLED * objects))

    def _anchors(self, descent: Descent) -> int:
        return len(descent.users.A) + len(descent.items.A)

    def remind(self, side: Side, memory: Memory, here: np.ndarray, C: np.ndarray) -> None:
        """Start the batch's rows from what is known of them."""
        side.T, side.A, side.bias = memory.T[here], memory.A.copy(), memory.bias[here]
        side.E = side.T @ side.A
        away = np.ones(len(memory.T), bool)
        away[here] = False
        T, n = memory.T[away], memory.n[away]
        ridges = self.prices.ridge + self.prices.ridge_each * memory.count[away]
        side.past = Past(
            memory.n[here],
            memory.count[here],
            np.column_stack([side.E, side.bias]),
            memory.g[here],
            C,
            memory.A.copy(),
            crowd=(T * n[:, None]).T @ T,
            ridged=(T * ridges[:, None]).T @ T,
            pull=T.T @ memory.g[away, :-1],
        )

    def _remember(self, side: Side, memory: Memory, here: np.ndarray) -> None:
        """Put the batch's rows back; anchors that nobody uses any more go."""
        if side.past is None:
            memory.T = np.zeros((len(memory.T), len(side.A)))
        elif len(side.A) > memory.T.shape[1]:
            memory.T = np.column_stack([memory.T, np.zeros((len(memory.T), len(side.A) - memory.T.shape[1]))])
        memory.T[here], memory.A, memory.bias[here] = side.T, side.A, side.bias
        z = np.column_stack([side.E, side.bias])
        ridges = np.column_stack(
            [np.repeat(side.ridges(self.prices)[:, None], self.d, 1), np.full(len(z), self.prices.bias_ridge)]
        )
        memory.g[here] = side.v - np.einsum("rab,rb->ra", side.S, z) + ridges * z
        if side.past is not None:  # rows elsewhere have moved with the anchors, and are pulled the less
            away = np.ones(len(memory.T), bool)
            away[here] = False
            moved = memory.T[away, : len(side.past.A)] @ (side.A[: len(side.past.A)] - side.past.A)
            memory.g[away] -= memory.n[away, None] * (moved @ side.past.C[:-1])
        counts = np.diff(side.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        memory.count[here] += counts
        memory.n[here] += np.bincount(rows, side.weights, len(counts)) if len(side.weights) else counts
        used = (memory.T != 0).any(axis=0)
        used[0] |= not used.any()  # never fewer than one
        memory.T, memory.A = memory.T[:, used], memory.A[used]

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Ratings of pairs; objects that have not come yet have the mean."""
        found = np.full(len(users), self.mean)
        known = [ids < len(memory.T) for ids, memory in ((users, self.users), (items, self.items))]
        found[known[0]] += self.users.bias[users[known[0]]]
        found[known[1]] += self.items.bias[items[known[1]]]
        both = known[0] & known[1]
        E_users, E_items = (memory.T @ memory.A for memory in (self.users, self.items))
        found[both] += np.einsum("nd,nd->n", E_users[users[both]], E_items[items[both]])
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """All that the next batch starts from."""
        tables = {
            f"{name}/{part}": torch.from_numpy(np.ascontiguousarray(getattr(memory, part)))
            for name, memory in (("users", self.users), ("items", self.items))
            for part in PARTS
        }
        return tables | {"told": torch.tensor([self.mean, self.batches, self.ratings], dtype=torch.float64)}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Go on where `state` was taken."""
        self.users, self.items = (
            Memory(**{part: state[f"{name}/{part}"].numpy().copy() for part in PARTS}) for name in ("users", "items")
        )
        self.mean, batches, ratings = (float(value) for value in state["told"])
        self.batches, self.ratings = int(batches), int(ratings)
