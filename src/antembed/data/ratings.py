"""Ratings files → ids: MovieLens .dat, any delimited file, Parquet; columns by name or by place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

NAMES = {
    "user": ("user", "userid", "user_id", "uid", "reviewerid", "reviewer_id", "customer", "customer_id"),
    "item": ("item", "itemid", "item_id", "iid", "movie", "movieid", "movie_id", "asin", "product", "productid",
             "product_id", "book_id", "isbn", "song_id"),
    "rating": ("rating", "ratings", "score", "overall", "stars", "value"),
}  # fmt: skip
SEPARATORS = (",", "\t", ";", "|")
UNIT = b"\x1f"  # stands in for "::", since polars splits at single bytes


class DataError(ValueError):
    """A file that cannot be used as it is; the message says where and what to do."""


@dataclass(frozen=True)
class Ratings:
    """Row n: user users[n] gave item items[n] the rating values[n]. Ids are places in the sorted labels."""

    users: np.ndarray  # (n,) int64
    items: np.ndarray  # (n,) int64
    values: np.ndarray  # (n,) float32
    user_labels: pl.Series
    item_labels: pl.Series

    def __len__(self) -> int:
        return len(self.values)

    @property
    def objects(self) -> tuple[int, int]:
        """How many users and items."""
        return len(self.user_labels), len(self.item_labels)


def read_ratings(path: str | Path, columns: Sequence[str] | None = None) -> Ratings:
    """Read a ratings file. `columns` names the user, item and rating columns (or their places, from 1).

    Without it they are found by their usual names, or are the first three of a file without a header.
    """
    path = Path(path)
    frame = read_frame(path)
    chosen = _choose(path, frame.columns, columns)
    frame = frame.select(pl.col(name).alias(role) for role, name in chosen.items())
    values = frame["rating"].cast(pl.Float32, strict=False)
    bad = values.is_null() | ~values.is_finite() | frame["user"].is_null() | frame["item"].is_null()
    if bad.any():
        first = int(bad.arg_true()[0])
        raise DataError(
            f"{path}: row {first + 1} of {len(frame)} is not a rating: {frame.row(first)} "
            f"({int(bad.sum())} such rows); every row needs a user, an item and a number"
        )
    if len(frame) == 0:
        raise DataError(f"{path} has no ratings: 0 rows after the header")
    users, user_labels = _codes(frame["user"])
    items, item_labels = _codes(frame["item"])
    return Ratings(users, items, values.to_numpy(writable=True), user_labels, item_labels)


def read_frame(path: Path) -> pl.DataFrame:
    """The file as a table. Columns of a file without a header are called column_1, column_2, …"""
    if not path.is_file():
        raise DataError(f"{path} is no file; give a ratings file (.dat, .csv, .tsv, .parquet)")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        with open(path, "rb") as file:
            first = file.readline()
        if first.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK")):
            raise DataError(f"{path} is compressed; unpack it first")
        double = b"::" in first
        separator = UNIT.decode() if double else _separator(path, first.decode("utf-8", "replace"))
        fields = first.decode("utf-8", "replace").strip().split("::" if double else separator)
        source = path.read_bytes().replace(b"::", UNIT) if double else path
        headless = any(_is_number(field) for field in fields)
        frame = pl.read_csv(
            source,
            separator=separator,
            has_header=not headless,
            infer_schema=False,
            quote_char=None if double else '"',
        )
        return frame.rename(lambda name: f"column_{frame.columns.index(name) + 1}") if headless else frame
    except pl.exceptions.PolarsError as error:
        if "utf-8" in str(error):
            raise DataError(f"{path} is not UTF-8 throughout; convert it, e.g. iconv -f latin1 -t utf-8") from error
        if "more fields" in str(error):
            raise DataError(f"{path}: some row has more fields than the first line; quote or mend it") from error
        raise DataError(f"{path} could not be read: {error}") from error


def _separator(path: Path, line: str) -> str:
    best = max(SEPARATORS, key=line.count)
    if line.count(best) < 2:
        raise DataError(
            f"{path}: no separator found in its first line {line.strip()[:80]!r}; "
            "user, item and rating are separated by '::', a comma, a tab, ';' or '|'"
        )
    return best


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.strip('"')))
    except ValueError:
        return False


def _choose(path: Path, present: list[str], columns: Sequence[str] | None) -> dict[str, str]:
    if columns is not None:
        if len(columns) != 3:
            raise DataError(f"columns are three, user, item and rating; got {len(columns)}: {', '.join(columns)}")
        named = [present[int(name) - 1] if name.isdigit() and 1 <= int(name) <= len(present) else name for name in columns]
        missing = [name for name in named if name not in present]
        if missing:
            raise DataError(f"{path} has no column {missing[0]!r}; it has: {', '.join(present)}")
        return dict(zip(NAMES, named, strict=True))
    if present[0] == "column_1":
        if len(present) < 3:
            raise DataError(f"{path} has {len(present)} columns; a rating needs 3: user, item, rating")
        return dict(zip(NAMES, present, strict=False))
    found = {}
    for role, names in NAMES.items():
        match = next((name for name in present if name.lower() in names), None)
        if match is None:
            raise DataError(f"{path}: which column is the {role}? It has: {', '.join(present)}; say --columns USER,ITEM,RATING")
        found[role] = match
    return found


def _codes(labels: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """Labels of any type → their places among the sorted distinct ones. Text that is whole numbers sorts as numbers."""
    if labels.dtype == pl.String:
        numbers = labels.cast(pl.Int64, strict=False)
        if numbers.cast(pl.String).eq_missing(labels).all():  # "007" and "7" are two labels
            labels = numbers
    return labels.rank("dense").to_numpy().astype(np.int64) - 1, labels.unique().sort()
