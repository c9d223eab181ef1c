"""Recommendations from two tables, their labels and what users have rated: NumPy and polars, no torch."""

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.recommend.inference_pairs import PairTables, UnknownLabelError, check_rows, named, open_tables, similar_rows
from antembed.recommend.seen import Seen, read_popularity
from antembed.tables.model_folder import read_description
from antembed.tables.row_labels import Labels, find, read_labels, series_of

COMPARED = 20_000  # labels that an unknown one is compared with: difflib takes some 10 µs for each


@dataclass(kw_only=True)
class RatingTables(PairTables):
    """Users and items: their vectors and biases, their labels, and what users have rated (None: not known)."""

    user_labels: pl.Series
    item_labels: pl.Series

    @classmethod
    def load(cls, folder: str | Path) -> "RatingTables":
        """A finished run, what Recommender.save wrote, or an export."""
        folder = Path(folder)
        users, items = open_tables(folder)
        labels = read_labels(folder)
        for table, side in ((users, "users"), (items, "items")):
            check_rows(folder, side, len(table), len(labels[side]))
        seen = Seen.read(folder, len(users), len(items))
        return cls(
            users=users,
            items=items,
            seen=seen,
            popularity=read_popularity(folder, seen, len(items)),
            config=read_description(folder)["config"],
            user_labels=labels["users"],
            item_labels=labels["items"],
        )

    @property
    def mean(self) -> float:
        """Of the training ratings; the items' biases carry it."""
        return float(self.items.offset)

    def predict(self, users: Labels, items: Labels) -> np.ndarray:
        """Ratings of pairs: (n,). Of a user or item never seen only the mean and the other's bias are known: they decide, and a
        warning says so of users."""
        ratings, remarks = self.predictions(users, items)
        warn(remarks)
        return ratings

    def predictions(self, users: Labels, items: Labels) -> tuple[np.ndarray, list[str]]:
        """What `predict` returns, and what is to be said of it."""
        asked = series_of(users)
        u, i = find(self.user_labels, asked), find(self.item_labels, items)
        if len(u) != len(i):
            raise ValueError(f"predict takes pairs: got {len(u)} users and {len(i)} items")
        ids, place = np.unique(u, return_inverse=True)
        vectors, bias = self.user_vectors(ids)
        ratings = np.where(i >= 0, 0.0, self.mean) + bias[place]  # the items' biases carry the mean
        ratings[i >= 0] += self.items.bias_of(i[i >= 0])
        both = (u >= 0) & (i >= 0)
        ratings[both] += np.einsum("nd,nd->n", vectors[place[both]], self.items[i[both]])
        unknown = asked.filter(pl.Series(u < 0)).to_list()
        return ratings, [f"{named(unknown)} unknown here: predicted by the mean and the items' biases"] if unknown else []

    def recommend(self, users: Labels, k: int = 10, *, filter_seen: bool = True) -> pl.DataFrame:
        """The k best items of each user: a table of user, item, score, best first. Items a user has rated are left out.

        A user never seen gets the most popular items, whose scores are their popularity (from 0 to 1, on a log scale). A user
        whose row of the table is empty gets a vector from what the user has rated. Warnings say who gets the most popular
        items, and whether what users have rated is not known here, and not left out.
        """
        found, remarks = self.lists(users, k, filter_seen=filter_seen)
        warn(remarks)
        return found

    def lists(self, users: Labels, k: int, *, filter_seen: bool) -> tuple[pl.DataFrame, list[str]]:
        """What `recommend` returns, and what is to be said of it."""
        if isinstance(users, str | bytes | int | float):
            raise TypeError(f"give a list of users, [{users!r}], not a single one")
        asked = series_of(users)
        if not len(asked):
            raise ValueError("recommend needs at least one user, got none")
        ids = find(self.user_labels, asked)
        who, items, scores, personal = self.best_items(ids, k, filter_seen=filter_seen)
        found = pl.DataFrame({"user": asked.gather(who), "item": self.item_labels.gather(items), "score": scores})
        return found, self.remarks(ids, asked.to_list(), personal, filter_seen=filter_seen)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        row = int(find(self.item_labels, [item])[0])
        if row < 0:
            raise UnknownLabelError(
                f"no item {item!r} among the {len(self.item_labels)} that have been rated{near(self.item_labels, item)}"
            )
        items, scores = similar_rows(self.items, row, item, k)
        return pl.DataFrame({"item": self.item_labels.gather(items), "similarity": scores})

    def recommend_columns(self, users: list[str], k: int, *, filter_seen: bool) -> tuple[dict[str, list[object]], list[str]]:
        """What `lists` finds, as plain lists."""
        found, remarks = self.lists(users, k, filter_seen=filter_seen)
        return found.to_dict(as_series=False), remarks

    def similar_columns(self, item: str, k: int) -> dict[str, list[object]]:
        """What `similar_items` finds, as plain lists."""
        return self.similar_items(item, k).to_dict(as_series=False)


def warn(remarks: Sequence[str]) -> None:
    """Of a result, for the caller of the caller."""
    for line in remarks:
        warnings.warn(line, stacklevel=3)


def near(labels: pl.Series, wanted: object) -> str:
    """What an error says beside an unknown label: labels that are written alike, or what kind of labels there are."""
    if not len(labels):
        return ""
    if labels.dtype != pl.String:
        return f"; labels are numbers here, from {labels[0]} to {labels[-1]}"
    text = str(wanted)
    size = labels.str.len_chars().cast(pl.Int64)
    alike = labels.filter((size - len(text)).abs() <= max(2, len(text) // 3)).head(COMPARED)
    found = difflib.get_close_matches(text, alike.to_list(), n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else f"; labels are like {labels[0]!r}"
