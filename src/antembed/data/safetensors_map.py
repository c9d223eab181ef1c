"""Tensors of a safetensors file, mapped: also of types that NumPy does not know, and to be copied byte by byte."""

import json
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from antembed.data.text_file import DataError
from antembed.files import JSON

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U64": "<u8", "U32": "<u4"}
SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}  # others: 1


@dataclass(frozen=True)
class Tensor:
    """A tensor in a safetensors file."""

    name: str
    dtype: str
    shape: list[int]
    data: np.ndarray  # its bytes, mapped

    def array(self, file: Path) -> np.ndarray:
        """Its numbers, as NumPy has them."""
        if self.dtype == "BF16":  # the upper half of a float32
            return (self.data.view("<u2").astype("<u4") << 16).view("<f4").reshape(self.shape)
        if self.dtype not in DTYPES:
            raise DataError(f"{file}: {self.name} is of type {self.dtype}; a table has one of BF16, {', '.join(DTYPES)}")
        return self.data.view(DTYPES[self.dtype]).reshape(self.shape)


def read_safetensors(file: Path) -> tuple[list[Tensor], JSON]:
    """The tensors of a file, mapped, and its metadata."""
    try:
        with safe_open(file, framework="np"):  # checks that the header fits the file
            pass
    except SafetensorError as error:
        raise DataError(f"{file} is no safetensors file ({error}); download it again") from error
    with file.open("rb") as opened:
        mapped = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    start = 8 + int.from_bytes(mapped[:8].tobytes(), "little")
    header = json.loads(mapped[8:start].tobytes())
    about = header.pop("__metadata__", {})
    spans = {name: slice(*(start + at for at in entry["data_offsets"])) for name, entry in header.items()}
    return [Tensor(name, entry["dtype"], entry["shape"], mapped[spans[name]]) for name, entry in header.items()], about


def safetensors_chunks(tensors: Iterable[Tensor], about: JSON) -> Iterator[bytes | memoryview]:
    """The bytes of a file. Wide numbers come first, so that all are aligned."""
    ordered = sorted(tensors, key=lambda tensor: -SIZES.get(tensor.dtype, 1))
    header: JSON = {"__metadata__": about} if about else {}
    at = 0
    for tensor in ordered:
        end = at + len(tensor.data)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in ordered:
        yield tensor.data.data
