"""Sorted labels: places in them, and more of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from antembed.data.text import DataError

Labels = Sequence[Any] | np.ndarray | pl.Series


def find(labels: pl.Series, wanted: Labels) -> np.ndarray:
    """Places of labels in the sorted labels; −1 for those that are not there."""
    asked = pl.Series("asked", wanted)
    if asked.dtype != labels.dtype:
        asked = asked.cast(labels.dtype, strict=False)
    places = labels.search_sorted(asked).to_numpy().astype(np.int64)
    places = np.minimum(places, len(labels) - 1)
    same = labels.gather(places).eq_missing(asked).to_numpy()
    return np.where(same & ~asked.is_null().to_numpy(), places, -1)


class Merged(NamedTuple):
    """Labels that were known and new ones, in order."""

    labels: pl.Series
    places: np.ndarray  # of the new labels: known ones where they are, others behind them, one after the other
    order: np.ndarray  # which of these places comes where in `labels`
    rank: np.ndarray  # the other way round


def merge(known: pl.Series, new: pl.Series) -> Merged:
    """Sorted labels that are known with others, of which some may be."""
    if new.dtype != known.dtype:
        try:
            new = new.cast(known.dtype)
        except pl.exceptions.InvalidOperationError as error:
            raise DataError(f"labels were {known.dtype} so far, {new[0]!r} is not; give labels of one kind") from error
    places = find(known, new)
    fresh = places < 0
    places[fresh] = len(known) + np.arange(int(fresh.sum()))
    together = pl.concat([known, new.filter(pl.Series(fresh)).alias(known.name)])
    order = together.arg_sort().to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Merged(together.gather(order), places, order, rank)
