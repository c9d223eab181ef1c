"""A recommender to use, in scikit-learn's manners: fit, partial_fit, predict, recommend, similar_items, save, load."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from antembed.data import Examples, Ratings, read_ratings
from antembed.data.labels import Labels, Merged, find, merge
from antembed.data.ratings import ratings_of
from antembed.files import write_atomically
from antembed.pipelines.descend import by_descent, prices_of, put
from antembed.pipelines.job import Job, counts_of, write_tables
from antembed.pipelines.recommend import by_steps, settings_of, write_labels
from antembed.pipelines.settings import SOLVERS, Settings, build_model
from antembed.serving import Table, load_table
from antembed.tasks.ranking import top
from antembed.training import RunFolder, Tick, load_tensors, save_tensors
from antembed.training.descent import Prices
from antembed.training.stream import Memory, Stream

USERS_AT_ONCE = 1024


class NotFittedError(ValueError, AttributeError):
    """The recommender has not been fitted yet."""


class Recommender:
    """Users and items as small tables, from ratings.

        recommender = Recommender(price=1.0).fit("ratings.dat")  # or .fit(users, items, ratings)
        recommender.recommend([42], k=10)

    `solver` "cd" (the default) is coordinate descent, best up to some million objects; "prox" takes stochastic steps. `price`
    is what a weight must be worth to stay (cd): more of it, smaller tables. All settings of `antembed train recommend` can be
    given.
    """

    def __init__(self, *, solver: str = "cd", anchors: int | tuple[int, int] = 48, dimensions: int = 12, **settings: Any):
        if solver not in SOLVERS:
            raise ValueError(f"solver {solver!r} is none of: {', '.join(SOLVERS)}")
        both = (anchors, anchors) if isinstance(anchors, int) else anchors
        self.settings = Settings(data="", solver=solver, anchors=both, dimensions=dimensions, **settings)

    def fit(
        self,
        data: str | Path | Ratings | pl.DataFrame | Labels,
        items: Labels | None = None,
        ratings: Labels | None = None,
        *,
        tell: Callable[[Tick], None] = lambda tick: None,
    ) -> "Recommender":
        """Learn from a file, a table with columns user, item and rating, or three columns: users, items and ratings."""
        return self._fit(_ratings(data, items, ratings), tell)

    def _fit(self, data: Ratings, tell: Callable[[Tick], None]) -> "Recommender":
        self.__dict__.pop("_memory", None)  # of another partial_fit
        rows, none = np.arange(len(data), dtype=np.int32), np.empty(0, np.int32)
        parts = {name: Examples(data.columns, which) for name, which in (("train", rows), ("validation", none), ("test", none))}
        values = data.values
        model = build_model(self.settings, data.objects, float(values.mean()), counts_of(self.settings, data, rows))
        job = Job(self.settings, model, parts, (float(values.min()), float(values.max())))
        with tempfile.TemporaryDirectory() as name:
            folder = RunFolder(Path(name) / "run")
            solve = by_descent if self.settings.solver == "cd" else by_steps
            solve(job, folder, lambda: folder.create({}, False), False, tell)
            write_tables(model, folder.path, values=self.settings.values)
            self._open(folder.path, data.user_labels, data.item_labels, float(model.bias.detach()))
        self.remember(data)
        return self

    def partial_fit(
        self,
        data: str | Path | Ratings | pl.DataFrame | Labels,
        items: Labels | None = None,
        ratings: Labels | None = None,
    ) -> "Recommender":
        """Learn from more ratings without those before: users and items may be new, anchors are added where they pay.

        For coordinate descent (solver "cd", anchored tables). What is left of the ratings before is the tables, and how many
        there were of each user and item; it takes some thousand ratings at a time well, single ones badly. After `save` and
        `load` it goes on a little otherwise: where ratings still pull is not kept in the small files, but worked out from them.
        """
        if self.settings.solver != "cd" or self.settings.embedding != "anchor" or self.settings.unseen:
            raise ValueError("partial_fit is for solver='cd' with anchored tables and unseen=0; fit anew on all ratings")
        more = _ratings(data, items, ratings)
        stream = self._stream()
        known = (self.user_labels_, self.item_labels_) if hasattr(self, "users_") else (more.user_labels, more.item_labels)
        merged = [merge(own, new) for own, new in zip(known, (more.user_labels, more.item_labels), strict=True)]
        ids = (merged[0].row_index[more.users], merged[1].row_index[more.items])
        stream.learn((*ids, *more.columns[2:]))
        for memory, those in zip((stream.users, stream.items), merged, strict=True):
            memory.reorder(those.order)
        rated = [those.rank[column] for those, column in zip(merged, ids, strict=True)]
        self._keep_seen(np.concatenate([self._old_seen(merged), rated], axis=1))
        model = build_model(self.settings, (len(merged[0].labels), len(merged[1].labels)), stream.mean)
        put(stream, model)
        with tempfile.TemporaryDirectory() as name:
            write_tables(model, Path(name), values=self.settings.values)
            self._open(Path(name), merged[0].labels, merged[1].labels, stream.mean)
        self._memory = stream
        return self

    def _stream(self) -> Stream:
        """Where the next ratings go on from: the memory of the last partial_fit, or what can be told from the tables."""
        if hasattr(self, "_memory"):
            return self._memory
        settings, prices = self.settings, prices_of(self.settings)
        stream = Stream(settings.dimensions, prices, anchors=settings.start, seed=settings.seed, threads=settings.threads)
        if hasattr(self, "users_"):
            if not hasattr(self, "seen_"):
                raise ValueError("what users have rated is not known here, so nothing can be added to it; fit anew")
            counts = np.diff(self.seen_starts_), np.bincount(self.seen_, minlength=len(self.item_labels_))
            stream.users, stream.items = (
                memory_of(table, n, prices) for table, n in zip((self.users_, self.items_), counts, strict=True)
            )
            stream.mean, stream.batches, stream.ratings = self.mean_, 1, len(self.seen_)
        return stream

    def _old_seen(self, merged: list[Merged]) -> np.ndarray:
        """(user, item) rows of what was seen before, in the new order: (2, n)."""
        if not hasattr(self, "seen_"):
            return np.empty((2, 0), np.int64)
        users = np.repeat(np.arange(len(self.seen_starts_) - 1), np.diff(self.seen_starts_))
        return np.stack([merged[0].rank[users], merged[1].rank[self.seen_]])

    def _open(self, folder: Path, users: pl.Series, items: pl.Series, mean: float) -> None:
        self.users_, self.items_ = (load_table(folder / f"{name}.ant") for name in ("users", "items"))
        self._files = {name: (folder / f"{name}.ant").read_bytes() for name in ("users", "items")}
        self.user_labels_, self.item_labels_, self.mean_ = users, items, mean

    def _fitted(self) -> tuple[Table, Table]:
        if not hasattr(self, "users_"):
            raise NotFittedError("this recommender knows nothing yet; call fit, or Recommender.load a folder")
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
        if filter_seen and not hasattr(self, "seen_"):
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
        places = [np.arange(a, b) for a, b in zip(starts, stops, strict=True)]
        return rows, self.seen_[np.concatenate(places)] if places else np.empty(0, np.int32)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        _, table = self._fitted()
        place = int(find(self.item_labels_, [item])[0])
        if place < 0:
            raise KeyError(f"no item {item!r} among the {len(self.item_labels_)} that have been rated")
        vectors = table[:]
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths[place] == 0:
            raise ValueError(f"item {item!r} has no vector, only a bias: too little is known of it; take a lower price")
        vectors /= np.where(lengths > 0, lengths, 1)[:, None]
        hidden = np.zeros(1, np.int64), np.array([place])
        items, scores = top(vectors[place : place + 1], vectors, np.zeros(len(vectors), np.float32), k, hidden)
        return pl.DataFrame({"item": self.item_labels_.gather(items[0]), "similarity": scores[0]})

    def save(self, folder: str | Path) -> None:
        """Two small tables, the labels, and what has been seen; `load` reads them again."""
        self._fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._files.items():
            write_atomically(folder / f"{name}.ant", data)
        write_labels(self.user_labels_, self.item_labels_, folder)
        if hasattr(self, "seen_"):
            seen = {"items": torch.from_numpy(self.seen_), "starts": torch.from_numpy(self.seen_starts_)}
            save_tensors(folder / "seen.safetensors", seen, {})
        write_atomically(folder / "result.json", json.dumps({"mean": self.mean_}).encode())
        write_atomically(folder / "config.json", json.dumps(asdict(self.settings), indent=2).encode())

    @classmethod
    def load(cls, folder: str | Path) -> "Recommender":
        """What `save` wrote, or a run of `antembed train recommend` (which does not keep what users have seen)."""
        folder = Path(folder)
        needed = ["users.ant", "items.ant", "users.labels.parquet", "items.labels.parquet", "result.json", "config.json"]
        missing = [name for name in needed if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is no recommender: it has no {missing[0]}; give a folder of save, or a finished run")
        users, items = (pl.read_parquet(folder / f"{name}.labels.parquet").to_series() for name in ("users", "items"))
        loaded = cls()
        loaded.settings = settings_of(RunFolder(folder))[0]
        loaded._open(folder, users, items, json.loads((folder / "result.json").read_text())["mean"])
        if (folder / "seen.safetensors").is_file():
            seen, _ = load_tensors(folder / "seen.safetensors")
            loaded.seen_, loaded.seen_starts_ = seen["items"].numpy(), seen["starts"].numpy()
        return loaded

    def remember(self, ratings: Ratings) -> None:
        """These ratings are what users have seen."""
        users, items = find(self.user_labels_, ratings.user_labels), find(self.item_labels_, ratings.item_labels)
        rows, which = users[ratings.users], items[ratings.items]
        both = (rows >= 0) & (which >= 0)
        self._keep_seen(np.stack([rows[both], which[both]]))

    def _keep_seen(self, pairs: np.ndarray) -> None:
        rows, which = pairs
        order = np.argsort(rows, kind="stable")
        self.seen_ = which[order].astype(np.int32)
        users = max(int(rows.max(initial=-1)) + 1, len(getattr(self, "user_labels_", ())))
        self.seen_starts_ = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=users))])


def memory_of(table: Table, n: np.ndarray, prices: Prices) -> Memory:
    """One side of a stream from a file, and how many ratings each row had."""
    ids = np.arange(len(table))
    assert table.anchors is not None
    return Memory.of(table.rows(ids), table.anchors, table.bias_of(ids) - np.float32(table.offset), n, prices)


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
