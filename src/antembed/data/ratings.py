"""Ratings files → ids: MovieLens .dat, any delimited file (also gzip, zstd), Parquet; columns by name or by number.

A file is read once, piece by piece. Labels are numbered in the order of their appearance (kernels/ids.py) and renumbered at
the end by their sorted order, so that ids do not depend on the order of the rows. The ids of large files are cached on disk,
memory-mapped, by the hash of the contents (data/cache.py). A file that polars cannot read is read line by line (data/text.py).
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.data.cache import CacheEntry, Column
from antembed.data.text import DataError, Format, bad_lines, guess_format, plain_text
from antembed.kernels.ids import Numbering, count_digits

NAMES = {
    "user": ("user", "userid", "user_id", "uid", "reviewerid", "reviewer_id", "customer", "customer_id"),
    "item": ("item", "itemid", "item_id", "iid", "movie", "movieid", "movie_id", "asin", "product", "productid",
             "product_id", "book_id", "isbn", "song_id"),
    "rating": ("rating", "ratings", "score", "overall", "stars", "value"),
}  # fmt: skip
ON_ERROR = ("stop", "skip")
CACHED_FROM = 32 << 20  # bytes; reading smaller files is faster than the cache
SNIFFED = 10_000  # rows to detect whether labels are integers
PIECE = 1 << 20  # rows at a time


@dataclass(frozen=True)
class Ratings:
    """Row n: user users[n] gave item items[n] the rating values[n]. Ids are indices into the sorted labels."""

    users: np.ndarray  # (n,) int32
    items: np.ndarray  # (n,) int32
    values: np.ndarray  # (n,) float32
    user_labels: pl.Series
    item_labels: pl.Series
    weights: np.ndarray | None = None  # (n,) float32, of the ratings
    skipped: int = 0  # invalid lines
    complaint: str = ""  # a warning about the first of them

    def __len__(self) -> int:
        return len(self.values)

    @property
    def objects(self) -> tuple[int, int]:
        """The numbers of users and items."""
        return len(self.user_labels), len(self.item_labels)

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """users, items, values, and weights if there are any."""
        found = (self.users, self.items, self.values)
        return found if self.weights is None else (*found, self.weights)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the columns."""
        digest = hashlib.sha256()
        for column in self.columns:
            for start in range(0, len(column), PIECE):
                digest.update(np.ascontiguousarray(column[start : start + PIECE]).data)
        return digest.hexdigest()


class Irregular(Exception):
    """Some row is invalid; which one is not known yet."""


def read_ratings(
    path: str | Path, columns: Sequence[str] | None = None, *, on_error: str = "stop", cache: str | Path | None = None
) -> Ratings:
    """Read a ratings file. `columns` names the user, item and rating columns, and maybe a weight (or their numbers from 1).

    By default they are found by their usual names, or are the first three of a file without a header. `on_error`: "stop" at an
    invalid row, or "skip" it. `cache`: a folder for the ids of large files.
    """
    path = Path(path)
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error {on_error!r} is none of: {', '.join(ON_ERROR)}")
    if not path.is_file():
        raise DataError(f"{path} is no file; give a ratings file (.dat, .csv, .tsv, .parquet, also .gz and .zst)")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    if cache is None or path.stat().st_size < CACHED_FROM:
        return _read(path, columns, on_error, CacheEntry(None))
    entry = CacheEntry.of_file(Path(cache), path, {"columns": list(columns or []), "on_error": on_error})
    try:
        return _reopen(entry) or _read(path, columns, on_error, entry)
    except OSError as error:
        raise DataError(f"{path} could not be cached ({error}); set ANTEMBED_CACHE to another folder") from error


def _reopen(entry: CacheEntry) -> Ratings | None:
    about = entry.about()
    if about is None:
        return None
    columns = {name: entry.column(name, kind) for name, kind in about["columns"].items()}
    return Ratings(
        columns["users"],
        columns["items"],
        columns["values"],
        entry.labels("user"),
        entry.labels("item"),
        columns.get("weights"),
        about["skipped"],
        about["complaint"],
    )


