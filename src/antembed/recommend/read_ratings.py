"""Files of ratings or events → ids: MovieLens .dat, any delimited file or JSON lines (also gzip, zstd), sequences, Parquet.

A file is read once, chunk by chunk. Labels are numbered in the order of their appearance and renumbered at the end by their
sorted order, so that ids do not depend on the order of the rows. The ids of large files are cached on disk, memory-mapped, by
the hash of the contents (data/cache.py). A file that polars cannot read is checked line by line (data/delimited.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

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
from antembed.recommend.column_roles import Columns, check_time, choose_columns, is_header
from antembed.recommend.ratings_table import CHUNK, Irregular, Ratings, collect, ratings_of_columns

LINES = 1 << 14  # sequences at a time
ON_ERROR = ("stop", "skip")
SNIFFED = 10_000  # first rows, that show decimal commas and times
READER = 4  # of what is read from a file; a change invalidates cached ratings


def read_ratings(
    path: str | Path,
    columns: Sequence[str] | None = None,
    *,
    on_error: str = "stop",
    cache: str | Path | None = None,
    implicit: bool = False,
) -> Ratings:
    """Read a ratings file. `columns` names the user, item and rating columns, and maybe a weight (or their numbers from 1).

    By default they are found by their usual names, or are the first three of a file without a header. `on_error`: "stop" at an
    invalid row, or "skip" it. `cache`: a folder for the ids of large files.

    A file without ratings, or two `columns`, user and item, is read as events: `Ratings.implicit`, each pair once with its
    count as its weight and its last time. `implicit`: so are ratings, which are then counts (0 is no event).
    """
    path = Path(path)
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error {on_error!r} is none of: {', '.join(ON_ERROR)}")
    if not path.is_file():
        raise DataError(f"{path} is no file; give a ratings file (.dat, .csv, .tsv, .jsonl, .parquet, also .gz and .zst)")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    reading: dict[str, Any] = {"columns": columns and list(columns), "on_error": on_error, "implicit": implicit}
    if cache is None or path.stat().st_size < CACHED_FROM:
        return _RatingsFile(path, CacheEntry(None), **reading).read()
    entry = CacheEntry.of(Path(cache), "ratings", path, reading | {"reader": READER})
    try:
        with entry.locked():
            found = _reopen(entry)
            return _RatingsFile(path, entry, **reading).read() if found is None else found
    except OSError as error:
        raise DataError(f"{path} could not be cached ({error}); set ANTEMBED_CACHE to another folder") from error


def _reopen(entry: CacheEntry) -> Ratings | None:
    """The cached ratings; None if there are none, or compiled code could not trust them."""
    if (about := entry.about()) is None:
        return None
    columns = {name: entry.column(name, kind) for name, kind in about["columns"].items()}
    labels = entry.labels("user"), entry.labels("item")
    ids, numbers = ("users", "items"), columns.keys() - {"users", "items"}
    if len({len(column) for column in columns.values()}) != 1 or not len(columns["users"]):
        return None
    right = all(columns[name].dtype == np.int32 for name in ids) and all(columns[name].dtype.kind == "f" for name in numbers)
    if not right or not all(np.isfinite(columns[name]).all() for name in numbers):
        return None
    inside = all(columns[n].min() >= 0 and columns[n].max() < len(own) for n, own in zip(ids, labels, strict=True))
    return ratings_of_columns(columns, labels, about) if inside else None


@dataclass(frozen=True)
class _RatingsFile:
    """A file to be read, of any format, and how."""

    path: Path
    entry: CacheEntry
    columns: list[str] | None
    on_error: str
    implicit: bool

    def read(self, dialect: Dialect | None = None) -> Ratings:
        """Its ratings or events. `dialect`: instead of the one that the first bytes speak for."""
        path = self.path
        with open(path, "rb") as file:
            if file.read(4) == b"PAR1" or path.suffix == ".parquet":
                return self._read_parquet()
        with plain_text(path, self.entry.scratch, dialect) as (plain, found):
            if is_json_lines(path, first_line(plain)):
                with json_lines(path, plain) as (frame, present, _):
                    return self._read_frame(frame, present, assumed(path, found, ""), parse=True)
            if is_sequences(plain):
                return self._read_sequences(plain)
            form, roles, implicit, notes = self._inspect(plain)
            notes = assumed(path, found, form.separator, form.decimal_comma) + notes
            delimited = _Delimited(path, self.entry, form, roles, implicit)
            try:
                return delimited.read(plain, {"notes": notes})
            except (Irregular, pl.exceptions.PolarsError) as error:
                # What the first chunk did not show may be further down.
                if dialect is None and found.usual and not (other := dialect_of_file(plain)).usual:
                    return self.read(other)
                return delimited.read_without_blank_lines(plain, notes) or delimited.read_valid_lines(
                    plain, notes, self.on_error, error
                )

    def _inspect(self, plain: Path) -> tuple[Format, dict[str, str], bool, tuple[str, ...]]:
        """The format, the columns by role, whether rows are events, and what to say of that. The first rows show decimal
        commas, and times in a file without a header."""
        path, given, implicit = self.path, self.columns, self.implicit
        form = guess_format(path, plain, lambda fields: is_header(fields, given))
        chosen = choose_columns(path, form.columns, given, implicit)
        head = _first_rows(plain, form)
        if head is not None and form.separator != "," and chosen.rating is not None:
            comma = head[chosen.rating].str.contains(f"^(?:{DECIMAL_COMMA.pattern})$").any()
            form = replace(form, decimal_comma=bool(comma))
        if head is not None and not form.header:
            chosen = check_time(path, chosen, head, given is not None, implicit)
        events, roles = chosen.implicit(implicit), chosen.roles
        if not events:
            roles.pop("time", None)
        return form, roles, events, chosen.note(path, form.columns, implicit, given is not None)

    def _read_sequences(self, plain: Path) -> Ratings:
        if self.columns is not None:
            raise DataError(
                f"{self.path} has a sequence of items per line, and no columns; {len(self.columns)} were given: "
                "leave --columns out"
            )
        notes = (f"{self.path}: read as one sequence of items per user, in the order of time",)
        return collect(self.path, sequence_events(plain), self.entry, {"notes": notes}, implicit=True, parse=True)

    def _read_parquet(self) -> Ratings:
        try:
            frame = pl.scan_parquet(self.path)
            return self._read_frame(frame, frame.collect_schema().names())
        except (pl.exceptions.PolarsError, Irregular) as error:
            raise DataError(f"{self.path} could not be read as Parquet: {error}") from error

    def _read_frame(self, frame: pl.LazyFrame, present: list[str], notes: tuple[str, ...] = (), parse: bool = False) -> Ratings:
        """A table whose columns polars knows. `parse`: all are text, whatever they are in the file."""
        path = self.path
        chosen = choose_columns(path, present, self.columns, self.implicit)
        implicit = chosen.implicit(self.implicit)
        frame = frame.select(chosen_frame(chosen, implicit))
        kinds = frame.collect_schema()
        numbers = [name for name in kinds.names() if name in ("rating", "weight")]
        texts = pl.col([name for name in ("user", "item") if kinds[name] == pl.String])
        bad = pl.any_horizontal(pl.all().is_null(), *(~pl.col(name).is_finite() for name in numbers), texts == "")
        if parse:  # polars makes NUL of a lone surrogate in JSON, and other labels the same
            bad |= pl.any_horizontal(texts.str.contains("\x00", literal=True))
        wrong = frame.with_row_index("row").filter(bad)
        skipped, complaint = int(wrong.select(pl.len()).collect().item()), ""
        if skipped:
            row, *values = wrong.head(1).collect().row(0)
            complaint = f"row {row + 1} is no rating: {tuple(values)}"
        if skipped and self.on_error == "stop":
            raise DataError(f"{path}, {complaint} ({skipped} such rows); correct them, or skip them with --on-error skip")
        notes = (*notes, *chosen.note(path, present, self.implicit, self.columns is not None))
        chunks = frame.filter(~bad).collect_batches(chunk_size=CHUNK)
        remarks = {"skipped": skipped, "complaint": complaint, "notes": notes}
        return collect(path, chunks, self.entry, remarks, implicit=implicit, parse=parse)


@dataclass(frozen=True)
class _Delimited:
    """A delimited file whose format is known. `roles`: the columns that are read."""

    path: Path
    entry: CacheEntry
    form: Format
    roles: dict[str, str]
    implicit: bool

    def read(self, plain: Path, remarks: dict[str, Any]) -> Ratings:
        """Raises Irregular or polars' errors at invalid rows."""
        if _first_rows(plain, self.form) is None:  # to the scan below, what it cannot split is the end
            raise Irregular("the first rows cannot be split")
        schema: dict[str, Any] = dict.fromkeys(self.form.columns, pl.String)
        schema |= {name: pl.Float32 for role, name in self.roles.items() if role in ("rating", "weight")}
        commas: dict[str, Any] = {"decimal_comma": True} if self.form.decimal_comma else {}
        frame = pl.scan_csv(plain, schema=schema, ignore_errors=True, **commas, **_csv_options(self.form))
        chunks = frame.select(pl.col(name).alias(role) for role, name in self.roles.items()).collect_batches(chunk_size=CHUNK)
        return collect(self.path, chunks, self.entry, remarks, implicit=self.implicit, parse=True)

    def read_without_blank_lines(self, plain: Path, notes: tuple[str, ...]) -> Ratings | None:
        """Blank lines, which polars rejects, are often all that is wrong, and need no look at every line. None: not here."""
        with self.entry.temporary_file() as good:
            return self._read_good(good, {"notes": notes}) if without_blank_lines(plain, good) else None

    def _read_good(self, good: IO[bytes], remarks: dict[str, Any]) -> Ratings | None:
        good.flush()
        try:
            return self.read(Path(good.name), remarks)
        except (Irregular, pl.exceptions.PolarsError):
            return None

    def read_valid_lines(self, plain: Path, notes: tuple[str, ...], on_error: str, reason: Exception) -> Ratings:
        """Look at every line: report the first invalid one, or skip them all."""
        complaint = ""
        for number, wrong, text in bad_lines(plain, self.form, self.roles):
            complaint = f"line {number}: {wrong}: {text!r}"
            if on_error == "stop" or number == 1:
                remedy = "" if number == 1 else ", or skip such lines with --on-error skip"
                raise DataError(f"{self.path}, {complaint}; correct it{remedy}") from None
            break
        with self.entry.temporary_file() as good:  # without empty lines, which polars rejects
            skipped = sum(1 for _ in bad_lines(plain, self.form, self.roles, good))
            if (found := self._read_good(good, {"skipped": skipped, "complaint": complaint, "notes": notes})) is None:
                raise DataError(f"{self.path} could not be read: {reason}") from reason
        return found


