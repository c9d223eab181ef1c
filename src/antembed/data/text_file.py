"""Any text file as plain text: decompressed, in UTF-8, with doubled quotation marks and separators of one byte.

A byte order mark says which encoding it is. Without one, a file is UTF-8; one that is not valid UTF-8 is Windows-1252 if its
other bytes are the usual letters and signs of that encoding, and otherwise damaged.
"""

import codecs
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

SEPARATORS = (",", "\t", ";", "|")
UNIT = "\x1f"  # replaces "::", since polars splits at single bytes
CHUNK = 1 << 18  # bytes read at a time
PARTIAL = ".partial-"  # prefix of temporary files in a cache; those of killed processes are removed (cache.py)
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
LIKE_ZLIB = (b"x\x01", b"x^", b"x\x9c", b"x\xda")  # polars would decompress text that begins so, as "x^2"
UTF8, UTF8_BOM, WESTERN = "utf-8", "utf-8-sig", "cp1252"
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: UTF8_BOM,
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it starts with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
SEQUENCE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")  # of UTF-8
ASCII = bytes(range(128))
# Letters and signs of Windows-1252. ÿ and þ are left out: bytes 255 and 254 are a sign of damage.
USUAL = "àâäáãåæçèéêëìíîïñòóôöõøœùúûüýßšžðÀÂÄÁÃÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÖÕØŒÙÚÛÜÝŠŽ€£¥§°«»‹›–—‘’“”„‚…¡¿ºª·´®©™¹²³¼½¾µ×•\xa0".encode(
    WESTERN
)
# A mark after a backslash that cannot end its field: in a file with doubled marks, it could only stand in an unquoted field.
ESCAPED = re.compile(rb'\\"(?!["\r\n,;\t|]|$)')
OPENED = re.compile(rb'(?:^|[,;\t|\n])"')
DOUBLED = re.compile(rb'[^,;\t|\n"]""[^,;\t|\r\n"]')


class DataError(ValueError):
    """A file that cannot be used; the message says where it is wrong and what to do."""


def check_unicode(values: Iterable[object], role: str, first: int = 0) -> None:
    """Refuse lone surrogates (halves of a character): UTF-8 has no bytes for them. `first`: the row of the first value."""
    for row, value in enumerate(values, first):
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            text, at = error.object, error.start
            found = f"{role} {row} has a lone surrogate, {text[at]!a}, as character {at + 1} of {text[:40]!a}, which is no"
            remedy = "read its source with the right encoding, or replace it: text.encode('utf-8', 'replace').decode()"
            raise DataError(f"{found} Unicode text; {remedy}") from None


@dataclass(frozen=True)
class Dialect:
    """The encoding, by Python's name, and whether a quotation mark inside quotes is written \\" and not doubled."""

    encoding: str = UTF8
    escaped: bool = False

    @property
    def usual(self) -> bool:
        return self.encoding in (UTF8, UTF8_BOM) and not self.escaped


def assumed(path: Path, dialect: Dialect, separator: str, decimal_comma: bool = False) -> tuple[str, ...]:
    """One line that says what was assumed of a file, or none if it is plain."""
    marked = f"{dialect.encoding.removesuffix('-sig').upper()} (byte order mark)"
    found = ["Windows-1252 (it is not UTF-8)" if dialect.encoding == WESTERN else marked] if dialect.encoding != UTF8 else []
    found += [f"separator {separator!r}"] if separator == ";" else []
    found += ['quotes escaped as \\"'] if dialect.escaped else []
    found += ["decimal commas"] if decimal_comma else []
    read = f"{path}: read as {', '.join(found)}; if that is wrong, convert the file to UTF-8 with commas"
    return (read,) if found else ()


def encoding_of(first: bytes) -> str:
    """The encoding that the first bytes of a file speak for."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if first.startswith(mark):
            return encoding
    try:
        codecs.utf_8_decode(first, "strict", False)  # False: it may end inside a character
    except UnicodeDecodeError:
        return WESTERN if is_western([first]) else UTF8
    return UTF8


def is_western(chunks: Iterable[bytes]) -> bool:
    """Whether bytes that are no UTF-8 are the usual ones of Windows-1252, and hardly any are UTF-8."""
    right = wrong = strange = 0
    for chunk in chunks:
        if not chunk.isascii():
            others = SEQUENCE.sub(b"", chunk).translate(None, ASCII)
            right += len(SEQUENCE.findall(chunk))
            wrong += len(others)
            strange += len(others.translate(None, USUAL))
    return wrong > 0 and 10 * strange <= wrong and 10 * right <= wrong


def is_escaped(chunks: Iterable[bytes]) -> bool:
    """Whether marks in quoted fields follow backslashes where they cannot end the field, more often than they are doubled."""
    escaped = doubled = 0
    quoted = False
    for chunk in chunks:
        if b'\\"' in chunk:
            escaped += len(ESCAPED.findall(chunk))
            quoted = quoted or OPENED.search(chunk) is not None
        if b'""' in chunk:
            doubled += len(DOUBLED.findall(chunk.replace(b"\\\\", b"").replace(b'\\"', b"")))
    return quoted and escaped > doubled


def dialect_of_file(plain: Path, escapes: bool = True) -> Dialect:
    """From all of a file that could not be read: one more pass. `escapes`: marks may be escaped."""
    with open(plain, "rb") as file:
        encoding = WESTERN if is_western(_chunks(file)) else UTF8
        file.seek(0)
        return Dialect(encoding, escapes and is_escaped(_chunks(file)))


def decompressed(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file, chunk by chunk, unpacked if it is .gz or .zst by its first bytes."""
    magic = _magic(file)
    if magic.startswith(ZIP):
        raise DataError(f"{path} is a zip archive, which may contain several files; unpack it and give one of them")
    if magic.startswith(GZIP):
        return _unpack(path, _chunks(file), lambda: zlib.decompressobj(wbits=31))
    if magic.startswith(ZSTD):
        from zstandard import ZstdDecompressor

        return _unpack(path, _chunks(file), lambda: ZstdDecompressor().decompressobj())
    return _chunks(file)


