"""Ratings and events from tables in memory: polars, pandas, NumPy, SciPy."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse

from antembed.data.frames import column_of, is_pandas
from antembed.data.text_file import DataError
from antembed.recommend.ratings_table import Ratings, choose_columns, merged
from antembed.recommend.read_ratings import chosen_frame, ratings_of, read_ratings


def ratings_from(
    data: Any,
    items: Any = None,
    ratings: Any = None,
    *,
    implicit: bool | None = None,
    columns: Sequence[str] | None = None,
) -> Ratings:
    """Ratings from a file, a table, a sparse matrix, or columns: users, items and maybe ratings.

    The columns of a file or table are found by their usual names (recommend/ratings_table.py), or are `columns`; an array has two or three
    columns: user, item, rating. Without ratings, rows are events. `implicit` True: ratings are counts of events; False: they
    are ratings; None: what the data are, where the numbers in a sparse matrix (users × items) are counts. Labels of a matrix
    are numbers of its rows and columns; those without entries are left out, since nothing can be learned of them.
    """
    if items is not None:
        given = [column_of(column) for column in (data, items, *(() if ratings is None else (ratings,)))]
        return ratings_of(*given, implicit=bool(implicit))
    if ratings is not None:
        raise TypeError("give users, items and ratings, or one file or table that has all three")
    if isinstance(data, Ratings):
        return as_events(data) if implicit else data
    if isinstance(data, str | Path):
        return read_ratings(data, columns, implicit=bool(implicit))
    if sparse.issparse(data):
        return _matrix(data, implicit is not False)
    frame = _frame(data)
    if frame is None:
        raise TypeError(
            "give a file, a table (polars, pandas), a sparse matrix of users × items, or users, items and ratings; "
            f"got one {type(data).__name__}"
        )
    chosen = choose_columns(SOURCE, frame.columns, columns, bool(implicit))
    events = chosen.implicit(bool(implicit)) and not (implicit is False and chosen.rating is not None)
    own = frame.select(chosen_frame(chosen, events))
    found = {name: own[name] for name in own.columns}
    return ratings_of(found["user"], found["item"], found.get("rating"), found.get("time"), implicit=events)


def as_events(ratings: Ratings) -> Ratings:
    """The same with ratings as counts of events; 0 is none. Labels stay."""
    if ratings.implicit:
        return ratings
    smallest = float(ratings.values.min())
    if smallest < 0:
        raise DataError(
            f"counts of events must be ≥ 0, the smallest rating is {smallest}; remove such rows, or train on ratings"
        )
    there = np.flatnonzero(ratings.values)
    if not len(there):
        raise DataError(f"all {len(ratings)} ratings are 0, which is no event; give some that are larger")
    times = None if ratings.times is None else ratings.times[there]
    users, items, weights, last = merged(
        ratings.users[there], ratings.items[there], ratings.values[there], times, len(ratings.item_labels)
    )
    ones = np.ones(len(users), np.float32)
    return replace(ratings, users=users, items=items, values=ones, weights=weights, times=last, implicit=True)


def _matrix(matrix: Any, implicit: bool) -> Ratings:
    entries = matrix.tocoo()
    users, items = (pl.Series(np.asarray(ids, np.int64)) for ids in (entries.row, entries.col))
    return ratings_of(users, items, pl.Series(np.asarray(entries.data)), implicit=implicit)


def _frame(data: Any) -> pl.DataFrame | None:
    """A table as polars has it; None if it is none."""
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if is_pandas(data) and data.ndim == 2:
        return pl.DataFrame({str(name): column_of(data[name]) for name in data.columns})
    if isinstance(data, np.ndarray) and data.ndim == 2:
        if data.shape[1] not in (2, 3):
            raise DataError(
                f"the array has the shape {data.shape}; give two or three columns (user, item, rating), "
                "or scipy.sparse.csr_array of a matrix of users × items"
            )
        columns = [column_of(_whole(data[:, n]) if n < 2 else data[:, n]) for n in range(data.shape[1])]
        return pl.DataFrame(dict(zip(("user", "item", "rating"), columns, strict=False)))
    return None


SOURCE = Path("the table given")


def _whole(labels: np.ndarray) -> np.ndarray:
    """Labels that are whole numbers, but stand beside ratings that are not, as integers."""
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == np.rint(labels)).all():
        return labels.astype(np.int64)
    return labels
