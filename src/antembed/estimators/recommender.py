"""A recommender to use, in scikit-learn's manners: fit, partial_fit, predict, recommend, similar_items, save, load."""

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from antembed.config import CoordinateDescentConfig, OnlineConfig
from antembed.data import Ratings, read_ratings
from antembed.data.labels import Merged, merge
from antembed.data.ratings import ratings_of
from antembed.estimators.base import Estimator, NotFittedError
from antembed.files import JSON, write_atomically
from antembed.inference.folder import write_description
from antembed.inference.ratings import RatingTables, Seen
from antembed.labels import SIDES, Labels, write_labels
from antembed.runs import RunFolder, train
from antembed.serving import Table, load_table
from antembed.solvers import Callback, ignore
from antembed.solvers.coordinate_descent import copy_to_model, penalties_of
from antembed.solvers.online_state import OnlineDescent, OnlineState
from antembed.solvers.side import Penalties
from antembed.tasks.ratings.config import RatingsConfig
from antembed.tasks.ratings.data import RatingsSplits, all_for_training, read_input, seen_of
from antembed.tasks.ratings.task import Ratings as RatingsTask

__all__ = ["NotFittedError", "Recommender"]


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
            self._open(Path(name) / "run")
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
        known = (self.user_labels_, self.item_labels_) if self.__sklearn_is_fitted__() else (more.user_labels, more.item_labels)
        merged = [merge(own, new) for own, new in zip(known, (more.user_labels, more.item_labels), strict=True)]
        ids = (merged[0].row_index[more.users], merged[1].row_index[more.items])
        stream.learn((*ids, *more.columns[2:]))
        for state, those in zip((stream.users, stream.items), merged, strict=True):
            state.reorder(those.order)
        rated = [those.rank[column] for those, column in zip(merged, ids, strict=True)]
        rows, which = np.concatenate([self._old_seen(merged), rated], axis=1)
        splits = RatingsSplits(labels=dict(zip(SIDES, (those.labels for those in merged), strict=True)), mean=stream.mean)
        model = RatingsTask().build(self.config, splits)
        copy_to_model(stream, model)
        with tempfile.TemporaryDirectory() as name:
            model.export(Path(name), self.config.values, self.config.encoding)
            self._files = {side: (Path(name) / f"{side}.ant").read_bytes() for side in SIDES}
            table_u, table_i = (load_table(Path(name) / f"{side}.ant") for side in SIDES)
        seen = Seen.of(rows, which, *splits.num_embeddings)
        self._tables = RatingTables(table_u, table_i, splits.labels["users"], splits.labels["items"], seen)
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
        if self.__sklearn_is_fitted__():
            seen = self._fitted().seen
            if seen is None:
                raise ValueError("what users have rated is not known here, so nothing can be added to it; fit anew")
            counts = np.diff(seen.starts), np.bincount(seen.items, minlength=len(self.item_labels_))
            stream.users, stream.items = (
                state_of(table, n, penalties) for table, n in zip((self.users_, self.items_), counts, strict=True)
            )
            stream.mean, stream.batches, stream.ratings = self.mean_, 1, len(seen.items)
        return stream

    def _old_seen(self, merged: list[Merged]) -> np.ndarray:
        """(user, item) rows of what was seen before, in the new order: (2, n)."""
        if not self.knows_ratings:
            return np.empty((2, 0), np.int64)
        seen = self._fitted().seen
        assert seen is not None
        users, items = seen.pairs()
        return np.stack([merged[0].rank[users], merged[1].rank[items]])

    def _open(self, folder: Path) -> None:
        self._tables = RatingTables.load(folder)
        self._files = {side: (folder / f"{side}.ant").read_bytes() for side in SIDES}

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks before it checks or clones; it is there when it asks. No regressor: `fit` takes no X and y."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=InputTags(two_d_array=False))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_tables")

    def _fitted(self) -> RatingTables:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this recommender has not been fitted; call fit, or Recommender.load a folder")
        return self._tables

    @property
    def knows_ratings(self) -> bool:
        """Whether it knows what users have rated."""
        return self.__sklearn_is_fitted__() and self._tables.seen is not None

    @property
    def tables(self) -> RatingTables:
        """All that is needed to recommend, without torch."""
        return self._fitted()

    @property
    def users_(self) -> Table:
        """Vectors and biases of users."""
        return self._fitted().users

    @property
    def items_(self) -> Table:
        """Vectors and biases of items."""
        return self._fitted().items

    @property
    def user_labels_(self) -> pl.Series:
        """Row n of `users_` is user_labels_[n]."""
        return self._fitted().user_labels

    @property
    def item_labels_(self) -> pl.Series:
        """Row n of `items_` is item_labels_[n]."""
        return self._fitted().item_labels

    @property
    def mean_(self) -> float:
        """Of the training ratings."""
        return self._fitted().mean

    def predict(self, users: Labels, items: Labels) -> np.ndarray:
        """Ratings of pairs: (n,). Of a user or item never seen only the mean and the other's bias are known: they decide."""
        return self._fitted().predict(users, items)

    def score(self, users: Labels, items: Labels, ratings: Labels) -> float:
        """R² of the predicted ratings, as scikit-learn's regressors: 1 is perfect, 0 no better than the mean of `ratings`."""
        predicted, wanted = self.predict(users, items), np.asarray(pl.Series("rating", ratings), np.float64)
        if len(wanted) != len(predicted):
            raise ValueError(f"score takes triples: got {len(predicted)} pairs and {len(wanted)} ratings")
        if len(wanted) < 2:
            raise ValueError(f"R² needs at least 2 ratings, got {len(wanted)}")
        left, spread = np.square(wanted - predicted).sum(), np.square(wanted - wanted.mean()).sum()
        return float(1 - left / spread) if spread else float(left == 0)  # ratings all alike: as scikit-learn has it

    def recommend(self, users: Labels, k: int = 10, *, filter_seen: bool = True) -> pl.DataFrame:
        """The k best items of each user: a table of user, item, score, best first. Items a user has rated are left out.

        A user never seen gets what is best on the whole. Scores are made for some users at a time, never for all.
        """
        return self._fitted().recommend(users, k, filter_seen=filter_seen)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        return self._fitted().similar_items(item, k)

    def save(self, folder: str | Path) -> None:
        """Two small tables, the labels, and what has been seen; `load` and `antembed recommend` read them."""
        tables, folder = self._fitted(), Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._files.items():
            write_atomically(folder / f"{name}.ant", data)
        write_labels(folder, {"users": tables.user_labels, "items": tables.item_labels})
        if tables.seen is not None:
            tables.seen.save(folder)
        write_description(folder, self.config.model_dump(mode="json"), {})

    @classmethod
    def load(cls, folder: str | Path) -> "Recommender":
        """What `save`, `antembed train recommend` or `antembed export` wrote."""
        loaded = cls.__new__(cls)
        loaded._open(Path(folder))
        config, _ = RunFolder(folder).open()
        assert isinstance(config, RatingsConfig)
        loaded.config = config
        return loaded

    def remember_training_data(self) -> None:
        """Read the ratings that the config names: they are what users have rated. For runs that do not hold it."""
        self.remember(read_input(self.config.input))

    def remember(self, ratings: Ratings) -> None:
        """These ratings are what users have rated."""
        tables = self._fitted()
        tables.seen = seen_of(ratings, tables.user_labels, tables.item_labels)


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
