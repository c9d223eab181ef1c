"""Labels of a table's rows: sorted, found by binary search, kept as Parquet. No torch in here."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from antembed.files import write_atomically

SIDES = ("users", "items")
Labels = Sequence[object] | np.ndarray | pl.Series


def find(labels: pl.Series, wanted: Labels) -> np.ndarray:
    """Indices of `wanted` in the sorted labels; −1 for those that are missing."""
    if isinstance(wanted, str | bytes | int | float):
        raise TypeError(f"give a list of labels, [{wanted!r}], not a single one")
    asked = pl.Series("asked", wanted)
    if asked.dtype != labels.dtype:
        asked = asked.cast(labels.dtype, strict=False)
    if not len(labels):
        return np.full(len(asked), -1, np.int64)
    found = np.minimum(labels.search_sorted(asked).to_numpy().astype(np.int64), len(labels) - 1)
    same = labels.gather(found).eq_missing(asked).to_numpy()
    return np.where(same & ~asked.is_null().to_numpy(), found, -1)


def write_labels(folder: Path, labels: Mapping[str, pl.Series]) -> None:
    """users.labels.parquet and items.labels.parquet, one column in the order of the rows."""
    for side, own in labels.items():
        packed = io.BytesIO()
        own.alias("label").to_frame().write_parquet(packed)
        write_atomically(folder / f"{side}.labels.parquet", packed.getvalue())


def read_labels(folder: Path) -> dict[str, pl.Series]:
    """What write_labels wrote."""
    return {side: pl.read_parquet(folder / f"{side}.labels.parquet").to_series() for side in SIDES}
