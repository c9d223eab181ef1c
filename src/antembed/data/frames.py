"""Tables in memory → ratings, texts and labels: polars, pandas, NumPy, SciPy's sparse matrices, lists.

pandas is recognised by the name of an object's module, and never imported.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse

from antembed.data.text_file import DataError
from antembed.recommend.ratings_table import Ratings, choose_columns, merged
from antembed.recommend.read_ratings import chosen_frame, ratings_of, read_ratings
from antembed.tables.row_labels import about_surrogate

SOURCE = Path("the table given")


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
    if _is_pandas(data) and data.ndim == 2:
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


def _whole(labels: np.ndarray) -> np.ndarray:
    """Labels that are whole numbers, but stand beside ratings that are not, as integers."""
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == np.rint(labels)).all():
        return labels.astype(np.int64)
    return labels


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "pandas"


def column_of(data: Any) -> pl.Series:
    """A column of labels or numbers."""
    if isinstance(data, pl.Series):
        return data
    if isinstance(data, np.ndarray) and data.ndim != 1:
        raise DataError(f"a column has the shape {data.shape}; give one of one dimension")
    if _is_pandas(data):
        array = data.to_numpy()
        data = array if array.dtype.kind in "biufM" and not data.isna().any() else _without_missing(data)
    elif isinstance(data, np.ndarray) and data.dtype.kind in "OUS":
        data = data.tolist()
    try:
        data = data if isinstance(data, np.ndarray) else list(data)
        return pl.Series(data)
    except UnicodeEncodeError as error:
        raise DataError(about_surrogate(data)) from error
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise DataError(f"a column has values of several types ({error}); give labels of one type") from error


def _without_missing(series: Any) -> list[Any]:
    """The values of a pandas series, None for missing ones (NaN, NA, NaT)."""
    return [None if missing else value for value, missing in zip(series.to_numpy(dtype=object), series.isna(), strict=True)]


def texts_from(texts: Any) -> list[str | None]:
    """Texts from a list, an array, a series, or a table of one column."""
    if isinstance(texts, str):
        raise TypeError("give a list of texts, [text], not a single one")
    return list(values_from(texts, "texts"))


def values_from(data: Any, role: str) -> Iterable[Any]:
    """The values of a series or of a table of one column, None where they are missing; anything else as it is."""
    if isinstance(data, pl.LazyFrame):
        data = data.collect()
    if isinstance(data, pl.DataFrame) or (_is_pandas(data) and data.ndim == 2):
        names = [str(name) for name in data.columns]
        if len(names) != 1:
            raise ValueError(f"the table of {role} has {len(names)} columns: {', '.join(names)}; give one of them")
        data = data[data.columns[0]]
    if isinstance(data, np.ndarray) and data.ndim > 1:
        if data.size != len(data):
            raise ValueError(f"{role} have the shape {data.shape}; give one for each text: ({len(data)},)")
        data = data.reshape(-1)
    if isinstance(data, pl.Series):
        return data.to_list()
    if _is_pandas(data):
        return _without_missing(data)
    if isinstance(data, np.ndarray) and data.dtype.kind == "O":
        return [None if value is None or value != value else value for value in data]  # NaN is not itself
    return data.tolist() if isinstance(data, np.ndarray) else data
