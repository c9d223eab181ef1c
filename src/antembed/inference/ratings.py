"""Recommendations from two tables, their labels and what users have rated: NumPy and polars, no torch."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.files import write_atomically
from antembed.inference.folder import RunError, read_checked, read_description
from antembed.labels import SIDES, Labels, find, read_labels
from antembed.serving import Table, load_table
from antembed.serving.checksums import pack_arrays
from antembed.serving.ranking import top

USERS_AT_ONCE = 1024
SEEN = "seen.safetensors"
NEEDED = ("users.ant", "items.ant", "users.labels.parquet", "items.labels.parquet", "config.json")
COMPARED = 20_000  # labels that an unknown one is compared with: difflib takes some 10 µs for each


class UnknownLabelError(KeyError, ValueError):
    """A label that no row has."""

    def __str__(self) -> str:  # KeyError's own puts it in quotes
        return str(self.args[0])


@dataclass(frozen=True)
class Seen:
    """What each user has rated: items[starts[u]:starts[u + 1]] are rows of the items' table."""

    items: np.ndarray  # (n,) uint16 or int32
    starts: np.ndarray  # (users + 1,) int64

    @classmethod
    def of(cls, users: np.ndarray, items: np.ndarray, num_users: int, num_items: int) -> "Seen":
        """From pairs of rows, in any order."""
        order = np.argsort(users, kind="stable")
        kind = np.uint16 if num_items <= 1 << 16 else np.int32
        starts = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=num_users))])
        return cls(items[order].astype(kind), starts.astype(np.int64))

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of users and of items."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts)), self.items

    def by(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(index in `users`, item) pairs that these users have rated; −1 is a user who has rated nothing."""
        known = np.flatnonzero(users >= 0)
        starts, stops = self.starts[users[known]], self.starts[users[known] + 1]
        spans = [np.arange(a, b) for a, b in zip(starts, stops, strict=True)]
        rows = np.repeat(known, stops - starts)
        return rows, self.items[np.concatenate(spans)].astype(np.int64) if spans else np.empty(0, np.int64)

    def save(self, folder: Path) -> None:
        write_atomically(folder / SEEN, pack_arrays({"items": self.items, "starts": self.starts}))

    @classmethod
    def read(cls, folder: Path, num_users: int, num_items: int) -> "Seen | None":
        """None: the folder does not have it."""
        path = folder / SEEN
        if not path.is_file():
            return None
        arrays = read_checked(path)
        lists = all(array.ndim == 1 and np.issubdtype(array.dtype, np.integer) for array in arrays.values())
        if arrays.keys() != {"items", "starts"} or not lists:
            raise RunError(f"{path} is damaged: its arrays are {', '.join(arrays) or 'none'}; copy it again or export it anew")
        items, starts = arrays["items"], arrays["starts"]
        right = len(starts) == num_users + 1 and starts[0] == 0 and starts[-1] == len(items) and (np.diff(starts) >= 0).all()
        if not right or (len(items) and not 0 <= int(items.min()) <= int(items.max()) < num_items):
            raise RunError(
                f"{path} has {len(starts) - 1} users and items up to {int(items.max(initial=0))}, the tables have "
                f"{num_users} users and {num_items} items; export them together"
            )
        return cls(items, starts)


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
        missing = [name for name in NEEDED if not (folder / name).is_file()]
        if missing:
            raise RunError(f"{folder} is no recommender: it has no {missing[0]}; give a folder of save, or a finished run")
        (users, items), labels = (load_table(folder / f"{side}.ant") for side in SIDES), read_labels(folder)
        for table, side in ((users, "users"), (items, "items")):
            if len(table) != len(labels[side]):
                rows = f"{side}.ant has {len(table)} rows, {side}.labels.parquet {len(labels[side])}"
                raise RunError(f"{folder}: {rows}; export them together")
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
        if k < 1:
            raise ValueError(f"k must be ≥ 1, got {k}")
        if filter_seen and self.seen is None:
            raise ValueError("what users have seen is not known here; say filter_seen=False (--seen)")
        if isinstance(users, str | bytes | int | float):
            raise TypeError(f"give a list of users, [{users!r}], not a single one")
        asked = pl.Series("user", users)
        if not len(asked):
            raise ValueError("recommend needs at least one user, got none")
        ids = find(self.user_labels, asked)
        vectors, bias = self.items[:], self.items.bias_of(np.arange(len(self.items)))
        items, scores = [], []
        for start in range(0, len(ids), USERS_AT_ONCE):
            some = ids[start : start + USERS_AT_ONCE]
            known = some >= 0
            queries = np.zeros((len(some), self.users.embedding_dim), np.float32)
            own = np.zeros(len(some), np.float32)
            queries[known], own[known] = self.users[some[known]], self.users.bias_of(some[known])
            hidden = self.seen.by(some) if filter_seen and self.seen is not None else None
            found, values = top(queries, vectors, bias, k, hidden)
            items.append(found)
            scores.append(values + own[:, None])
        item, score = np.concatenate(items), np.concatenate(scores)
        there = np.isfinite(score).reshape(-1)  # who has seen nearly everything gets fewer
        return pl.DataFrame(
            {
                "user": asked.gather(np.repeat(np.arange(len(ids)), item.shape[1])),
                "item": self.item_labels.gather(item.reshape(-1)),
                "score": score.reshape(-1),
            }
        ).filter(pl.Series(there))

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: a table of item, similarity (cosine), best first."""
        if k < 1:
            raise ValueError(f"k must be ≥ 1, got {k}")
        row = int(find(self.item_labels, [item])[0])
        if row < 0:
            raise UnknownLabelError(
                f"no item {item!r} among the {len(self.item_labels)} that have been rated{near(self.item_labels, item)}"
            )
        vectors = self.items[:]
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths[row] == 0:
            raise ValueError(f"item {item!r} has no vector, only a bias: too few ratings; take a lower l0_penalty")
        vectors /= np.where(lengths > 0, lengths, 1)[:, None]
        hidden = np.zeros(1, np.int64), np.array([row])
        items, scores = top(vectors[row : row + 1], vectors, np.zeros(len(vectors), np.float32), k, hidden)
        there = np.isfinite(scores[0])  # not the item itself where k is all of them
        return pl.DataFrame({"item": self.item_labels.gather(items[0][there]), "similarity": scores[0][there]})


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
