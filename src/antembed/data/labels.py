"""Sorted labels: merge new ones into them."""

from typing import NamedTuple

import numpy as np
import polars as pl

from antembed.data.text_file import DataError
from antembed.tables.row_labels import Labels, find


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
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Merged(together.gather(order), row_index, order, rank)


__all__ = ["Labels", "Merged", "find", "merge"]
