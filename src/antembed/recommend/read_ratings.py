"""Files of ratings or events → ids: MovieLens .dat, any delimited file or JSON lines (also gzip, zstd), sequences, Parquet.

A file is read once, piece by piece. Labels are numbered in the order of their appearance (recommend/label_numbers_kernel.py) and renumbered at
the end by their sorted order, so that ids do not depend on the order of the rows. The ids of large files are cached on disk,
memory-mapped, by the hash of the contents (data/cache.py). A file that polars cannot read is read line by line (data/delimited.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.data.cache import CACHED_FROM, CacheEntry
from antembed.data.delimited import (
    DECIMAL_COMMA,
    Format,
    bad_lines,
    first_line,
    guess_format,
    is_json_lines,
    json_lines,
    separator_of,
    without_blank_lines,
)
from antembed.data.text_file import UNIT, DataError, Dialect, assumed, dialect_of_file, plain_text
from antembed.recommend.label_numbers import Irregular, whole_numbers
from antembed.recommend.ratings_table import PIECE, Columns, Ratings, Remarks, check_time, choose_columns, collect, is_header

# MERGED Files with a sequence per line, "user item item …", items in the order of time: as events.

LINES = 1 << 14  # at a time


def is_sequences(plain: Path) -> bool:
    """Whether the first lines are integers separated by spaces, more on some lines than on others."""
    with open(plain, "rb") as file:
        first = file.readline(PIECE)
        if separator_of(first.decode("utf-8-sig", "replace")) is not None:
            return False
        lines = (first + file.read(PIECE)).decode("utf-8-sig", "replace").split("\n")
        lines = lines[:-1] if file.read(1) else lines  # the last one may be cut
    rows = [line.split() for line in lines if line.strip()]
    sizes = {len(row) for row in rows}
    return len(sizes) > 1 and all(field.isdecimal() for row in rows for field in row)


def sequence_events(plain: Path) -> Iterator[pl.DataFrame]:
    """user, item and time, piece by piece; the time is the position in the user's sequence."""
    lines = pl.scan_csv(plain, has_header=False, separator=UNIT, quote_char=None, schema={"line": pl.String})
    fields = pl.col("line").str.extract_all(r"\S+")
    for piece in lines.select(fields.alias("fields")).collect_batches(chunk_size=LINES, maintain_order=True):
        rows = piece.filter(pl.col("fields").list.len() > 1)
        items = pl.col("fields").list.slice(1)
        yield rows.select(
            pl.col("fields").list.first().alias("user"),
            items.alias("item"),
            pl.int_ranges(0, items.list.len()).cast(pl.List(pl.Float64)).alias("time"),
        ).explode("item", "time")


ON_ERROR = ("stop", "skip")
SNIFFED = 10_000  # rows to detect whether labels are integers
READER = 3  # of what is read from a file; a change invalidates cached ratings


@dataclass(frozen=True)
class Reading:
    """How a file is read."""

    columns: Sequence[str] | None = None
    on_error: str = "stop"
    implicit: bool = False
    times: bool = False


@dataclass(frozen=True)
class TextTable:
    """What is known of a delimited file."""

    form: Format
    roles: dict[str, str]  # of the columns that are read
    implicit: bool
    head: pl.DataFrame | None  # its first rows; None if they cannot be read


def read_ratings(
    path: str | Path,
    columns: Sequence[str] | None = None,
    *,
    on_error: str = "stop",
    cache: str | Path | None = None,
    implicit: bool = False,
    times: bool = False,
) -> Ratings:
    """Read a ratings file. `columns` names the user, item and rating columns, and maybe a weight (or their numbers from 1).

    By default they are found by their usual names, or are the first three of a file without a header. `on_error`: "stop" at an
    invalid row, or "skip" it. `cache`: a folder for the ids of large files.

    A file without ratings, or two `columns`, user and item, is read as events: `Ratings.implicit`, each pair once with its
    count as its weight and its last time. `implicit`: so are ratings, which are then counts (0 is no event). `times`: also read
    the time of each rating, if there is one.
    """
    path = Path(path)
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error {on_error!r} is none of: {', '.join(ON_ERROR)}")
    if not path.is_file():
        raise DataError(f"{path} is no file; give a ratings file (.dat, .csv, .tsv, .jsonl, .parquet, also .gz and .zst)")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    reading = Reading(None if columns is None else list(columns), on_error, implicit, times)
    if cache is None or path.stat().st_size < CACHED_FROM:
        return _read(path, reading, CacheEntry(None))
    entry = CacheEntry.of(Path(cache), "ratings", path, asdict(reading) | {"reader": READER})
    try:
        with entry.locked():
            found = _reopen(entry)
            return _read(path, reading, entry) if found is None else found
    except OSError as error:
        raise DataError(f"{path} could not be cached ({error}); set ANTEMBED_CACHE to another folder") from error


