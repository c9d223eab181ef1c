"""A recommender to use, in scikit-learn's manners: fit, partial_fit, predict, recommend, similar_items, save, load."""

import json
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch

from antembed.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from antembed.config import CoordinateDescentConfig, OnlineConfig
from antembed.config.shared import VERSION
from antembed.data import Ratings, read_ratings
from antembed.data.labels import Labels, Merged, find, merge
from antembed.data.ratings import ratings_of
from antembed.estimators.base import Estimator
from antembed.files import JSON, write_atomically
from antembed.runs import RunFolder, train
from antembed.serving import Table, load_table
from antembed.solvers import Callback, ignore
from antembed.solvers.coordinate_descent import copy_to_model, penalties_of
from antembed.solvers.online_state import OnlineDescent, OnlineState
from antembed.solvers.side import Penalties
from antembed.tasks.ratings.config import RatingsConfig
from antembed.tasks.ratings.data import SIDES, RatingsSplits, all_for_training, read_input, read_labels
from antembed.tasks.ratings.ranking import top
from antembed.tasks.ratings.task import Ratings as RatingsTask

USERS_AT_ONCE = 1024


class NotFittedError(ValueError, AttributeError):
    """The recommender has not been fitted yet."""


class Recommender(Estimator):
    """Users and items as small tables, from ratings.

        recommender = Recommender(l0_penalty=1.0).fit("ratings.dat")  # or .fit(users, items, ratings)
        recommender.recommend([42], k=10)

    `solver` "coordinate_descent" (the default) is best up to some million objects; "stochastic" takes mini-batches.
    `l0_penalty` (coordinate descent) is what a weight must be worth to stay: more of it, smaller tables. All options of
    `antembed train recommend` can be given, by their names.
    """

    Config = RatingsConfig
    defaults: ClassVar[JSON] = {"solver": "coordinate_descent", "anchors": (48,), "embedding_dim": 12}
    config: RatingsConfig

    def fit(
        self,
        data: str | Path | Ratings | pl.DataFrame | Labels,
        items: Labels | None = None,
        ratings: Labels | None = None,
        *,
        callback: Callback = ignore,
    ) -> "Recommender":
        """Learn from a file, a table with columns user, item and rating, or three columns: users, items and ratings."""
        known = _ratings(data, items, ratings)
        self.__dict__.pop("_online", None)  # of another partial_fit
        with tempfile.TemporaryDirectory() as name:
            splits = all_for_training(known, threads=self.config.machine.threads)
            train(self.config, Path(name) / "run", splits=splits, callback=callback)
            self._open(Path(name) / "run", splits.labels)
        self.remember(known)
        return self

    def partial_fit(
        self,
        data: str | Path | Ratings | pl.DataFrame | Labels,
        items: Labels | None = None,
        ratings: Labels | None = None,
    ) -> "Recommender":
        """Learn from more ratings without those before: users and items may be new, anchors are added where they help.

        For coordinate descent with anchored tables. What is left of the ratings before is the tables, and how many ratings each
        user and item had; some thousand ratings at a time work well, single ones badly. After `save` and `load` it continues
        a little differently: where ratings still pull is not in the small files, but worked out from them.
        """
        self._check_partial()
        more = _ratings(data, items, ratings)
        stream = self._stream()
        known = (self.user_labels_, self.item_labels_) if hasattr(self, "users_") else (more.user_labels, more.item_labels)
        merged = [merge(own, new) for own, new in zip(known, (more.user_labels, more.item_labels), strict=True)]
        ids = (merged[0].row_index[more.users], merged[1].row_index[more.items])
        stream.learn((*ids, *more.columns[2:]))
        for state, those in zip((stream.users, stream.items), merged, strict=True):
            state.reorder(those.order)
        rated = [those.rank[column] for those, column in zip(merged, ids, strict=True)]
        self._keep_seen(np.concatenate([self._old_seen(merged), rated], axis=1))
        splits = RatingsSplits(labels=dict(zip(SIDES, (those.labels for those in merged), strict=True)), mean=stream.mean)
        model = RatingsTask().build(self.config, splits)
        copy_to_model(stream, model)
        with tempfile.TemporaryDirectory() as name:
            model.export(Path(name), self.config.values, self.config.encoding)
            self._open(Path(name), splits.labels)
        self._online = stream
        return self

    def _check_partial(self) -> None:
        solver = self.config.solver
        exact = isinstance(solver, CoordinateDescentConfig) and not solver.unobserved_weight
        if not (exact or isinstance(solver, OnlineConfig)) or self.config.tables.embedding != "anchor":
            raise ValueError(
                "partial_fit is for solver='coordinate_descent' with anchored tables and unobserved_weight=0; fit anew on all"
            )

    def _stream(self) -> OnlineDescent:
        """What the next ratings are added to: the state of the last partial_fit, or what the tables tell of it."""
        if hasattr(self, "_online"):
            return self._online
        config = self.config
        assert isinstance(config.solver, CoordinateDescentConfig | OnlineConfig)
        penalties, anchors = penalties_of(config, config.solver.penalties), config.num_anchors(2)
        seed, threads = config.machine.seed, config.machine.threads
        stream = OnlineDescent(
            config.tables.embedding_dim, penalties, anchors=(anchors[0], anchors[1]), seed=seed, threads=threads
        )
        if hasattr(self, "users_"):
            if not self.knows_ratings:
                raise ValueError("what users have rated is not known here, so nothing can be added to it; fit anew")
            counts = np.diff(self.seen_starts_), np.bincount(self.seen_, minlength=len(self.item_labels_))
            stream.users, stream.items = (
                state_of(table, n, penalties) for table, n in zip((self.users_, self.items_), counts, strict=True)
            )
            stream.mean, stream.batches, stream.ratings = self.mean_, 1, len(self.seen_)
        return stream

    def _old_seen(self, merged: list[Merged]) -> np.ndarray:
        """(user, item) rows of what was seen before, in the new order: (2, n)."""
        if not self.knows_ratings:
            return np.empty((2, 0), np.int64)
        users = np.repeat(np.arange(len(self.seen_starts_) - 1), np.diff(self.seen_starts_))
        return np.stack([merged[0].rank[users], merged[1].rank[self.seen_]])

    def _open(self, folder: Path, labels: dict[str, pl.Series]) -> None:
        self.users_, self.items_ = (load_table(folder / f"{side}.ant") for side in SIDES)
        self._files = {side: (folder / f"{side}.ant").read_bytes() for side in SIDES}
        self.user_labels_, self.item_labels_ = labels["users"], labels["items"]
        self.mean_ = self.items_.offset  # the items' biases carry it

    @property
    def knows_ratings(self) -> bool:
        """Whether it knows what users have rated."""
        return hasattr(self, "seen_")

    def _fitted(self) -> tuple[Table, Table]:
        if not hasattr(self, "users_"):
            raise NotFittedError("this recommender has not been fitted; call fit, or Recommender.load a folder")
        return self.users_, self.items_

    def predict(self, users: Labels, items: Labels) -> np.ndarray:
        """Ratings of pairs: (n,). Of a user or item never seen only the mean and the other's bias are known: they decide."""
        table_u, table_i = self._fitted()
        u, i = find(self.user_labels_, users), find(self.item_labels_, items)
        if len(u) != len(i):
            raise ValueError(f"predict takes pairs: got {len(u)} users and {len(i)} items")
        ratings = np.where(i >= 0, 0.0, self.mean_)  # the items' biases carry the mean
        ratings[u >= 0] += table_u.bias_of(u[u >= 0])
        ratings[i >= 0] += table_i.bias_of(i[i >= 0])
        both = (u >= 0) & (i >= 0)
        ratings[both] += np.einsum("nd,nd->n", table_u[u[both]], table_i[i[both]])
        return ratings

    def recommend(self, users: Labels, k: int = 10, *, filter_seen: bool = True) -> pl.DataFrame:
        """The k best items of each user: a table of user, item, score, best first. Items a user has rated are left out.

        A user never seen gets what is best on the whole. Scores are made for some users at a time, never for all.
        """
        if k < 1:
            raise ValueError(f"k must be ≥ 1, got {k}")
        table_u, table_i = self._fitted()
        if filter_seen and not self.knows_ratings:
            raise ValueError("what users have seen is not known here; say filter_seen=False")
        asked = pl.Series("user", users)
        if not len(asked):
            raise ValueError("recommend needs at least one user, got none")
        ids = find(self.user_labels_, asked)
        vectors, bias = table_i[:], table_i.bias_of(np.arange(len(table_i)))
        items, scores = [], []
        for start in range(0, len(ids), USERS_AT_ONCE):
            some = ids[start : start + USERS_AT_ONCE]
            known = some >= 0
            queries = np.zeros((len(some), table_u.embedding_dim), np.float32)
            own = np.zeros(len(some), np.float32)
            queries[known], own[known] = table_u[some[known]], table_u.bias_of(some[known])
            found, values = top(queries, vectors, bias, k, self._seen_by(some) if filter_seen else None)
            items.append(found)
            scores.append(values + own[:, None])
        item, score = np.concatenate(items), np.concatenate(scores)
        there = np.isfinite(score).reshape(-1)  # who has seen nearly everything gets fewer
        return pl.DataFrame(
            {
                "user": asked.gather(np.repeat(np.arange(len(ids)), item.shape[1])),
                "item": self.item_labels_.gather(item.reshape(-1)),
                "score": score.reshape(-1),
            }
        ).filter(pl.Series(there))

    def _seen_by(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(row, item) pairs that these users have rated."""
        known = np.flatnonzero(users >= 0)
        starts, stops = self.seen_starts_[users[known]], self.seen_starts_[users[known] + 1]
        rows = np.repeat(known, stops - starts)
        spans = [np.arange(a, b) for a, b in zip(starts, stops, strict=True)]
        return rows, self.seen_[np.concatenate(spans)] if spans else np.empty(0, np.int32)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        _, table = self._fitted()
        row = int(find(self.item_labels_, [item])[0])
        if row < 0:
            raise KeyError(f"no item {item!r} among the {len(self.item_labels_)} that have been rated")
        vectors = table[:]
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths[row] == 0:
            raise ValueError(f"item {item!r} has no vector, only a bias: too few ratings; take a lower l0_penalty")
        vectors /= np.where(lengths > 0, lengths, 1)[:, None]
        hidden = np.zeros(1, np.int64), np.array([row])
        items, scores = top(vectors[row : row + 1], vectors, np.zeros(len(vectors), np.float32), k, hidden)
        return pl.DataFrame({"item": self.item_labels_.gather(items[0]), "similarity": scores[0]})

    def save(self, folder: str | Path) -> None:
        """Two small tables, the labels, and what has been seen; `load` reads them again."""
        self._fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._files.items():
            write_atomically(folder / f"{name}.ant", data)
        RatingsSplits(labels={"users": self.user_labels_, "items": self.item_labels_}).save(folder)
        if self.knows_ratings:
            seen = {"items": torch.from_numpy(self.seen_), "starts": torch.from_numpy(self.seen_starts_)}
            write_checkpoint(folder / "seen.safetensors", Checkpoint(seen))
        config = {"version": VERSION, "config": self.config.model_dump(mode="json"), "data": {}}
        write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())

    @classmethod
    def load(cls, folder: str | Path) -> "Recommender":
        """What `save` wrote, or a run of `antembed train recommend` (which does not keep what users have rated)."""
        folder = Path(folder)
        needed = ["users.ant", "items.ant", "users.labels.parquet", "items.labels.parquet", "config.json"]
        missing = [name for name in needed if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is no recommender: it has no {missing[0]}; give a folder of save, or a finished run")
        loaded = cls()
        config, _ = RunFolder(folder).open()
        assert isinstance(config, RatingsConfig)
        loaded.config = config
        loaded._open(folder, read_labels(folder))
        if (folder / "seen.safetensors").is_file():
            seen = read_checkpoint(folder / "seen.safetensors").tensors
            loaded.seen_, loaded.seen_starts_ = seen["items"].numpy(), seen["starts"].numpy()
        return loaded

    def remember_training_data(self) -> None:
        """Read the ratings that the config names: they are what users have rated."""
        self.remember(read_input(self.config.input))

    def remember(self, ratings: Ratings) -> None:
        """These ratings are what users have rated."""
        users, items = find(self.user_labels_, ratings.user_labels), find(self.item_labels_, ratings.item_labels)
        rows, which = users[ratings.users], items[ratings.items]
        both = (rows >= 0) & (which >= 0)
        self._keep_seen(np.stack([rows[both], which[both]]))

    def _keep_seen(self, pairs: np.ndarray) -> None:
        rows, which = pairs
        order = np.argsort(rows, kind="stable")
        self.seen_ = which[order].astype(np.int32)
        users = max(int(rows.max(initial=-1)) + 1, len(self.user_labels_ if hasattr(self, "user_labels_") else ()))
        self.seen_starts_ = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=users))])


def state_of(table: Table, n: np.ndarray, penalties: Penalties) -> OnlineState:
    """One side of a stream from a file, and how many ratings each row had."""
    ids = np.arange(len(table))
    assert table.anchors is not None
    return OnlineState.of(table.rows(ids), table.anchors, table.bias_of(ids) - np.float32(table.offset), n, penalties)


def _ratings(data: Any, items: Any, ratings: Any) -> Ratings:
    if (items is None) != (ratings is None):
        raise TypeError("give users, items and ratings, or one file or table that has all three")
    if items is not None:
        return ratings_of(*(pl.Series(column) for column in (data, items, ratings)))
    if isinstance(data, Ratings):
        return data
    if isinstance(data, (str, Path)):
        return read_ratings(data)
    if not isinstance(data, pl.DataFrame):
        raise TypeError(f"fit takes a file, a polars table, or users, items and ratings; got one {type(data).__name__}")
    return ratings_of(*(data[name] for name in ("user", "item", "rating")))
