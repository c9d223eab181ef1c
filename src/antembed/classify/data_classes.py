"""The classes of documents: numbered in the order of their appearance, and by sorted name at the end."""

import ast
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from antembed.data.cache import Column
from antembed.data.data_plain import DataError
from antembed.data.delimited import DECIMAL_COMMA, is_number

SEPARATORS = "|;,"  # of several labels in one field
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
            if "\0" in name:  # what the reader of JSON makes of a lone surrogate
                row = len(self.column or ()) + int((frame["label"] == name).arg_max() or 0)
                raise DataError(f"label {row} is {name!r}: a NUL or a lone surrogate is no text; correct it, or remove the row")
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
            counts = np.bincount(found[found >= 0], minlength=len(self.numbers)).tolist()
            check_single(source, dict(zip(self.numbers, counts, strict=True)))
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


def check_single(source: str, documents: Mapping[str, int]) -> None:
    """Refuse several labels a document, in lists or separated: each combination would be a class. `documents`: of each name."""
    several = _lists(documents) or next(filter(None, (_separated(documents, separator) for separator in SEPARATORS)), [])
    if several:
        n, example = sum(documents[name] for name in several), max(several, key=lambda name: documents[name])
        raise DataError(
            f"{source}: {n} of {sum(documents.values())} documents have several labels, as {example!r}, and a classifier has "
            f"one class a document: {len(several)} combinations would be classes of their own; keep one label a document, "
            "or train a classifier for each label, with a column that says whether a document has it (--label)"
        )


def _lists(names: Iterable[str]) -> list[str]:
    """Those that are lists of several labels, as JSON or Python writes them."""
    return [name for name in names if name[:1] == "[" and name[-1:] == "]" and _is_list_of_several(name)]


def _is_list_of_several(name: str) -> bool:
    try:
        return len(ast.literal_eval(name)) > 1
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _separated(documents: Mapping[str, int], separator: str) -> list[str]:
    """Names of several labels; [] if the separator is a part of ordinary names.

    It separates labels if most documents with it have parts that are all classes on their own, or if the same parts recur in
    many combinations of different lengths (a path as a/b or a/c/d has parts that do not recur)."""
    joined = (name for name in documents if separator in name and not DECIMAL_COMMA.fullmatch(name))
    parts = {name: [part.strip() for part in name.split(separator)] for name in joined}
    parts = {name: found for name, found in parts.items() if all(found)}
    alone = sum(documents[name] for name, found in parts.items() if all(part in documents for part in found))
    recurring = 2 * len({part for found in parts.values() for part in found}) <= len(parts)
    lengths = {len(found) for found in parts.values()}
    is_separator = 2 * alone >= sum(documents[name] for name in parts) or (recurring and len(lengths) > 1)
    return list(parts) if is_separator else []


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
