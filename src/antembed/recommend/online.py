"""Coordinate descent on a stream of ratings: batches come, are learned until nothing moves, and are never seen again.

Of earlier batches only the tables are left, how many ratings each row has had, and their gradient: together these stand for the
ratings that are gone (factor.Past), so a weight that no batch alone would justify can be justified by many. Users and items
appear as they come. Anchors are added where they help (factor.add_anchor); those that do not are removed in the first batch,
later only those that no row uses, since rows outside the batch have no part in the decision. What a batch costs depends on the
rows it touches and, for a few products, on the table's size; nothing grows with the length of the stream.

As a solver, an epoch is a batch, in the file's order. Each batch is first predicted, then learned: the mean of those errors is
the validation error. A checkpoint a batch: an interrupted stream continues behind the last batch that was learned.
"""

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import polars as pl
import torch

from antembed.data.download import find_data
from antembed.files import JSON
from antembed.recommend.config import RatingsConfig
from antembed.recommend.dataset import RatingsSplits
from antembed.recommend.descent import Descent
from antembed.recommend.descent_config import OnlineConfig
from antembed.recommend.descent_solver import copy_to_model, penalties_of
from antembed.recommend.factor import Factor, Past, Penalties, add_anchor, prune_anchors
from antembed.recommend.model import MatrixFactorization
from antembed.recommend.ratings_table import sorted_labels
from antembed.recommend.read_ratings import read_ratings
from antembed.recommend.read_stream import RatingStream
from antembed.tables.row_labels import find
from antembed.train.checkpoint import Checkpoint, CheckpointError
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback, Progress, Solver, ignore

MOST_ADDED = 8  # anchors of a factor at once
SETTLED = 20  # ratings for each object, from which on l0 has its full height
BY_ROW = ("T", "bias", "n", "count", "g")
Sizes = tuple[int, ...]  # of users, of items
ENOUGH = 1e-4  # a sweep that lowers the objective by less than this share is the last


@dataclass
class OnlineState:
    """One factor: all that is left of earlier batches."""

    T: np.ndarray
    A: np.ndarray
    bias: np.ndarray
    n: np.ndarray  # the weights of its ratings so far, 1 each if they have none
    count: np.ndarray  # and how many they were
    g: np.ndarray  # (V, d + 1): minus their gradient by [e, b], the ridge left out

    @classmethod
    def empty(cls, d: int) -> "OnlineState":
        return cls(np.zeros((0, 0)), np.zeros((0, d)), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros((0, d + 1)))

    def grow(self, V: int) -> None:
        """Rows for objects that are new. Doubling would save copies; a batch costs more than one."""
        if (more := V - len(self.T)) > 0:
            for part in BY_ROW:
                old = getattr(self, part)
                setattr(self, part, np.concatenate([old, np.zeros((more, *old.shape[1:]))]))

    @classmethod
    def of(cls, T: np.ndarray, A: np.ndarray, bias: np.ndarray, n: np.ndarray, penalties: Penalties) -> "OnlineState":
        """From a table that was trained elsewhere on n ratings a row: at the minimum their gradient is that of the ridge."""
        T, A, bias, n = (np.asarray(part, np.float64) for part in (T, A, bias, n))
        if not len(A):  # no row used any
            T, A = np.zeros((len(T), 1)), np.zeros((1, A.shape[1]))
        slopes = (penalties.ridge + penalties.ridge_per_rating * n)[:, None] * (T @ A)
        return cls(T, A, bias, n, n.copy(), np.column_stack([slopes, penalties.bias_ridge * bias]))

    def reorder(self, order: np.ndarray) -> None:
        """Row order[r] becomes row r."""
        for part in BY_ROW:
            setattr(self, part, getattr(self, part)[order])

    def moments(self) -> np.ndarray:
        """The mean of [e, 1]⊗[e, 1] over the ratings so far: (d + 1, d + 1)."""
        Z = np.column_stack([self.T @ self.A, np.ones(len(self.T))])
        return (Z * self.n[:, None]).T @ Z / max(float(self.n.sum()), 1.0)