def _magic(file: BinaryIO) -> bytes:
    return file.peek(4)[:4] if isinstance(file, io.BufferedReader) else b""


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK), b"")


def _unpack(path: Path, chunks: Iterable[bytes], create: Callable[[], Any]) -> Iterator[bytes]:
    """The decompressed file. `create` returns a new decompressor for each member; unlike file objects, it shows a cut end."""
    member = create()
    try:
        for chunk in chunks:
            while chunk:
                if member.eof:
                    if not chunk.strip(b"\0"):
                        break  # some archivers pad their last block
                    member = create()
                yield member.decompress(chunk)
                chunk = member.unused_data if member.eof else b""
    except Exception as error:  # zlib.error, zstandard.ZstdError
        raise DataError(f"{path} is damaged: it cannot be decompressed ({error}); download it again") from error
    if not member.eof:
        raise DataError(f"{path} is truncated: {path.stat().st_size} bytes are not all of it; download it again")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, the line without its end) of a UTF-8 file, perhaps compressed; only a chunk of it is in memory."""
    with open(path, "rb") as file:
        chunks = decompressed(path, file)
        first = next(chunks, b"").removeprefix(codecs.BOM_UTF8)
        yield from enumerate(_lines(chain([first], chunks)), 1)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        *lines, held = (held + chunk).split(b"\n")
        yield from lines
    if held:
        yield held


class Converted(NamedTuple):
    """A file's text, chunk by chunk: decompressed, UTF-8, doubled quotation marks, one-byte separators."""

    chunks: Iterator[bytes]
    changed: bool  # whether that differs from the file
    dialect: Dialect  # of the file


def converted(path: Path, file: BinaryIO, dialect: Dialect | None = None, escapes: bool = True) -> Converted:
    """The file's text. The dialect is found in its first chunk, unless it is given. `escapes`: marks may be escaped."""
    changed = _magic(file).startswith((GZIP, ZSTD))
    first, chunks = _first(decompressed(path, file))
    encoding = encoding_of(first) if dialect is None else dialect.encoding
    # Polars skips a byte order mark of UTF-8 in CSV, but not in JSON.
    if encoding not in (UTF8, UTF8_BOM) or (encoding == UTF8_BOM and first[3:4] == b"{"):
        first, chunks = _first(as_utf8(path, chunks, encoding))
        changed = True
    guessed = dialect is None and escapes and b'\\"' in first and first[:1] != b"{" and is_escaped([first])
    if escaped := guessed if dialect is None else dialect.escaped:
        first, chunks = _first(with_doubled_marks(chunks))
    if first.startswith(LIKE_ZLIB):
        chunks, changed = chain([codecs.BOM_UTF8], chunks), True
    line = first.split(b"\n", 1)[0]
    if double := line.count(b"::") >= 2 and all(line.count(separator.encode()) < 2 for separator in SEPARATORS):
        chunks = _replaced(chunks, b":", lambda text: text.replace(b"::", UNIT.encode()))
    return Converted(chunks, changed or double or escaped, Dialect(encoding, escaped))


def _first(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first chunk that is not empty, and all of them."""
    first = next((chunk for chunk in chunks if chunk), b"")
    return first, chain([first], chunks)


def as_utf8(path: Path, chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8, without a byte order mark."""
    errors = "replace" if encoding == WESTERN else "strict"  # five bytes mean nothing in Windows-1252
    try:
        yield from codecs.iterencode(codecs.iterdecode(iter(chunks), encoding, errors), UTF8)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: it starts as {encoding}, but {error.reason}; save it again as UTF-8") from error


def with_doubled_marks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same text with "" for \\" and \\ for \\\\."""
    escaped = re.compile(rb'\\(["\\])')
    return _replaced(chunks, b"\\", lambda text: escaped.sub(lambda found: b'""' if found[1] == b'"' else b"\\", text))


def _replaced(chunks: Iterable[bytes], mark: bytes, replace: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """`replace` applied to each chunk. A last `mark` without a partner waits: what belongs to it follows in the next chunk."""
    held = b""
    for chunk in chunks:
        text = held + chunk
        held = mark if (len(text) - len(text.rstrip(mark))) % 2 else b""
        yield replace(text[: len(text) - len(held)])
    yield held


@contextmanager
def plain_text(
    path: Path, scratch: Path | None = None, dialect: Dialect | None = None, escapes: bool = True
) -> Iterator[tuple[Path, Dialect]]:
    """The file as `converted` gives it, and its dialect: itself if it is plain, else a temporary copy in `scratch`."""
    with open(path, "rb") as file:
        chunks, changed, found = converted(path, file, dialect, escapes)
        if not changed:
            yield path, found
            return
        with TemporaryDirectory(prefix=PARTIAL, dir=scratch) as folder:
            plain = Path(folder) / "plain"
            with open(plain, "wb") as out:
                out.writelines(chunks)
            yield plain, found
