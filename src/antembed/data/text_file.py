"""Any text file as plain text: decompressed, in UTF-8, with doubled quotation marks and separators of one byte."""

import codecs
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple, Protocol

from antembed.data.text_encoding import MARKED, UTF8, Dialect, as_utf8, encoding_of, is_escaped, with_doubled_marks

SEPARATORS = (",", "\t", ";", "|")
UNIT = "\x1f"  # replaces "::", since polars splits at single bytes
PIECE = 1 << 18
PARTIAL = ".partial-"  # prefix of temporary files in a cache; those of killed processes are removed (cache.py)
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
LIKE_ZLIB = (b"x\x01", b"x^", b"x\x9c", b"x\xda")  # text may begin so, as "x^2"


class DataError(ValueError):
    """A file that cannot be used; the message says where it is wrong and what to do."""


def check_unicode(values: Iterable[object], role: str, first: int = 0) -> None:
    """Refuse lone surrogates (halves of a character): UTF-8 has no bytes for them. `first`: the row of the first value."""
    for row, value in enumerate(values, first):
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{role} {row} has a lone surrogate, {error.object[error.start]!a}, as character {error.start + 1} of "
                f"{error.object[:40]!a}, which is no Unicode text; read its source with the right encoding, or "
                "replace it: text.encode('utf-8', 'replace').decode()"
            ) from None


class Decompressor(Protocol):
    """Of zlib or zstandard."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


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


class Converted(NamedTuple):
    """A file's text, piece by piece: decompressed, UTF-8, doubled quotation marks, one-byte separators."""

    pieces: Iterator[bytes]
    changed: bool  # whether that differs from the file
    dialect: Dialect  # of the file


def unpacked(path: Path, file: BinaryIO) -> tuple[Iterator[bytes], bool]:
    """The text of a UTF-8 file, only decompressed and with one-byte separators; and whether that differs from the file."""
    pieces, changed, _ = converted(path, file, Dialect())
    return (piece for piece in pieces if piece != codecs.BOM_UTF8), changed


def _magic(file: BinaryIO) -> bytes:
    return file.peek(4)[:4] if isinstance(file, io.BufferedReader) else b""


def decompressed(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file, piece by piece, unpacked if it is .gz or .zst by its first bytes."""
    magic = _magic(file)
    if magic.startswith(ZIP):
        raise DataError(f"{path} is a zip archive, which may contain several files; unpack it and give one of them")
    if magic.startswith(GZIP):
        return _unpack(path, _pieces(file), lambda: zlib.decompressobj(wbits=31))
    if magic.startswith(ZSTD):
        from zstandard import ZstdDecompressor

        return _unpack(path, _pieces(file), lambda: ZstdDecompressor().decompressobj())
    return _pieces(file)


def converted(path: Path, file: BinaryIO, dialect: Dialect | None = None, escapes: bool = True) -> Converted:
    """The file's text. The dialect is found in its first piece, unless it is given. `escapes`: marks may be escaped."""
    packed = _magic(file).startswith((GZIP, ZSTD))
    first, pieces = _first(decompressed(path, file))
    encoding = encoding_of(first) if dialect is None else dialect.encoding
    # Polars skips a byte order mark of UTF-8 in CSV, but not in JSON.
    if encoding not in (UTF8, MARKED) or (encoding == MARKED and first[3:4] == b"{"):
        first, pieces = _first(_decoded(path, pieces, encoding))
        packed = True
    if dialect is not None:
        escaped = dialect.escaped
    else:
        escaped = escapes and b'\\"' in first and first[:1] != b"{" and is_escaped([first])
    if escaped:
        first, pieces = _first(with_doubled_marks(pieces))
    if first.startswith(LIKE_ZLIB):  # polars would decompress it
        pieces, packed = chain([codecs.BOM_UTF8], pieces), True
    line = first.split(b"\n", 1)[0]
    double = line.count(b"::") >= 2 and all(line.count(separator.encode()) < 2 for separator in SEPARATORS)
    return Converted(_narrow(pieces) if double else pieces, packed or double or escaped, Dialect(encoding, escaped))


def _first(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first piece that is not empty, and all of them."""
    first = next((piece for piece in pieces if piece), b"")
    return first, chain([first], pieces)


def _decoded(path: Path, pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    try:
        yield from as_utf8(pieces, encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: it starts as {encoding}, but {error.reason}; save it again as UTF-8") from error


@contextmanager
def plain_text(
    path: Path, scratch: Path | None = None, dialect: Dialect | None = None, escapes: bool = True
) -> Iterator[tuple[Path, Dialect]]:
    """The file as `converted` gives it, and its dialect: itself if it is plain, else a temporary copy in `scratch`."""
    with open(path, "rb") as file:
        pieces, changed, found = converted(path, file, dialect, escapes)
        if not changed:
            yield path, found
            return
        with TemporaryDirectory(prefix=PARTIAL, dir=scratch) as folder:
            plain = Path(folder) / "plain"
            with open(plain, "wb") as out:
                out.writelines(pieces)
            yield plain, found