def _reopen(entry: CacheEntry) -> Ratings | None:
    about = entry.about()
    if about is None:
        return None
    columns = {name: entry.column(name, kind) for name, kind in about["columns"].items()}
    labels = entry.labels("user"), entry.labels("item")
    if not _fit(columns, labels):
        return None
    return Ratings(
        columns["users"],
        columns["items"],
        columns["values"],
        *labels,
        columns.get("weights"),
        about["skipped"],
        about["complaint"],
        tuple(about["notes"]),
        about["implicit"],
        columns.get("times"),
    )


def _fit(columns: Mapping[str, np.ndarray], labels: tuple[pl.Series, pl.Series]) -> bool:
    """Whether columns of the cache are what compiled code takes them for: of one length, ids that are rows of the labels."""
    ids = [columns[name] for name in ("users", "items")]
    numbers = [columns[name] for name in ("values", "weights", "times") if name in columns]
    kinds = all(column.dtype == np.int32 for column in ids) and all(column.dtype.kind == "f" for column in numbers)
    if not kinds or len({len(column) for column in (*ids, *numbers)}) != 1 or not len(ids[0]):
        return False
    inside = all(own.min() >= 0 and own.max() < len(named) for own, named in zip(ids, labels, strict=True))
    return inside and all(np.isfinite(column).all() for column in numbers)


def _read(path: Path, reading: Reading, entry: CacheEntry, dialect: Dialect | None = None) -> Ratings:
    with open(path, "rb") as file:
        parquet = file.read(4) == b"PAR1" or path.suffix == ".parquet"
    if parquet:
        return _read_parquet(path, reading, entry)
    with plain_text(path, entry.scratch, dialect) as (plain, found):
        if is_json_lines(path, first_line(plain)):
            with json_lines(path, plain) as (frame, present, _):
                return _read_frame(path, frame, present, reading, entry, assumed(path, found, ""), as_text=True)
        if is_sequences(plain):
            return _read_sequences(path, plain, reading, entry)
        form = guess_format(path, plain, lambda fields: is_header(fields, reading.columns))
        chosen = choose_columns(path, form.columns, reading.columns, reading.implicit)
        table, notes = _inspect(path, plain, form, chosen, reading)
        notes = assumed(path, found, form.separator, table.form.decimal_comma) + notes
        try:
            return _read_text(path, plain, table, entry, Remarks(notes=notes))
        except (Irregular, pl.exceptions.PolarsError) as error:
            # What the first piece did not show may be further down.
            if dialect is None and found.usual and not (other := dialect_of_file(plain)).usual:
                return _read(path, reading, entry, other)
            regular = _read_without_blank_lines(path, plain, table, entry, notes)
            return _read_lines(path, plain, table, reading, entry, notes, error) if regular is None else regular


def _inspect(path: Path, plain: Path, form: Format, chosen: Columns, reading: Reading) -> tuple[TextTable, tuple[str, ...]]:
    """What the first rows show: decimal commas, and times in a file without a header; and what to say of that."""
    head = _head(plain, form)
    if head is not None:
        if form.separator != "," and chosen.rating is not None:
            comma = head[chosen.rating].str.contains(f"^(?:{DECIMAL_COMMA.pattern})$").any()
            form = replace(form, decimal_comma=bool(comma))
        if not form.header:
            chosen = check_time(path, chosen, head, reading.columns is not None, reading.implicit)
    implicit = chosen.implicit(reading.implicit)
    roles = chosen.roles
    if not (implicit or reading.times):
        roles.pop("time", None)
    return TextTable(form, roles, implicit, head), chosen.note(
        path, form.columns, reading.implicit, reading.columns is not None
    )


