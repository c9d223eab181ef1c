"""`Ratings`: ids, numbers and sorted labels, from chunks of a table of ratings or events; in memory or in the cache.

The columns of a chunk are called by their roles: user, item, and rating, weight and time, those that there are.
"""

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.cache import CacheEntry, Column, Writer
from antembed.data.text_file import DataError

CHUNK = 1 << 20  # rows at a time
LARGEST, SMALLEST = 1e15, 1e-6  # of the largest rating; tried in powers of ten: beyond, squares overflow or are lost
KINDS = {"rating": ("values", np.float32), "weight": ("weights", np.float32), "time": ("times", np.float64)}


class Irregular(Exception):
    """Some row is invalid; which one is not known yet."""


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
            for start in range(0, len(column), CHUNK):
                digest.update(np.ascontiguousarray(column[start : start + CHUNK]).data)
        return digest.hexdigest()


class LabelNumbers:
    """Labels → 0, 1, 2, … in the order of their appearance, by a dictionary of strings of polars."""

    def __init__(self) -> None:
        self._dictionary = pl.Categorical(pl.Categories.random())
        self._first: pl.Series | None = None  # polars forgets a dictionary that no series uses
        self.labels = pl.Series("label", [], pl.String)  # all so far, in the order of their numbers

    def number(self, labels: pl.Series) -> np.ndarray:
        """The numbers of these labels, with the next free numbers for new ones: (n,) int32."""
        if labels.dtype == pl.String and (labels == "").any():
            raise Irregular("a label is empty")
        coded = labels.cast(pl.String).cast(self._dictionary)
        if self._first is None:
            self._first, self.labels = coded, labels.clear()
        numbers = coded.to_physical().to_numpy().astype(np.int32)
        new = np.flatnonzero(numbers >= len(self.labels))
        self.labels.extend(labels.gather(new[pl.Series(numbers[new]).arg_unique().sort().to_numpy()]))
        return numbers


def sorted_labels(labels: pl.Series, parse: bool) -> tuple[pl.Series, np.ndarray]:
    """Labels and their former indices; `parse`: text that is integers throughout becomes integers."""
    if parse and len(labels):
        numbers = labels.cast(pl.Int64, strict=False)
        if numbers.cast(pl.String).eq_missing(labels).all():  # in their usual form: "007" and "7" are two labels
            labels = numbers
    order = labels.arg_sort()
    return labels.gather(order), order.to_numpy()


def collect(
    path: Path,
    chunks: Iterable[pl.DataFrame],
    entry: CacheEntry,
    remarks: Mapping[str, object] | None = None,
    *,
    implicit: bool = False,
    parse: bool = False,
) -> Ratings:
    """All chunks of a table. `remarks`: skipped, complaint and notes of the result. `parse`: see `sorted_labels`."""
    about = {"skipped": 0, "complaint": "", "notes": (), **(remarks or {}), "implicit": implicit}
    with entry.writing() as writer:
        if implicit:
            columns, labels = _gather(path, (_counted(path, chunk) for chunk in chunks), Writer(None), parse)
            columns = merged(columns, len(labels[1]))
            for name, array in columns.items():
                column = writer.column(name, array.dtype)
                column.append(array)
                columns[name] = column.finish()
        else:
            columns, labels = _gather(path, chunks, writer, parse)
            check_magnitude(str(path), columns["values"])
            weights = columns.get("weights")
            if weights is not None and not (weights.min() >= 0 and weights.max() > 0):
                found = f"the smallest is {weights.min()}, the largest {weights.max()}"
                raise DataError(f"{path}: weights must be ≥ 0 and not all 0; {found}")
        for role, own in zip(("user", "item"), labels, strict=True):
            writer.labels(role, own)
        writer.done(about)
    return ratings_of_columns(columns, labels, about)


def ratings_of_columns(
    columns: Mapping[str, np.ndarray], labels: tuple[pl.Series, pl.Series], about: Mapping[str, object]
) -> Ratings:
    remarks = {name: about[name] for name in ("skipped", "complaint", "implicit")}
    return Ratings(**columns, user_labels=labels[0], item_labels=labels[1], notes=tuple(about["notes"]), **remarks)  # type: ignore[arg-type]


def _gather(
    path: Path, chunks: Iterable[pl.DataFrame], writer: Writer, parse: bool
) -> tuple[dict[str, np.ndarray], tuple[pl.Series, pl.Series]]:
    """The columns by their names in `Ratings`, and the labels of users and items."""
    columns: dict[str, Column] = {name: writer.column(name, np.int32) for name in ("users", "items")}
    numbers = LabelNumbers(), LabelNumbers()
    with ThreadPoolExecutor(2) as pool:
        for chunk in chunks:
            labels, rest = chunk.get_columns()[:2], [epoch(c) if c.name == "time" else c for c in chunk.get_columns()[2:]]
            if any(column.null_count() for column in (*labels, *rest)) or not all(c.is_finite().all() for c in rest):
                raise Irregular("a row is no rating")
            for column, ids in zip(columns.values(), pool.map(LabelNumbers.number, numbers, labels), strict=False):
                column.append(ids)
            for part in rest:
                name, kind = KINDS[part.name]
                if name not in columns:
                    columns[name] = writer.column(name, kind)
                columns[name].append(part.to_numpy())
    if not len(columns["users"]):
        raise DataError(f"{path} has no ratings: 0 rows after the header")
    found, (users, items) = {}, [sorted_labels(own.labels, parse) for own in numbers]
    for name, (_, order) in (("users", users), ("items", items)):
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        found[name] = columns.pop(name).finish(partial(np.take, rank))
    return found | {name: column.finish() for name, column in columns.items()}, (users[0], items[0])


def _counted(path: Path, chunk: pl.DataFrame) -> pl.DataFrame:
    """Ratings as counts of events: 0 is none."""
    if "rating" not in chunk.columns:
        return chunk
    if "weight" in chunk.columns:
        raise DataError(f"{path}: a rating and a weight were given for events, one is the count; pass three columns at most")
    check_counts(str(path), chunk["rating"].min())
    return chunk.filter(pl.col("rating").ne_missing(0)).rename({"rating": "weight"})


def check_counts(source: str, smallest: object) -> None:
    """Raise if the smallest count, if there is one, is negative."""
    if isinstance(smallest, float) and smallest < 0:
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


def merged(columns: Mapping[str, np.ndarray], num_items: int) -> dict[str, np.ndarray]:
    """Each pair once, in the order of first occurrence, with the sum of its weights (or its count) and its last time: without
    times, the number of its last row."""
    weights, times = columns.get("weights"), columns.get("times")
    keys = columns["users"].astype(np.int64) * num_items + columns["items"]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(keys[order]) != 0]))
    sizes = np.diff(np.append(starts, len(order)))
    counts = sizes if weights is None else np.add.reduceat(weights[order].astype(np.float64), starts)
    last = order[starts + sizes - 1] if times is None else np.maximum.reduceat(times[order], starts)
    rows = np.argsort(order[starts])
    first = order[starts][rows]
    return {
        "users": columns["users"][first],
        "items": columns["items"][first],
        "values": np.ones(len(first), np.float32),
        "weights": counts[rows].astype(np.float32),
        "times": last[rows].astype(np.float64),
    }


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
