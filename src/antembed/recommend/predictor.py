"""Recommendations from a finished run, an export or a saved recommender: users' and items' tables, without torch.

`LightTables` needs NumPy alone: importing polars would take `antembed recommend` and `similar` a fifth of a second.
"""

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from antembed.files import JSON
from antembed.recommend.fold_in import FoldIn, Ridges
from antembed.recommend.seen import Seen, read_popularity
from antembed.tables.model_folder import RunError, read_description
from antembed.tables.neighbours import best_items
from antembed.tables.row_labels import LABELLED, LabelIndex, Labels, find, label_file, read_coded, read_labels, series_of
from antembed.tables.save import load_table
from antembed.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

USERS_AT_ONCE = 1024  # whose scores are in memory
NEEDED = ("users.ant", "items.ant", "config.json")
Lists = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
NAMED = 3  # users that a remark names
NOT_FILTERED = (
    "items that users have rated are not filtered: this folder does not hold them; "
    "write one that does: antembed export RUN FOLDER --with-seen"
)


class UnknownLabelError(KeyError, ValueError):
    """A label that no row has."""

    def __str__(self) -> str:  # KeyError's own puts it in quotes
        return str(self.args[0])


@dataclass(kw_only=True)
class PairTables:
    """Users and items by their rows: vectors and biases, what users have rated, and how popular items are (None: not known)."""

    users: Table
    items: Table
    seen: Seen | None = None
    popularity: np.ndarray | None = None  # (items,) float32, from 0 to 1
    config: JSON = field(default_factory=dict)  # of the run

    @classmethod
    def _open(cls, folder: Path, labels: dict[str, Any]) -> Self:
        """The tables of a folder, whose rows have these labels."""
        users, items = load_table(folder / "users.ant"), load_table(folder / "items.ant")
        for table, name in ((users, "users"), (items, "items")):
            if (n := len(labels[name])) != len(table):
                raise RunError(f"{folder}: {name}.ant has {len(table)} rows, but there are {n} labels; export them together")
        seen = Seen.read(folder, len(users), len(items))
        popularity, config = read_popularity(folder, seen, len(items)), read_description(folder)["config"]
        named = {"user_labels": labels["users"], "item_labels": labels["items"]}
        return cls(users=users, items=items, seen=seen, popularity=popularity, config=config, **named)

    @cached_property
    def by_popularity(self) -> np.ndarray:
        """What orders the items for those of whom nothing is known."""
        return self.items.bias_of(np.arange(len(self.items))) if self.popularity is None else self.popularity

    def user_vectors(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Vectors (n, d) and biases (n,) of rows of users; −1, an unknown user, has none. Where the table has no vector, it is
        computed from what the user has rated."""
        vectors, bias = np.zeros((len(ids), self.users.embedding_dim), np.float32), np.zeros(len(ids), np.float32)
        known = np.flatnonzero(ids >= 0)
        vectors[known], bias[known] = self.users[ids[known]], self.users.bias_of(ids[known])
        empty = known[~vectors[known].any(1)]
        if len(empty) and self.seen is not None and self.seen.ratings is not None:
            starts, items, ratings, weights = self.seen.training(ids[empty])
            rated = np.diff(starts) > 0
            own = self._fold_in(starts, items, ratings, weights)
            vectors[empty[rated]], bias[empty[rated]] = (part[rated] for part in own)
        return vectors, bias

    @cached_property
    def _fold_in(self) -> FoldIn:
        assert self.seen is not None
        assert self.seen.ratings is not None
        known = self.seen.ratings[np.isfinite(self.seen.ratings)]
        return FoldIn(self.users, self.items, Ridges.of(self.config, known, (len(self.users), len(self.items))))

    def best_items(self, ids: np.ndarray, k: int, *, filter_seen: bool) -> Lists:
        """The k best items of each user: indices into `ids`, rows of items, scores, best first; and whose lists are their own.

        `ids` are rows of users. Users without a vector (−1: an unknown one) get the most popular items, whose scores are their
        popularity. Scores are made for some users at a time, never for all.
        """
        if k < 1:
            raise ValueError(f"k must be ≥ 1, got {k}")
        vectors, bias = self.items[:], self.items.bias_of(np.arange(len(self.items)))
        zeros, k = np.zeros((len(self.items), 1), np.float32), min(k, len(self.items))
        item, score = np.empty((len(ids), k), np.int64), np.empty((len(ids), k), np.float32)
        personal = np.zeros(len(ids), bool)
        for start in range(0, len(ids), USERS_AT_ONCE):
            some = ids[start : start + USERS_AT_ONCE]
            queries, own = self.user_vectors(some)
            personal[start : start + len(some)] = vector = queries.any(1)
            for has_vector in (True, False):
                those = np.flatnonzero(vector == has_vector)
                hidden = self.seen.by(some[those]) if filter_seen and self.seen is not None else None
                given = queries[those], vectors, bias
                if not has_vector:
                    given = 0 * queries[those, :1], zeros, self.by_popularity
                item[start + those], scores = best_items(*given, k, hidden)
                score[start + those] = scores + own[those, None] * has_vector
        there = np.isfinite(score)  # a user who has seen nearly everything gets fewer
        return np.nonzero(there)[0], item[there], score[there], personal

    def remarks(self, ids: np.ndarray, users: Sequence[object], personal: np.ndarray, *, filter_seen: bool) -> list[str]:
        """What is to be said of lists for these rows of users, named `users`: who gets what everybody gets, and why."""
        found = [NOT_FILTERED] if filter_seen and self.seen is None else []
        order = "popularity" if self.popularity is not None else "the items' biases, as this older folder has no popularity"
        if unknown := [user for user, row in zip(users, ids, strict=True) if row < 0]:
            found.append(f"{named(unknown)} unknown here: the list is by {order}")
        if without := [user for user, none in zip(users, (ids >= 0) & ~personal, strict=True) if none]:
            why = "this folder has no ratings to compute one from (the run's own folder has)"
            if self.seen is not None and self.seen.ratings is not None:
                why = "training ratings give none"
            found.append(f"{named(without)} without a vector, and {why}: the list is by {order}")
        return found


def named(users: Sequence[object]) -> str:
    """The beginning of a remark: "user 'a' is", "5 users ('a', 'b', 'c', …) are"."""
    each = list(dict.fromkeys(users))
    shown = ", ".join(map(repr, each[:NAMED])) + (", …" if len(each) > NAMED else "")
    return f"user {shown} is" if len(each) == 1 else f"{len(each):,} users ({shown}) are"


def similar_rows(items: Table, row: int, label: object, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k items whose vectors point most nearly the way of this one's: rows, cosines; best first. `label`, for errors."""
    if k < 1:
        raise ValueError(f"k must be ≥ 1, got {k}")
    vectors = items[:]
    lengths = np.linalg.norm(vectors, axis=1)
    if lengths[row] == 0:
        raise ValueError(f"item {label!r} has no vector, only a bias: too few ratings; take a lower l0_penalty")
    vectors /= np.where(lengths > 0, lengths, 1)[:, None]
    hidden = np.zeros(1, np.int64), np.array([row])
    found, scores = best_items(vectors[row : row + 1], vectors, np.zeros(len(vectors), np.float32), k, hidden)
    there = np.isfinite(scores[0])  # not the item itself where k is all of them
    return found[0][there], scores[0][there]


COMPARED = 20_000  # labels that an unknown one is compared with: difflib takes some 10 µs for each


@dataclass(kw_only=True)
class RatingTables(PairTables):
    """Users and items: their vectors and biases, their labels, and what users have rated (None: not known)."""

    user_labels: "pl.Series"
    item_labels: "pl.Series"

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A finished run, what Recommender.save wrote, or an export."""
        check_recommender(Path(folder))
        return cls._open(Path(folder), read_labels(Path(folder)))

    @property
    def mean(self) -> float:
        """Of the training ratings; the items' biases carry it."""
        return float(self.items.offset)

    def predict(self, users: Labels, items: Labels) -> np.ndarray:
        """As Recommender.predict."""
        ratings, remarks = self.predictions(users, items)
        warn(remarks)
        return ratings

    def predictions(self, users: Labels, items: Labels) -> tuple[np.ndarray, list[str]]:
        """What `predict` returns, and what is to be said of it."""
        asked = series_of(users)
        u, i = find(self.user_labels, asked), find(self.item_labels, items)
        if len(u) != len(i):
            raise ValueError(f"predict takes pairs: got {len(u)} users and {len(i)} items")
        ids, position = np.unique(u, return_inverse=True)
        vectors, bias = self.user_vectors(ids)
        ratings = np.where(i >= 0, 0.0, self.mean) + bias[position]  # the items' biases carry the mean
        ratings[i >= 0] += self.items.bias_of(i[i >= 0])
        both = (u >= 0) & (i >= 0)
        ratings[both] += np.einsum("nd,nd->n", vectors[position[both]], self.items[i[both]])
        unknown = asked.gather(np.flatnonzero(u < 0)).to_list()
        return ratings, [f"{named(unknown)} unknown here: predicted by the mean and the items' biases"] if unknown else []

    def recommend(self, users: Labels, k: int = 10, *, filter_seen: bool = True) -> "pl.DataFrame":
        """As Recommender.recommend."""
        found, remarks = self.lists(users, k, filter_seen=filter_seen)
        warn(remarks)
        return found

    def lists(self, users: Labels, k: int, *, filter_seen: bool) -> "tuple[pl.DataFrame, list[str]]":
        """What `recommend` returns, and what is to be said of it."""
        import polars as pl

        if isinstance(users, str | bytes | int | float):
            raise TypeError(f"give a list of users, [{users!r}], not a single one")
        asked = series_of(users)
        if not len(asked):
            raise ValueError("recommend needs at least one user, got none")
        ids = find(self.user_labels, asked)
        who, items, scores, personal = self.best_items(ids, k, filter_seen=filter_seen)
        found = pl.DataFrame({"user": asked.gather(who), "item": self.item_labels.gather(items), "score": scores})
        return found, self.remarks(ids, asked.to_list(), personal, filter_seen=filter_seen)

    def similar_items(self, item: Any, k: int = 10) -> "pl.DataFrame":
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        import polars as pl

        if (row := int(find(self.item_labels, [item])[0])) < 0:
            raise unknown_item(self.item_labels, item)
        items, scores = similar_rows(self.items, row, item, k)
        return pl.DataFrame({"item": self.item_labels.gather(items), "similarity": scores})

    def recommend_columns(self, users: list[str], k: int, *, filter_seen: bool) -> tuple[dict[str, list[object]], list[str]]:
        """What `lists` finds, as plain lists."""
        found, remarks = self.lists(users, k, filter_seen=filter_seen)
        return found.to_dict(as_series=False), remarks

    def similar_columns(self, item: str, k: int) -> dict[str, list[object]]:
        """What `similar_items` finds, as plain lists."""
        return self.similar_items(item, k).to_dict(as_series=False)


@dataclass(kw_only=True)
class LightTables(PairTables):
    """What RatingTables is, asked with text and answered with plain lists."""

    user_labels: LabelIndex
    item_labels: LabelIndex

    @classmethod
    def load(cls, folder: Path) -> "LightTables | RatingTables":
        """RatingTables where labels are in Parquet: folders of older versions, labels that are neither text nor integers."""
        check_recommender(folder)
        files = {name: label_file(folder, name) for name in LABELLED}
        coded = {name: read_coded(file) for name, file in files.items() if file is not None and file.suffix != ".parquet"}
        return cls._open(folder, coded) if coded.keys() == files.keys() else RatingTables.load(folder)

    def recommend_columns(self, users: list[str], k: int, *, filter_seen: bool) -> tuple[dict[str, list[object]], list[str]]:
        """The k best items of each user: user, item, score, best first; and what is to be said of them."""
        ids = np.array([self.user_labels.find(user) for user in users], np.int64)
        index, items, scores, personal = self.best_items(ids, k, filter_seen=filter_seen)
        columns = {"user": [users[n] for n in index.tolist()], "item": self._named(items), "score": scores.tolist()}
        return columns, self.remarks(ids, users, personal, filter_seen=filter_seen)

    def similar_columns(self, item: str, k: int) -> dict[str, list[object]]:
        """The k most similar items: item, similarity, best first."""
        if (row := self.item_labels.find(item)) < 0:
            raise unknown_item(series_of(self._named(np.arange(len(self.item_labels)))), item)
        items, scores = similar_rows(self.items, row, item, k)
        return {"item": self._named(items), "similarity": scores.tolist()}

    def _named(self, items: np.ndarray) -> list[int | str]:
        return [self.item_labels[row] for row in items.tolist()]


def check_recommender(folder: Path) -> None:
    """Raise if the folder is none."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    missing += [f"{name}.labels.safetensors" for name in LABELLED if label_file(folder, name) is None]
    if missing:
        raise RunError(f"{folder} is no recommender: it has no {missing[0]}; give a folder of save, or a finished run")


def warn(remarks: Sequence[str]) -> None:
    """Of a result, for the caller of the caller."""
    for line in remarks:
        warnings.warn(line, stacklevel=3)


def unknown_item(labels: "pl.Series", item: object) -> UnknownLabelError:
    """The error for a label that no item has."""
    return UnknownLabelError(f"no item {item!r} among the {len(labels)} that have been rated{near(labels, item)}")


def near(labels: "pl.Series", wanted: object) -> str:
    """What an error says beside an unknown label: labels that are written alike, or what kind of labels there are."""
    import polars as pl

    if not len(labels):
        return ""
    if labels.dtype != pl.String:
        return f"; labels are numbers here, from {labels[0]} to {labels[-1]}"
    text = str(wanted)
    size = labels.str.len_chars().cast(pl.Int64)
    alike = labels.filter((size - len(text)).abs() <= max(2, len(text) // 3)).head(COMPARED)
    found = difflib.get_close_matches(text, alike.to_list(), n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else f"; labels are like {labels[0]!r}"