def _options(form: Format) -> dict[str, Any]:
    return {
        "separator": form.separator,
        "has_header": form.header and not form.renamed,
        "skip_rows": int(form.renamed),
        "quote_char": '"' if form.quoted else None,
    }


def _head(plain: Path, form: Format) -> pl.DataFrame | None:
    """The first rows as text."""
    schema: dict[str, Any] = dict.fromkeys(form.columns, pl.String)
    try:
        return pl.read_csv(
            plain, n_rows=SNIFFED, schema=schema, truncate_ragged_lines=True, encoding="utf8-lossy", **_options(form)
        )
    except pl.exceptions.PolarsError:
        return None


def _read_text(path: Path, plain: Path, table: TextTable, entry: CacheEntry, remarks: Remarks) -> Ratings:
    form, roles = table.form, table.roles
    if table.head is None:
        raise Irregular("the first rows cannot be split")
    schema: dict[str, Any] = dict.fromkeys(form.columns, pl.String)
    schema |= {name: pl.Float32 for role, name in roles.items() if role in ("rating", "weight")}
    names = {name: role for role, name in roles.items()}

    def read(numbers: list[bool]) -> Ratings:
        commas: dict[str, Any] = {"decimal_comma": True} if form.decimal_comma else {}
        frame = pl.scan_csv(plain, schema=schema, ignore_errors=True, **commas, **_options(form)).select(roles.values())
        pieces = (piece.rename(names) for piece in frame.collect_batches(chunk_size=PIECE))
        return collect(path, pieces, entry, numbers, remarks, table.implicit)

    return _numbered(table.head.select(roles.values()).rename(names), read)


def _numbered(head: pl.DataFrame, read: Callable[[list[bool]], Ratings]) -> Ratings:
    """Users and items are integers if the first rows are, else text."""
    numbers = [whole_numbers(head[side]) for side in ("user", "item")]
    if any(numbers):
        try:
            return read(numbers)
        except Irregular:  # a label further down may be no integer
            pass
    return read([False, False])


def _read_without_blank_lines(
    path: Path, plain: Path, table: TextTable, entry: CacheEntry, notes: tuple[str, ...]
) -> Ratings | None:
    """Blank lines, which polars rejects, are often all that is wrong, and need no look at every line."""
    with entry.temporary_file() as good:
        if not without_blank_lines(plain, good):
            return None
        good.flush()
        table = replace(table, head=_head(Path(good.name), table.form))
        try:
            return _read_text(path, Path(good.name), table, entry, Remarks(notes=notes))
        except (Irregular, pl.exceptions.PolarsError):
            return None


def _read_lines(
    path: Path,
    plain: Path,
    table: TextTable,
    reading: Reading,
    entry: CacheEntry,
    notes: tuple[str, ...],
    reason: Exception,
) -> Ratings:
    """Look at every line: report the first invalid one, or skip them all."""
    complaint = ""
    for number, wrong, text in bad_lines(plain, table.form, table.roles):
        complaint = f"line {number}: {wrong}: {text!r}"
        break
    if complaint and (reading.on_error == "stop" or number == 1):
        remedy = "" if number == 1 else ", or skip such lines with --on-error skip"
        raise DataError(f"{path}, {complaint}; correct it{remedy}") from None
    with entry.temporary_file() as good:  # without empty lines, which polars rejects
        skipped = sum(1 for _ in bad_lines(plain, table.form, table.roles, good))
        good.flush()
        table = replace(table, head=_head(Path(good.name), table.form))
        try:
            return _read_text(path, Path(good.name), table, entry, Remarks(skipped, complaint, notes))
        except (Irregular, pl.exceptions.PolarsError):
            raise DataError(f"{path} could not be read: {reason}") from reason


