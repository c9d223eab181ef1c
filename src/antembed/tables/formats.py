"""A small table → files of other programs, in pieces of rows: never the whole table in memory.

write(Named(load_table("words.ant")), "words.npy")
"""

from collections.abc import Callable
from pathlib import Path

from antembed.tables.formats_arrays import write_npy, write_safetensors
from antembed.tables.formats_named import FormatError, Named, open_named, words_file
from antembed.tables.formats_parquet import write_parquet
from antembed.tables.formats_text import write_glove, write_projector, write_word2vec
from antembed.tables.onnx import write_onnx

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
