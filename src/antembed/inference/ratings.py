"""Recommendations from two tables, their labels and what users have rated: NumPy and polars, no torch."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.inference.folder import read_description
from antembed.inference.pairs import Seen, UnknownLabelError, best_items, check_rows, open_tables, similar_rows
from antembed.labels import Labels, find, read_labels
from antembed.serving import Table

COMPARED = 20_000  # labels that an unknown one is compared with: difflib takes some 10 µs for each


@dataclass
class RatingTables:
    """Users and items: their vectors and biases, their labels, and what users have rated (None: not known)."""

    users: Table
    items: Table
    user_labels: pl.Series
    item_labels: pl.Series
    seen: Seen | None = None

    @classmethod
    def load(cls, folder: str | Path) -> "RatingTables":
        """A finished run, what Recommender.save wrote, or an export."""
        folder = Path(folder)
        users, items = open_tables(folder)
        labels = read_labels(folder)
        for table, side in ((users, "users"), (items, "items")):
            check_rows(folder, side, len(table), len(labels[side]))
        return cls(users, items, labels["users"], labels["items"], Seen.read(folder, len(users), len(items)))

    @property
    def mean(self) -> float:
        """Of the training ratings; the items' biases carry it."""
        return float(self.items.offset)

    def unknown_users(self, users: Labels) -> list[Any]:
        """Those without any rating."""
        asked = pl.Series("user", users)
        return asked.filter(pl.Series(find(self.user_labels, asked) < 0)).to_list()

    def predict(self, users: Labels, items: Labels) -> np.ndarray:
        """Ratings of pairs: (n,). Of a user or item never seen only the mean and the other's bias are known: they decide."""
        u, i = find(self.user_labels, users), find(self.item_labels, items)
        if len(u) != len(i):
            raise ValueError(f"predict takes pairs: got {len(u)} users and {len(i)} items")
        ratings = np.where(i >= 0, 0.0, self.mean)  # the items' biases carry the mean
        ratings[u >= 0] += self.users.bias_of(u[u >= 0])
        ratings[i >= 0] += self.items.bias_of(i[i >= 0])
        both = (u >= 0) & (i >= 0)
        ratings[both] += np.einsum("nd,nd->n", self.users[u[both]], self.items[i[both]])
        return ratings

    def recommend(self, users: Labels, k: int = 10, *, filter_seen: bool = True) -> pl.DataFrame:
        """The k best items of each user: a table of user, item, score, best first. Items a user has rated are left out.

        A user never seen gets what is best on the whole. Scores are made for some users at a time, never for all.
        """
        if filter_seen and self.seen is None:
            raise ValueError("what users have seen is not known here; say filter_seen=False (--seen)")
        if isinstance(users, str | bytes | int | float):
            raise TypeError(f"give a list of users, [{users!r}], not a single one")
        asked = pl.Series("user", users)
        if not len(asked):
            raise ValueError("recommend needs at least one user, got none")
        ids = find(self.user_labels, asked)
        who, items, scores = best_items(self.users, self.items, ids, k, self.seen if filter_seen else None)
        return pl.DataFrame({"user": asked.gather(who), "item": self.item_labels.gather(items), "score": scores})

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        row = int(find(self.item_labels, [item])[0])
        if row < 0:
            raise UnknownLabelError(
                f"no item {item!r} among the {len(self.item_labels)} that have been rated{near(self.item_labels, item)}"
            )
        items, scores = similar_rows(self.items, row, item, k)
        return pl.DataFrame({"item": self.item_labels.gather(items), "similarity": scores})

    def recommend_columns(self, users: list[str], k: int, *, filter_seen: bool) -> dict[str, list[object]]:
        """What `recommend` finds, as plain lists."""
        return self.recommend(users, k, filter_seen=filter_seen).to_dict(as_series=False)

    def similar_columns(self, item: str, k: int) -> dict[str, list[object]]:
        """What `similar_items` finds, as plain lists."""
        return self.similar_items(item, k).to_dict(as_series=False)


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


def source_of(folder: Path) -> str:
    """The file of ratings that a run was trained on; empty for a model that stands alone."""
    source = read_description(folder)["config"].get("input")
    return str(source.get("data", "")) if isinstance(source, dict) else ""
