"""The container of a `.ant` file: named arrays, a few facts as JSON, and a checksum of each. docs/format.md describes it.

It is a safetensors file, so that other tools can read it:

    8 bytes      length of the header
    header       JSON: {"__metadata__": {"crc32": …, "antembed-table": facts}, name: {"dtype", "shape", "data_offsets"}, …}
    arrays       one after the other, without gaps, to the end of the file

`crc32` has eight hexadecimal digits for the header (computed with zeros in their place), then eight for each array, by name.
"""

import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from antembed.files import JSON
from antembed.tables.checksums import checksum

if TYPE_CHECKING:  # Python 3.12 has it in collections.abc
    from typing_extensions import Buffer

FORMAT, VERSION = "antembed-table", 6  # 1 to 5 had no checksums
START = b'{"__metadata__":{"crc32":"'
DIGITS = 8  # of a checksum
LONGEST_HEADER = 1 << 20
LARGEST_DIMENSION = 1 << 40
VERIFIED = 1 << 26  # files of up to so many bytes are verified when they are opened
SMALL_ARRAY = 1 << 20  # and, in larger ones, arrays of up to so many
DTYPES = {
    name: np.dtype(kind)
    for name, kind in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BOOL": "?",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
    }.items()
}
NAMES = {kind: name for name, kind in DTYPES.items()}


class TableError(ValueError):
    """A file that is no table, a damaged one, or one that this version cannot read."""


class DamagedError(TableError):
    """Contents that no writer has written."""


@dataclass(frozen=True)
class Contents:
    """What a file holds. `verified`: the checksums of all arrays were compared, if it has any (`checksums`)."""

    arrays: dict[str, np.ndarray]
    about: JSON
    size: int
    verified: bool
    checksums: bool


class Stream(Protocol):
    """A matrix that is written block by block, twice: for its checksum, and for its bytes."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def nbytes(self) -> int: ...

    def blocks(self) -> Iterator[np.ndarray]: ...


def pack(arrays: Mapping[str, np.ndarray | Stream], about: JSON) -> bytes:
    """Arrays and facts → the bytes of a file; the same ones each time."""
    return b"".join(pieces(arrays, about))


def pieces(arrays: Mapping[str, np.ndarray | Stream], about: JSON) -> "Iterator[Buffer]":
    """The same bytes, one piece after the other."""
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that each is aligned
    header: JSON = {"__metadata__": {"crc32": "", FORMAT: json.dumps({**about, "version": VERSION}, separators=(",", ":"))}}
    end = 0
    for name in order:
        span = [end, end := end + arrays[name].nbytes]
        header[name] = {"dtype": NAMES[arrays[name].dtype], "shape": list(arrays[name].shape), "data_offsets": span}
    own = "".join(checksum(_contents(arrays[name])) for name in sorted(arrays))
    header["__metadata__"]["crc32"] = "0" * DIGITS + own
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    text = START + f"{zlib.crc32(text):08x}".encode() + text[len(START) + DIGITS :]
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        yield from _contents(arrays[name])


def _contents(array: np.ndarray | Stream) -> "Iterator[Buffer]":
    """The bytes of an array."""
    for block in [array] if isinstance(array, np.ndarray) else array.blocks():
        if block.size:
            whole = np.ascontiguousarray(block)
            yield whole.astype(whole.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Errors inside get the file's name and a remedy."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{where} is damaged: {error}; copy it again or export it anew") from error
    except TableError as error:
        raise TableError(f"{where} {error}") from error


def map_file(path: Path) -> bytes | mmap.mmap:
    """The bytes of a file: mapped, or read if they are few."""
    if path.is_dir():
        raise TableError("is a folder; give one of its files, FILE.ant")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size > SMALL_ARRAY else file.read()


def unpack(data: bytes | mmap.mmap, verify: bool | None = None) -> Contents:
    """The contents of a file. `verify`: compare the checksums of all arrays, or of none; None: of all in a file of up to 64 MB,
    and of those of up to 1 MB in a larger one. The header's is always compared. Files before version 6 have no checksums."""
    size, length = len(data), int.from_bytes(data[:8], "little")
    if length > LONGEST_HEADER and all(32 <= byte < 127 for byte in data[:8]):
        raise TableError(f"is no antembed table: it begins with {data[:8].decode()!r}; make one with antembed compress")
    if size < 8 or not 0 < length <= min(size - 8, LONGEST_HEADER):
        raise DamagedError(f"a header of {length} bytes in a file of {size} bytes")
    text = data[8 : 8 + length]
    header = _parsed(text)
    metadata = header.pop("__metadata__", None)
    metadata = metadata if isinstance(metadata, dict) else {}
    if not isinstance(metadata.get(FORMAT), str):
        found = ", ".join(map(str, metadata)) or "nothing"
        raise TableError(f"is no antembed table: its header says {found}, expected {FORMAT!r}; write one with antembed.export")
    about = _parsed(metadata[FORMAT])
    version = about.get("version")
    if type(version) is not int or version < 1:
        raise DamagedError(f"its version is {version!r}")
    if version > VERSION:
        raise TableError(f"has table version {version}, this antembed reads up to {VERSION}; upgrade antembed")
    sums = _header_sums(text, metadata, version, len(header))
    arrays = _arrays(data, 8 + length, header)
    everything = verify if verify is not None else size <= VERIFIED
    for name, expected in zip(sorted(arrays), sums, strict=bool(sums)):
        if everything or (verify is None and arrays[name].nbytes <= SMALL_ARRAY):
            found = f"{zlib.crc32(arrays[name].data if arrays[name].size else b''):08x}"
            if found != expected:
                raise DamagedError(f"the checksum of {name!r} is {found}, expected {expected}")
    return Contents(arrays, about, size, everything, bool(sums))