def _read(path: Path, columns: Sequence[str] | None, on_error: str, entry: CacheEntry) -> Ratings:
    with open(path, "rb") as file:
        parquet = file.read(4) == b"PAR1" or path.suffix == ".parquet"
    if parquet:
        return _read_parquet(path, columns, on_error, entry)
    with plain_text(path, entry.scratch) as plain:
        names = {name.lower() for name in columns or ()} | {name for usual in NAMES.values() for name in usual}
        form = guess_format(path, plain, names)
        chosen = choose_columns(path, form.columns, columns)
        try:
            return _read_text(path, plain, form, chosen, entry)
        except (Irregular, pl.exceptions.PolarsError) as error:
            reason, complaint = error, ""
            for number, wrong, text in bad_lines(plain, form, chosen):
                complaint = f"line {number}: {wrong}: {text!r}"
                break
            if complaint and (on_error == "stop" or number == 1):
                remedy = "" if number == 1 else ", or skip such lines with --on-error skip"
                raise DataError(f"{path}, {complaint}; correct it{remedy}") from None
        with entry.temporary_file() as good:  # without empty lines, which polars rejects
            skipped = sum(1 for _ in bad_lines(plain, form, chosen, good))
            good.flush()
            try:
                return _read_text(path, Path(good.name), form, chosen, entry, skipped, complaint)
            except (Irregular, pl.exceptions.PolarsError):
                raise DataError(f"{path} could not be read: {reason}") from reason


def _read_text(
    path: Path, plain: Path, form: Format, chosen: list[str], entry: CacheEntry, skipped: int = 0, complaint: str = ""
) -> Ratings:
    """Users and items are integers if the first rows are, else text."""
    options: dict[str, Any] = {
        "separator": form.separator,
        "has_header": form.header and not form.renamed,
        "skip_rows": int(form.renamed),
        "quote_char": '"' if form.quoted else None,
    }
    text: dict[str, type[pl.DataType]] = dict.fromkeys(form.columns, pl.String)
    head = pl.read_csv(plain, n_rows=SNIFFED, schema=text, truncate_ragged_lines=True, encoding="utf8-lossy", **options)
    text |= dict.fromkeys(chosen[2:], pl.Float32)
    numbers = [whole_numbers(head[name]) for name in chosen[:2]]

    def collect(numbers: list[bool]) -> Ratings:
        frame = pl.scan_csv(plain, schema=text, ignore_errors=True, **options).select(chosen)
        return _collect(path, frame.collect_batches(chunk_size=PIECE), entry, numbers, skipped, complaint)

    if any(numbers):
        try:
            return collect(numbers)
        except Irregular:  # a label further down may be no integer
            pass
    return collect([False, False])


def _read_parquet(path: Path, columns: Sequence[str] | None, on_error: str, entry: CacheEntry) -> Ratings:
    try:
        frame = pl.scan_parquet(path)
        chosen = choose_columns(path, frame.collect_schema().names(), columns)
        frame = frame.select(pl.col(chosen[:2]), pl.col(chosen[2:]).cast(pl.Float32, strict=False))
        bad = pl.any_horizontal(pl.col(chosen).is_null(), ~pl.col(chosen[2:]).is_finite())
        wrong = frame.with_row_index("row").filter(bad)
        skipped, complaint = int(wrong.select(pl.len()).collect().item()), ""
        if skipped:
            row, *values = wrong.head(1).collect().row(0)
            complaint = f"row {row + 1} is no rating: {tuple(values)}"
        if skipped and on_error == "stop":
            raise DataError(f"{path}, {complaint} ({skipped} such rows); correct them, or skip them with --on-error skip")
        pieces = frame.filter(~bad).collect_batches(chunk_size=PIECE)
        return _collect(path, pieces, entry, [False, False], skipped, complaint)
    except (pl.exceptions.PolarsError, Irregular) as error:
        raise DataError(f"{path} could not be read as Parquet: {error}") from error


