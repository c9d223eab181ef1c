"""Ratings and events from tables in memory: polars, pandas, NumPy, SciPy."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse

from antembed.data.cache import CacheEntry
from antembed.data.frames import column_of, is_pandas
from antembed.data.text_file import DataError
from antembed.recommend.column_roles import choose_columns
from antembed.recommend.ratings_table import Irregular, Ratings, check_counts, collect, merged
from antembed.recommend.read_ratings import chosen_frame, read_ratings

SOURCE = Path("the table given")
Known = pl.Series | None  # None: not known


def ratings_from(
    data: Any, items: Any = None, ratings: Any = None, *, implicit: bool | None = None, columns: Sequence[str] | None = None
) -> Ratings:
    """Ratings from a file, a table, a sparse matrix, or columns: users, items and maybe ratings.

    The columns of a file or table are found by their usual names (column_roles.py), or are `columns`; an array has two or three
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
        matrix: Any = data
        entries = matrix.tocoo()
        users, items = (pl.Series(np.asarray(ids, np.int64)) for ids in (entries.row, entries.col))
        return ratings_of(users, items, pl.Series(np.asarray(entries.data)), implicit=implicit is not False)
    if (frame := _frame(data)) is None:
        raise TypeError(
            "give a file, a table (polars, pandas), a sparse matrix of users × items, or users, items and ratings; "
            f"got one {type(data).__name__}"
        )
    chosen = choose_columns(SOURCE, frame.columns, columns, bool(implicit))
    events = chosen.implicit(bool(implicit)) and not (implicit is False and chosen.rating is not None)
    found = frame.select(chosen_frame(chosen, events)).to_dict()
    return ratings_of(found["user"], found["item"], found.get("rating"), found.get("time"), implicit=events)


def ratings_of(
    users: pl.Series, items: pl.Series, values: Known = None, times: Known = None, *, implicit: bool = False
) -> Ratings:
    """Ratings from columns; events without `values`, or with `implicit`, where values are counts."""
    ratings = None if values is None else values.cast(pl.Float32, strict=False)
    given = {"user": users, "item": items, "rating": ratings, "time": times}
    columns = {role: column for role, column in given.items() if column is not None}
    if len({len(column) for column in columns.values()}) > 1:
        raise DataError(f"columns differ in length: {', '.join(f'{len(c)} {role}s' for role, c in columns.items())}")
    try:
        return collect(SOURCE, [pl.DataFrame(columns)], CacheEntry(None), implicit=implicit or values is None)
    except Irregular as error:
        raise DataError(f"{error}; every row needs a user, an item and a number") from error


def as_events(ratings: Ratings) -> Ratings:
    """The same with ratings as counts of events; 0 is none. Labels stay."""
    if ratings.implicit:
        return ratings
    check_counts("ratings", float(ratings.values.min()))
    if not len(there := np.flatnonzero(ratings.values)):
        raise DataError(f"all {len(ratings)} ratings are 0, which is no event; give some that are larger")
    columns = {"users": ratings.users, "items": ratings.items, "weights": ratings.values, "times": ratings.times}
    own = {name: column[there] for name, column in columns.items() if column is not None}
    return replace(ratings, **merged(own, len(ratings.item_labels)), implicit=True)  # type: ignore[arg-type]


def _frame(data: Any) -> pl.DataFrame | None:
    """A table as polars has it; None if it is none."""
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return data.lazy().collect()
    if is_pandas(data) and data.ndim == 2:
        return pl.DataFrame({str(name): column_of(data[name]) for name in data.columns})
    if isinstance(data, np.ndarray) and data.ndim == 2:
        if data.shape[1] not in (2, 3):
            raise DataError(
                f"the array has the shape {data.shape}; give two or three columns (user, item, rating), "
                "or scipy.sparse.csr_array of a matrix of users × items"
            )
        columns = [column_of(_as_integers(data[:, n]) if n < 2 else data[:, n]) for n in range(data.shape[1])]
        return pl.DataFrame(dict(zip(("user", "item", "rating"), columns, strict=False)))
    return None


def _as_integers(labels: np.ndarray) -> np.ndarray:
    """Labels that are integers but have the type of the ratings beside them, as integers."""
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == np.rint(labels)).all():
        return labels.astype(np.int64)
    return labels
