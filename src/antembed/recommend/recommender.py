"""A recommender to use, in scikit-learn's manners: fit, partial_fit, predict, recommend, similar_items, save, load."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl

from antembed.data.frames import Merged, merge
from antembed.files import JSON, write_atomically
from antembed.recommend.config import EventsConfig, RatingsConfig, read_input
from antembed.recommend.dataset import RatingsSplits, all_for_training, cut, seen_of
from antembed.recommend.descent_config import CoordinateDescentConfig, OnlineConfig
from antembed.recommend.descent_solver import copy_to_model, penalties_of
from antembed.recommend.factor import Penalties
from antembed.recommend.in_memory import ratings_from
from antembed.recommend.online import OnlineDescent, OnlineState
from antembed.recommend.predictor import RatingTables, warn
from antembed.recommend.ratings_table import Ratings
from antembed.recommend.seen import Seen, popularity_of, write_popularity
from antembed.recommend.task import Events
from antembed.recommend.task import Ratings as RatingsTask
from antembed.tables.model_folder import POPULARITY, RATINGS, SEEN, check_own, write_description
from antembed.tables.row_labels import LABELLED, Labels, write_labels
from antembed.tables.save import load_table
from antembed.tables.table import Table
from antembed.train.configure import Report, search_of, silent, suited
from antembed.train.estimator import TableEstimator
from antembed.train.options import from_options, to_options
from antembed.train.run import train
from antembed.train.solver import Callback, ignore


@dataclass(kw_only=True, eq=False, repr=False)
class Recommender(TableEstimator):
    """Users and items as small tables, from ratings or from events.

        recommender = Recommender().fit("ratings.dat")  # or .fit(table), .fit(users, items, ratings), .fit(csr_matrix)
        recommender.recommend([42], k=10)

    Without options it searches for widths and ridges, and for the smallest tables within 1 % of the dense model's error
    (`tolerance`), on a tenth of the ratings (of events: the last of each user); then it learns all ratings. `budget` says a
    size instead. Data without ratings are events (implicit feedback): lists of what is chosen next. All other options of
    `antembed train recommend` are given by name in `options`: Recommender(options={"l0_penalty": 0.5}).
    """

    tasks: ClassVar[tuple[str, ...]] = ("recommend", "recommend-events")
    Config = RatingsConfig
    defaults: ClassVar[JSON] = {"solver": "coordinate_descent", "anchors": (48,), "embedding_dim": 12}
    config: RatingsConfig = field(init=False)

    tolerance: str | None = None
    solver: Literal["auto", "stochastic", "coordinate_descent", "online"] | None = None
    implicit: bool | None = None

    def fit(
        self,
        data: Any,
        items: Any = None,
        ratings: Any = None,
        *,
        columns: Sequence[str] | None = None,
        callback: Callback = ignore,
        report: Report = silent,
    ) -> "Recommender":
        """Learn from a file, a table (polars, pandas) with columns user, item and rating, a sparse matrix of users × items, or
        columns: users, items and ratings. `columns` are the names of the user, item and rating columns, if they are not the
        usual ones. `report` gets what a search finds, `callback` the progress."""
        known = ratings_from(data, items, ratings, implicit=self.implicit, columns=columns)
        self.__dict__.pop("_online", None)  # of another partial_fit
        config, splits = self._configured(known, report)
        with tempfile.TemporaryDirectory() as name:
            self.result_ = train(config, Path(name) / "run", splits=splits, callback=callback)
            if "tolerance" in self.result_ and not known.implicit:  # the validation ratings have chosen: now they are learned
                config = refit(config, self.result_["tolerance"]["l0_penalty"])
                splits = all_for_training(known, threads=config.machine.threads)
                train(config, Path(name) / "all", splits=splits, callback=callback)
            self.config = config
            self._take(Path(name) / ("all" if (Path(name) / "all").is_dir() else "run"))
        return self

    def _configured(self, known: Ratings, report: Report) -> tuple[RatingsConfig, RatingsSplits]:
        """The config and the parts of the data: of the options, or what a search finds."""
        Config = EventsConfig if known.implicit else RatingsConfig
        options = suited(Config, self.given) if known.implicit else self.given
        if (searched := Config.to_search(options)) is None:
            config = from_options(Config, options) if known.implicit else self._config(options, len(known))
            assert isinstance(config, RatingsConfig)
            return config, all_for_training(Events.weighted(known) if known.implicit else known, threads=config.machine.threads)
        _, first = searched
        config = from_options(Config, first)
        if known.implicit:
            splits = Events().split(config, known, test=False)
        else:
            parts = cut(known, "90/10", config.machine.seed, threads=config.machine.threads)
            splits = replace(parts, validation=parts.test, test=parts.validation)
        found = from_options(Config, {**first, **search_of(Config)(config, options, splits, report)})
        if not found.tolerance:  # nothing more is decided by validation data
            splits = all_for_training(Events.weighted(known) if known.implicit else known, threads=found.machine.threads)
        return found, splits

    def partial_fit(self, data: Any, items: Any = None, ratings: Any = None) -> "Recommender":
        """Learn from more ratings without those before: users and items may be new, anchors are added where they help.

        For coordinate descent with anchored tables. What is left of the ratings before is the tables, and how many ratings each
        user and item had; some thousand ratings at a time work well, single ones badly. After `save` and `load` it continues
        a little differently: the small files do not hold the gradients of the ratings so far, which are worked out from them.
        """
        exact = isinstance(solver := self.config.solver, CoordinateDescentConfig) and not solver.unobserved_weight
        if not (exact or isinstance(solver, OnlineConfig)) or self.config.tables.embedding != "anchor":
            raise ValueError(
                "partial_fit is for solver='coordinate_descent' with anchored tables and unobserved_weight=0; fit anew on all"
            )
        if not hasattr(self, "model_"):
            self.config = from_options(RatingsConfig, self.defaults | self.given)
        more = ratings_from(data, items, ratings, implicit=False)
        stream = self._stream()
        known = (self.user_labels_, self.item_labels_) if hasattr(self, "model_") else (more.user_labels, more.item_labels)
        merged = [merge(own, new) for own, new in zip(known, (more.user_labels, more.item_labels), strict=True)]
        ids = (merged[0].row_index[more.users], merged[1].row_index[more.items])
        stream.learn((*ids, *more.columns[2:]))
        for state, those in zip((stream.users, stream.items), merged, strict=True):
            state.reorder(those.order)
        seen = self._seen_with(merged, ids, more)
        splits = RatingsSplits(labels=dict(zip(LABELLED, (those.labels for those in merged), strict=True)), mean=stream.mean)
        model = RatingsTask().build(self.config, splits)
        copy_to_model(stream, model)
        with tempfile.TemporaryDirectory() as folder:
            model.export(Path(folder), self.config.values, self.config.encoding)
            self._files = {name: (Path(folder) / f"{name}.ant").read_bytes() for name in LABELLED}
            users, rated = (load_table(Path(folder) / f"{name}.ant") for name in LABELLED)
        counts, config = np.bincount(seen.items, minlength=len(rated)), self.config.model_dump(mode="json")
        own = {"user_labels": splits.labels["users"], "item_labels": splits.labels["items"]}
        self.model_ = RatingTables(users=users, items=rated, seen=seen, popularity=popularity_of(counts), config=config, **own)
        self._online = stream
        return self

    def _stream(self) -> OnlineDescent:
        """What the next ratings are added to: the state of the last partial_fit, or what is worked out from the tables."""
        if hasattr(self, "_online"):
            return self._online
        config = self.config
        assert isinstance(config.solver, CoordinateDescentConfig | OnlineConfig)
        penalties, anchors = penalties_of(config, config.solver.penalties), config.num_anchors(2)
        seed, threads = config.machine.seed, config.machine.threads
        stream = OnlineDescent(config.tables.embedding_dim, penalties, anchors=anchors, seed=seed, threads=threads)
        if hasattr(self, "model_"):
            if (seen := self.tables.seen) is None:
                raise ValueError("what users have rated is not known here, so nothing can be added to it; fit anew")
            counts = np.diff(seen.starts), np.bincount(seen.items, minlength=len(self.item_labels_))
            tables = zip((self.users_, self.items_), counts, strict=True)
            stream.users, stream.items = (state_of(table, n, penalties) for table, n in tables)
            stream.mean, stream.batches, stream.ratings = self.mean_, 1, len(seen.items)
        return stream

    def _seen_with(self, merged: list[Merged], ids: tuple[np.ndarray, np.ndarray], more: Ratings) -> Seen:
        """What was seen before and these ratings, in the new order of rows."""
        own = np.ones(len(more), np.float32) if more.weights is None else more.weights
        parts = [(merged[0].rank[ids[0]], merged[1].rank[ids[1]], more.values, own)]
        if hasattr(self, "model_") and (old := self.tables.seen) is not None:
            users, items, *rest = old.columns()
            parts.append((merged[0].rank[users], merged[1].rank[items], *rest))
        users, items, ratings, weights = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        sizes = len(merged[0].labels), len(merged[1].labels)
        return Seen.of(users, items, *sizes, ratings, weights if (weights != 1).any() else None)

    def _take(self, folder: Path) -> None:
        self.model_ = RatingTables.load(folder)
        self._files = {name: (folder / f"{name}.ant").read_bytes() for name in LABELLED}

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks before it checks or clones; it is there when it asks. No regressor: `fit` takes no X and y."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=InputTags(two_d_array=False))

    @property
    def tables(self) -> RatingTables:
        """All that is needed to recommend, without torch."""
        self._check_fitted()
        return self.model_

    @property
    def users_(self) -> Table:
        """Vectors and biases of users."""
        return self.tables.users

    @property
    def items_(self) -> Table:
        """Vectors and biases of items."""
        return self.tables.items

    @property
    def user_labels_(self) -> pl.Series:
        """Row n of `users_` is user_labels_[n]."""
        return self.tables.user_labels

    @property
    def item_labels_(self) -> pl.Series:
        """Row n of `items_` is item_labels_[n]."""
        return self.tables.item_labels

    @property
    def mean_(self) -> float:
        """Of the training ratings."""
        return self.tables.mean

    def predict(self, users: Labels, items: Labels) -> np.ndarray:
        """Ratings of pairs: (n,). Of a user or item never seen only the mean and the other's bias are known: they decide, and a
        warning says so of users."""
        predicted, remarks = self.tables.predictions(users, items)
        warn(remarks)
        return predicted

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

        A user never seen gets the most popular items, whose scores are their popularity (from 0 to 1, on a log scale). A user
        whose row of the table is empty gets a vector from what the user has rated. Warnings say who gets the most popular
        items, and whether what users have rated is not known here, and not left out.
        """
        found, remarks = self.tables.lists(users, k, filter_seen=filter_seen)
        warn(remarks)
        return found

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        return self.tables.similar_items(item, k)

    def save(self, folder: str | Path, *, with_seen: bool = True) -> None:
        """Two small tables, their labels, and what users have rated; `load` and `antembed recommend` read them. Without
        `with_seen` the folder is as small as one of `antembed export`: lists from it have items in them that were rated."""
        tables, folder = self.tables, Path(folder)
        check_own(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._files.items():
            write_atomically(folder / f"{name}.ant", data)
        write_labels(folder, {"users": tables.user_labels, "items": tables.item_labels})
        for name in (SEEN, RATINGS, POPULARITY):
            (folder / name).unlink(missing_ok=True)  # of another model
        if tables.popularity is not None:
            write_popularity(folder, tables.popularity)
        if tables.seen is not None and with_seen:
            tables.seen.save(folder)
        write_description(folder, self.config.model_dump(mode="json"), {}, [f"{name}.ant" for name in self._files])

    def remember_training_data(self) -> None:
        """Read the ratings that the config names: they are what users have rated. For runs that do not hold it."""
        self.tables.seen = seen_of(read_input(self.config.input), self.user_labels_, self.item_labels_)


def state_of(table: Table, n: np.ndarray, penalties: Penalties) -> OnlineState:
    """One side of a stream from a file, and how many ratings each row had."""
    ids = np.arange(len(table))
    assert table.anchors is not None
    return OnlineState.of(table.rows(ids), table.anchors, table.bias_of(ids) - np.float32(table.offset), n, penalties)


def refit(config: RatingsConfig, l0_penalty: float) -> RatingsConfig:
    """The same with the penalty that a tolerance has found, for ratings of which none are held out."""
    chosen = to_options(config) | {"l0_penalty": l0_penalty, "values": config.values, "encoding": config.encoding}
    for name in ("tolerance", "basis"):
        chosen.pop(name, None)
    found = from_options(type(config), chosen)
    assert isinstance(found, RatingsConfig)
    return found
