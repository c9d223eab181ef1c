"""A stream of ratings: a file of any length, or standard input, in batches; only a batch and the labels are in memory.

Labels are numbered in the order of their appearance. A record is a line: quoted fields must not contain line ends here.
"""

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from antembed.data.delimited import Format, format_of, is_json_lines, what_is_wrong
from antembed.data.text_file import DataError, assumed, converted
from antembed.recommend.column_roles import Columns, choose_columns, is_header
from antembed.recommend.ratings_table import LabelNumbers, check_magnitude

Batch = tuple[np.ndarray, ...]  # users, items, values, and weights if there are any


class RatingStream:
    """Iterate over batches of at most `batch_size` ratings. `source`: a file, or "-" for standard input."""

    def __init__(self, source: str | Path, columns: Sequence[str] | None = None, *, batch_size: int):
        if batch_size < 1:
            raise ValueError(f"batch_size must be ≥ 1, got {batch_size}")
        self.source, self.columns, self.batch_size = Path(source), columns, batch_size
        if str(source) != "-" and not self.source.is_file():
            raise DataError(f"{self.source} is no file; give a ratings file, or - for standard input")
        self.users, self.items = LabelNumbers(), LabelNumbers()
        self.skipped = 0  # ratings to skip at the start
        self.notes: tuple[str, ...] = ()  # what was assumed of the file, once the first batch is there

    def resume(self, ratings: int, users: pl.Series, items: pl.Series) -> None:
        """Skip `ratings` ratings, which had these labels."""
        self.skipped = ratings
        self.users.number(users)
        self.items.number(items)

    def __iter__(self) -> Iterator[Batch]:
        if str(self.source) == "-":
            yield from self._text(sys.stdin.buffer)
            return
        if self.source.suffix == ".parquet":
            yield from self._parquet()
            return
        with open(self.source, "rb") as file:
            yield from self._text(file)

    def _parquet(self) -> Iterator[Batch]:
        frame = pl.scan_parquet(self.source)
        chosen = self._choose(frame.collect_schema().names())
        casts = pl.col(chosen[:2]).cast(pl.String), pl.col(chosen[2:]).cast(pl.Float32, strict=False)
        wanted = frame.select(*casts).slice(self.skipped)
        start = 0
        while len(batch := wanted.slice(start, self.batch_size).collect()):
            yield self._batch(batch, self.skipped + start + 1)
            start += self.batch_size

    def _text(self, file: BinaryIO) -> Iterator[Batch]:
        chunks, _, dialect = converted(self.source, file)
        lines = _lines(chunks)
        number, first = next(lines, (1, b""))
        if is_json_lines(self.source, first.decode("utf-8-sig", "replace")):
            raise DataError(
                f"{self.source} has JSON lines, and a stream is delimited text or Parquet; leave out --solver online"
            )
        form = format_of(self.source, first, lambda fields: is_header(fields, self.columns))
        self.notes = assumed(self.source, dialect, form.separator)
        chosen = self._choose(form.columns)
        records = lines if form.header else chain([(number, first)], lines)
        rest = islice(records, self.skipped, None)
        while block := list(islice(rest, self.batch_size)):
            yield self._batch(self._parse(block, form, chosen), block[0][0])

    def _choose(self, present: list[str]) -> list[str]:
        """The columns of user, item, rating, and weight if there is one."""
        chosen = replace(choose_columns(self.source, present, self.columns), time=None)
        if chosen.implicit(False):
            raise DataError(
                f"{self.source} has no column of ratings, and a stream needs one; it has: {', '.join(present)}; "
                "pass --columns USER,ITEM,RATING"
            )
        return list(chosen.roles.values())

    def _parse(self, block: list[tuple[int, bytes]], form: Format, chosen: list[str]) -> pl.DataFrame:
        schema: dict[str, Any] = dict.fromkeys(form.columns, pl.String)
        indices = {role: form.columns.index(name) for role, name in Columns(*chosen).roles.items()}
        try:
            frame = pl.read_csv(
                io.BytesIO(b"".join(line for _, line in block)),
                schema=schema | dict.fromkeys(chosen[2:], pl.Float32),
                has_header=False,
                separator=form.separator,
                quote_char='"' if form.quoted else None,
            ).select(chosen)
            if len(frame) == len(block) and not sum(frame.null_count().row(0)):
                return frame
        except pl.exceptions.PolarsError:
            pass
        for number, raw in block:
            if (wrong := what_is_wrong(raw, form, indices)) is not None:
                text = raw.decode("utf-8", "replace").strip()[:80]
                raise DataError(f"{self.source}, line {number}: {wrong}: {text!r}; correct it")
        raise DataError(f"{self.source}: lines {block[0][0]} to {block[-1][0]} could not be read; correct them")

    def _batch(self, frame: pl.DataFrame, row: int) -> Batch:
        (user, item, *rest), source = frame.get_columns(), f"{self.source}, from row {row} on"
        if any(column.null_count() for column in (user, item, *rest)) or not all(c.is_finite().all() for c in rest):
            raise DataError(f"{source}: a row is no rating; every row needs a user, an item and a number")
        check_magnitude(source, rest[0].to_numpy())
        return self.users.number(user), self.items.number(item), *(column.to_numpy() for column in rest)


def _lines(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1; empty lines are skipped, but counted."""
    held, number = b"", 0
    for chunk in chunks:
        lines = (held + chunk).split(b"\n")
        held = lines.pop()
        for line in lines:
            number += 1
            if line.strip():
                yield number, line + b"\n"
    if held.strip():
        yield number + 1, held + b"\n"
