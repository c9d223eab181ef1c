"""A small table → files of other programs, in pieces of rows: never the whole table in memory.

write(Named(load_table("words.ant")), "words.npy")
"""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy

from antembed.files import replacing, write_atomically
from antembed.tables.named_table import FormatError, Named, checked_words, open_named, words_file
from antembed.tables.onnx import write_onnx
from antembed.tables.word2vec_files import SEPARATORS, binary_rows, number_lines, text_rows

# MERGED One array (V, d) in fp32: .npy, and safetensors with the biases beside it.
# Parquet: the columns word (or id), vector, and bias.
# Text files of vectors: GloVe's, word2vec's (also binary), and those of the Embedding Projector.


def _rows(named: Named) -> Iterator[bytes]:
    return (named.table[ids].astype("<f4").tobytes() for ids in named.pieces())


def write_npy(named: Named, out: Path) -> list[Path]:
    """For np.load, also with mmap_mode="r"."""
    head = io.BytesIO()
    npy.write_array_header_2_0(head, {"descr": "<f4", "fortran_order": False, "shape": named.table.shape})

    def contents() -> Iterator[bytes]:
        yield head.getvalue()
        yield from _rows(named)

    write_atomically(out, contents())
    return [out]


def write_safetensors(named: Named, out: Path) -> list[Path]:
    """The tensor "embeddings", as model2vec calls it, and "bias", offset included, if the table has biases."""
    V, d = named.table.shape
    end = 4 * V * d
    about = {"embeddings": {"dtype": "F32", "shape": [V, d], "data_offsets": [0, end]}}
    if named.has_bias:
        about["bias"] = {"dtype": "F32", "shape": [V], "data_offsets": [end, end + 4 * V]}
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)  # the numbers begin at a multiple of 8

    def contents() -> Iterator[bytes]:
        yield len(header).to_bytes(8, "little") + header
        yield from _rows(named)
        if named.has_bias:
            yield named.table.bias_of(np.arange(V)).astype("<f4").tobytes()

    write_atomically(out, contents())
    return [out]


if TYPE_CHECKING:
    import polars as pl
    from polars._typing import PolarsDataType


def write_parquet(named: Named, out: Path) -> list[Path]:
    """For polars, pandas, DuckDB, Spark."""
    import polars as pl
    from polars.io.plugins import register_io_source

    vector = pl.Array(pl.Float32, named.table.embedding_dim)
    label = "id" if named.words is None else "word"
    schema: dict[str, PolarsDataType] = {label: pl.Int64 if named.words is None else pl.String, "vector": vector}
    schema |= {"bias": pl.Float32} if named.has_bias else {}

    def frame(ids: np.ndarray) -> "pl.DataFrame":
        columns = {label: ids if named.words is None else named.names(ids), "vector": named.table[ids]}
        columns |= {"bias": named.table.bias_of(ids)} if named.has_bias else {}
        return pl.DataFrame(columns, schema=schema)

    def frames(columns: object, predicate: object, rows: int | None, batch: int | None) -> "Iterator[pl.DataFrame]":
        return map(frame, named.pieces())  # written whole: nothing is selected

    with replacing(out) as file:
        register_io_source(frames, schema=schema).sink_parquet(file)
    return [out]


def write_glove(named: Named, out: Path) -> list[Path]:
    """A word and its numbers a line; rows without words have their numbers as words. Words may contain spaces, as GloVe's."""
    pieces = named.pieces()
    write_atomically(out, (text_rows(checked_words(named, ids, "\n\r", "glove"), named.table[ids]) for ids in pieces))
    return [out]


def write_word2vec(named: Named, out: Path) -> list[Path]:
    """As GloVe, after a line that says how many; binary if the file is called .bin."""

    def contents() -> Iterator[bytes]:
        yield f"{len(named.table)} {named.table.embedding_dim}\n".encode()
        for ids in named.pieces():
            words = checked_words(named, ids, SEPARATORS, "word2vec")
            yield (binary_rows if out.suffix == ".bin" else text_rows)(words, named.table[ids])

    write_atomically(out, contents())
    return [out]


def write_projector(named: Named, out: Path) -> list[Path]:
    """OUT.tsv with the vectors, OUT.metadata.tsv with the words, for projector.tensorflow.org."""
    labels = out.with_suffix(".metadata.tsv")
    write_atomically(
        out, ("".join(f"{line}\n" for line in number_lines(named.table[ids], "\t")).encode() for ids in named.pieces())
    )
    names = (checked_words(named, ids, "\t\n\r", "projector") for ids in named.pieces())
    write_atomically(labels, ("".join(f"{word}\n" for word in some).encode() for some in names))
    return [out, labels]


__all__ = ["BY_NAME", "FORMATS", "FormatError", "Named", "format_of", "open_named", "write"]

FORMATS: dict[str, Callable[[Named, Path], list[Path]]] = {
    "glove": write_glove,
    "word2vec": write_word2vec,
    "npy": write_npy,
    "parquet": write_parquet,
    "safetensors": write_safetensors,
    "projector": write_projector,
    "onnx": write_onnx,
}
BY_NAME = {".bin": "word2vec", ".tsv": "projector"} | {f".{to}": to for to in ("npy", "parquet", "safetensors", "onnx")}
WITH_BIASES = ("parquet", "safetensors", "onnx")
WITH_WORDS = ("glove", "word2vec", "parquet", "projector")


def format_of(out: Path, to: str | None) -> str:
    """The format: `to`, or what the name of the file says."""
    if to is not None and to not in FORMATS:
        raise FormatError(f"unknown format {to!r}; there are: {', '.join(FORMATS)}")
    found = to or BY_NAME.get(out.suffix)
    if found is None:
        raise FormatError(f"{out.name} does not say which format; say --to {'|'.join(FORMATS)}")
    if BY_NAME.get(out.suffix, found) != found:
        raise FormatError(f"{out.name} is the name of a {BY_NAME[out.suffix]} file, asked for was {found}; choose another name")
    return found


def write(named: Named, out: Path, to: str | None = None) -> tuple[dict[Path, int], list[str]]:
    """Write a table; → the sizes of the files, and remarks on what the format cannot hold."""
    to = format_of(out, to)
    if out.is_dir():
        raise FormatError(f"{out} is a folder; give a file in it")
    if named.values is not None and to != "onnx":
        raise FormatError(f"values {named.values} go with onnx; {to} has fp32 numbers")
    out.parent.mkdir(parents=True, exist_ok=True)
    written, remarks = FORMATS[to](named, out), []
    if named.words is not None and to not in WITH_WORDS:
        written.append(words_file(named, out))
    if named.has_bias and to not in WITH_BIASES:
        remarks.append(f"the biases are left out, {to} has no place for them; {', '.join(WITH_BIASES)} have")
    return {path: path.stat().st_size for path in written}, remarks
