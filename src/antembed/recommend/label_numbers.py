"""Labels → ids: numbered in the order of their appearance, and by their sorted order at the end."""

import numpy as np
import polars as pl

from antembed.data.cache import Column
from antembed.data.text_file import DataError
from antembed.recommend.label_numbers_kernel import Numbering, count_digits


class Irregular(Exception):
    """Some row is invalid; which one is not known yet."""


class Labels:
    """Labels, numbered in the order of their appearance."""

    def __init__(self, numbers: bool = False):
        self.numbers = numbers  # parse text as integers
        self.numbering = Numbering()
        self.known: pl.Series | None = None

    @property
    def labels(self) -> pl.Series:
        """All labels so far, in the order of their numbers."""
        assert self.known is not None, "no labels yet"
        return self.known

    def number(self, labels: pl.Series) -> np.ndarray:
        """The numbers of these labels, with the next free numbers for new ones: (n,) int32."""
        if self.numbers:
            text, labels = labels, labels.cast(pl.Int64, strict=False)
            # "007", "+7" and " 7" are longer than the integer 7, and none is shorter than its digits.
            if labels.null_count() or count_digits(labels.to_numpy()) != text.str.len_bytes().sum():
                raise Irregular("a label is no integer")
        elif labels.dtype == pl.String and (labels == "").any():
            raise Irregular("a label is empty")
        whole = labels.dtype.is_integer()
        if labels.dtype == pl.UInt64:
            keys = labels.reinterpret(signed=True)
        else:
            keys = labels.cast(pl.Int64) if whole else labels.hash(seed=0).reinterpret(signed=True)
        numbers, firsts = self.numbering(keys.to_numpy())
        new = labels.gather(firsts)
        self.known = new if self.known is None else self.known.extend(new)
        if not whole and not (self.labels.gather(numbers) == labels).all():
            raise DataError("two labels have the same 64-bit hash; rename one of them, or use integers as labels")
        return numbers


class IdColumn:
    """The ids of one column."""

    def __init__(self, ids: Column, numbers: bool):
        self.ids, self.known = ids, Labels(numbers)

    def add(self, labels: pl.Series) -> None:
        self.ids.append(self.known.number(labels))

    def finish(self) -> tuple[np.ndarray, pl.Series]:
        """Ids by the sorted labels, and the sorted labels."""
        labels = self.known.labels
        order = labels.arg_sort().to_numpy()
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return self.ids.finish(lambda numbers: rank[numbers]), labels.gather(order)


def whole_numbers(labels: pl.Series) -> bool:
    """Whether all are integers in their usual form: "007" and "7" are two labels."""
    numbers = labels.cast(pl.Int64, strict=False)
    return len(labels) > 0 and bool(numbers.cast(pl.String).eq_missing(labels).all())
