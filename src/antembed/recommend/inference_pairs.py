"""Lists from two tables by rows: what a user would like, what is like an item. NumPy alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from antembed.files import JSON
from antembed.recommend.fold_in import FoldIn, Ridges
from antembed.recommend.seen import Seen
from antembed.tables.model_folder import RunError
from antembed.tables.row_labels import SIDES, label_file
from antembed.tables.save import load_table
from antembed.tables.serving_ranking import top
from antembed.tables.table import Table

USERS_AT_ONCE = 1024
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


def open_tables(folder: Path) -> tuple[Table, Table]:
    """Of users and of items."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    missing += [f"{side}.labels.safetensors" for side in SIDES if label_file(folder, side) is None]
    if missing:
        raise RunError(f"{folder} is no recommender: it has no {missing[0]}; give a folder of save, or a finished run")
    users, items = (load_table(folder / f"{side}.ant") for side in SIDES)
    return users, items


def check_rows(folder: Path, side: str, rows: int, labels: int) -> None:
    """Raise if a table has more or fewer rows than there are labels."""
    if rows != labels:
        raise RunError(f"{folder}: {side}.ant has {rows} rows, but there are {labels} labels; export them together")


@dataclass(kw_only=True)
class PairTables:
    """Users and items by their rows: vectors and biases, what users have rated, and how popular items are (None: not known)."""

    users: Table
    items: Table
    seen: Seen | None = None
    popularity: np.ndarray | None = None  # (items,) float32, from 0 to 1
    config: JSON = field(default_factory=dict)  # of the run

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
        nobody = np.zeros((len(self.items), 1), np.float32)
        k = min(k, len(self.items))
        item, score = np.empty((len(ids), k), np.int64), np.empty((len(ids), k), np.float32)
        personal = np.zeros(len(ids), bool)
        for start in range(0, len(ids), USERS_AT_ONCE):
            some = ids[start : start + USERS_AT_ONCE]
            queries, own = self.user_vectors(some)
            personal[start : start + len(some)] = vector = queries.any(1)
            for has_vector in (True, False):
                those = np.flatnonzero(vector == has_vector)
                hidden = self.seen.by(some[those]) if filter_seen and self.seen is not None else None
                if has_vector:
                    found, values = top(queries[those], vectors, bias, k, hidden)
                    values = values + own[those, None]
                else:
                    found, values = top(np.zeros((len(those), 1), np.float32), nobody, self.by_popularity, k, hidden)
                item[start + those], score[start + those] = found, values
        there = np.isfinite(score).reshape(-1)  # who has seen nearly everything gets fewer
        who = np.repeat(np.arange(len(ids)), k)
        return who[there], item.reshape(-1)[there], score.reshape(-1)[there], personal

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
    found, scores = top(vectors[row : row + 1], vectors, np.zeros(len(vectors), np.float32), k, hidden)
    there = np.isfinite(scores[0])  # not the item itself where k is all of them
    return found[0][there], scores[0][there]
