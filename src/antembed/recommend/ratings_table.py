"""Pieces of a table of ratings or events → `Ratings`: ids, numbers, sorted labels; in memory or in the cache.

The columns of a piece are called by their roles: user, item, and rating, weight and time, those that there are.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.cache import CacheEntry, Column, Writer
from antembed.data.data_plain import DataError
from antembed.recommend.label_numbers import IdColumn, Irregular

PIECE = 1 << 20  # rows at a time
LARGEST, SMALLEST = 1e15, 1e-6  # of the largest rating; tried in powers of ten: beyond, squares overflow or are lost
KINDS = {"rating": ("values", np.float32), "weight": ("weights", np.float32), "time": ("times", np.float64)}


@dataclass(frozen=True)
class Ratings:
    """Row n: user users[n] gave item items[n] the rating values[n]. Ids are indices into the sorted labels.

    Implicit: row n is a pair that occurs once here; values are 1, weights[n] is its count, times[n] its last time.
    """

    users: np.ndarray  # (n,) int32
    items: np.ndarray  # (n,) int32
    values: np.ndarray  # (n,) float32
    user_labels: pl.Series
    item_labels: pl.Series
    weights: np.ndarray | None = None  # (n,) float32, of the ratings
    skipped: int = 0  # invalid lines
    complaint: str = ""  # a warning about the first of them
    notes: tuple[str, ...] = ()  # what was assumed of the file, a line each
    implicit: bool = False
    times: np.ndarray | None = None  # (n,) float64: seconds, or any number that grows; None: rows are in order, or not asked

    def __len__(self) -> int:
        return len(self.values)

    @property
    def objects(self) -> tuple[int, int]:
        """The numbers of users and items."""
        return len(self.user_labels), len(self.item_labels)

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """users, items, values, and weights if there are any."""
        found = (self.users, self.items, self.values)
        return found if self.weights is None else (*found, self.weights)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the columns."""
        digest = hashlib.sha256()
        for column in self.columns:
            for start in range(0, len(column), PIECE):
                digest.update(np.ascontiguousarray(column[start : start + PIECE]).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Remarks:
    """What there is to say of a file."""

    skipped: int = 0
    complaint: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Gathered:
    """All rows, before events are merged."""

    users: np.ndarray
    items: np.ndarray
    labels: tuple[pl.Series, pl.Series]
    numbers: dict[str, np.ndarray]  # by role

    @property
    def times(self) -> np.ndarray | None:
        return self.numbers.get("time")


def collect(
    path: Path,
    pieces: Iterator[pl.DataFrame],
    entry: CacheEntry,
    numeric: list[bool],
    remarks: Remarks = Remarks(),  # noqa: B008 (frozen)
    implicit: bool = False,
) -> Ratings:
    """All pieces. `numeric`: whether labels of users and items that are text are parsed as integers."""
    if implicit:
        return _events(path, pieces, entry, numeric, remarks)
    with entry.writing() as writer:
        found = _gather(path, pieces, writer, numeric)
        check_magnitude(str(path), found.numbers["rating"])
        weights = found.numbers.get("weight")
        if weights is not None and not (weights.min() >= 0 and weights.max() > 0):
            raise DataError(
                f"{path}: weights must be ≥ 0 and not all 0; the smallest is {weights.min()}, the largest {weights.max()}"
            )
        _finish(writer, found.labels, remarks, implicit)
    return _ratings(found.users, found.items, found.numbers["rating"], found.labels, weights, remarks, False, found.times)


def _ratings(
    users: np.ndarray,
    items: np.ndarray,
    values: np.ndarray,
    labels: tuple[pl.Series, pl.Series],
    weights: np.ndarray | None,
    remarks: Remarks,
    implicit: bool,
    times: np.ndarray | None,
) -> Ratings:
    skipped, complaint, notes = remarks.skipped, remarks.complaint, remarks.notes
    return Ratings(users, items, values, *labels, weights, skipped, complaint, notes, implicit, times)


def _gather(path: Path, pieces: Iterator[pl.DataFrame], writer: Writer, numeric: list[bool]) -> _Gathered:
    with ThreadPoolExecutor(2) as pool:
        ids = [writer.column(name, np.int32) for name in ("users", "items")]
        sides = [IdColumn(column, whole) for column, whole in zip(ids, numeric, strict=True)]
        numbers: dict[str, Column] = {}
        for piece in pieces:
            user, item, *rest = (epoch(column) if column.name == "time" else column for column in piece.get_columns())
            if any(column.null_count() for column in (user, item, *rest)) or not all(c.is_finite().all() for c in rest):
                raise Irregular("a row is no rating")
            list(pool.map(IdColumn.add, sides, (user, item)))
            numbers = numbers or {column.name: writer.column(*KINDS[column.name]) for column in rest}
            for part in rest:
                numbers[part.name].append(part.to_numpy())
        if not len(ids[0]):
            raise DataError(f"{path} has no ratings: 0 rows after the header")
        (users, user_labels), (items, item_labels) = (side.finish() for side in sides)
    return _Gathered(users, items, (user_labels, item_labels), {role: column.finish() for role, column in numbers.items()})


def _finish(writer: Writer, labels: tuple[pl.Series, pl.Series], remarks: Remarks, implicit: bool) -> None:
    for side, own in zip(("user", "item"), labels, strict=True):
        writer.labels(side, own)
    about = {"skipped": remarks.skipped, "complaint": remarks.complaint, "notes": remarks.notes, "implicit": implicit}
    writer.done(about)


def _events(path: Path, pieces: Iterator[pl.DataFrame], entry: CacheEntry, numeric: list[bool], remarks: Remarks) -> Ratings:
    """Pairs with their counts: each pair once."""
    found = _gather(path, (_counted(path, piece) for piece in pieces), Writer(None), numeric)
    users, items, weights, times = merged(
        found.users, found.items, found.numbers.get("weight"), found.times, len(found.labels[1])
    )
    arrays = {"users": users, "items": items, "values": np.ones(len(users), np.float32), "weights": weights, "times": times}
    with entry.writing() as writer:
        for name, array in arrays.items():
            column = writer.column(name, array.dtype)
            column.append(array)
            arrays[name] = column.finish()
        _finish(writer, found.labels, remarks, True)
    users, items, values, weights, times = arrays.values()
    return _ratings(users, items, values, found.labels, weights, remarks, True, times)


def _counted(path: Path, piece: pl.DataFrame) -> pl.DataFrame:
    """Ratings as counts of events: 0 is none."""
    if "rating" not in piece.columns:
        return piece
    if "weight" in piece.columns:
        raise DataError(f"{path}: a rating and a weight were given for events, one is the count; pass three columns at most")
    smallest = piece["rating"].min()
    if isinstance(smallest, float):  # None: no rows
        check_counts(str(path), smallest)
    return piece.filter(pl.col("rating").ne_missing(0)).rename({"rating": "weight"})


def check_counts(source: str, smallest: float) -> None:
    if smallest < 0:
        raise DataError(
            f"{source}: counts of events must be ≥ 0, the smallest rating is {smallest}; "
            "remove such rows, or train on ratings (without --implicit)"
        )


def check_magnitude(source: str, ratings: np.ndarray) -> None:
    """Raise if squares of the ratings overflow, or vanish."""
    largest = float(max(ratings.max(), -ratings.min()))
    if largest and not SMALLEST <= largest <= LARGEST:
        raise DataError(
            f"{source}: the largest rating is {largest:.3g} in magnitude, and must be between {SMALLEST:g} and {LARGEST:g}; "
            f"{'divide' if largest > LARGEST else 'multiply'} all ratings by {10.0 ** abs(round(np.log10(largest))):g}"
        )


def merged(
    users: np.ndarray, items: np.ndarray, weights: np.ndarray | None, times: np.ndarray | None, num_items: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Each pair once, in the order of first occurrence: users, items, the sum of its weights (or its count), its last time.

    Without times, the time of a pair is the number of its last row.
    """
    keys = users.astype(np.int64) * num_items + items
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(keys[order]) != 0]))
    sizes = np.diff(np.append(starts, len(order)))
    counts = sizes if weights is None else np.add.reduceat(weights[order].astype(np.float64), starts)
    last = order[starts + sizes - 1] if times is None else np.maximum.reduceat(times[order], starts)
    firsts = order[starts]
    rows = np.argsort(firsts)
    firsts = firsts[rows]
    return users[firsts], items[firsts], counts[rows].astype(np.float32), last[rows].astype(np.float64)


def epoch(times: pl.Series) -> pl.Series:
    """Numbers as they are, dates as seconds since 1970: float64."""
    if times.dtype == pl.String:
        numbers = times.cast(pl.Float64, strict=False)
        if numbers.null_count() == 0:
            return numbers
        try:
            times = times.str.to_datetime(strict=False)
        except pl.exceptions.PolarsError as error:
            raise Irregular("a time is no number and no date") from error
    if times.dtype.is_temporal():
        return times.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 1e6
    return times.cast(pl.Float64, strict=False)
