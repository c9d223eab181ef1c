"""Columns in memory → labels, numbers and texts: polars, pandas, NumPy, lists; new labels merged into sorted ones.

pandas is recognised by the name of an object's module, and never imported.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from antembed.data.text_file import DataError
from antembed.tables.row_labels import about_surrogate, find


def is_pandas(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "pandas"


def column_of(data: Any) -> pl.Series:
    """A column of labels or numbers."""
    if isinstance(data, pl.Series):
        return data
    if isinstance(data, np.ndarray) and data.ndim != 1:
        raise DataError(f"a column has the shape {data.shape}; give one of one dimension")
    if is_pandas(data):
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
    if isinstance(data, pl.DataFrame) or (is_pandas(data) and data.ndim == 2):
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
    if is_pandas(data):
        return _without_missing(data)
    if isinstance(data, np.ndarray) and data.dtype.kind == "O":
        return [None if value is None or value != value else value for value in data]  # NaN is not itself
    return data.tolist() if isinstance(data, np.ndarray) else data


class Merged(NamedTuple):
    """Old and new labels, sorted."""

    labels: pl.Series
    row_index: np.ndarray  # of the given labels: of old ones their index before, of others the next free ones, in order
    order: np.ndarray  # labels[i] has row index order[i]
    rank: np.ndarray  # the inverse of `order`


def merge(labels: pl.Series, new: pl.Series) -> Merged:
    """Merge labels into sorted ones; some of them may be there already."""
    if new.dtype != labels.dtype:
        try:
            new = new.cast(labels.dtype)
        except pl.exceptions.InvalidOperationError as error:
            raise DataError(f"labels were {labels.dtype} so far, {new[0]!r} is not; give labels of one type") from error
    row_index = find(labels, new)
    fresh = row_index < 0
    row_index[fresh] = len(labels) + np.arange(int(fresh.sum()))
    together = pl.concat([labels, new.filter(pl.Series(fresh)).alias(labels.name)])
    order = together.arg_sort().to_numpy()
    return Merged(together.gather(order), row_index, order, np.argsort(order))
