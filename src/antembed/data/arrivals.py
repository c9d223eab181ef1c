"""Ratings as they come: a file of any length, or standard input, in batches; nothing but a batch and the labels is kept.

Labels get numbers in the order of their appearance. A record is a line: a quoted field may not go on over lines here.
"""

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.data.ratings import NAMES, Labels, choose
from antembed.data.text import DataError, Format, format_of, unpacked, what_is_wrong

Batch = tuple[np.ndarray, ...]  # users, items, values, and weights if there are any


class Arrivals:
    """Iterate over batches of at most `batch_size` ratings. `source`: a file, or "-" for standard input."""

    def __init__(self, source: str | Path, columns: Sequence[str] | None = None, *, batch_size: int):
        if batch_size < 1:
            raise ValueError(f"batch_size must be ≥ 1, got {batch_size}")
        self.source, self.columns, self.batch_size = Path(source), columns, batch_size
        self.users, self.items = Labels(), Labels()
        self.batches = 0  # given out, or skipped

    def go_on(self, batches: int, users: pl.Series, items: pl.Series) -> None:
        """Skip what has been learned: so many batches, in which these labels came up."""
        self.batches = batches
        self.users.number(users)
        self.items.number(items)

    def __iter__(self) -> Iterator[Batch]:
        if str(self.source) == "-":
            yield from self._text(sys.stdin.buffer)
            return
        if not self.source.is_file():
            raise DataError(f"{self.source} is no file; give a ratings file, or - for standard input")
        if self.source.suffix == ".parquet":
            yield from self._parquet()
            return
        with open(self.source, "rb") as file:
            yield from self._text(file)

    def _parquet(self) -> Iterator[Batch]:
        frame = pl.scan_parquet(self.source)
        chosen = choose(self.source, frame.collect_schema().names(), self.columns)
        casts = pl.col(chosen[:2]).cast(pl.String), pl.col(chosen[2:]).cast(pl.Float32, strict=False)
        pieces = frame.select(*casts).collect_batches(chunk_size=self.batch_size, maintain_order=True)
        waiting: list[pl.DataFrame] = []
        number = 0
        for piece in pieces:
            waiting.append(piece)
            while sum(map(len, waiting)) >= self.batch_size:
                joined = pl.concat(waiting)
                waiting = [joined.slice(self.batch_size)]
                number += 1
                if number > self.batches:
                    yield self._batch(joined.head(self.batch_size), f"batch {number}")
        if waiting and sum(map(len, waiting)) and number >= self.batches:
            yield self._batch(pl.concat(waiting), f"batch {number + 1}")

    def _text(self, file: Any) -> Iterator[Batch]:
        pieces, _ = unpacked(self.source, file)
        lines = _lines(pieces)
        first = next(lines, b"")
        form = format_of(self.source, first, {name for names in NAMES.values() for name in names} | set(self.columns or ()))
        chosen = choose(self.source, form.columns, self.columns)
        line, held = 1 + form.header, [] if form.header else [first]
        for number, block in enumerate(_blocks(held, lines, self.batch_size), 1):
            if number > self.batches:
                yield self._batch(self._parse(block, form, chosen, line), f"the batch from line {line} on")
            line += len(block)

    def _parse(self, block: list[bytes], form: Format, chosen: list[str], line: int) -> pl.DataFrame:
        schema: dict[str, Any] = dict.fromkeys(form.columns, pl.String)
        places = [form.columns.index(name) for name in chosen]
        try:
            frame = pl.read_csv(
                io.BytesIO(b"".join(block)),
                schema=schema | dict.fromkeys(chosen[2:], pl.Float32),
                has_header=False,
                separator=form.separator,
                quote_char='"' if form.quoted else None,
            ).select(chosen)
            if len(frame) == len(block) and not sum(frame.null_count().row(0)):
                return frame
        except pl.exceptions.PolarsError:
            pass
        for number, raw in enumerate(block, line):
            wrong = what_is_wrong(raw, form, places) if raw.strip() else "it is empty"
            if wrong is not None:
                raise DataError(
                    f"{self.source}, line {number}: {wrong}: {raw.decode('utf-8', 'replace').strip()[:80]!r}; mend it"
                )
        raise DataError(f"{self.source}: lines {line} to {line + len(block) - 1} could not be read; mend them")

    def _batch(self, frame: pl.DataFrame, where: str) -> Batch:
        user, item, *rest = frame.get_columns()
        if any(column.null_count() for column in (user, item, *rest)) or not all(c.is_finite().all() for c in rest):
            raise DataError(f"{self.source}, {where}: a row is no rating; every row needs a user, an item and a number")
        self.batches += 1
        return self.users.number(user), self.items.number(item), *(column.to_numpy() for column in rest)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines, each with its end."""
    held = b""
    for piece in pieces:
        lines = (held + piece).splitlines(keepends=True)
        held = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        yield from lines
    if held.strip():
        yield held + b"\n"


def _blocks(held: list[bytes], lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    for line in lines:
        held.append(line)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held