class OnlineDescent:
    """users, items, ratings (n,) a batch → two tables of width d that have learned all batches so far."""

    def __init__(
        self, d: int, penalties: Penalties, *, anchors: Sizes = (8, 8), auto: bool = True, sweeps: int = 20, **machine: int
    ):
        """`machine`: seed and threads, as Descent has them."""
        self.d, self.penalties, self.anchors, self.auto = d, penalties, anchors, auto
        self.sweeps, self.machine = sweeps, machine
        self.users, self.items = OnlineState.empty(d), OnlineState.empty(d)
        self.mean, self.batches, self.ratings = 0.0, 0, 0

    @property
    def states(self) -> dict[str, OnlineState]:
        return {"users": self.users, "items": self.items}

    def learn(self, columns: tuple[np.ndarray, ...]) -> JSON:
        """Learn a batch until it converges; → what happened. Ids count from 0; one beyond the table is a new object."""
        ids = [np.unique(column, return_inverse=True) for column in columns[:2]]
        rows = [here for here, _ in ids]
        for state, here in zip((self.users, self.items), rows, strict=True):
            state.grow(int(here.max(initial=-1)) + 1)
        compact = tuple(np.ascontiguousarray(index, dtype=np.int32) for _, index in ids)
        full = self._l0(len(columns[0]))
        batch, sizes, penalties = (*compact, *columns[2:]), (len(rows[0]), len(rows[1])), replace(self.penalties, l0=full)
        descent = Descent(batch, sizes, self.anchors, self.d, penalties, sweeps=self.sweeps, **self.machine)  # type: ignore[arg-type]
        first = self.batches == 0
        if first:
            self.mean = descent.mean
            descent.init_weights()
        else:
            descent.mean = self.mean  # biases follow, if it moves
            moments = self.items.moments(), self.users.moments()  # of what each factor's ratings were about
            for factor, state, here, C in zip(descent.factors, self.states.values(), rows, moments, strict=True):
                self.recall(factor, state, here, C)
        objective, sweep = float("inf"), 0
        for sweep in range(1, self.sweeps + 1):
            l0 = descent.l0_of(sweep) if first else full
            for factor in descent.factors:
                descent.accumulate_normal_equations(factor)
                if self.auto:
                    self._fit_anchors(factor, l0)
                descent.descend(factor, l0)
            anchors = sum(len(factor.A) for factor in descent.factors)
            before, objective = objective, descent.objective() + full * self.d * anchors
            if l0 == full and before - objective < ENOUGH * abs(objective):
                break
        descent.accumulate_normal_equations(descent.users)  # now that the items have moved
        for factor, state, here in zip(descent.factors, self.states.values(), rows, strict=True):
            self._remember(factor, state, here)
        self.batches += 1
        self.ratings += len(columns[0])
        return {
            "batch": self.batches,
            "ratings": self.ratings,
            "num_embeddings": {name: len(state.T) for name, state in self.states.items()},
            "anchors": {name: len(state.A) for name, state in self.states.items()},
            "nnz": {name: int(np.count_nonzero(state.T)) for name, state in self.states.items()},
            "train_loss": descent.loss() / len(columns[0]),
            "sweeps": sweep,
        }

    def _fit_anchors(self, factor: Factor, l0: float) -> None:
        """How many anchors, each at the price of d weights."""
        if factor.past is None:  # else rows outside the batch may need them
            prune_anchors(factor, l0, l0 * self.d)
        for _ in range(MOST_ADDED):
            if add_anchor(factor, l0, l0 * self.d) <= 0:
                break

    def _l0(self, more: int) -> float:
        """The ℓ0 penalty with so many more ratings: little at first, or nothing would be learned from small batches, and where
        both factors are zero nothing can be. Weights that came early go later, when their rows come again."""
        return self.penalties.l0 * min(1.0, (self.ratings + more) / (SETTLED * (len(self.users.T) + len(self.items.T))))

    def recall(self, factor: Factor, state: OnlineState, here: np.ndarray, C: np.ndarray) -> None:
        """Start the batch's rows from what is known of them."""
        factor.T, factor.A, factor.bias = state.T[here], state.A.copy(), state.bias[here]
        factor.E = factor.T @ factor.A
        away = np.isin(np.arange(len(state.T)), here, invert=True)
        T, n = state.T[away], state.n[away]
        ridges = self.penalties.ridge + self.penalties.ridge_per_rating * state.count[away]
        z, linear = np.column_stack([factor.E, factor.bias]), T.T @ state.g[away, :-1]
        grams = (T * n[:, None]).T @ T, (T * ridges[:, None]).T @ T
        factor.past = Past(state.n[here], state.count[here], z, state.g[here], C, state.A.copy(), *grams, linear)

    def _remember(self, factor: Factor, state: OnlineState, here: np.ndarray) -> None:
        """Put the batch's rows back; anchors that no row uses any more go."""
        if factor.past is None:
            state.T = np.zeros((len(state.T), len(factor.A)))
        elif len(factor.A) > state.T.shape[1]:
            state.T = np.column_stack([state.T, np.zeros((len(state.T), len(factor.A) - state.T.shape[1]))])
        state.T[here], state.A, state.bias[here] = factor.T, factor.A, factor.bias
        z = np.column_stack([factor.E, factor.bias])
        ridges = np.full(z.shape, self.penalties.bias_ridge)
        ridges[:, :-1] = factor.ridges(self.penalties)[:, None]
        state.g[here] = factor.v - np.einsum("rab,rb->ra", factor.S, z) + ridges * z
        if factor.past is not None:  # rows elsewhere have moved with the anchors, and so has their gradient
            away = np.isin(np.arange(len(state.T)), here, invert=True)
            moved = state.T[away, : len(factor.past.A)] @ (factor.A[: len(factor.past.A)] - factor.past.A)
            state.g[away] -= state.n[away, None] * (moved @ factor.past.C[:-1])
        counts = np.diff(factor.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        state.count[here] += counts
        state.n[here] += np.bincount(rows, factor.weights, len(counts)) if len(factor.weights) else counts
        used = (state.T != 0).any(axis=0)
        used[0] |= not used.any()  # never fewer than one
        state.T, state.A = state.T[:, used], state.A[used]

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Ratings of pairs; objects that have not come yet have the mean."""
        found, both = np.full(len(users), self.mean), np.ones(len(users), bool)
        for ids, state in ((users, self.users), (items, self.items)):
            known = ids < len(state.T)
            found[known] += state.bias[ids[known]]
            both &= known
        E_users, E_items = (state.T @ state.A for state in self.states.values())
        found[both] += np.einsum("nd,nd->n", E_users[users[both]], E_items[items[both]])
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """All that the next batch starts from."""
        tables = {
            f"{name}/{part}": torch.from_numpy(np.ascontiguousarray(getattr(state, part)))
            for name, state in self.states.items()
            for part in (*BY_ROW, "A")
        }
        return tables | {"progress": torch.tensor([self.mean, self.batches, self.ratings], dtype=torch.float64)}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Continue where `state` was taken."""
        saved = Checkpoint(state)
        self.users, self.items = (self._loaded(saved, name) for name in self.states)
        mean, batches, ratings = saved.array("progress", 3)
        self.mean, self.batches, self.ratings = float(mean), int(batches), int(ratings)

    def _loaded(self, saved: Checkpoint, name: str) -> OnlineState:
        A = saved.array(f"{name}/A", None, self.d)
        T = saved.array(f"{name}/T", None, len(A))
        bias, n, count = (saved.array(f"{name}/{part}", len(T)) for part in ("bias", "n", "count"))
        return OnlineState(T, A, bias, n, count, saved.array(f"{name}/g", len(T), self.d + 1))


class Online(Solver[RatingsConfig, RatingsSplits, MatrixFactorization, OnlineConfig]):
    """The model is built without rows, and takes the users and items that have come at the end."""

    name: ClassVar[str] = "online"

    def setup(self) -> None:
        config, own = self.config, self.own
        if own.test and not find_data(own.test).is_file():
            raise ValueError(f"{own.test} is no file; --test takes a file of ratings")
        penalties, anchors, machine = penalties_of(config, own.penalties), config.num_anchors(2), config.machine
        options = {"sweeps": own.epochs, "seed": machine.seed, "threads": machine.threads}
        self.online = OnlineDescent(config.tables.embedding_dim, penalties, anchors=anchors, auto=config.auto, **options)
        source = config.input.data if config.input.data == "-" else config.input.file
        self.stream = RatingStream(source, config.input.columns, batch_size=own.batch_size)
        self.squared, self.first = 0.0, 0  # Σ squared errors of later batches before they were learned; the first batch's size

    def fit(self, files: RunFolder, callback: Callback = ignore) -> Iterator[JSON]:
        for batch in self.stream:
            started, later = time.perf_counter(), self.online.batches > 0
            error = float(np.square(batch[2] - self.online.predict(*batch[:2]), dtype=np.float64).sum()) if later else 0.0
            self.squared += error
            self.first = self.first or len(batch[2])
            record = self.online.learn(batch)
            record |= {"epoch": self.online.batches, "mse_before": error / len(batch[2]) if later else None}
            record["seconds"] = time.perf_counter() - started
            self.epoch = self.online.batches
            callback(Progress(self.epoch, len(batch[2]), record["train_loss"], record["seconds"], record))
            yield record
        if not self.online.batches:
            raise ValueError(f"{self.config.input.data} has no ratings")
        # Rows in the order of their labels, as in every other run.
        for name, labels in self._labels.items():
            self.splits.labels[name], order = sorted_labels(labels, parse=True)
            self.online.states[name].reorder(order)
        self.splits.item_counts = self.online.items.count
        copy_to_model(self.online, self.model)

    @property
    def _labels(self) -> dict[str, pl.Series]:
        return {"users": self.stream.users.labels, "items": self.stream.items.labels}

    def result(self) -> JSON:
        later = self.online.ratings - self.first
        return {
            "engine": self.name,
            "validation": {"mse": self.squared / later} if later else None,  # each batch before it was learned
            "test": self._test() if self.own.test else None,
            "epochs": 1,
            "batches": self.online.batches,
            "ratings": self.online.ratings,
        }

    def _test(self) -> dict[str, float]:
        """Errors on a file; of a user or item that never came only the mean and the other's bias are known."""
        held = read_ratings(find_data(self.own.test), self.config.input.columns)
        users = find(self.splits.labels["users"], held.user_labels)[held.users]
        items = find(self.splits.labels["items"], held.item_labels)[held.items]
        # An id beyond the table is an object that has not come.
        beyond = np.iinfo(np.int64).max
        predicted = self.online.predict(np.where(users < 0, beyond, users), np.where(items < 0, beyond, items))
        errors = predicted - held.values
        return {"mse": float(np.square(errors, dtype=np.float64).mean()), "mae": float(np.abs(errors).mean())}

    def state_dict(self) -> Checkpoint:
        labels = {f"labels/{name}": _packed(own) for name, own in self._labels.items()}
        return Checkpoint(self.online.state() | labels, {"squared": self.squared, "first": self.first})

    def load_state_dict(self, checkpoint: Checkpoint) -> None:
        self.online.load(checkpoint.tensors)
        self.squared, self.first, self.epoch = checkpoint.plain["squared"], checkpoint.plain["first"], self.online.batches
        labels = {name: _unpacked(checkpoint.tensors[f"labels/{name}"]) for name in self.online.states}
        for name, state in self.online.states.items():
            if (n := len(labels[name])) != len(state.T):
                raise CheckpointError(f"the checkpoint has {n} labels for {len(state.T)} rows; start the run anew")
        self.stream.resume(self.online.ratings, **labels)


def _packed(labels: pl.Series) -> torch.Tensor:
    packed = io.BytesIO()
    labels.to_frame("label").write_parquet(packed)
    return torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> pl.Series:
    try:
        return pl.read_parquet(io.BytesIO(packed.numpy().tobytes())).to_series()
    except pl.exceptions.PolarsError as error:
        raise CheckpointError(f"labels in the checkpoint are damaged ({error}); start the run anew") from error