def _csv_options(form: Format) -> dict[str, Any]:
    return {
        "separator": form.separator,
        "has_header": form.header and not form.renamed,
        "skip_rows": int(form.renamed),
        "quote_char": '"' if form.quoted else None,
    }


def _first_rows(plain: Path, form: Format) -> pl.DataFrame | None:
    """As text; None if they cannot be split."""
    schema: dict[str, Any] = dict.fromkeys(form.columns, pl.String)
    options = _csv_options(form) | {"truncate_ragged_lines": True, "encoding": "utf8-lossy"}
    try:
        return pl.read_csv(plain, n_rows=SNIFFED, schema=schema, **options)
    except pl.exceptions.PolarsError:
        return None


def chosen_frame(chosen: Columns, times: bool) -> list[pl.Expr]:
    """The chosen columns by their roles, with ratings and weights as numbers."""
    return [
        pl.col(name).cast(pl.Float32, strict=False).alias(role) if role in ("rating", "weight") else pl.col(name).alias(role)
        for role, name in chosen.roles.items()
        if times or role != "time"
    ]


def is_sequences(plain: Path) -> bool:
    """Whether the first lines are "user item item …": integers separated by spaces, more on some lines than on others."""
    with open(plain, "rb") as file:
        first = file.readline(CHUNK)
        if separator_of(first.decode("utf-8-sig", "replace")) is not None:
            return False
        lines = (first + file.read(CHUNK)).decode("utf-8-sig", "replace").split("\n")
        lines = lines[:-1] if file.read(1) else lines  # the last one may be cut
    rows = [line.split() for line in lines if line.strip()]
    return len({len(row) for row in rows}) > 1 and all(field.isdecimal() for row in rows for field in row)


def sequence_events(plain: Path) -> Iterator[pl.DataFrame]:
    """user, item and time, chunk by chunk; the time is the position in the user's sequence."""
    lines = pl.scan_csv(plain, has_header=False, separator=UNIT, quote_char=None, schema={"line": pl.String})
    fields = pl.col("line").str.extract_all(r"\S+")
    for chunk in lines.select(fields.alias("fields")).collect_batches(chunk_size=LINES, maintain_order=True):
        items = pl.col("fields").list.slice(1)
        times = pl.int_ranges(0, items.list.len()).cast(pl.List(pl.Float64))
        users = pl.col("fields").list.first()
        rows = chunk.filter(pl.col("fields").list.len() > 1)
        yield rows.select(users.alias("user"), items.alias("item"), times.alias("time")).explode("item", "time")
