"""What users have rated, and how often items were: coded pairs, ratings for runs, one byte of popularity an item. NumPy alone.

    seen.safetensors        counts   items of each user (varints)
                            gaps     of each user the first item, then how much larger each next one is (varints)
    ratings.safetensors     levels   the different ratings, and
                            codes    (pairs,) uint8: which of them, from 1; 0: held out of training; or
                            ratings  (pairs,) float32, NaN: held out
                            weights  (pairs,) float32, where they have any
    popularity.safetensors  popularity (items,) uint8: log(1 + count), 255 for the most frequent item

An export has ratings.safetensors never, and seen.safetensors where it was asked for. In folders of older versions (d18518c)
seen.safetensors has `items`, not sorted, and `starts` as they are.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.files import write_atomically
from antembed.tables.container import DamagedError, pack_arrays
from antembed.tables.encodings import spans
from antembed.tables.model_folder import POPULARITY, RATINGS, SEEN, RunError, read_checked
from antembed.tables.row_labels import pack_varints, unpack_varints

Known = np.ndarray | None  # None: not known
LEVELS, LOOKED = 255, 1 << 16  # different ratings that are coded, and ratings among which they are sought


@dataclass(frozen=True)
class Seen:
    """What each user has rated: items[starts[u]:starts[u + 1]] are rows of the items' table, sorted."""

    items: np.ndarray  # (n,)
    starts: np.ndarray  # (users + 1,) int64
    ratings: Known = None  # (n,) float32; NaN: held out of training
    weights: Known = None  # (n,) float32, of the ratings

    @classmethod
    def of(
        cls, users: np.ndarray, items: np.ndarray, num_users: int, num_items: int, ratings: Known = None, weights: Known = None
    ) -> "Seen":
        """From pairs of rows, in any order."""
        order = np.argsort(users.astype(np.int64) * max(num_items, 1) + items, kind="stable")
        kind = np.uint16 if num_items <= 1 << 16 else np.int32
        starts = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=num_users))])
        own = (None if column is None else column[order].astype(np.float32) for column in (ratings, weights))
        return cls(items[order].astype(kind), starts.astype(np.int64), *own)

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of users and of items."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts)), self.items

    def by(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(index in `users`, item) pairs that these users have rated; −1 is a user who has rated nothing."""
        known = np.flatnonzero(users >= 0)
        counts = self.starts[users[known] + 1] - self.starts[users[known]]
        return np.repeat(known, counts), self.items[spans(self.starts, users[known])].astype(np.int64)

    def training(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """starts (n + 1,), items, ratings and weights of what these users' rows were trained on."""
        assert self.ratings is not None
        at = spans(self.starts, users)
        owner = np.repeat(np.arange(len(users)), self.starts[users + 1] - self.starts[users])
        used = np.isfinite(self.ratings[at])
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner[used], minlength=len(users)))])
        at = at[used]
        return starts, self.items[at], self.ratings[at], None if self.weights is None else self.weights[at]

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows of users and of items, ratings (NaN: not known) and weights."""
        n = len(self.items)
        ratings = np.full(n, np.nan, np.float32) if self.ratings is None else self.ratings
        return *self.pairs(), ratings, np.ones(n, np.float32) if self.weights is None else self.weights

    def packed(self) -> bytes:
        """The contents of seen.safetensors."""
        gaps = np.diff(self.items.astype(np.int64), prepend=0)
        firsts = self.starts[:-1][np.diff(self.starts) > 0]
        gaps[firsts] = self.items[firsts]
        return pack_arrays({"counts": pack_varints(np.diff(self.starts)), "gaps": pack_varints(gaps, zlib.Z_HUFFMAN_ONLY)})

    def save(self, folder: Path, *, ratings: bool = True) -> None:
        """Write the pairs and, if they are known and wanted, the ratings."""
        write_atomically(folder / SEEN, self.packed())
        if self.ratings is None or not ratings:
            (folder / RATINGS).unlink(missing_ok=True)
            return
        weights = {} if self.weights is None else {"weights": self.weights}
        write_atomically(folder / RATINGS, pack_arrays(encode_ratings(self.ratings) | weights))

    @classmethod
    def read(cls, folder: Path, num_users: int, num_items: int) -> "Seen | None":
        """None: the folder does not have it."""
        if not (path := folder / SEEN).is_file():
            return None
        items, starts, is_sorted = _pairs(path)
        right = len(starts) == num_users + 1 and starts[0] == 0 and starts[-1] == len(items) and (np.diff(starts) >= 0).all()
        if not right or (len(items) and not 0 <= int(items.min()) <= int(items.max()) < num_items):
            raise RunError(
                f"{path} has {len(starts) - 1} users and items up to {int(items.max(initial=0))}, the tables have "
                f"{num_users} users and {num_items} items; export them together"
            )
        if not is_sorted:
            return cls.of(*cls(items, starts).pairs(), num_users, num_items)
        return cls(items, starts, *_read_ratings(folder / RATINGS, len(items)))


def _pairs(path: Path) -> tuple[np.ndarray, np.ndarray, bool]:
    """items and starts of seen.safetensors; whether items are sorted."""
    arrays = read_checked(path)
    right = all(array.ndim == 1 and array.dtype.kind in "iu" for array in arrays.values())
    if right and arrays.keys() == {"items", "starts"}:
        return arrays["items"], arrays["starts"], False
    if not right or arrays.keys() != {"counts", "gaps"}:
        raise _damaged(path, arrays)
    try:
        counts, items = unpack_varints(arrays["counts"]), unpack_varints(arrays["gaps"])
    except DamagedError as error:
        raise RunError(f"{path} is damaged ({error}); copy it again or export it anew") from error
    starts = np.concatenate([[0], np.cumsum(counts)])
    if starts[-1] != len(items):
        raise RunError(f"{path} is damaged: it has {len(items)} items, expected {starts[-1]}; copy it again or export it anew")
    total = np.cumsum(items)
    before = np.concatenate([[0], total])[starts[:-1]]  # the sum of all gaps of users before
    return total - np.repeat(before, counts), starts, True


def encode_ratings(ratings: np.ndarray) -> dict[str, np.ndarray]:
    """levels and codes where there are few different ratings, else the ratings as they are."""
    held = np.isnan(ratings)
    levels = np.unique(ratings[:LOOKED][~held[:LOOKED]])
    if 0 < len(levels) <= LEVELS:
        at = np.minimum(np.searchsorted(levels, ratings), len(levels) - 1)
        if (levels[at] == ratings)[~held].all():
            return {"levels": levels, "codes": np.where(held, 0, at + 1).astype(np.uint8)}
    return {"ratings": ratings}


def _read_ratings(path: Path, pairs: int) -> tuple[Known, Known]:
    """Ratings and weights; None: the folder does not have them."""
    if not path.is_file():
        return None, None
    arrays = read_checked(path)
    weights = arrays.pop("weights", None)
    if arrays.keys() == {"levels", "codes"} and arrays["codes"].max(initial=0) <= len(arrays["levels"]):
        ratings = np.concatenate([[np.float32(np.nan)], arrays["levels"].astype(np.float32)])[arrays["codes"]]
    elif arrays.keys() == {"ratings"}:
        ratings = arrays["ratings"]
    else:
        raise _damaged(path, arrays)
    for column in (ratings, weights):
        if column is not None and column.shape != (pairs,):
            raise RunError(f"{path} has {len(column)} ratings for {pairs} pairs; copy the folder again, or train it anew")
    return ratings, weights


def _damaged(path: Path, arrays: dict[str, np.ndarray]) -> RunError:
    return RunError(f"{path} is damaged: its arrays are {', '.join(arrays) or 'none'}; copy it again or export it anew")


def popularity_of(counts: np.ndarray) -> np.ndarray:
    """Of how many ratings or events each item has: from 0 to 1, on a log scale (items,)."""
    found: np.ndarray = np.log1p(counts) / np.log1p(max(float(counts.max(initial=0)), 1.0))
    return found.astype(np.float32)


def write_popularity(folder: Path, popularity: np.ndarray) -> None:
    """What popularity_of found, a byte an item."""
    write_atomically(folder / POPULARITY, pack_arrays({"popularity": np.rint(255 * popularity).astype(np.uint8)}))


def read_popularity(folder: Path, seen: Seen | None, num_items: int) -> np.ndarray | None:
    """From 0 to 1 (items,). Folders of older versions lack the file, not the pairs; None: they lack both."""
    if not (path := folder / POPULARITY).is_file():
        return None if seen is None else popularity_of(np.bincount(seen.items, minlength=num_items))
    arrays = read_checked(path)
    if arrays.keys() != {"popularity"} or arrays["popularity"].dtype != np.uint8:
        raise _damaged(path, arrays)
    if arrays["popularity"].shape != (num_items,):
        raise RunError(f"{path} has {len(arrays['popularity'])} items, the table has {num_items}; export them together")
    return arrays["popularity"].astype(np.float32) / 255
