"""Checksums of the safetensors files that go with a table: checkpoints, other weights, what users have rated.

`crc32` in the file's metadata has eight hexadecimal digits for everything that is no array (facts, names, types, shapes), then
eight for each array, by name. Files of older versions have none, and are read without.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy

if TYPE_CHECKING:  # Python 3.12 has it in collections.abc
    from typing_extensions import Buffer

KEY, FACTS = "crc32", "antembed"
DIGITS = 8
Kinds = Mapping[str, tuple[str, list[int]]]  # of arrays by name: safetensors' type, and shape
TYPES = {np.dtype(kind): name for kind, name in (("u1", "U8"), ("u2", "U16"), ("u4", "U32"), ("u8", "U64"), ("i1", "I8"),
         ("i2", "I16"), ("i4", "I32"), ("i8", "I64"), ("f2", "F16"), ("f4", "F32"), ("f8", "F64"), ("?", "BOOL"))}  # fmt: skip


class DamagedError(ValueError):
    """A checksum is not what it was."""


def checksum(pieces: "Iterable[Buffer]") -> str:
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
    return f"{found:0{DIGITS}x}"


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
    whole = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    kinds = {name: (TYPES[array.dtype], list(array.shape)) for name, array in whole.items()}
    sums = "".join(checksum([array.reshape(-1).view(np.uint8).data]) for array in whole.values())
    return safetensors.numpy.save(whole, {KEY: describe("", kinds) + sums})


def read_arrays(path: str, prefix: str = "", without: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Those arrays of a file whose names begin with `prefix` and with none of `without`; their checksums are compared."""
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
