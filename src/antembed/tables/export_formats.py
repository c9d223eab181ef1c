"""A small table → files of other programs, in chunks of rows: never the full table in memory.

write(Named(load_table("words.ant")), "words.npy")
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy

from antembed.files import replacing, write_atomically
from antembed.tables.neighbours import chunks
from antembed.tables.onnx import write_onnx
from antembed.tables.row_labels import label_file, read_series
from antembed.tables.save import load_table
from antembed.tables.table import Table

if TYPE_CHECKING:
    import polars as pl
    from polars._typing import PolarsDataType


@dataclass(frozen=True)
class Named:
    """A table, its words or labels if they are known, and the numbers of an ONNX file: fp32, fp16, int8; None: as the table."""

    table: Table
    words: Sequence[str] | None = None
    values: str | None = None

    def names(self, ids: np.ndarray) -> list[str]:
        """Words of these rows, or their numbers."""
        return [str(n) for n in ids] if self.words is None else [self.words[n] for n in ids]


def open_named(source: Path, table: str | None = None, values: str | None = None) -> Named:
    """FILE.ant; or a folder of a run or an export, whose table is called `table`, with its vocabulary or labels."""
    if not source.is_dir():
        if table is not None:
            raise ValueError(f"--table {table} goes with a folder; {source} is one table")
        opened = load_table(source)
        return Named(opened, None if opened.words is None else opened.words.all(), values)
    names = sorted(path.stem for path in source.glob("*.ant"))
    if not names:
        raise ValueError(f"{source} has no table, NAME.ant; give a finished run, an export, or a file")
    if table is None and len(names) > 1:
        raise ValueError(f"{source} has {len(names)} tables; say which with --table ({', '.join(names)})")
    if table is not None and table not in names:
        raise ValueError(f"table {table!r} is none of: {', '.join(names)}")
    own = table or names[0]
    opened, words = load_table(source / f"{own}.ant"), _labels(source, own)
    if words is not None and len(words) != len(opened):
        raise ValueError(f"{source}: {own}.ant has {len(opened)} rows, but there are {len(words)} labels; export it anew")
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
        raise ValueError(f"row {ids[wrong]} is {found[wrong]!r}, which {to} cannot hold; use parquet")
    return found


def write_words(named: Named, path: Path, forbidden: str, to: str) -> Path:
    """A word a line, beside formats that have numbers only."""
    words = (checked_words(named, ids, forbidden, to) for ids in chunks(len(named.table)))
    write_atomically(path, ("".join(f"{word}\n" for word in some).encode() for some in words))
    return path


NUMBER = "%.9g"  # the same fp32 number when it is read
SEPARATORS = " \n\r"  # which a word cannot have


def number_lines(vectors: np.ndarray, between: str) -> list[str]:
    """The numbers of each vector in a line, without its end."""
    form = between.join([NUMBER] * vectors.shape[1])
    return [form % tuple(row) for row in vectors.tolist()]


def first_unwritable(words: Sequence[str], forbidden: str) -> int | None:
    """The place of the first word that is empty or has a character that the format uses itself."""
    return next((n for n, word in enumerate(words) if not word or any(letter in word for letter in forbidden)), None)


def text_rows(words: Sequence[str], vectors: np.ndarray) -> bytes:
    """A word and its numbers a line."""
    return "".join(f"{word} {line}\n" for word, line in zip(words, number_lines(vectors, " "), strict=True)).encode()


def binary_rows(words: Sequence[str], vectors: np.ndarray) -> bytes:
    """A word, a space, its numbers in fp32, and a line end, as the original program writes it."""
    rows = zip(words, vectors.astype("<f4"), strict=True)
    return b"".join(word.encode() + b" " + vector.tobytes() + b"\n" for word, vector in rows)


def _rows(named: Named) -> Iterator[bytes]:
    return (named.table[ids].astype("<f4").tobytes() for ids in chunks(len(named.table)))


def write_npy(named: Named, out: Path) -> list[Path]:
    """For np.load, also with mmap_mode="r"."""
    head = io.BytesIO()
    npy.write_array_header_2_0(head, {"descr": "<f4", "fortran_order": False, "shape": named.table.shape})
    write_atomically(out, chain([head.getvalue()], _rows(named)))
    return [out]


def write_safetensors(named: Named, out: Path) -> list[Path]:
    """The tensor "embeddings", as model2vec calls it, and "bias", offset included, if the table has biases."""
    V, d = named.table.shape
    end = 4 * V * d
    about = {"embeddings": {"dtype": "F32", "shape": [V, d], "data_offsets": [0, end]}}
    if named.table.has_bias:
        about["bias"] = {"dtype": "F32", "shape": [V], "data_offsets": [end, end + 4 * V]}
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)  # the numbers begin at a multiple of 8
    biases = [named.table.bias_of(np.arange(V)).astype("<f4").tobytes()] if named.table.has_bias else []
    write_atomically(out, chain([len(header).to_bytes(8, "little") + header], _rows(named), biases))
    return [out]


def write_parquet(named: Named, out: Path) -> list[Path]:
    """The columns word (or id), vector, and bias: for polars, pandas, DuckDB, Spark."""
    import polars as pl
    from polars.io.plugins import register_io_source

    vector = pl.Array(pl.Float32, named.table.embedding_dim)
    label = "id" if named.words is None else "word"
    schema: dict[str, PolarsDataType] = {label: pl.Int64 if named.words is None else pl.String, "vector": vector}
    schema |= {"bias": pl.Float32} if named.table.has_bias else {}

    def frame(ids: np.ndarray) -> "pl.DataFrame":
        columns = {label: ids if named.words is None else named.names(ids), "vector": named.table[ids]}
        columns |= {"bias": named.table.bias_of(ids)} if named.table.has_bias else {}
        return pl.DataFrame(columns, schema=schema)

    def frames(columns: object, predicate: object, rows: int | None, batch: int | None) -> "Iterator[pl.DataFrame]":
        return map(frame, chunks(len(named.table)))  # written in full: nothing is selected

    with replacing(out) as file:
        register_io_source(frames, schema=schema).sink_parquet(file)
    return [out]


def write_glove(named: Named, out: Path) -> list[Path]:
    """A word and its numbers a line; rows without words have their numbers as words. Words may contain spaces, as GloVe's."""
    lines = (text_rows(checked_words(named, ids, "\n\r", "glove"), named.table[ids]) for ids in chunks(len(named.table)))
    write_atomically(out, lines)
    return [out]


