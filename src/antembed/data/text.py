"""Delimited text as it lies on disk: unpacked, its format guessed, its damaged lines found."""

import csv
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

SEPARATORS = (",", "\t", ";", "|")
UNIT = "\x1f"  # stands in for "::", since polars splits at single bytes
PIECE = 1 << 18
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"


class DataError(ValueError):
    """A file that cannot be used as it is; the message says where and what to do."""


@dataclass(frozen=True)
class Format:
    """How a file is to be split. Columns of a file without a header are called column_1, column_2, …"""

    separator: str
    header: bool
    columns: list[str]
    quoted: bool


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(PIECE), b"")


def _unpack(path: Path, pieces: Iterable[bytes], begin: Callable[[], Any]) -> Iterator[bytes]:
    """What was packed, piece by piece. `begin` gives a decompressor, a new one for each member of the file."""
    member = begin()
    try:
        for piece in pieces:
            while piece:
                if member.eof:
                    member = begin()
                yield member.decompress(piece)
                piece = member.unused_data if member.eof else b""
    except Exception as error:  # zlib.error, zstandard.ZstdError
        raise DataError(f"{path} is damaged: it cannot be unpacked ({error}); fetch it again") from error
    if not member.eof:
        raise DataError(f"{path} ends in the middle: {path.stat().st_size} bytes are not all of it; fetch it again")


def _narrow(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same text with UNIT for "::"."""
    held = b""
    for piece in pieces:
        text = held + piece
        held = b":" if text.endswith(b":") and not text.endswith(b"::") else b""
        yield text[: len(text) - len(held)].replace(b"::", UNIT.encode())
    yield held


@contextmanager
def plain_text(path: Path, scratch: Path | None = None) -> Iterator[Path]:
    """The file unpacked and with one-byte separators: itself if it is so already, else a temporary copy in `scratch`."""
    with open(path, "rb") as file:
        magic = file.read(4)
        file.seek(0)
        pieces: Iterable[bytes] = _pieces(file)
        if magic.startswith(ZIP):
            raise DataError(f"{path} is a zip archive, which may hold any number of files; unpack it and give one of them")
        packed = magic.startswith((GZIP, ZSTD))
        if magic.startswith(GZIP):
            pieces = _unpack(path, pieces, lambda: zlib.decompressobj(wbits=31))
        elif magic.startswith(ZSTD):
            from zstandard import ZstdDecompressor

            pieces = _unpack(path, pieces, lambda: ZstdDecompressor().decompressobj())
        pieces = iter(pieces)
        first = next(pieces, b"")
        double = b"::" in first.split(b"\n", 1)[0]
        if not packed and not double:
            yield path
            return
        pieces = _narrow(chain([first], pieces)) if double else chain([first], pieces)
        with TemporaryDirectory(dir=scratch) as folder:
            plain = Path(folder) / "plain"
            with open(plain, "wb") as out:
                out.writelines(pieces)
            yield plain


def guess_format(path: Path, plain: Path) -> Format:
    """Separator and columns, from the first line; `path` is what the user calls the file."""
    with open(plain, "rb") as file:
        line = file.readline(PIECE)
    if not line.strip():
        raise DataError(f"{path} is empty, or begins with an empty line; give a file of users, items and ratings")
    text = line.decode("utf-8-sig", "replace").strip("\r\n")
    separator = UNIT if UNIT in text else max(SEPARATORS, key=text.count)
    if text.count(separator) < 2:
        raise DataError(
            f"{path}: no separator found in its first line {text[:80]!r}; "
            "user, item and rating are separated by '::', a comma, a tab, ';' or '|'"
        )
    fields = _fields(text, separator)
    header = not any(_is_number(field) for field in fields)
    return Format(separator, header, fields if header else [f"column_{n + 1}" for n in range(len(fields))], separator != UNIT)


def bad_lines(plain: Path, form: Format, chosen: list[str], good: BinaryIO | None = None) -> Iterator[tuple[int, str, str]]:
    """Look at every line for itself: → (line from 1, what is wrong, its text). Good ones go to `good`, empty ones nowhere.

    `chosen` are the user, item, rating (and weight) columns.
    """
    places = [form.columns.index(name) for name in chosen]
    with open(plain, "rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            wrong = None if number == 1 and form.header else _what_is_wrong(raw, form, places)
            if wrong is not None:
                yield number, wrong, raw.decode("utf-8", "replace").strip("\r\n").replace(UNIT, "::")[:80]
            elif good is not None:
                good.write(raw)


def _what_is_wrong(raw: bytes, form: Format, places: list[int]) -> str | None:
    try:
        text = raw.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    fields = _fields(text, form.separator)
    if len(fields) != len(form.columns):
        return f"{len(fields)} fields instead of {len(form.columns)}"
    roles = ("user", "item", "rating", "weight")
    for role, place in zip(roles, places, strict=False):
        if not fields[place].strip():
            return f"no {role}"
        if role in roles[2:] and not _is_number(fields[place]):
            return f"the {role} is no number"
    return None


def _fields(text: str, separator: str) -> list[str]:
    return next(csv.reader([text], delimiter=separator)) if '"' in text and separator != UNIT else text.split(separator)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.strip('"')))
    except ValueError:
        return False
