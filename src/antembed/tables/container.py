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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from antembed.files import JSON

if TYPE_CHECKING:  # Python 3.12 has it in collections.abc
    from typing_extensions import Buffer

FORMAT, VERSION = "antembed-table", 6  # 1 to 5 had no checksums
START = b'{"__metadata__":{"crc32":"'
DIGITS = 8  # of a checksum
LONGEST_HEADER = 1 << 20  # bytes; more is damage
LARGEST_DIMENSION = 1 << 40  # more is damage
VERIFIED = 1 << 26  # files of up to so many bytes are verified when they are opened
SMALL_ARRAY = 1 << 20  # and, in larger ones, arrays of up to so many
DTYPES = {name: np.dtype(kind) for name, kind in {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "u1",
}.items()}  # fmt: skip
NAMES = {kind: name for name, kind in DTYPES.items()}


class TableError(ValueError):
    """A file that is no table, a damaged one, or one that this version cannot read."""


class DamagedError(TableError):
    """Contents that no writer has written."""


def checksum(parts: "Iterable[Buffer]") -> str:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return f"{found:0{DIGITS}x}"


@dataclass(frozen=True)
class Contents:
    """What a file holds. `verified`: the checksums of all arrays were compared, if it has any (`checksums`)."""

    arrays: dict[str, np.ndarray]
    about: JSON
    size: int
    verified: bool
    checksums: bool


class Stream(Protocol):
    """A matrix that is written block by block, twice: for its checksum, and for its bytes (number_formats.Nonzeros)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def nbytes(self) -> int: ...

    def blocks(self) -> Iterator[np.ndarray]: ...


def pack(arrays: Mapping[str, np.ndarray | Stream], about: JSON) -> bytes:
    """Arrays and facts → the bytes of a file; the same ones each time."""
    return b"".join(parts(arrays, about))


def parts(arrays: Mapping[str, np.ndarray | Stream], about: JSON) -> "Iterator[Buffer]":
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
            full = np.ascontiguousarray(block)
            yield full.astype(full.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


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
    arrays, end = {}, start
    for first, last, name, dtype, shape in sorted(_entry(*each) for each in header.items()):
        size = prod(shape)
        if first != end - start or last - first != dtype.itemsize * size:
            at = f"bytes {first} to {last}, expected {end - start} to {end - start + dtype.itemsize * size}"
            raise DamagedError(f"{name!r} of shape {shape} is at {at}")
        end = start + last
        if end > len(data):
            raise DamagedError(f"{name!r} ends at byte {end} of a file of {len(data)} bytes")
        arrays[name] = np.frombuffer(data, dtype, size, end - dtype.itemsize * size if size else 0).reshape(shape)
    if end != len(data):
        raise DamagedError(f"its arrays end at byte {end} of a file of {len(data)} bytes")
    return arrays


def _entry(name: str, found: object) -> tuple[int, int, str, np.dtype, list[int]]:
    """Of an array in the header: where it begins and ends, its name, type and shape."""
    if isinstance(found, dict) and set(found) == {"dtype", "shape", "data_offsets"}:
        dtype, shape, span = found["dtype"], found["shape"], found["data_offsets"]
        known = isinstance(dtype, str) and dtype in DTYPES
        if known and _are_integers(shape) and _are_integers(span) and len(span) == 2:
            return span[0], span[1], name, DTYPES[dtype], shape
    raise DamagedError(f"its header says of {name!r}: {str(found)[:80]}")


def _are_integers(numbers: object) -> bool:
    if not isinstance(numbers, list) or len(numbers) > 4:
        return False
    return all(type(n) is int and 0 <= n <= LARGEST_DIMENSION for n in numbers)


# Other safetensors files that go with a table: checkpoints, other weights, what users have rated. `crc32` in the metadata has
# eight hexadecimal digits for everything that is no array (facts, names, types, shapes), then eight for each array, by name.
# Files of older versions have none, and are read without.
KEY, FACTS = "crc32", "antembed"
Kinds = Mapping[str, tuple[str, list[int]]]  # of arrays by name: safetensors' type, and shape


def describe(facts: str, kinds: Kinds) -> str:
    """The checksum of all that is no array."""
    return checksum([json.dumps([facts, sorted((name, *kind) for name, kind in kinds.items())]).encode()])


def expected(metadata: Mapping[str, str], kinds: Kinds) -> dict[str, str] | None:
    """The arrays' checksums by name, once that of the rest is right; None: a file of an older version."""
    if unknown := metadata.keys() - {KEY, FACTS, "format"}:
        raise DamagedError(f"its metadata has {min(unknown)!r}, which is unknown here")
    if KEY not in metadata:
        return None
    sums = metadata[KEY]
    if len(sums) != DIGITS * (1 + len(kinds)):
        raise DamagedError(f"it has {len(sums)} digits of checksums, and {len(kinds)} arrays")
    if sums[:DIGITS] != (found := describe(metadata.get(FACTS, ""), kinds)):
        raise DamagedError(f"the checksum of its header is {found}, expected {sums[:DIGITS]}")
    return {name: sums[n * DIGITS : (n + 1) * DIGITS] for n, name in enumerate(sorted(kinds), 1)}


def compare(name: str, found: str, sums: Mapping[str, str] | None) -> None:
    """Raise if an array's checksum is another one."""
    if sums is not None and found != sums[name]:
        raise DamagedError(f"the checksum of {name!r} is {found}, expected {sums[name]}")


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The contents of a safetensors file with checksums."""
    import safetensors.numpy

    full = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    kinds = {name: (NAMES[array.dtype], list(array.shape)) for name, array in full.items()}
    sums = "".join(checksum([array.reshape(-1).view(np.uint8).data]) for array in full.values())
    return safetensors.numpy.save(full, {KEY: describe("", kinds) + sums})


def read_arrays(path: str, prefix: str = "", without: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Those arrays of a file whose names begin with `prefix` and with none of `without`; their checksums are compared."""
    import safetensors

    with safetensors.safe_open(path, framework="np") as file:
        names = sorted(file.keys())
        slices = {name: file.get_slice(name) for name in names}
        kinds = {name: (part.get_dtype(), list(part.get_shape())) for name, part in slices.items()}
        sums = expected(file.metadata() or {}, kinds)
        chosen = [name for name in names if name.startswith(prefix) and not (without and name.startswith(without))]
        arrays = {name: file.get_tensor(name) for name in chosen}
    for name, array in arrays.items():
        compare(name, checksum([np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]), sums)
    return arrays