def _read_sequences(path: Path, plain: Path, reading: Reading, entry: CacheEntry) -> Ratings:
    if reading.columns is not None:
        raise DataError(
            f"{path} has a sequence of items per line, and no columns; {len(reading.columns)} were given: leave --columns out"
        )
    remarks = Remarks(notes=(f"{path}: read as one sequence of items per user, in the order of time",))
    try:
        return collect(path, sequence_events(plain), entry, [True, True], remarks, implicit=True)
    except Irregular:  # a label is no integer
        return collect(path, sequence_events(plain), entry, [False, False], remarks, implicit=True)


def _read_parquet(path: Path, reading: Reading, entry: CacheEntry) -> Ratings:
    try:
        frame = pl.scan_parquet(path)
        return _read_frame(path, frame, frame.collect_schema().names(), reading, entry)
    except (pl.exceptions.PolarsError, Irregular) as error:
        raise DataError(f"{path} could not be read as Parquet: {error}") from error


def _read_frame(
    path: Path,
    frame: pl.LazyFrame,
    present: list[str],
    reading: Reading,
    entry: CacheEntry,
    notes: tuple[str, ...] = (),
    as_text: bool = False,
) -> Ratings:
    """A table whose columns polars knows. `as_text`: all are text, whatever they are in the file."""
    chosen = choose_columns(path, present, reading.columns, reading.implicit)
    implicit = chosen.implicit(reading.implicit)
    frame = frame.select(chosen_frame(chosen, implicit or reading.times))
    kinds = frame.collect_schema()
    numbers = [name for name in kinds.names() if name in ("rating", "weight")]
    texts = pl.col([name for name in ("user", "item") if kinds[name] == pl.String])
    bad = pl.any_horizontal(pl.all().is_null(), *(~pl.col(name).is_finite() for name in numbers), texts == "")
    if as_text:  # polars makes NUL of a lone surrogate in JSON, and other labels the same
        bad |= pl.any_horizontal(texts.str.contains("\x00", literal=True))
    wrong = frame.with_row_index("row").filter(bad)
    skipped, complaint = int(wrong.select(pl.len()).collect().item()), ""
    if skipped:
        row, *values = wrong.head(1).collect().row(0)
        complaint = f"row {row + 1} is no rating: {tuple(values)}"
    if skipped and reading.on_error == "stop":
        raise DataError(f"{path}, {complaint} ({skipped} such rows); correct them, or skip them with --on-error skip")
    frame = frame.filter(~bad)
    remarks = Remarks(skipped, complaint, (*notes, *chosen.note(path, present, reading.implicit, reading.columns is not None)))

    def read(numeric: list[bool]) -> Ratings:
        return collect(path, frame.collect_batches(chunk_size=PIECE), entry, numeric, remarks, implicit)

    return _numbered(frame.head(SNIFFED).collect(), read) if as_text else read([False, False])


def chosen_frame(chosen: Columns, times: bool) -> list[pl.Expr]:
    """The chosen columns by their roles, with ratings and weights as numbers."""
    return [
        pl.col(name).cast(pl.Float32, strict=False).alias(role) if role in ("rating", "weight") else pl.col(name).alias(role)
        for role, name in chosen.roles.items()
        if times or role != "time"
    ]


def ratings_of(
    users: pl.Series,
    items: pl.Series,
    values: pl.Series | None = None,
    times: pl.Series | None = None,
    *,
    implicit: bool = False,
) -> Ratings:
    """Ratings from columns in memory; events without `values`, or with `implicit`, where values are counts."""
    given = {"user": users, "item": items, "rating": values, "time": times}
    columns = {role: column for role, column in given.items() if column is not None}
    if len({len(column) for column in columns.values()}) > 1:
        raise DataError(f"columns differ in length: {', '.join(f'{len(c)} {role}s' for role, c in columns.items())}")
    if values is not None:
        columns["rating"] = values.cast(pl.Float32, strict=False)
    source = Path("the table given")
    try:
        frame = pl.DataFrame(columns)
        return collect(source, iter([frame]), CacheEntry(None), [False, False], implicit=implicit or values is None)
    except Irregular as error:
        raise DataError(f"{error}; every row needs a user, an item and a number") from error
