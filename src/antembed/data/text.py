"""Delimited text files: decompress them, detect their format, find their invalid lines."""

import csv
import io
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Protocol

import numpy as np

SEPARATORS = (",", "\t", ";", "|")
UNIT = "\x1f"  # replaces "::", since polars splits at single bytes
PIECE = 1 << 18
PARTIAL = ".partial-"  # prefix of temporary files in a cache; those of killed processes are removed (cache.py)
LONGEST = 1000  # lines of one record; a quotation mark still open then was never closed
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"


class Decompressor(Protocol):
    """Of zlib or zstandard."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class DataError(ValueError):
    """A file that cannot be used; the message says where it is wrong and what to do."""


@dataclass(frozen=True)
class Format:
    """How to split a file. Columns of a file without a header are called column_1, column_2, …"""

    separator: str
    header: bool
    columns: list[str]
    quoted: bool
    renamed: bool  # the header has repeated or empty names, replaced in `columns`


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(PIECE), b"")


def _unpack(path: Path, pieces: Iterable[bytes], create: Callable[[], Decompressor]) -> Iterator[bytes]:
    """The decompressed file, piece by piece. `create` returns a new decompressor for each member of the file."""
    member = create()
    try:
        for piece in pieces:
            while piece:
                if member.eof:
                    if not piece.strip(b"\0"):
                        break  # some archivers pad their last block
                    member = create()
                yield member.decompress(piece)
                piece = member.unused_data if member.eof else b""
    except Exception as error:  # zlib.error, zstandard.ZstdError
        raise DataError(f"{path} is damaged: it cannot be decompressed ({error}); download it again") from error
    if not member.eof:
        raise DataError(f"{path} is truncated: {path.stat().st_size} bytes are not all of it; download it again")


def _narrow(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same text with UNIT for "::"."""
    held = b""
    for piece in pieces:
        text = held + piece
        held = b":" if (len(text) - len(text.rstrip(b":"))) % 2 else b""  # the second colon may follow in the next piece
        yield text[: len(text) - len(held)].replace(b"::", UNIT.encode())
    yield held


def unpacked(path: Path, file: BinaryIO) -> tuple[Iterator[bytes], bool]:
    """The file's text, piece by piece, decompressed and with one-byte separators; and whether that differs from the file."""
    magic = file.peek(4)[:4] if isinstance(file, io.BufferedReader) else b""
    pieces: Iterable[bytes] = _pieces(file)
    if magic.startswith(ZIP):
        raise DataError(f"{path} is a zip archive, which may contain several files; unpack it and give one of them")
    packed = magic.startswith((GZIP, ZSTD))
    if magic.startswith(GZIP):
        pieces = _unpack(path, pieces, lambda: zlib.decompressobj(wbits=31))
    elif magic.startswith(ZSTD):
        from zstandard import ZstdDecompressor

        pieces = _unpack(path, pieces, lambda: ZstdDecompressor().decompressobj())
    pieces = iter(pieces)
    first = next((piece for piece in pieces if piece), b"")
    line = first.split(b"\n", 1)[0]
    double = line.count(b"::") >= 2 and all(line.count(separator.encode()) < 2 for separator in SEPARATORS)
    pieces = chain([first], pieces)
    return (_narrow(pieces) if double else pieces), packed or double


@contextmanager
def plain_text(path: Path, scratch: Path | None = None) -> Iterator[Path]:
    """The file decompressed and with one-byte separators: itself if it is plain already, else a temporary copy in `scratch`."""
    with open(path, "rb") as file:
        pieces, changed = unpacked(path, file)
        if not changed:
            yield path
            return
        with TemporaryDirectory(prefix=PARTIAL, dir=scratch) as folder:
            plain = Path(folder) / "plain"
            with open(plain, "wb") as out:
                out.writelines(pieces)
            yield plain


def guess_format(path: Path, plain: Path, known: Collection[str] = ()) -> Format:
    """Separator and columns, from the first line. `path` is used in messages, `known` are usual names of columns."""
    with open(plain, "rb") as file:
        return format_of(path, file.readline(PIECE), known)


