"""Files with a sequence per line, "user item item …", items in the order of time: as events."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from antembed.data.data_plain import PIECE, UNIT
from antembed.data.delimited import separator_of

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
