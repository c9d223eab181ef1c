"""Lists from two tables by rows: what a user would like, what is like an item, what users have rated. NumPy alone."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.files import write_atomically
from antembed.inference.folder import RunError, read_checked
from antembed.labels import SIDES
from antembed.serving import Table, load_table
from antembed.serving.checksums import pack_arrays
from antembed.serving.ranking import top

USERS_AT_ONCE = 1024
SEEN = "seen.safetensors"
NEEDED = ("users.ant", "items.ant", "users.labels.parquet", "items.labels.parquet", "config.json")


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


def open_tables(folder: Path) -> tuple[Table, Table]:
    """Of users and of items."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise RunError(f"{folder} is no recommender: it has no {missing[0]}; give a folder of save, or a finished run")
    users, items = (load_table(folder / f"{side}.ant") for side in SIDES)
    return users, items


def check_rows(folder: Path, side: str, rows: int, labels: int) -> None:
    """Raise if a table has more or fewer rows than there are labels."""
    if rows != labels:
        raise RunError(f"{folder}: {side}.ant has {rows} rows, {side}.labels.parquet {labels}; export them together")


def best_items(
    users: Table, items: Table, ids: np.ndarray, k: int, seen: Seen | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k best items of each user, without what they have `seen`: indices into `ids`, rows of items, scores; best first.

    `ids` are rows of users; −1 gets what is best on the whole. Scores are made for some users at a time, never for all.
    """
    if k < 1:
        raise ValueError(f"k must be ≥ 1, got {k}")
    vectors, bias = items[:], items.bias_of(np.arange(len(items)))
    rows, scores = [], []
    for start in range(0, len(ids), USERS_AT_ONCE):
        some = ids[start : start + USERS_AT_ONCE]
        known = some >= 0
        queries = np.zeros((len(some), users.embedding_dim), np.float32)
        own = np.zeros(len(some), np.float32)
        queries[known], own[known] = users[some[known]], users.bias_of(some[known])
        found, values = top(queries, vectors, bias, k, None if seen is None else seen.by(some))
        rows.append(found)
        scores.append(values + own[:, None])
    item, score = np.concatenate(rows), np.concatenate(scores)
    there = np.isfinite(score).reshape(-1)  # who has seen nearly everything gets fewer
    who = np.repeat(np.arange(len(ids)), item.shape[1])
    return who[there], item.reshape(-1)[there], score.reshape(-1)[there]


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
