"""A table and the words of its rows, in pieces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.files import write_atomically
from antembed.tables.row_labels import label_file, read_series
from antembed.tables.save import load_table
from antembed.tables.table import Table
from antembed.tables.word2vec_files import first_unwritable

PIECE = 1 << 14  # rows at a time


class FormatError(ValueError):
    """What a format cannot hold, or a source that cannot be written in it."""


@dataclass(frozen=True)
class Named:
    """A table, its words or labels if they are known, and the numbers of an ONNX file: fp32, fp16, int8; None: as the table."""

    table: Table
    words: Sequence[str] | None = None
    values: str | None = None

    @property
    def has_bias(self) -> bool:
        return self.table.bias is not None or self.table.offset != 0

    def pieces(self) -> Iterator[np.ndarray]:
        """All ids, some at a time."""
        for start in range(0, len(self.table), PIECE):
            yield np.arange(start, min(start + PIECE, len(self.table)))

    def names(self, ids: np.ndarray) -> list[str]:
        """Words of these rows, or their numbers."""
        return [str(n) for n in ids] if self.words is None else [self.words[n] for n in ids]


def open_named(source: Path, table: str | None = None, values: str | None = None) -> Named:
    """FILE.ant; or a folder of a run or an export, whose table is called `table`, with its vocabulary or labels."""
    if not source.is_dir():
        if table is not None:
            raise FormatError(f"--table {table} goes with a folder; {source} is one table")
        opened = load_table(source)
        return Named(opened, None if opened.words is None else opened.words.all(), values)
    names = sorted(path.stem for path in source.glob("*.ant"))
    if not names:
        raise FormatError(f"{source} has no table, NAME.ant; give a finished run, an export, or a file")
    if table is None and len(names) > 1:
        raise FormatError(f"{source} has {len(names)} tables; say which with --table ({', '.join(names)})")
    if table is not None and table not in names:
        raise FormatError(f"table {table!r} is none of: {', '.join(names)}")
    own = table or names[0]
    opened, words = load_table(source / f"{own}.ant"), _labels(source, own)
    if words is not None and len(words) != len(opened):
        raise FormatError(f"{source}: {own}.ant has {len(opened)} rows, but there are {len(words)} labels; export it anew")
    return Named(opened, words, values)


def _labels(folder: Path, table: str) -> list[str] | None:
    """Of users, items or words; a column in the order of the rows."""
    import polars as pl

    if label_file(folder, table) is not None:
        return read_series(folder, table).cast(pl.String).to_list()
    file = folder / "vocabulary.parquet"
    return pl.read_parquet(file).to_series(0).cast(pl.String).to_list() if file.is_file() else None


def checked_words(named: Named, ids: np.ndarray, forbidden: str, to: str) -> list[str]:
    """Names of rows; an error names the first with a character that the format uses itself."""
    found = named.names(ids)
    if (wrong := first_unwritable(found, forbidden)) is not None:
        raise FormatError(f"row {ids[wrong]} is {found[wrong]!r}, which {to} cannot hold; use parquet")
    return found


def words_file(named: Named, out: Path) -> Path:
    """OUT's name with .words.txt: a word a line, for formats that have numbers only."""
    path = out.with_suffix(".words.txt")
    lines = ("".join(f"{word}\n" for word in checked_words(named, ids, "\n\r", "a list of words")) for ids in named.pieces())
    write_atomically(path, (text.encode() for text in lines))
    return path