def _parsed(text: bytes | str) -> JSON:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"its header is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise DamagedError(f"its header is a {type(found).__name__}, expected an object")
    return found


def _header_sums(text: bytes, metadata: JSON, version: int, arrays: int) -> list[str]:
    """The checksums of the arrays, once that of the header is right; none before version 6."""
    sums = metadata.get("crc32")
    if sums is None and version < VERSION and not text.startswith(START):
        return []
    if not isinstance(sums, str) or len(sums) != DIGITS * (1 + arrays) or not text.startswith(START):
        raise DamagedError(f"its header lacks checksums of itself and of {arrays} arrays")
    blank = text[: len(START)] + b"0" * DIGITS + text[len(START) + DIGITS :]
    if (found := f"{zlib.crc32(blank):08x}") != sums[:DIGITS]:
        raise DamagedError(f"the checksum of its header is {found}, expected {sums[:DIGITS]}")
    return [sums[at : at + DIGITS] for at in range(DIGITS, len(sums), DIGITS)]


def _arrays(data: bytes | mmap.mmap, start: int, header: JSON) -> dict[str, np.ndarray]:
    """The arrays, not copied. They fill the file to its end, one after the other."""
    entries = sorted((_entry(name, entry) for name, entry in header.items()), key=lambda entry: (entry.first, entry.last))
    arrays, end = {}, start
    for entry in entries:
        size = prod(entry.shape)
        if entry.first != end - start or entry.last - entry.first != entry.dtype.itemsize * size:
            raise DamagedError(
                f"{entry.name!r} of shape {entry.shape} is at bytes {entry.first} to {entry.last}, "
                f"expected {end - start} to {end - start + entry.dtype.itemsize * size}"
            )
        end = start + entry.last
        if end > len(data):
            raise DamagedError(f"{entry.name!r} ends at byte {end} of a file of {len(data)} bytes")
        arrays[entry.name] = np.frombuffer(data, entry.dtype, size, end - entry.dtype.itemsize * size if size else 0)
        arrays[entry.name] = arrays[entry.name].reshape(entry.shape)
    if end != len(data):
        raise DamagedError(f"its arrays end at byte {end} of a file of {len(data)} bytes")
    return arrays


@dataclass(frozen=True)
class Entry:
    """Of an array in the header."""

    name: str
    dtype: np.dtype
    shape: list[int]
    first: int
    last: int


def _entry(name: str, found: object) -> Entry:
    if isinstance(found, dict) and set(found) == {"dtype", "shape", "data_offsets"}:
        dtype, shape, span = found["dtype"], found["shape"], found["data_offsets"]
        known = isinstance(dtype, str) and dtype in DTYPES
        if known and _whole(shape) and _whole(span) and len(span) == 2:
            return Entry(name, DTYPES[dtype], shape, *span)
    raise DamagedError(f"its header says of {name!r}: {str(found)[:80]}")


def _whole(numbers: object) -> bool:
    return (
        isinstance(numbers, list) and len(numbers) <= 4 and all(type(n) is int and 0 <= n <= LARGEST_DIMENSION for n in numbers)
    )