def write_word2vec(named: Named, out: Path) -> list[Path]:
    """As GloVe, after a line that says how many; binary if the file is called .bin."""
    header = f"{len(named.table)} {named.table.embedding_dim}\n".encode()
    rows = binary_rows if out.suffix == ".bin" else text_rows
    ids = chunks(len(named.table))
    lines = (rows(checked_words(named, some, SEPARATORS, "word2vec"), named.table[some]) for some in ids)
    write_atomically(out, chain([header], lines))
    return [out]


def write_projector(named: Named, out: Path) -> list[Path]:
    """OUT.tsv with the vectors, OUT.metadata.tsv with the words, for projector.tensorflow.org."""
    lines = (number_lines(named.table[ids], "\t") for ids in chunks(len(named.table)))
    write_atomically(out, ("".join(f"{line}\n" for line in some).encode() for some in lines))
    return [out, write_words(named, out.with_suffix(".metadata.tsv"), "\t\n\r", "projector")]


FORMATS: dict[str, Callable[[Named, Path], list[Path]]] = {
    "glove": write_glove, "word2vec": write_word2vec, "npy": write_npy, "parquet": write_parquet,
    "safetensors": write_safetensors, "projector": write_projector,
    "onnx": lambda named, out: write_onnx(named.table, out, named.values),
}  # fmt: skip
BY_NAME = {".bin": "word2vec", ".tsv": "projector"} | {f".{to}": to for to in ("npy", "parquet", "safetensors", "onnx")}
WITH_BIASES = ("parquet", "safetensors", "onnx")
WITH_WORDS = ("glove", "word2vec", "parquet", "projector")


def format_of(out: Path, to: str | None) -> str:
    """The format: `to`, or what the name of the file says."""
    if to is not None and to not in FORMATS:
        raise ValueError(f"unknown format {to!r}; there are: {', '.join(FORMATS)}")
    found = to or BY_NAME.get(out.suffix)
    if found is None:
        raise ValueError(f"{out.name} does not say which format; say --to {'|'.join(FORMATS)}")
    if BY_NAME.get(out.suffix, found) != found:
        raise ValueError(f"{out.name} is the name of a {BY_NAME[out.suffix]} file, asked for was {found}; choose another name")
    return found


def write(named: Named, out: Path, to: str | None = None) -> tuple[dict[Path, int], list[str]]:
    """Write a table; → the sizes of the files, and remarks on what the format cannot hold."""
    to = format_of(out, to)
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give a file in it")
    if named.values is not None and to != "onnx":
        raise ValueError(f"values {named.values} go with onnx; {to} has fp32 numbers")
    out.parent.mkdir(parents=True, exist_ok=True)
    written, remarks = FORMATS[to](named, out), []
    if named.words is not None and to not in WITH_WORDS:
        written.append(write_words(named, out.with_suffix(".words.txt"), "\n\r", "a list of words"))
    if named.table.has_bias and to not in WITH_BIASES:
        remarks.append(f"the biases are left out, {to} has no place for them; {', '.join(WITH_BIASES)} have")
    return {path: path.stat().st_size for path in written}, remarks
