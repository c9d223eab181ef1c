"""What a text file's bytes say of its encoding and of its quotation marks, and the same text as UTF-8 with doubled marks.

A byte order mark decides. Without one, a file is UTF-8; one that is not valid UTF-8 is Windows-1252 if its other bytes are the
usual letters and signs of that encoding, and otherwise damaged.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

UTF8, MARKED, WESTERN = "utf-8", "utf-8-sig", "cp1252"
MARKS = {
    codecs.BOM_UTF8: MARKED,
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it starts with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
TITLES = {
    MARKED: "UTF-8 (byte order mark)",
    "utf-16": "UTF-16 (byte order mark)",
    "utf-32": "UTF-32 (byte order mark)",
    WESTERN: "Windows-1252 (it is not UTF-8)",
}
SEQUENCE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")  # of UTF-8
ASCII = bytes(range(128))
# ÿ and þ are left out: bytes 255 and 254 are a sign of damage.
USUAL = ("àâäáãåæçèéêëìíîïñòóôöõøœùúûüýßšžðÀÂÄÁÃÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÖÕØŒÙÚÛÜÝŠŽ€£¥§°«»‹›–—‘’“”„‚…¡¿ºª·´®©™¹²³¼½¾µ×•\xa0").encode(
    WESTERN
)
# A mark after a backslash that cannot end its field: in a file with doubled marks, it could only stand in an unquoted field.
ESCAPED = re.compile(rb'\\"(?!["\r\n,;\t|]|$)')
OPENED = re.compile(rb'(?:^|[,;\t|\n])"')
DOUBLED = re.compile(rb'[^,;\t|\n"]""[^,;\t|\r\n"]')
PIECE = 1 << 20


@dataclass(frozen=True)
class Dialect:
    """The encoding, by Python's name, and whether a quotation mark inside quotes is written \\" and not doubled."""

    encoding: str = UTF8
    escaped: bool = False

    @property
    def usual(self) -> bool:
        return self.encoding in (UTF8, MARKED) and not self.escaped


def encoding_of(first: bytes) -> str:
    """The encoding that the first bytes of a file speak for."""
    for mark, encoding in MARKS.items():
        if first.startswith(mark):
            return encoding
    try:
        codecs.utf_8_decode(first, "strict", False)  # False: it may end inside a character
    except UnicodeDecodeError:
        return WESTERN if is_western([first]) else UTF8
    return UTF8


def is_western(pieces: Iterable[bytes]) -> bool:
    """Whether bytes that are no UTF-8 are the usual ones of Windows-1252, and hardly any are UTF-8."""
    right = wrong = strange = 0
    for piece in pieces:
        if not piece.isascii():
            others = SEQUENCE.sub(b"", piece).translate(None, ASCII)
            right += len(SEQUENCE.findall(piece))
            wrong += len(others)
            strange += len(others.translate(None, USUAL))
    return wrong > 0 and 10 * strange <= wrong and 10 * right <= wrong


def is_escaped(pieces: Iterable[bytes]) -> bool:
    """Whether marks in quoted fields follow backslashes where they cannot end the field, more often than they are doubled."""
    escaped = doubled = 0
    quoted = False
    for piece in pieces:
        if b'\\"' in piece:
            escaped += len(ESCAPED.findall(piece))
            quoted = quoted or OPENED.search(piece) is not None
        if b'""' in piece:
            doubled += len(DOUBLED.findall(piece.replace(b"\\\\", b"").replace(b'\\"', b"")))
    return quoted and escaped > doubled


def dialect_of_file(plain: Path, escapes: bool = True) -> Dialect:
    """From the whole of a file that could not be read; it takes one more pass. `escapes`: marks may be escaped."""

    def pieces() -> Iterator[bytes]:
        with open(plain, "rb") as file:
            yield from iter(lambda: file.read(PIECE), b"")

    return Dialect(WESTERN if is_western(pieces()) else UTF8, escapes and is_escaped(pieces()))


def as_utf8(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8, without a byte order mark. Raises UnicodeDecodeError."""
    # Five bytes mean nothing in Windows-1252.
    decoder = codecs.getincrementaldecoder(encoding)("replace" if encoding == WESTERN else "strict")
    for piece in pieces:
        yield decoder.decode(piece).encode()
    yield decoder.decode(b"", True).encode()


def with_doubled_marks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same text with "" for \\" and \\ for \\\\."""
    held = b""
    for piece in pieces:
        text = held + piece
        held = b"\\" if (len(text) - len(text.rstrip(b"\\"))) % 2 else b""  # what it escapes follows in the next piece
        text = text[: len(text) - len(held)]
        yield re.sub(rb'\\(["\\])', lambda found: b'""' if found[1] == b'"' else b"\\", text)
    yield held


def assumed(path: Path, dialect: Dialect, separator: str, decimal_comma: bool = False) -> tuple[str, ...]:
    """One line that says what was assumed of a file, or none if it is plain."""
    found = [TITLES[dialect.encoding]] if dialect.encoding in TITLES else []
    found += [f"separator {separator!r}"] if separator == ";" else []
    found += ['quotes escaped as \\"'] if dialect.escaped else []
    found += ["decimal commas"] if decimal_comma else []
    if not found:
        return ()
    return (f"{path}: read as {', '.join(found)}; if that is wrong, convert the file to UTF-8 with commas",)