def format_of(path: Path, line: bytes, known: Collection[str] = ()) -> Format:
    """The same from the first line itself."""
    if not line.strip():
        raise DataError(f"{path} is empty, or starts with an empty line; give a file of users, items and ratings")
    text = line.decode("utf-8-sig", "replace").strip("\r\n")
    separator = UNIT if UNIT in text else max(SEPARATORS, key=text.count)
    if text.count(separator) < 2:
        raise DataError(
            f"{path}: no separator found in its first line {text[:80]!r}; "
            "separate user, item and rating by '::', a comma, a tab, ';' or '|'"
        )
    fields = split_fields(text, separator)
    header = not any(is_number(field) for field in fields) or any(field.lower() in known for field in fields)
    names = distinct(fields if header else [""] * len(fields))
    return Format(separator, header, names, separator != UNIT, header and names != fields)


def distinct(names: list[str]) -> list[str]:
    """Names without repeats: column_N for an empty name, and the suffix _N for a repeated one."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        name = name or f"column_{number}"
        found.append(name if name not in found else f"{name}_{number}")
    return found


def records(plain: Path, quoted: bool) -> Iterator[tuple[int, bytes]]:
    """(number of the first line from 1, the record): with open quotation marks, a record continues on the next line."""
    with open(plain, "rb") as file:
        lines = enumerate(file, 1)
        waiting: list[tuple[int, bytes]] = []
        for number, line in lines:
            waiting.append((number, line))
            if quoted and sum(part.count(b'"') for _, part in waiting) % 2:
                if len(waiting) < LONGEST:
                    continue
                yield waiting[0]  # never closed: each line is a record
                waiting = waiting[1:]
                while waiting and waiting[0][1].count(b'"') % 2 == 0:
                    yield waiting.pop(0)
                continue
            yield waiting[0][0], b"".join(part for _, part in waiting)
            waiting = []
        yield from waiting


def bad_lines(plain: Path, form: Format, chosen: list[str], good: BinaryIO | None = None) -> Iterator[tuple[int, str, str]]:
    """Check every record; → (line from 1, what is wrong, its text). Valid ones are written to `good`, empty ones skipped.

    `chosen` are the user, item, rating (and weight) columns.
    """
    indices = [form.columns.index(name) for name in chosen]
    for number, raw in records(plain, form.quoted):
        if not raw.strip():
            continue
        wrong = None if number == 1 and form.header else what_is_wrong(raw, form, indices)
        if wrong is not None:
            yield number, wrong, raw.decode("utf-8", "replace").strip("\r\n").replace(UNIT, "::")[:80]
        elif good is not None:
            good.write(raw)


def what_is_wrong(raw: bytes, form: Format, indices: list[int]) -> str | None:
    """A message if the record is invalid. `indices` are the columns of user, item, rating and weight."""
    try:
        text = raw.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    if form.quoted and text.count('"') % 2:
        return "a quotation mark is not closed"
    try:
        fields = split_fields(text, form.separator)
    except csv.Error as error:
        return f"it cannot be split ({error})"
    if len(fields) <= max(indices, default=-1) or len(fields) > len(form.columns):
        return f"{len(fields)} fields instead of {len(form.columns)}"
    roles = ("user", "item", "rating", "weight")
    for role, index in zip(roles, indices, strict=False):
        if not fields[index]:
            return f"no {role}"
        if role in roles[2:] and not is_number(fields[index]):
            return f"the {role} is no number"
    return None


def split_fields(text: str, separator: str) -> list[str]:
    if '"' not in text or separator == UNIT:
        return text.split(separator)
    csv.field_size_limit(2**31 - 1)
    return next(csv.reader(text.splitlines(keepends=True), delimiter=separator))


def is_number(text: str) -> bool:
    """Whether the text is a finite number in single precision."""
    with np.errstate(over="ignore"):
        return PLAIN.fullmatch(text) is not None and bool(np.isfinite(np.float32(text)))
