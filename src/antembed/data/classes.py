"""The classes of documents: numbered in the order of their appearance, and by sorted name at the end."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from antembed.data.cache import Column
from antembed.data.text import DataError, is_number

FEWEST = 20  # documents from which on the number of classes can be judged
MOST, MOST_FRACTIONS = 0.5, 0.1  # classes per document; of labels that are numbers, not all of them whole


class ClassLabels:
    """Labels, piece by piece."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.column: Column | None = None

    def add(self, frame: pl.DataFrame) -> None:
        if "label" not in frame.columns:
            return
        for name in frame["label"].unique(maintain_order=True).drop_nulls():
            self.numbers.setdefault(name, len(self.numbers))
        self.column = self.column or Column(np.int32, None)
        numbered = frame["label"].replace_strict(self.numbers, default=-1, return_dtype=pl.Int32)
        self.column.append(numbered.fill_null(-1).to_numpy())

    def finish(self, source: str, classes: Sequence[str] | None, n: int) -> tuple[np.ndarray, list[str], str]:
        """The label of each document, the classes, and a complaint."""
        if self.column is None:
            return np.full(n, -1, np.int32), list(classes or ()), ""
        found = self.column.finish()
        if classes is None:
            check_classes(source, self.numbers, int((found >= 0).sum()), n)
            classes = in_order(self.numbers)
        ids = {name: number for number, name in enumerate(classes)}
        rank = np.array([*(ids.get(name, -1) for name in self.numbers), -1], np.int32)  # the last one is for −1, no label
        labels = rank[found]
        unknown, without = [name for name in self.numbers if name not in ids], int((labels < 0).sum())
        complaint = ""
        if without:
            example = f" (for example {unknown[0]!r})" if unknown else ""
            complaint = (
                f"{source}: {without} of {n} documents have none of the {len(classes)} classes{example}; their label is −1"
            )
        return labels, list(classes), complaint


def check_classes(source: str, names: Iterable[str], labelled: int, n: int) -> None:
    """Refuse labels that are no classes: one for all, nearly one for each document, or quantities."""
    names = list(names)
    remedy = "check label= (--label), the column of the labels"
    if len(names) < 2:
        raise DataError(f"{source} has {len(names)} classes ({', '.join(names)}) in {n} documents, 2 are needed; {remedy}")
    if labelled < FEWEST or len(names) <= MOST_FRACTIONS * labelled:
        return
    numbers = all(map(is_number, names))
    fractions = numbers and not all(float(name).is_integer() for name in names)
    if not fractions and len(names) <= MOST * labelled:
        return
    if fractions:
        reason = "they are quantities, and this is no regression"
    elif numbers and len(names) == labelled:
        reason = "they number the documents"
    else:
        reason = "too many to learn from"
    raise DataError(f"{source} has {len(names)} classes in {labelled} documents, as {names[0]!r}: {reason}; {remedy}")


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted, numerically if all are numbers."""
    names = list(names)
    return sorted(names, key=lambda name: (float(name), name)) if all(map(is_number, names)) else sorted(names)