def ratings_of(users: pl.Series, items: pl.Series, values: pl.Series) -> Ratings:
    """Ratings from three columns in memory."""
    if not len(users) == len(items) == len(values):
        raise DataError(f"columns differ in length: {len(users)} users, {len(items)} items, {len(values)} ratings")
    frame = pl.DataFrame({"user": users, "item": items, "rating": values.cast(pl.Float32, strict=False)})
    try:
        return _collect(Path("the table given"), iter([frame]), CacheEntry(None), [False, False])
    except Irregular as error:
        raise DataError(f"{error}; every row needs a user, an item and a number") from error


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


class _IdColumn:
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


def _collect(
    path: Path, pieces: Iterator[pl.DataFrame], entry: CacheEntry, numeric: list[bool], skipped: int = 0, complaint: str = ""
) -> Ratings:
    with entry.writing() as writer, ThreadPoolExecutor(2) as pool:
        columns = [writer.column(name, np.int32) for name in ("users", "items")]
        sides = [_IdColumn(column, whole) for column, whole in zip(columns, numeric, strict=True)]
        numbers: list[Column] = []
        for piece in pieces:
            user, item, *rest = piece.get_columns()
            if any(column.null_count() for column in (user, item, *rest)) or not all(c.is_finite().all() for c in rest):
                raise Irregular("a row is no rating")
            list(pool.map(_IdColumn.add, sides, (user, item)))
            numbers = numbers or [writer.column(name, np.float32) for name, _ in zip(("values", "weights"), rest, strict=False)]
            for column, part in zip(numbers, rest, strict=True):
                column.append(part.to_numpy())
        if not numbers or not len(numbers[0]):
            raise DataError(f"{path} has no ratings: 0 rows after the header")
        (users, user_labels), (items, item_labels) = (side.finish() for side in sides)
        values, *weights = (column.finish() for column in numbers)
        if weights and not (weights[0].min() >= 0 and weights[0].max() > 0):
            raise DataError(
                f"{path}: weights must be ≥ 0 and not all 0; the smallest is {weights[0].min()}, the largest {weights[0].max()}"
            )
        writer.labels("user", user_labels)
        writer.labels("item", item_labels)
        writer.done({"skipped": skipped, "complaint": complaint})
    weight = weights[0] if weights else None
    return Ratings(users, items, values, user_labels, item_labels, weight, skipped, complaint)


def whole_numbers(labels: pl.Series) -> bool:
    """Whether all are integers in their usual form: "007" and "7" are two labels."""
    numbers = labels.cast(pl.Int64, strict=False)
    return len(labels) > 0 and bool(numbers.cast(pl.String).eq_missing(labels).all())


def choose_columns(path: Path, present: list[str], columns: Sequence[str] | None) -> list[str]:
    """The names of the user, item and rating columns, and of the weights if given."""
    if columns is not None:
        if len(columns) not in (3, 4):
            raise DataError(
                f"give three columns, user, item and rating, or four with a weight; got {len(columns)}: {', '.join(columns)}"
            )
        named = [present[int(name) - 1] if name.isdecimal() and 1 <= int(name) <= len(present) else name for name in columns]
        missing = [name for name in named if name not in present]
        if missing:
            raise DataError(f"{path} has no column {missing[0]!r}; it has: {', '.join(present)}")
        if len(set(named)) != len(named):
            raise DataError(f"columns must differ, got {', '.join(named)}")
        return named
    if present[0] == "column_1":
        return present[:3]
    found = []
    for role, names in NAMES.items():
        match = next((name for name in present if name.lower() in names), None)
        if match is None:
            raise DataError(
                f"{path}: which column is the {role}? It has: {', '.join(present)}; pass --columns USER,ITEM,RATING"
            )
        found.append(match)
    return found
